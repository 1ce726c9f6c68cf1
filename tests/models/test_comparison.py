"""Comparison runs: equal conditions, a stop anywhere costs nothing, a folder holds one comparison; and what a forward pass costs."""

import json
import shutil
from dataclasses import replace
from itertools import product

import pytest
import torch
from filelock import FileLock

import models.comparison as comparison
from models import DecoderConfig, HookedDecoder
from models.comparison import ComparisonPlan, Run, prepare, probes_of, read_finished, read_model, train_all
from models.config import LAYOUTS, MIXERS
from models.corpus import consecutive_windows, encode, split_heldout
from models.cost import counted_multiply_adds, mixer_multiply_adds, multiply_adds

PLAN = ComparisonPlan(
    mixers=("mha", "khe"),
    seeds=2,
    lrs=(3e-3, 6e-3),
    steps=7,
    probe_steps=3,
    batch=2,
    validate_every=3,
    n_layers=1,
    d_model=8,
    n_heads=2,
    n_ctx=8,
    d_vocab=300,
)
TEXT = "\n\n".join(f"No. {n}: the captain met Anne, and Anne wrote to friend {n * n}." for n in range(120))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A comparison that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, train_all(PLAN, TEXT, folder)


def weights(folder, run):
    return read_model(folder, run).state_dict()


class StopHere(Exception):  # noqa: N818
    """What a test stops a run with."""


def test_every_mixer_has_its_runs_at_its_own_best_rate(whole):
    folder, runs = whole
    assert {mixer: [f.run.seed for f in done] for mixer, done in runs.items()} == {"mha": [0, 1], "khe": [0, 1]}
    for mixer, tried in probes_of(PLAN, folder).items():
        assert set(tried) == set(PLAN.lrs)
        assert {f.run.lr for f in runs[mixer]} == {min(tried, key=tried.get)}
    curve = runs["mha"][0].curve
    assert [p.step for p in curve] == [3, 6, 7]
    assert curve[-1].validation_loss < curve[0].validation_loss
    assert runs["mha"][0].tokens_per_cpu_second > 0


def test_picking_and_reported_windows_have_nothing_in_common():
    data = prepare(PLAN, TEXT)
    windows = consecutive_windows(encode(data.tokenizer, split_heldout(TEXT).heldout), PLAN.n_ctx)  # no token is predicted in two of them
    assert len(windows) > 10
    assert (data.picking == windows[::2]).all()
    assert (data.reported == windows[1::2]).all()


def test_all_mixers_see_one_data_order_and_start_from_their_seed(whole):
    folder, runs = whole
    assert not torch.equal(weights(folder, runs["mha"][0].run)["embed.W_E"], weights(folder, runs["mha"][1].run)["embed.W_E"])
    data = prepare(PLAN, TEXT)
    starts = [comparison.fresh_model(PLAN, data, Run(m, 1e-3, 0, 7)).embed.W_E for m in PLAN.mixers]
    assert torch.equal(*starts)


@pytest.mark.parametrize("at", [1, 4, 9, 16, 25])
def test_a_run_stopped_anywhere_ends_bit_for_bit_where_it_would_have(whole, tmp_path, at):
    reference, runs = whole
    seen = []

    def stop(progress):
        seen.append(progress)
        if len(seen) == at:
            raise StopHere

    with pytest.raises(StopHere):
        train_all(PLAN, TEXT, tmp_path, stop)
    resumed = []
    assert train_all(PLAN, TEXT, tmp_path, resumed.append).keys() == runs.keys()
    assert len(seen) + len(resumed) == resumed[-1].total == 2 * 2 * 3 + 2 * 2 * 7  # not one step was done twice
    for done in (f for some in runs.values() for f in some):
        again = read_finished(tmp_path, done.run)
        assert again.curve == done.curve
        one, other = weights(reference, done.run), weights(tmp_path, done.run)
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_after_a_kill_a_run_goes_on_from_its_last_checkpoint(whole, tmp_path, monkeypatch):
    """No handler runs in a killed process: what is there then is the last periodic checkpoint, taken aside here."""
    reference, runs = whole
    monkeypatch.setattr(comparison, "SAVE_EVERY", 2)
    run = runs["khe"][1].run
    before = tmp_path / "before"

    def stop(progress):
        if progress.run == run and progress.done - progress.total + PLAN.steps == 5:
            shutil.copytree(folder, before)
            raise StopHere

    folder = tmp_path / "killed"
    with pytest.raises(StopHere):
        train_all(PLAN, TEXT, folder, stop)
    steps = []
    train_all(PLAN, TEXT, before, lambda p: steps.append(p.done))
    assert len(steps) == PLAN.steps - 4  # the fifth step, after the checkpoint of the fourth, was lost
    assert read_finished(before, run).curve == read_finished(reference, run).curve


def test_a_step_cut_in_the_middle_leaves_the_last_checkpoint_alone(tmp_path, monkeypatch):
    calls = iter(range(100))
    step = comparison.optimisation_step

    def interrupted(*args, **kwargs):
        loss = step(*args, **kwargs)
        if next(calls) == 1:
            raise KeyboardInterrupt  # weights are those of step 2, the curve is that of step 1
        return loss

    monkeypatch.setattr(comparison, "optimisation_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_all(PLAN, TEXT, tmp_path)
    assert not list((tmp_path / "runs").glob("*.safetensors"))


def test_mixers_and_seeds_may_be_added_to_a_folder(whole, tmp_path):
    folder, runs = whole
    shutil.copytree(folder, tmp_path / "more")
    steps = []
    more = train_all(replace(PLAN, mixers=("mha", "khe", "she"), seeds=2), TEXT, tmp_path / "more", lambda p: steps.append(p.run.mixer))
    assert set(steps) == {"she"}
    assert more["mha"] == runs["mha"]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"steps": 8}, "steps=7, this one has 8"), ({"d_model": 16}, "d_model=8"), ({"lrs": (1e-3,)}, "lrs=")],
)
def test_another_plan_does_not_enter_a_comparisons_folder(whole, change, message):
    with pytest.raises(ValueError, match=f"folder: .*holds a comparison with {message}"):
        train_all(replace(PLAN, **change), TEXT, whole[0])
    with pytest.raises(ValueError, match="text_sha256"):
        train_all(PLAN, TEXT + "\n\nOne more.", whole[0])


def test_a_folder_with_something_else_is_refused_untouched(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match=r"folder: .*holds no comparison"):
        train_all(PLAN, TEXT, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_processes_do_not_work_in_one_folder(whole):
    with FileLock(whole[0] / ".lock"), pytest.raises(ValueError, match="another comparison is at work"):
        train_all(PLAN, TEXT, whole[0])


def test_a_damaged_checkpoint_is_named(tmp_path):
    def stop(progress):
        raise StopHere

    with pytest.raises(StopHere):
        train_all(PLAN, TEXT, tmp_path, stop)
    (checkpoint,) = (tmp_path / "runs").glob("*.safetensors")
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(ValueError, match=f"checkpoint .*{checkpoint.name}.* cannot be read .*remove it"):
        train_all(PLAN, TEXT, tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("mixers", ("mha", "shee"), "mixers: unknown 'shee': did you mean"),
        ("mixers", ("mha", "mha"), "each once"),
        ("mixers", (), "at least one"),
        ("seeds", 0, "seeds: must be at least 1"),
        ("seeds", 1001, "seeds: at most"),
        ("lrs", (), "lrs"),
        ("lrs", (-1.0,), "lrs"),
        ("n_heads", 3, "n_heads must divide"),
    ],
)
def test_a_wrong_plan_is_refused(field, value, message):
    with pytest.raises(ValueError, match=message):
        replace(PLAN, **{field: value})


def test_a_text_too_short_is_refused(tmp_path):
    with pytest.raises(ValueError, match="text: too short"):
        train_all(PLAN, "One.\n\nTwo.", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_plan_is_json(whole):
    assert json.loads((whole[0] / "plan.json").read_text())["n_ctx"] == 8


@pytest.mark.parametrize(("mixer", "layout"), list(product([*MIXERS, ("mha", "khe")], LAYOUTS)))
def test_counted_multiply_adds_are_the_formulas(mixer, layout):
    """What `FlopCounterMode` sees of a run, in-place products included, is the formula; a sum over one lag too many would show."""
    config = DecoderConfig(n_layers=2, d_model=16, n_ctx=12, d_vocab=29, mixer=mixer, layout=layout, mixer_bias=True)
    model = HookedDecoder(config).eval()
    for t in (1, 5, 12):
        assert counted_multiply_adds(model, t) == pytest.approx(multiply_adds(config, t), rel=1e-12)


def test_he_needs_fewer_multiply_adds_than_attention_and_as_many_parameters_at_l_d():
    """[C23b] of HE, as counts."""
    he, mha = (DecoderConfig(n_layers=1, d_model=64, n_ctx=64, d_vocab=29, mixer=m) for m in ("he", "mha"))
    assert mixer_multiply_adds(he, 0, 64) < mixer_multiply_adds(mha, 0, 64)
    counts = [sum(p.numel() for p in HookedDecoder(c).blocks[0].attn.parameters()) for c in (he, mha)]
    assert counts[0] == counts[1]


def test_the_cost_of_an_unknown_mixer_is_refused():
    with pytest.raises(ValueError, match="cost of 'gma' is not known"):
        mixer_multiply_adds(DecoderConfig(n_layers=1, d_model=8, n_ctx=4, d_vocab=9, mixer="gma"), 0, 4)

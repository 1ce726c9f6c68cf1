"""Training: deterministic, one data order for all mixers, nothing held out is ever trained on, a folder complete or absent."""

import json
import math
import random

import numpy as np
import pytest
import torch

from models import HookedDecoder
from models.config import MIXERS
from models.corpus import batch_of_step, consecutive_windows, encode, read_text, split_heldout, train_tokenizer
from models.induction import CHANCE, InductionConfig, repeated_blocks, symbol_tokenizer, train_induction, validation_blocks
from models.training import (
    UNSCORED,
    TrainingConfig,
    check_int,
    check_number,
    learning_rate,
    make_optimizer,
    mean_loss,
    next_tokens,
    train,
    validation_windows,
)

TINY = {"n_layers": 1, "d_model": 8, "n_heads": 2, "n_ctx": 16, "d_vocab": 300, "batch": 4, "steps": 6, "warmup": 2, "validate_every": 3}


def made_up_text(paragraphs=60, seed=0):
    """Paragraphs of a small grammar, no two alike, so that a paragraph can be told from all others."""
    rng = random.Random(seed)
    subjects, verbs, objects = (
        ["Emma", "Mr. Elton", "Anne", "the captain"],
        ["saw", "met", "wrote to"],
        ["a friend", "the house", "Harriet"],
    )
    sentence = lambda: f"{rng.choice(subjects)} {rng.choice(verbs)} {rng.choice(objects)}."  # noqa: E731
    return "\n\n".join(f"No. {index}: " + " ".join(sentence() for _ in range(4)) for index in range(paragraphs))


TEXT = made_up_text()


def losses(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


# ---- the split ----


def test_each_work_gives_its_end_to_the_heldout_part():
    works = [made_up_text(50, seed=1), made_up_text(80, seed=2)]
    corpus = split_heldout("\n\n\n".join(works) + "\n")
    assert corpus.training.count("\n\n\n") == corpus.heldout.count("\n\n\n") == 1
    for work, start, end in zip(works, corpus.training.split("\n\n\n"), corpus.heldout.split("\n\n\n"), strict=True):
        assert start + "\n\n" + end == work  # nothing lost, cut at a paragraph
        assert abs(len(end) / len(work) - 0.08) < 0.02


def test_the_cut_is_the_paragraph_nearest_to_92_percent():
    # 100 characters: wanted is 92; paragraphs begin at 10, 90 and 96.
    text = "a" * 8 + "\n\n" + "b" * 78 + "\n\n" + "c" * 4 + "\n\n" + "d" * 4
    assert split_heldout(text).heldout == "c" * 4 + "\n\n" + "d" * 4


def test_a_work_of_one_paragraph_is_trained_on_whole():
    corpus = split_heldout("A dedication.\n\n\n" + TEXT)
    assert corpus.training.startswith("A dedication.\n\n\nNo. 0")
    assert "dedication" not in corpus.heldout


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "empty"), (" \n\n \n", "empty"), ("one paragraph only", "no two paragraphs"), ("one\n\n\ntwo", "no two paragraphs")],
)
def test_a_text_that_cannot_be_split_is_refused(text, message):
    with pytest.raises(ValueError, match=f"^text: .*{message}"):
        split_heldout(text)


def test_files_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    (tmp_path / "empty").write_text("\n")
    for name, message in (("nowhere", "no file"), ("", "it is a folder"), ("latin", r"not UTF-8 \(byte 3\)"), ("empty", "is empty")):
        with pytest.raises(ValueError, match=message):
            read_text(tmp_path / name)
    (tmp_path / "dos").write_bytes(b"one\r\n\r\ntwo\r\n")
    assert read_text(tmp_path / "dos") == "one\n\ntwo\n"


# ---- the tokenizer ----


def test_every_text_survives_the_tokenizer():
    tokenizer = train_tokenizer(TEXT, 300)
    assert tokenizer.get_vocab_size() == 300
    for text in (TEXT, "naïve 日本\t\x00 \U0001f600", " leading", "\n\n\n"):
        assert tokenizer.decode(encode(tokenizer, text).tolist()) == text


def test_the_tokenizer_learns_from_the_training_part_only(tmp_path):
    # The held-out end is full of a word the training part lacks: were it seen, its pairs would be merged.
    text = TEXT + "\n\n" + "Zyxwvut " * 60
    assert "Zyxwvut" not in split_heldout(text).training
    train(TrainingConfig(mixer="he", **TINY), text, tmp_path / "out")
    tokenizer = HookedDecoder.from_pretrained(tmp_path / "out").tokenizer
    assert len(tokenizer.encode(" Zyxwvut").ids) == 8  # byte by byte
    assert len(train_tokenizer(text, 300).encode(" Zyxwvut").ids) < 8


# ---- the data order ----


def test_an_epoch_visits_every_window_once():
    tokens = np.arange(16 * 13 + 5)
    per_epoch = (len(tokens) - 16) // 16
    batches = [batch_of_step(tokens, n_ctx=16, batch=4, seed=0, step=step) for step in range(2 * per_epoch)]
    rows = np.concatenate(batches)
    assert (np.diff(rows, axis=1) == 1).all()  # each is a stretch of the text as it is
    for epoch in range(8):
        starts = np.sort(rows[epoch * per_epoch : (epoch + 1) * per_epoch, 0])
        assert (np.diff(starts) == 16).all()
    assert len({tuple(rows[epoch * per_epoch : (epoch + 1) * per_epoch, 0]) for epoch in range(8)}) == 8


def test_a_batch_is_a_function_of_seed_and_step():
    tokens = np.arange(2000)
    late = batch_of_step(tokens, n_ctx=16, batch=4, seed=3, step=77)
    for step in range(78):
        again = batch_of_step(tokens, n_ctx=16, batch=4, seed=3, step=step)
    assert (again == late).all()
    assert (batch_of_step(tokens, n_ctx=16, batch=4, seed=4, step=77) != late).any()
    assert (batch_of_step(tokens, n_ctx=16, batch=4, seed=3, step=78) != late).any()


def test_the_last_token_can_be_reached():
    tokens = np.arange(48)  # 2 windows an epoch
    seen = {int(batch_of_step(tokens, n_ctx=16, batch=2, seed=0, step=step).max()) for step in range(200)}
    assert max(seen) == 47


@pytest.fixture
def fed(monkeypatch):
    """The rows fed to the model while it trains (gradients on), and while it is only measured."""
    seen = {True: [], False: []}
    forward = HookedDecoder.forward

    def listening(self, input, *args, **kwargs):
        seen[torch.is_grad_enabled()].append(input.clone())
        return forward(self, input, *args, **kwargs)

    monkeypatch.setattr(HookedDecoder, "forward", listening)
    return seen


def test_the_data_order_is_the_same_for_every_mixer(tmp_path, fed):
    orders = {}
    for mixer in MIXERS:
        fed[True].clear()
        train(TrainingConfig(mixer=mixer, **TINY), TEXT, tmp_path / mixer)
        orders[mixer] = torch.stack(fed[True])
        assert orders[mixer].shape == (6, 4, 16)
        assert (orders[mixer] == orders["mha"]).all()


def test_no_heldout_paragraph_is_ever_trained_on(tmp_path, fed):
    train(TrainingConfig(mixer="he", **TINY | {"steps": 200, "validate_every": 200}), TEXT, tmp_path / "out")
    decode = HookedDecoder.from_pretrained(tmp_path / "out").to_string
    corpus = split_heldout(TEXT)
    heldout = [paragraph[:5] for paragraph in corpus.heldout.split("\n\n")]  # "No. 5"
    numbers = [paragraph.split(":")[0] + ":" for paragraph in corpus.heldout.split("\n\n")]
    trained = [decode(row) for rows in fed[True] for row in rows]
    measured = [decode(row) for rows in fed[False] for row in rows]
    assert heldout
    assert not any(number in row for number in numbers for row in trained)
    assert any(number in row for number in numbers for row in measured)  # the check can see one


# ---- the optimisation ----


def test_same_seed_same_bits_other_seed_other_bits(tmp_path):
    config = TrainingConfig(mixer="ishe", **TINY)
    results = [train(config, TEXT, tmp_path / name) for name in "ab"]
    other = train(TrainingConfig(mixer="ishe", **TINY | {"seed": 1}), TEXT, tmp_path / "c")
    assert results[0].loss == results[1].loss != other.loss
    assert results[0].fingerprint == results[1].fingerprint != other.fingerprint
    first, second = ([{**line, "seconds": 0} for line in losses(tmp_path / name)] for name in "ab")
    assert first == second


def test_the_caller_s_random_state_is_left_alone(tmp_path):
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    train(TrainingConfig(mixer="mha", **TINY), TEXT, tmp_path / "out")
    assert (torch.rand(3) == wanted).all()


@pytest.mark.parametrize("mixer", MIXERS)
def test_learning_lowers_the_loss(tmp_path, mixer):
    steps = []
    result = train(TrainingConfig(mixer=mixer, **TINY | {"steps": 60, "lr": 2e-2}), TEXT, tmp_path / "out", on_step=steps.append)
    assert abs(steps[0].loss - math.log(300)) < 0.5  # at first it knows nothing
    assert result.loss < steps[0].loss - 1


def test_the_log_is_json_lines_and_ends_with_the_last_step(tmp_path):
    reported = []
    config = TrainingConfig(mixer="ihe", **TINY | {"steps": 7})
    result = train(config, TEXT, tmp_path / "out", on_step=reported.append)
    assert [step.step for step in reported] == list(range(1, 8))
    assert [step.step for step in reported if step.validation_loss is not None] == [3, 6, 7]
    assert reported[-1].eta == 0 < reported[0].eta
    lines = losses(tmp_path / "out")
    assert [line["step"] for line in lines] == [3, 6, 7]
    assert all(line.keys() == {"step", "loss", "lr", "validation_loss", "seconds"} for line in lines)
    recipe = json.loads((tmp_path / "out" / "recipe.json").read_text())
    assert recipe["validation"]["loss"] == result.loss
    assert recipe["validation"]["loss_before_rounding_to_storage"] == lines[-1]["validation_loss"]
    assert TrainingConfig(**recipe["training"]) == config


def test_the_recorded_loss_is_that_of_the_stored_model(tmp_path):
    result = train(TrainingConfig(mixer="mha", **TINY | {"lr": 3e-2}), TEXT, tmp_path / "out")
    model = HookedDecoder.from_pretrained(tmp_path / "out")
    windows = validation_windows(encode(model.tokenizer, split_heldout(TEXT).heldout), model.config.n_ctx)
    assert mean_loss(model, next_tokens(windows)) == result.loss
    assert model.fingerprint() == result.fingerprint
    in_training = losses(tmp_path / "out")[-1]["validation_loss"]
    assert 0 < abs(in_training - result.loss) < 1e-3  # float16 rounds, a little


def test_mean_loss_is_the_decoder_s_own_loss_over_all_windows():
    torch.manual_seed(0)
    config = TrainingConfig(mixer="ishe", **TINY)
    model = HookedDecoder(config.decoder_config(300))
    windows = consecutive_windows(np.random.default_rng(0).integers(300, size=6001), 16)  # several forward passes
    each = [
        torch.nn.functional.cross_entropy(model(torch.from_numpy(row[None, :-1]))[0], torch.from_numpy(row[1:])).item() for row in windows
    ]
    assert math.isclose(mean_loss(model, next_tokens(windows)), float(np.mean(each)), rel_tol=1e-6)


def test_decay_is_for_everything_with_two_axes_but_biases():
    model = HookedDecoder(TrainingConfig(mixer="mha", **TINY).decoder_config(300))
    model = HookedDecoder(type(model.config)(**model.config.to_dict() | {"mixer": ("mha",), "mixer_bias": True, "unembed_bias": True}))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed, kept = (
        [names[id(p)].rpartition(".")[2] for p in group["params"]]
        for group in make_optimizer(model, TrainingConfig(mixer="mha")).param_groups
    )
    assert {"W_E", "W_pos", "W_Q", "W_O", "W_in", "W_U"} <= set(decayed)
    assert {"b_Q", "b_O", "b_in", "b_U", "w", "b"} == set(kept) - {"b_K", "b_V", "b_out"}
    assert len(decayed) + len(kept) == len(names)


def test_the_validation_windows_of_a_long_text_are_spread_over_it():
    windows = validation_windows(np.arange(16 * 5000 + 1), 16)
    assert windows.shape == (2048, 17)
    assert windows[0, 0] == 0
    assert windows[-1, -1] == 16 * 5000
    assert len(np.unique(windows[:, 0])) == 2048


@pytest.mark.parametrize("steps", [1, 5, 100])
def test_a_run_shorter_than_its_warm_up_is_fine(steps):
    rates = [learning_rate(TrainingConfig(mixer="he", steps=steps, warmup=100), step) for step in range(steps)]
    assert rates == sorted(rates)
    assert 0 < rates[-1] <= 6e-3


# ---- bad input, interruptions ----


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"mixer": "ishi"}, ValueError, "mixer: unknown 'ishi': did you mean 'ishe'"),
        ({"mixer": "mha", "n_heads": 3}, ValueError, "n_heads"),
        ({"steps": 0}, ValueError, "steps: must be at least 1, got 0"),
        ({"seed": True}, TypeError, "seed: expected an int"),
        ({"n_ctx": 1}, ValueError, "n_ctx: must be at least 2"),
        ({"d_vocab": 100}, ValueError, "d_vocab: must be at least 256"),
        ({"lr": 0.0}, ValueError, "lr: must be finite and above 0"),
        ({"clip": math.inf}, ValueError, "clip: must be finite"),
        ({"weight_decay": -1.0}, ValueError, "weight_decay: must be finite and at least 0"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(change, error, message):
    with pytest.raises(error, match=message):
        TrainingConfig(**{"mixer": "ishe"} | change)


def test_numbers_of_the_wrong_type_are_named():
    # Asked directly: the type checks of the test session would answer first.
    with pytest.raises(TypeError, match=r"^steps: expected an int, got 1\.5$"):
        check_int("steps", 1.5, 1)
    with pytest.raises(TypeError, match=r"^lr: expected a number, got 'fast'$"):
        check_number("lr", "fast", may_be_zero=False)


def test_a_text_too_short_is_refused_before_the_work(tmp_path):
    with pytest.raises(ValueError, match=r"text: too short: its training part has .* 4096 are needed at n_ctx=2048"):
        train(TrainingConfig(mixer="ishe", **TINY | {"n_ctx": 2048}), TEXT[:3000], tmp_path / "out")
    with pytest.raises(ValueError, match=r"text: too short: its held-out 8% has .* 301 are needed"):
        train(TrainingConfig(mixer="ishe", **TINY | {"n_ctx": 300}), TEXT[:3000], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_taken_or_cannot_be_is_refused(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    config = TrainingConfig(mixer="ishe", **TINY)
    for folder in (tmp_path / "taken", tmp_path / "file"):
        with pytest.raises(ValueError, match=r"^folder: .* exists and is not an empty folder; choose another"):
            train(config, TEXT, folder)
    for folder in (tmp_path / "file" / "below", "/proc/nothing/out"):
        with pytest.raises(ValueError, match=r"^folder: cannot write"):
            train(config, TEXT, folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken"]
    (tmp_path / "empty").mkdir()
    assert train(config, TEXT, tmp_path / "empty").folder == tmp_path / "empty"


@pytest.mark.parametrize("where", ["training", "weights", "records"])
def test_an_interrupted_run_leaves_no_half_folder(tmp_path, monkeypatch, where):
    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    if where == "weights":
        monkeypatch.setattr(HookedDecoder, "save_pretrained", interrupt)
    if where == "records":
        monkeypatch.setattr("models.training.write_text", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(TrainingConfig(mixer="ishe", **TINY), TEXT, tmp_path / "deep" / "out", on_step=interrupt if where == "training" else None)
    assert not (tmp_path / "deep" / "out").exists()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_learning_rate_that_blows_up_says_so(tmp_path):
    with pytest.raises(ValueError, match=r"lr: the loss is .* at step"):
        train(TrainingConfig(mixer="she", **TINY | {"lr": 1e30, "warmup": 0}), TEXT, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# ---- repeated blocks ----


def test_repeated_blocks_score_what_the_repeat_makes_certain():
    batch = repeated_blocks(rows=50, n_ctx=32, seed=(0, 0, 0))
    lengths = set()
    for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
        period = next(period for period in range(8, 17) if (inputs[period:] == inputs[:-period]).all())
        lengths.add(period)
        assert (targets[:period] == UNSCORED).all()
        assert (targets[period:-1] == inputs[period + 1 :]).all()
        assert (targets[period:] == inputs[1 : 1 + 32 - period]).all()  # what followed one period ago
    assert lengths == set(range(8, 17))


def test_validation_blocks_are_drawn_by_no_training_step():
    heldout = {tuple(row.tolist()) for row in validation_blocks(32, 0).inputs}
    steps = [repeated_blocks(rows=32, n_ctx=32, seed=(0, 0, step)).inputs for step in range(100)]
    assert not heldout & {tuple(row.tolist()) for rows in steps for row in rows}


def test_symbols_survive_their_tokenizer_and_other_words_are_errors():
    tokenizer = symbol_tokenizer()
    assert tokenizer.get_vocab_size() == 128
    assert tokenizer.decode(tokenizer.encode("p7 a0\nb1").ids) == "p7 a0 b1"
    with pytest.raises(Exception, match="UNK"):
        tokenizer.encode("a0 Emma")


def test_training_on_repeated_blocks_is_reproducible_and_starts_at_chance(tmp_path):
    config = InductionConfig(steps=4, warmup=2, validate_every=2, batch=4, d_model=8, n_heads=2, n_ctx=16)
    steps = []
    first = train_induction(config, tmp_path / "a", on_step=steps.append)
    second = train_induction(config, tmp_path / "b")
    assert first.loss == second.loss
    assert first.fingerprint == second.fingerprint
    assert abs(steps[0].loss - CHANCE) < 0.5
    assert [line["step"] for line in losses(tmp_path / "a")] == [2, 4]
    model = HookedDecoder.from_pretrained(tmp_path / "a")
    assert model.to_str_tokens("a0 p7") == ["a0", "p7"]

"""compare: the same questions to every mixer, statements that can fail, one page."""

import json
import math
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from builders import decoder

from interp import cli
from interp.comparison import (
    compare,
    far_lags_off,
    lags_kept,
    position_losses,
    read_comparison,
    statements,
)
from interp.figures.comparison import SHOWN, comparison, page
from models.comparison import ComparisonPlan

TEXT = "\n\n".join(f"No. {n}: the captain met Anne, and Anne wrote to friend {n * n}." for n in range(160))
PLAN = ComparisonPlan(
    mixers=("mha", "she", "ishe", "he", "ihe"),
    seeds=2,
    lrs=(6e-3,),
    steps=3,
    probe_steps=1,
    batch=2,
    validate_every=2,
    n_layers=1,
    d_model=8,
    n_heads=2,
    n_ctx=8,
    d_vocab=300,
)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    return folder, compare(TEXT, folder, plan=PLAN)


def test_the_result_is_complete_and_survives_its_file(compared):
    folder, result = compared
    assert read_comparison(folder) == result
    assert [r.mixer for r in result.results] == list(PLAN.mixers)
    for r in result.results:
        assert len(r.losses) == len(r.curve) == len(r.by_position) == 2
        assert r.losses[0] == pytest.approx(sum(r.by_position[0]) / 8)
        assert [n for n, _ in r.by_lags] == ([] if r.mixer == "mha" else [8, 4, 2, 1])
        assert {s.site for s in r.slopes} == {"hook_attn_out", "attn.hook_z" if r.mixer == "mha" else "attn.hook_extraction"}
        assert all(len(s.before) == len(s.after) == 2 for s in r.slopes)
    assert result["she"].by_lags[0][1] == pytest.approx(result["she"].losses, rel=1e-6)  # all lags kept is the decoder itself
    assert {s.id for s in result.statements} >= {"she-mha", "ishe-she", "he-mha", "ihe-he", "she-lags"}
    assert len(result.to_dataframe()) == 5
    with pytest.raises(KeyError):
        result["gma"]


def lowered(result, mixer, by):
    """The results with one mixer's losses changed."""
    changed = {mixer: by}
    return [replace(r, losses=tuple(v + d for v, d in zip(r.losses, changed.get(r.mixer, (0, 0)), strict=True))) for r in result.results]


@pytest.mark.parametrize(("by", "verdict"), [((-9.0, -9.001), "supported"), ((9.0, 9.001), "refuted"), ((-9.0, 9.0), "undecided")])
def test_a_statement_is_decided_by_its_interval(compared, by, verdict):
    result = compared[1]
    said = {s.id: s for s in statements(lowered(result, "she", by), lags=8)}
    assert said["she-mha"].verdict == verdict
    a, b = said["she-mha"].differences
    assert said["she-mha"].mean == pytest.approx((a + b) / 2)
    assert said["she-mha"].interval[1] - said["she-mha"].mean == pytest.approx(
        12.7062 * abs(a - b) / 2, rel=1e-4
    )  # Student's t, one degree


def test_he_that_is_not_cheaper_does_not_match_attention(compared):
    """The claim has three halves; a loss alone does not carry it."""
    results = lowered(compared[1], "he", (-9.0, -9.001))
    assert {s.id: s for s in statements(results, lags=8)}["he-mha"].verdict == "supported"
    dear = [replace(r, mixer_multiply_adds=1e9) if r.mixer == "he" else r for r in results]
    assert {s.id: s for s in statements(dear, lags=8)}["he-mha"].verdict == "refuted"
    large = [replace(r, mixer_parameters=10**9) if r.mixer == "he" else r for r in results]
    assert {s.id: s for s in statements(large, lags=8)}["he-mha"].verdict == "refuted"


def test_one_seed_decides_nothing(compared):
    results = [replace(r, losses=r.losses[:1], by_lags=tuple((n, v[:1]) for n, v in r.by_lags)) for r in compared[1].results]
    said = statements(results, lags=8)
    assert {s.verdict for s in said} == {"undecided"}
    assert all(math.isnan(s.interval[0]) for s in said)


@pytest.mark.parametrize("mixer", ["she", "ishe", "kshe", "he", "ihe", "khe"])
@pytest.mark.parametrize("kept", [12, 5, 1])
def test_far_lags_off_is_the_decoder_whose_far_weights_are_zero(mixer, kept):
    """Against zeroed weights, except that the row factor of kshe and khe stays that of the whole kernel; the hooks are gone afterwards."""
    model = decoder(mixer)
    tokens = torch.randint(1, 29, (3, 12), generator=torch.Generator().manual_seed(0))
    whole = model(tokens)
    with far_lags_off(model, kept):
        cut = model(tokens)
    assert torch.equal(model(tokens), whole)
    assert torch.allclose(cut[:, :kept], whole[:, :kept], atol=1e-4)
    if kept < 12:
        assert not torch.allclose(cut[:, kept:], whole[:, kept:], atol=1e-3)
    factors = [block.attn.row_factor(torch.zeros(1, 12, 16)).detach() for block in model.blocks]
    for block, factor in zip(model.blocks, factors, strict=True):
        block.attn.row_factor = lambda x, mask=None, factor=factor: factor[:, : x.shape[1]]
        with torch.no_grad():
            block.attn.lag_weight[kept:] = 0
    torch.testing.assert_close(cut, model(tokens), rtol=1e-4, atol=1e-4)


def test_far_lags_off_leaves_no_hook_after_an_exception():
    model = decoder("ishe")
    with pytest.raises(RuntimeError, match="mine"), far_lags_off(model, 2):
        raise RuntimeError("mine")
    assert all(not block.attn._forward_pre_hooks for block in model.blocks)
    assert all(not point._forward_hooks for point in model.hook_dict.values())


def test_position_losses_are_the_mean_over_windows():
    model = decoder("she")
    windows = torch.randint(1, 29, (70, 9), generator=torch.Generator().manual_seed(0))
    got = position_losses(model, windows)
    logits = model(windows[:, :-1]).log_softmax(-1)
    want = -logits.gather(2, windows[:, 1:, None])[..., 0].mean(0)
    torch.testing.assert_close(got.float(), want.detach(), rtol=1e-5, atol=1e-5)


def test_lags_kept_end_at_one():
    assert lags_kept(3) == [3, 1]


@pytest.mark.parametrize("show", SHOWN)
def test_every_picture_says_what_was_found(compared, show):
    fig = comparison(compared[1], show=show)
    assert "5 mixers, 2 seeds each" in " ".join(fig.layout.meta["subtitle"])
    assert len(fig.data) >= 2
    assert "nan" not in fig.layout.meta["title"]


def test_pictures_refuse_what_they_cannot_draw(compared):
    with pytest.raises(TypeError, match="draws a Comparison"):
        comparison(3)
    with pytest.raises(ValueError, match="show: one of"):
        comparison(compared[1], show="pie")
    attention = replace(compared[1], results=compared[1].results[:1], statements=())
    with pytest.raises(ValueError, match="no Extractor"):
        comparison(attention, show="lags")
    with pytest.raises(ValueError, match="none of the statements"):
        comparison(attention)
    assert "Statements" in page(attention)


def test_the_page_holds_every_number_and_fetches_nothing(compared):
    folder, result = compared
    html = (folder / "comparison.html").read_text()
    assert html == page(result)
    assert "src=" not in html.split("</script>", 1)[1].replace("data-src", "")
    for r in result.results:
        assert f"{r.loss:.4f}" in html
    for s in result.statements:
        assert s.text in html
        assert f"{s.mean:+.4f}" in html


@pytest.mark.parametrize("content", ["[]", "{}", "no json", '{"results": 3, "statements": []}'])
def test_a_file_that_is_no_comparison_is_named(tmp_path, content):
    (tmp_path / "comparison.json").write_text(content)
    with pytest.raises(ValueError, match="comparison: "):
        read_comparison(tmp_path)


def test_the_command_makes_a_page_and_one_json_object(tmp_path, capsys):
    (tmp_path / "text.txt").write_text(TEXT)
    args = ["compare", "--mixers", "he,ihe", "--seeds", "2", "--text", str(tmp_path / "text.txt"), "-o", str(tmp_path / "out"), "--quick"]
    assert cli.main([*args, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [r["mixer"] for r in told["rows"]] == ["he", "ihe"]
    assert {s["id"] for s in told["statements"]} == {"ihe-he", "he-lags", "ihe-lags"}
    assert (tmp_path / "out" / "comparison.html").is_file()
    assert cli.main(args) == 0  # nothing is trained again; the table is for people now
    assert "multiply-adds/token" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--mixers", "mha,shee"], "did you mean"),
        (["--lrs", "0.1,fast"], "--lrs"),
        (["--seeds", "0"], "seeds"),
    ],
)
def test_bad_usage_is_one_line_and_leaves_no_folder(tmp_path, capsys, args, message):
    (tmp_path / "text.txt").write_text(TEXT)
    assert cli.main(["compare", "--text", str(tmp_path / "text.txt"), "-o", str(tmp_path / "out"), *args]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_the_command_goes_on_after_a_signal(tmp_path, how, code):
    (tmp_path / "text.txt").write_text(TEXT)
    args = ["compare", "--mixers", "he", "--seeds", "1", "--text", str(tmp_path / "text.txt"), "-o", str(tmp_path / "out"), "--quick"]
    # A shell's background job ignores SIGINT and hands that down; a person's terminal does not.
    code_run = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from interp.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code_run, *args, "--steps", "600", "--lrs", "0.01"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    checkpoint = tmp_path / "out" / "runs" / "he-lr0.01-seed0-steps600.safetensors"
    deadline = time.monotonic() + 120
    while not checkpoint.is_file() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(how)
    process.communicate(timeout=60)
    assert process.returncode == code
    assert checkpoint.is_file()
    assert not (tmp_path / "out" / "comparison.json").exists()
    again = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=300, check=True)
    assert len(json.loads(again.stdout)["rows"]) == 1
    first = next(line for line in again.stderr.splitlines() if line.startswith("step "))
    assert int(first.split()[1].split("/")[0]) > 100  # it did not begin anew
    assert not checkpoint.exists()


def test_a_result_is_never_replaced_by_less(compared, tmp_path):
    """compare with fewer mixers or seeds in a finished folder once overwrote the whole result with the part."""
    folder, result = compared
    for less in (replace(PLAN, mixers=("mha",)), replace(PLAN, seeds=1)):
        with pytest.raises(ValueError, match=r"folder: .*holds the result of mha, she, ishe, he, ihe with 2 seeds"):
            compare(TEXT, folder, plan=less)
    assert read_comparison(folder) == result


def test_a_damaged_run_is_named(compared, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(compared[0], folder)
    file = next(iter(sorted((folder / "runs").glob("*.json"))))
    file.write_text(file.read_text()[:50])
    with pytest.raises(ValueError, match=rf"folder: .*{file.name}.* cannot be read .*remove it"):
        compare(TEXT, folder, plan=PLAN)


def test_a_short_comparison_says_so_where_its_verdicts_are(compared):
    folder, result = compared
    assert any("first steps of training" in note for note in result.notes)
    assert any("no spread to speak of" in note for note in result.notes)
    assert all(note in (folder / "comparison.html").read_text() for note in result.notes)
    long = replace(result, steps=10**6, seeds=3, results=(), statements=())
    assert long.notes == ()

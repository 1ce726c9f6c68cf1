"""The command line, run in this process: one JSON object, the exit codes, one line for every kind of bad input."""

import dataclasses
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import interp
from interp import analysis, cli, console, huggingface, loading, report
from interp.cli import main

TEXT = "It is a truth universally acknowledged"
COMMANDS = {
    *("models", "convert", "generate", "report", "equivalence", "ledger", "lens", "ablate"),
    *("variance", "verify", "selftest", "train"),
}


@pytest.fixture(autouse=True)
def one_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shipped models are loaded once for all tests of this file."""
    load = loading.load_model

    def cached(name: Any, **options: Any) -> Any:
        key = (name, *options.values())
        if key not in LOADED:
            LOADED[key] = load(name, **options)
        return LOADED[key]

    monkeypatch.setattr(loading, "load_model", cached)


LOADED: dict[Any, Any] = {}


def run_json(argv: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, Any]:
    """The object on stdout, which must hold nothing else."""
    assert main([*argv, "--json"]) == code
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    found = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert isinstance(found, dict)
    return found


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr of a command that ends with 2 and prints nothing else."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("interp: ")
    assert "Traceback" not in err
    return err


# ---- JSON ----


def test_models_lists_what_ships(capsys: pytest.CaptureFixture[str]) -> None:
    rows = run_json(["models"], capsys)["models"]
    assert [row["name"] for row in rows] == interp.list_models()
    assert {"name", "mixer", "n_layers", "d_model", "n_ctx", "d_vocab", "steps", "loss"} <= set(rows[0])
    assert main(["models"]) == 0
    assert "ishe-austen" in capsys.readouterr().out


def test_equivalence_keys_and_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(["equivalence", "ishe-austen", "--text", TEXT], capsys)
    assert {"model", "tokens", "holds", "worst_ratio", "rows"} <= set(found)
    assert found["holds"] is True
    assert found["model"] == "ishe-austen"
    assert "".join(found["tokens"]) == TEXT
    assert all({"layer", "axis", "gap", "bound", "ratio"} <= set(row) for row in found["rows"])
    assert found["worst_ratio"] == max(row["ratio"] for row in found["rows"])


@pytest.mark.parametrize("by", ["component", "head", "source", "head+source", "lag", "neuron"])
def test_ledger_rows_add_up_to_the_total(by: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(["ledger", "--text", TEXT, "--answer", " a", "--against", " the", "--by", by, "--position", "2"], capsys)
    assert {"model", "tokens", "position", "answer", "against", "total", "certificate", "rows"} <= set(found)
    assert (found["position"], found["answer"], found["against"]) == (2, " a", " the")
    assert {"printed", "explained", "rounding", "holds", "checks"} <= set(found["certificate"])
    assert {"name", "gap", "bound", "ratio", "holds", "proved", "where"} <= set(found["certificate"]["checks"][0])
    assert all({"label", "layer", "kind", "value"} <= set(row) for row in found["rows"])
    assert found["rows"][-1]["kind"] == "rounding"
    assert sum(row["value"] for row in found["rows"]) == pytest.approx(found["total"], abs=1e-9)
    model = loading.load_model("ishe-austen", device="cpu", dtype="float32")
    logits, _ = interp.run_with_cache(model, TEXT, "hook_embed")
    a, the = (interp.resolve_answer(model, token) for token in (" a", " the"))
    assert found["total"] == pytest.approx(float(logits[0, 2, a] - logits[0, 2, the]), abs=1e-4)


def test_lens_ends_at_the_models_logit(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(["lens", "--text", TEXT, "--top-k", "3"], capsys)
    assert {"model", "tokens", "position", "answer", "against", "rows", "note"} <= set(found)
    ledger = run_json(["ledger", "--text", TEXT], capsys)
    assert found["rows"][-1]["value"] == pytest.approx(ledger["total"], abs=1e-4)
    assert found["rows"][-1]["top"][0] == found["answer"] == ledger["answer"]
    assert all(len(row["top"]) == 3 for row in found["rows"])
    assert main(["lens", "--text", TEXT]) == 0
    assert "do not add up" in capsys.readouterr().out


def test_ablate_predicts_what_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["ablate", "mha-austen", "--text", TEXT]
    found = run_json([*argv, "--heads", "L1H1,L0H3"], capsys)
    assert found["holds"] is True
    assert len(found["removed"]) == 2
    assert found["direct"] == pytest.approx(found["predicted"], abs=1e-4)
    assert found["baseline"] - found["after"] == pytest.approx(found["total"], abs=1e-9)
    ledger = run_json(["ledger", "mha-austen", "--text", TEXT], capsys)
    rows = {row["label"]: row["value"] for row in ledger["rows"]}
    assert found["predicted"] == pytest.approx(rows["L1H1"] + rows["L0H3"], abs=1e-9)
    everywhere = run_json([*argv, "--sources", "1"], capsys)["predicted"]
    layers = [run_json([*argv, "--sources", f"L{i}:1"], capsys)["predicted"] for i in range(4)]
    assert everywhere == pytest.approx(sum(layers), abs=1e-9)
    assert main([*argv, "--heads", "L1H1", "--how", "mean"]) == 0
    assert "set to mean" in capsys.readouterr().out


def test_variance_keys(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(f"{TEXT}. " * 200)
    found = run_json(["variance", "ishe-austen", "--file", str(file)], capsys)
    assert {"model", "init", "rows"} <= set(found)
    assert found["init"] is False
    assert all({"site", "layer", "slope", "interval", "r2"} <= set(row) for row in found["rows"])
    assert all(len(row["interval"]) == 2 for row in found["rows"])


def test_generate_continues_the_text_and_repeats_itself(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["generate", "ishe-austen", "--text", TEXT, "--new", "5", "--top-k", "10"]
    found = run_json(argv, capsys)
    assert found["text"] == TEXT + "".join(found["new"])
    assert len(found["new"]) == 5
    assert run_json(argv, capsys) == found
    assert run_json([*argv, "--seed", "1"], capsys)["text"] != found["text"]
    assert main(argv) == 0
    assert capsys.readouterr().out == found["text"] + "\n"


def test_greedy_generation_takes_the_models_top_token(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(["generate", "ishe-austen", "--text", TEXT, "--new", "1", "--temperature", "0"], capsys)
    model = loading.load_model("ishe-austen", device="cpu", dtype="float32")
    logits, _ = interp.run_with_cache(model, TEXT, "hook_embed")
    assert found["new"] == [model.tokenizer.decode([int(logits[0, -1].argmax())])]


def test_train_makes_a_folder_that_loads_and_reports_progress_on_stderr(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(f"{TEXT}, {i} times over, by every single man in want of a wife." for i in range(60)))
    argv = ["train", "--mixer", "ishe", "--text", str(corpus), "-o", str(tmp_path / "mine"), "--steps", "3"]
    argv += ["--n-layers", "1", "--d-model", "8", "--n-ctx", "8"]
    assert main([*argv, "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert {"folder", "steps", "loss"} <= set(found)
    assert found["steps"] == 3
    assert "step 3/3: loss" in err
    assert "ETA" in err
    assert interp.load_model(found["folder"]).cfg.n_layers == 1
    assert "is not an empty folder" in refused(argv, capsys)


def test_report_writes_one_file_and_says_what_held(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = tmp_path / "report.html"
    verdicts = (report.Verdict(id="x", what="a sum", holds=True, gap=0.0, bound=1.0, ratio=float("nan")),)

    def write(model: Any, text: Any, *, answer: Any, against: Any, output: Path, spelled: str, on_step: Any) -> report.Report:
        assert (answer, against, spelled) == (" a", None, "ishe-austen")
        on_step(0, 3, "load")
        assert text == TEXT
        output.write_text("<html>")
        return report.Report(path=output, verdicts=verdicts)

    monkeypatch.setattr(report, "report", write)
    found = run_json(["report", "ishe-austen", "--text", TEXT, "--answer", " a", "-o", str(target)], capsys)
    assert found["path"] == str(target)
    assert found["verdicts"][0]["ratio"] is None
    verdicts = (dataclasses.replace(verdicts[0], holds=False),)
    assert main(["report", "--text", TEXT, "--answer", " a", "-o", str(target)]) == 1
    out, err = capsys.readouterr()
    assert "FAILS" in out
    assert "load" in err


def test_numbers_that_json_does_not_know_become_null(capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np
    import torch

    console.emit({"a": float("nan"), "b": [float("-inf"), 1.5], "c": np.float64("nan"), "d": torch.tensor(2.0), "e": Path("/x"), "f": None})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "c": None, "d": 2.0, "e": "/x", "f": None}


# ---- exit codes ----


def test_a_failing_check_ends_with_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    check, account = analysis.equivalence, analysis.ledger

    def broken(*args: Any, **kwargs: Any) -> Any:
        result = check(*args, **kwargs)
        return dataclasses.replace(result, rows=(dataclasses.replace(result.rows[0], ratio=1234.0), *result.rows[1:]))

    def incomplete(*args: Any, **kwargs: Any) -> Any:
        assert kwargs["on_gap"] == "report"
        result = account(*args, **kwargs)
        bad = result.certificate
        first = dataclasses.replace(bad.checks[0], gap=1.0, ratio=99.0, holds=False)
        return dataclasses.replace(result, certificates=(dataclasses.replace(bad, checks=(first, *bad.checks[1:])),))

    monkeypatch.setattr(analysis, "equivalence", broken)
    assert run_json(["equivalence", "--text", TEXT], capsys, code=1)["holds"] is False
    assert main(["equivalence", "--text", TEXT]) == 1
    assert "FAILS" in capsys.readouterr().out
    monkeypatch.setattr(analysis, "ledger", incomplete)
    assert run_json(["ledger", "--text", TEXT], capsys, code=1)["certificate"]["holds"] is False
    assert main(["ledger", "--text", TEXT]) == 1
    assert "WARNING" in capsys.readouterr().out


def test_an_interruption_ends_with_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(loading, "load_model", interrupted)
    assert main(["equivalence", "--text", TEXT]) == 130
    assert capsys.readouterr().err == "interp: interrupted\n"


def test_a_bug_of_ours_is_not_disguised_as_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(loading, "load_model", bug)
    with pytest.raises(ZeroDivisionError):
        main(["equivalence", "--text", TEXT])


def test_the_console_script_ends_with_the_code_and_prints_no_traceback() -> None:
    script = [str(Path(sys.executable).parent / "interp"), "equivalence", "no-such-model", "--text", TEXT, "--json"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "no-such-model" in done.stderr


# ---- bad usage and bad input ----


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["ledger"], "Missing option '--text'"),
        (["ledgr"], "No such command 'ledgr'"),
        (["ledger", "--text", TEXT, "--positon", "1"], "No such option"),
        (["ledger", "--text", TEXT, "--position", "last"], "--position"),
        (["equivalence", "ishe-austn", "--text", TEXT], "did you mean 'ishe-austen'"),
        (["equivalence", "nobody/nothing", "--text", TEXT], "cannot fetch 'nobody/nothing'"),
        (["equivalence", "--text", ""], "is empty"),
        (["equivalence", "--text", TEXT * 40], "characters fit"),
        (["equivalence", "--text", TEXT, "--bos"], "no BOS token"),
        (["equivalence", "--text", TEXT, "--device", "gpu"], "device: 'gpu'"),
        (["equivalence", "--text", TEXT, "--dtype", "int8"], "dtype must be one of"),
        (["ledger", "--text", TEXT, "--answer", " truth universally"], "tokens"),
        (["ledger", "--text", TEXT, "--position", "99"], "outside the prompt"),
        (["ledger", "--text", TEXT, "--by", "haed"], "by:"),
        (["ledger", "--text", TEXT, "--csv", "a.csv", "--html", "b.html"], "--csv and --html: give one"),
        (["generate", "ishe-austen", "--text", TEXT, "--new", "9999"], "new tokens are more than"),
        (["variance", "--file", "/nowhere.txt"], "--file: cannot read '/nowhere.txt'"),
        (["train", "--mixer", "mhq", "--text", "{text}", "-o", "x"], "mhq"),
        (["train", "--mixer", "ishe", "--text", "{text}", "-o", "x", "--device", "cuda"], "leave out --device"),
        (["convert", "/nowhere.gguf", "x"], "no file '/nowhere.gguf'"),
        (["models", "--dtype", "float64"], "leave out --device and --dtype"),
        (["report", "--text", TEXT, "--file", "x"], "give one of them"),
        (["ablate", "--text", TEXT], "one of --heads, --sources, --lags, --neurons is needed, got none"),
        (["ablate", "--text", TEXT, "--sources", "1", "--lags", "0"], "got --sources, --lags"),
        (["ablate", "mha-austen", "--text", TEXT, "--heads", "L1H1,H2"], "--heads: names such as L1H3"),
        (["ablate", "--text", TEXT, "--sources", "99"], "position 99 is outside the prompt"),
        (["lens", "--text", TEXT, "--top-k", "99999"], "top_k"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    assert message in refused([arg.replace("{text}", str(text)) for arg in argv], capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]  # nothing half-written


def test_a_file_that_is_no_text_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "image.png"
    file.write_bytes(b"\x89PNG\xff")
    assert "is not UTF-8 text" in refused(["variance", "--file", str(file)], capsys)


@pytest.mark.parametrize("option", ["--csv", "--html", "--png"])
def test_an_unwritable_output_is_refused_before_anything_is_computed(
    option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    for target in (tmp_path / "missing" / "x", tmp_path):
        assert option in refused(["ledger", "--text", TEXT, option, str(target)], capsys)
    assert "--output" in refused(["report", "-o", str(tmp_path / "missing" / "x.html")], capsys)
    assert list(tmp_path.iterdir()) == []


def test_convert_prints_the_folder(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setattr(huggingface, "convert_gguf", lambda source, folder: folder)
    assert main(["convert", str(file), str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out'}\n"


# ---- files and tables ----


def test_ledger_as_csv_and_html(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import pandas as pd

    csv, html = tmp_path / "rows.csv", tmp_path / "figure.html"
    found = run_json(["ledger", "--text", TEXT, "--csv", str(csv)], capsys)
    frame = pd.read_csv(csv)
    assert frame["value"].tolist() == pytest.approx([row["value"] for row in found["rows"]], abs=1e-12)
    assert main(["ledger", "--text", TEXT, "--html", str(html)]) == 0
    assert f"written: {html}" in capsys.readouterr().out
    assert "<html>" in html.read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.html", "rows.csv"]


def test_a_png_without_a_browser_is_one_line_and_leaves_no_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def nobody(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no Chrome or Chromium was found")

    monkeypatch.setattr("interp.figures.writing.write_image", nobody)
    assert "no Chrome" in refused(["ledger", "--text", TEXT, "--png", str(tmp_path / "x.png")], capsys)
    assert list(tmp_path.iterdir()) == []


def test_the_ledger_table_shows_rounding_and_total_and_the_tokens_as_fed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "--text", "It is\na truth", "--by", "source"]) == 0
    out = capsys.readouterr().out
    assert "rounding" in out
    assert "total" in out
    assert "'\\n'" in out
    assert "continuity holds" in out
    values = [line.split("│")[-2].strip() for line in out.splitlines() if line.startswith("│ ")]
    assert len(values) > 4
    assert all(re.fullmatch(r"[+-]\d+\.\d{4}|[+-]\d\.\de-\d\d|0", value) for value in values)
    assert "\x1b[" not in out  # piped: no colours


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("no_color", [False, True])
def test_colours_on_a_terminal_unless_no_color(no_color: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(["equivalence", "--text", TEXT]) == 0
    assert ("\x1b[32m" in screen.getvalue()) is not no_color


def test_a_long_measurement_shows_a_bar_with_the_time_left_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from interp.progress import comparison_bar, step_bar, waiting

    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with waiting("loading x[1]"):
        pass
    with step_bar() as on_step:
        on_step(1, 4, "variance: draw 2 of 3")
    assert "loading x[1]" in screen.getvalue()
    assert "variance: draw 2 of 3" in screen.getvalue()
    assert "1/4" in screen.getvalue()
    assert "ETA" in screen.getvalue()
    with comparison_bar() as (_, on_question):
        on_question("she")
    assert "evaluating she" in screen.getvalue()


def test_a_long_measurement_says_a_line_a_kind_where_stderr_is_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    from interp.progress import step_bar, waiting

    with waiting("loading x"), step_bar() as on_step:
        for done, what in enumerate(("additive", "variance: draw 1", "variance: draw 2", "parameters")):
            on_step(done, 4, what)
    assert capsys.readouterr().err == "additive .. (step 1 of 4)\nvariance .. (step 2 of 4)\nparameters .. (step 4 of 4)\n"


def test_the_shell_completes_the_names_of_shipped_decoders_without_loading_torch() -> None:
    import os

    asked = {"_INTERP_COMPLETE": "complete_bash", "COMP_WORDS": "interp ledger ihe", "COMP_CWORD": "2"}
    script = [str(Path(sys.executable).parent / "interp")]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **asked})
    assert done.stdout.split() == ["ihe-austen"]
    code = "import sys; from interp.cli import _models; print(_models('mha'), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "['mha-austen', 'mha-induction'] False\n"


def test_training_shows_a_bar_with_loss_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from interp.progress import training_bar

    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with training_bar(2) as on_step:
        for i in (1, 2):
            on_step(SimpleNamespace(step=i, loss=4.5, validation_loss=4.25 if i == 2 else None))
    assert "loss 4.500, validation 4.250" in screen.getvalue()
    assert "ETA" in screen.getvalue()


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help_with_an_example_and_the_common_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Example:  interp {command}" in " ".join(out.split(" ")).replace("\n", " ")
    assert all(option in out for option in ("--json", "--device", "--dtype"))


def test_the_commands_are_these() -> None:
    assert {command.name or command.callback.__name__ for command in cli.app.registered_commands} >= COMMANDS  # type: ignore[union-attr]


@pytest.mark.parametrize(("option", "names"), [("--sources", "3"), ("--sources", "L1:3"), ("--lags", "3")])
def test_ablating_what_the_position_cannot_read_is_refused(capsys, option, names):
    """It changes nothing, exactly, and was shown as an intervention that held."""
    args = ["ablate", "ihe-austen" if option == "--lags" else "mha-induction", "--text", "c1 h4 a0 p7", option, names, "--position", "1"]
    assert cli.main(args) == 2
    assert f"{option}: position 1 reads no {option[2:-1]} 3; name some of 0..1" in capsys.readouterr().err


def test_the_mixers_that_help_and_completion_name_are_the_built_in_ones():
    from models.config import MIXERS

    assert cli.MIXERS == MIXERS

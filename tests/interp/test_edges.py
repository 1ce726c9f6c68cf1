"""Regressions at the doors: each test is named after the fault that it stops."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import interp
from interp import cli

SAY = ["ledger", "mha-induction", "--text", "c1 h4 a0"]


@pytest.fixture(scope="module")
def induction() -> Any:
    return interp.load_model("mha-induction")


def test_an_output_never_replaces_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert cli.main([*SAY, "--csv", str(pipe)]) == 2
    assert "a device or a pipe" in capsys.readouterr().err
    assert pipe.is_fifo()
    with pytest.raises(ValueError, match="a device or a pipe"):
        interp.report.report("mha-induction", "c1 h4", output=pipe)


def test_an_output_follows_a_link_instead_of_replacing_it(tmp_path: Path) -> None:
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    target.write_text("old")
    link.symlink_to(target)
    assert cli.main([*SAY, "--csv", str(link)]) == 0
    assert link.is_symlink()
    assert target.read_text().startswith("label,")


def test_a_dash_is_no_file_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SAY, "--csv", "-"]) == 2
    assert "--csv: the name of a file is needed" in capsys.readouterr().err


def test_an_impossible_hugging_face_config_is_one_line(hf_folder: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = hf_folder("llama")
    broken = tmp_path / "broken"
    shutil.copytree(source, broken)
    config = json.loads((broken / "config.json").read_text())
    config["num_attention_heads"] = 7
    (broken / "config.json").write_text(json.dumps(config))
    assert cli.main(["ledger", str(broken), "--text", "t3 t4"]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "cannot read the model" in shown


def test_a_text_too_long_says_so_where_the_tokenizer_knows_whole_words_only(induction: Any) -> None:
    with pytest.raises(ValueError, match=r"65 tokens, more than the 64 .* text\[:\d+\]"):
        interp.encode(induction, "c1 " * 65)


def test_bytes_are_no_token_ids(induction: Any) -> None:
    with pytest.raises(TypeError, match="text"):
        interp.ledger(induction, b"c1")

"""What a fresh clone and an installed wheel need: every file in the wheel, pins for every dependency, one line for every missing piece."""

import re
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_wheel_holds_every_file_of_the_packages(tmp_path: Path) -> None:
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    held = {name for name in zipfile.ZipFile(built).namelist() if ".dist-info/" not in name}
    here = {
        path.relative_to(ROOT).as_posix()
        for wing in ("models", "analyses", "interp")
        for path in (ROOT / wing).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == here
    assert {"models/zoo/heldout.txt", "interp/templates/report.html.j2"} <= held
    assert any(name.endswith(".safetensors") for name in held)


def test_every_requirement_has_a_pin_inside_its_range() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#"))
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    wanted = [*PROJECT["dependencies"], *(r for extra in PROJECT["optional-dependencies"].values() for r in extra)]
    for requirement in map(Requirement, wanted):
        if requirement.name != PROJECT["name"]:
            assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement
    assert pinned["torch"] == "2.13.0"


def test_a_missing_piece_is_one_line_that_names_it_and_the_fix(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for file in ("pyproject.toml", "constraints.txt"):
        (tmp_path / file).touch()
    without_venv = tmp_path / "python-without-venv"
    without_venv.write_text(
        '#!/bin/sh\ncase "$2" in *ensurepip*) echo "ModuleNotFoundError: No module named ensurepip" >&2; exit 1;; esac\nexit 0\n'
    )
    without_venv.chmod(0o755)
    steps = ("make PYTHON=no-such-python report", "make PYTHON=./python-without-venv test", "mkdir .venv; make check")
    script = "; ".join(f"{step} 2>&1; echo ----" for step in steps)
    ran = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    no_python, no_module, broken = (part.strip() for part in ran.stdout.split("----")[:3])
    for message in (no_python, no_module, broken):
        assert len([line for line in message.splitlines() if not re.search(r"(Entering|Leaving) directory", line)]) == 1, message
    assert "no-such-python" in no_python
    assert "PYTHON=" in no_python
    assert "ensurepip" in no_module
    assert "python3-venv" in no_module
    assert "rm -rf .venv" in broken
    assert not list((tmp_path / ".venv").iterdir())

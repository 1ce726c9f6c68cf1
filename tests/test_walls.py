"""The walls of the house hold, and each check that guards them can fail: a planted import, a planted absolute import, a wrong shape."""

import ast
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from importlinter.cli import lint_imports
from jaxtyping import TypeCheckError

from analyses.fold import fold_sublayer
from analyses.statistics import moments
from interp.tokens import Tokens
from models.norms import make_norm

ROOT = Path(__file__).resolve().parent.parent
WINGS = ("models", "analyses", "interp")


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the three packages, found in place of ours by whoever looks a top-level package up."""
    for wing in WINGS:
        shutil.copytree(ROOT / wing, tmp_path / wing, ignore=lambda _, names: [n for n in names if Path(n).suffix not in (".py", "")])
        monkeypatch.delitem(sys.modules, wing, raising=False)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plant(house: Path, file: str, line: str) -> None:
    path = house / file
    path.write_text(f"{path.read_text()}\n{line}\n")


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("models/config.py", "", False),
        ("models/config.py", "import analyses.certificate", True),
        ("analyses/certificate.py", "def late():\n    from models import DecoderConfig", True),
        ("analyses/ledger.py", "import interp", True),
        ("models/norms.py", "from interp.figures import heads", True),
        ("interp/loading.py", "import models, analyses", False),
    ],
)
def test_a_planted_import_breaks_the_contracts(house: Path, file: str, line: str, broken: bool) -> None:
    plant(house, file, line)
    assert lint_imports(no_cache=True, no_logo=True) == int(broken)


def absolute_imports_of_itself(package: Path) -> list[str]:
    """`models` is also loaded under a private name, beside a user's own `models`: importing itself by name would get the user's."""
    found = []
    for file in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            found += [f"{file.name}:{node.lineno}" for name in names if name.split(".")[0] == package.name]
    return found


def test_models_never_imports_itself_by_name(house: Path) -> None:
    assert absolute_imports_of_itself(ROOT / "models") == []
    plant(house, "models/config.py", "from models.norms import Norm")
    assert absolute_imports_of_itself(house / "models") != []


def test_shapes_are_checked_in_models() -> None:
    norm = make_norm("ln", 4, 1e-5)
    assert norm is not None
    assert norm(torch.randn(1, 2, 4)).shape == (1, 2, 4)
    with pytest.raises(TypeCheckError):
        norm(torch.randn(2, 4))


def test_shapes_are_checked_in_analyses() -> None:
    with pytest.raises(TypeCheckError):
        moments(np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(TypeCheckError, match="d"):
        fold_sublayer(None, torch.ones(2, 3), torch.ones(2, 4))  # type: ignore[arg-type]


def test_shapes_are_checked_in_interp() -> None:
    ids = torch.zeros(1, 3, dtype=torch.long)
    assert Tokens(ids=ids, attention_mask=torch.ones_like(ids), str_tokens=(("a", "b", "c"),)).ids is ids
    with pytest.raises(TypeCheckError):
        Tokens(ids=ids, attention_mask=torch.ones(1, 4, dtype=torch.long), str_tokens=(("a", "b", "c"),))

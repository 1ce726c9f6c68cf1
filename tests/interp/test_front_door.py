"""`import interp` is light, its names are there, and it uses its own `models` wherever another package of that name lies."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import interp
from interp import _models

HEAVY = ("torch", "transformers", "transformer_lens", "plotly", "pandas", "scipy")


def python(code: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_and_help_are_fast_and_load_nothing_heavy(tmp_path: Path) -> None:
    code = f"""
import sys, time
start = time.process_time()
import interp
took = time.process_time() - start
assert took < 0.3, took
from interp.cli import main
assert main(["--help"]) == 0
assert main(["ledger", "--help"]) == 0
assert main([]) == 0
loaded = [name for name in {HEAVY} if name in sys.modules]
assert not loaded, loaded
"""
    assert "Usage: interp" in python(code, tmp_path)


def test_a_foreign_models_package_is_left_alone_and_ours_is_used(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("whose = 'theirs'\n")
    code = """
import models
assert models.whose == "theirs"
import interp
model = interp.load_model("ishe-austen")
logits, cache = interp.run_with_cache(model, "It is a truth", "hook_embed")
assert interp.equivalence(model, "It is a truth").holds
assert models.whose == "theirs" and not hasattr(models, "HookedDecoder")
import sys
assert sys.modules["models"] is models
from interp._models import is_ours
assert is_ours(model)
print(len(interp.list_models()))
"""
    assert int(python(code, tmp_path)) >= 1


def test_every_name_of_the_front_door_is_there() -> None:
    assert sorted(interp.__all__) == sorted(interp._WHERE)
    for name in interp.__all__:
        assert getattr(interp, name) is not None
        assert name in dir(interp)


def test_a_mistyped_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(AttributeError, match="no attribute 'load_modl'; did you mean 'load_model'"):
        interp.load_modl  # noqa: B018


def test_our_models_is_found_by_its_place_and_not_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _models.wing() is sys.modules["models"]
    stranger = ModuleType("models")  # no __spec__: somebody put it there by hand
    stranger.__spec__ = None
    monkeypatch.setitem(sys.modules, "models", stranger)
    try:
        own = _models.wing("config")
        assert own.__name__ == f"{_models.PRIVATE}.config"
        assert own.DecoderConfig.__module__ == own.__name__
    finally:
        for name in [name for name in sys.modules if name.startswith(_models.PRIVATE)]:
            del sys.modules[name]


def test_an_installation_without_our_models_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_models, "BESIDE", tmp_path / "models")
    with pytest.raises(ImportError, match="reinstall the package"):
        _models.wing()

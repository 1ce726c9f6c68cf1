"""Our own `models` package, even where another package of that name comes first on the path.

Researchers' repositories often have a `models` folder. What is importable as `models` is taken only if it lies beside `interp`;
otherwise ours is loaded from there under a private name. Inside our package all imports are relative, so it works under any name.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

BESIDE = Path(__file__).resolve().parent.parent / "models"
PRIVATE = "_interp_own_models"


def wing(submodule: str = "") -> ModuleType:
    """Our `models` package, or one of its modules: `wing("zoo")`."""
    package = "models" if _importable_is_ours() else _load_beside()
    return importlib.import_module(f"{package}.{submodule}" if submodule else package)


def is_ours(model: Any) -> bool:
    """Whether `model` is one of our decoders. Looks only where such a class would have been loaded already."""
    decoders = (getattr(sys.modules.get(f"{package}.decoder"), "HookedDecoder", None) for package in ("models", PRIVATE))
    return any(isinstance(model, decoder) for decoder in decoders if isinstance(decoder, type))


def _importable_is_ours() -> bool:
    try:
        spec = importlib.util.find_spec("models")
    except ValueError:  # a module without a spec sits in sys.modules
        return False
    places = list(spec.submodule_search_locations or ()) if spec else []
    return any(Path(place).resolve() == BESIDE for place in places)


def _load_beside() -> str:
    if PRIVATE not in sys.modules:
        spec = importlib.util.spec_from_file_location(PRIVATE, BESIDE / "__init__.py", submodule_search_locations=[str(BESIDE)])
        if spec is None or spec.loader is None or not (BESIDE / "__init__.py").is_file():
            raise ImportError(f"interp needs its own `models` package, and {BESIDE} does not hold it: reinstall the package")
        module = importlib.util.module_from_spec(spec)
        sys.modules[PRIVATE] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[PRIVATE]
            raise
    return PRIVATE

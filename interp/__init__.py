"""Interpretability whose numbers carry their own proof: the front door.

    import interp
    model = interp.load_model("ishe-austen")
    logits, cache = interp.run_with_cache(model, "It is a truth universally acknowledged")
    interp.ledger(model, "It is a truth", by="head+source").certificate

Everything is loaded on first use (PEP 562), so `import interp` brings in neither torch nor transformers nor plotly.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .display import register as _register

if TYPE_CHECKING:
    from . import figures, report
    from .analysis import IncompleteLedger, ablate, drive, equivalence, ledger, ledger_over, ledger_without, lens, load_view, prove
    from .claims import variance_profile, verify
    from .comparison import compare, read_comparison
    from .explorer import explore
    from .faults import selftest
    from .huggingface import convert_gguf
    from .loading import list_models, load_model
    from .running import run_with_cache
    from .tokens import Tokens, encode, model_name, resolve_answer

# Where each name lives; None is a module of that name.
_WHERE = {
    "load_model": "loading",
    "list_models": "loading",
    "convert_gguf": "huggingface",
    "encode": "tokens",
    "resolve_answer": "tokens",
    "model_name": "tokens",
    "Tokens": "tokens",
    "run_with_cache": "running",
    "equivalence": "analysis",
    "ledger": "analysis",
    "ledger_over": "analysis",
    "ablate": "analysis",
    "IncompleteLedger": "analysis",
    "ledger_without": "analysis",
    "lens": "analysis",
    "drive": "analysis",
    "prove": "analysis",
    "selftest": "faults",
    "load_view": "analysis",
    "variance_profile": "claims",
    "verify": "claims",
    "explore": "explorer",
    "compare": "comparison",
    "read_comparison": "comparison",
    "figures": None,
    "report": None,
}

__all__ = [
    "IncompleteLedger",
    "Tokens",
    "ablate",
    "compare",
    "convert_gguf",
    "drive",
    "encode",
    "equivalence",
    "explore",
    "figures",
    "ledger",
    "ledger_over",
    "ledger_without",
    "lens",
    "list_models",
    "load_model",
    "load_view",
    "model_name",
    "prove",
    "read_comparison",
    "report",
    "resolve_answer",
    "run_with_cache",
    "selftest",
    "variance_profile",
    "verify",
]

_register()


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        import difflib

        near = difflib.get_close_matches(name, _WHERE, n=1)
        raise AttributeError(f"module 'interp' has no attribute {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    place = _WHERE[name]
    module = importlib.import_module(f"{__name__}.{place or name}")
    value = module if place is None else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

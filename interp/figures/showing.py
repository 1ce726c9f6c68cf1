"""Any result as the figure that shows it, and as what a notebook displays."""

from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go

from interp.figures.claims import claims
from interp.figures.drive import drive
from interp.figures.equivalence import equivalence
from interp.figures.heads import heads
from interp.figures.ledger import ledger
from interp.figures.lens import lens
from interp.figures.sources import sources
from interp.figures.variance import variance


def _ledger(result: Any) -> go.Figure:
    """The figure of a ledger's split: heads on a map, sources and lags on a map or as bars, anything else as bars."""
    if result.by == "head" and any(e.kind == "head" for e in result.entries):
        return heads(result)
    if result.by in ("source", "head+source", "lag") and any(e.source is not None or e.lag is not None for e in result.entries):
        return sources(result)
    return ledger(result)


FIGURES: dict[tuple[str, str], Callable[[Any], go.Figure]] = {
    ("analyses.ledger", "Ledger"): _ledger,
    ("analyses.equivalence", "Equivalence"): equivalence,
    ("analyses.variance", "VarianceProfile"): variance,
    ("analyses.claims", "Verification"): claims,
    ("analyses.lens", "Lens"): lens,
    ("analyses.drive", "Drive"): drive,
}
"""Module and name of a result's class -> what draws it. Names, so that nothing is imported for a result that nobody has."""


def of(result: Any) -> go.Figure:
    """The figure that shows a result: `figures.of(interp.ledger(model, text))`.

    Raises:
        TypeError: no figure shows such an object; the message lists what has one.

    >>> import interp
    >>> model = interp.load_model("mha-induction")
    >>> interp.figures.of(interp.equivalence(model, "c1 h4 a0 p7 e5 k2 b3 d6 c1")).layout.yaxis.type
    'log'
    """
    kind = type(result)
    draw = FIGURES.get((kind.__module__, kind.__qualname__))
    if draw is None:
        raise TypeError(f"figures.of draws {', '.join(sorted(name for _, name in FIGURES))}; got {kind.__name__}")
    return draw(result)

"""Results shown as pictures in a notebook: `interp.ledger(model, text)` as the last line of a cell is its figure with its certificate.

In here: telling IPython so. The results are classes of `analyses`, which knows no figures, so the roof registers what draws them; by name
(`figures.showing.FIGURES`), so that nothing is imported until something is shown. Outside a notebook nothing happens.
"""

import sys
from typing import Any


def register() -> bool:
    """Register the figures with the running notebook kernel. Returns whether there was one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):  # a terminal shows no pictures
        return False
    formatter = shell.display_formatter.mimebundle_formatter
    for module, name in SHOWN:
        formatter.for_type_by_name(module, name, bundle)
    return True


SHOWN = (
    ("analyses.ledger", "Ledger"),
    ("analyses.equivalence", "Equivalence"),
    ("analyses.variance", "VarianceProfile"),
    ("analyses.claims", "Verification"),
    ("analyses.lens", "Lens"),
    ("analyses.drive", "Drive"),
)
"""Module and name of the classes that `figures.of` draws."""


def bundle(result: Any, include: Any = None, exclude: Any = None) -> dict[str, Any]:
    """What a notebook displays for a result: its figure, and for those that show no pictures its title and certificate as text."""
    from .figures.showing import of

    figure = of(result)
    words = figure.layout.meta
    text = "\n".join([words["title"], *words["subtitle"], *([words["alarm"]] if words["alarm"] else [])])
    return {**figure._repr_mimebundle_(include, exclude), "text/plain": text}

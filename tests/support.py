"""The support table: every family by every split, measured. `python tests/support.py` writes docs/support.md; tests judge the same rows.

In here: one measurement a (family, split), on a tiny random model of the family with every bias and gain it can have non-zero.
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyses.ledger import SPLITS
from interp import analysis

PAGE = Path(__file__).resolve().parent.parent / "docs" / "support.md"
IDS = [3, 9, 20, 41, 5, 11]
ANSWER, AGAINST = 7, 12

_HEAD = """# Which models, which splits

Written by `python tests/support.py`; the test suite judges the same measurements. Each family is a tiny random model (three layers,
width 32, every bias, gain, multiplier and soft cap it can have set and non-zero), read through TransformerLens' `TransformerBridge`
in float32, one prompt of six tokens, the difference of two logits. A number is a gap over its bound: up to 1 holds.

- **algebra**: the ledger's sum against a float64 replay through the model's own modules (six sigma at 2^-53);
- **native**: the replay against what the model printed (six sigma at 2^-24);
- **exact**: the same against a true float64 run (`exact=True`; six sigma at 2^-53), and the gap itself.

| family | split | entries | algebra | native | exact | exact gap |
|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One family by one split; `refused` is the reason where there is no such ledger."""

    family: str
    by: str
    entries: int = 0
    total: float = 0.0
    algebra: float = 0.0
    native: float = 0.0
    exact: float = 0.0
    exact_gap: float = 0.0
    holds: bool = False
    refused: str = ""


def measure(family: str, model: Any) -> list[Row]:
    """Every split of one prompt, as the model printed it and in a true float64 run."""
    return [_measure(family, model, by) for by in SPLITS]


def _measure(family: str, model: Any, by: Any) -> Row:
    try:
        found = analysis.ledger(model, IDS, ANSWER, AGAINST, by=by, prepend_bos=False, on_gap="report")
    except ValueError as reason:
        return Row(family=family, by=by, refused=str(reason))
    true = analysis.ledger(model, IDS, ANSWER, AGAINST, by=by, prepend_bos=False, on_gap="report", exact=True)
    return Row(
        family=family,
        by=by,
        entries=len(found.entries),
        total=float(found.total[0]),
        algebra=found.certificate["algebra"].ratio,
        native=found.certificate["native"].ratio,
        exact=true.certificate["native"].ratio,
        exact_gap=true.certificate["native"].gap,
        holds=found.holds and true.holds,
    )


def line(row: Row) -> str:
    if row.refused:
        return f"| {row.family} | {row.by} | refused by name | | | | |"
    numbers = f"{row.algebra:.2f} | {row.native:.2f} | {row.exact:.2f} | {row.exact_gap:.0e}"
    return f"| {row.family} | {row.by} | {row.entries} | {numbers} |{'' if row.holds else ' FAILS'}"


def main() -> None:
    """Measure every family and write the page."""
    import builders

    import interp

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for family in sorted(builders.FAMILIES | builders.WHOLE):
            place = Path(folder) / family
            builders.save_tiny(family, place)
            rows += measure(family, interp.load_model(place))
    partial = PAGE.with_suffix(".partial")
    partial.write_text(_HEAD + "\n".join(line(r) for r in rows) + "\n")
    partial.replace(PAGE)
    sys.exit(any(not r.holds and not r.refused for r in rows))


if __name__ == "__main__":
    main()

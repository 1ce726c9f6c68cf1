"""What the command line prints: tables for people on stdout, one JSON object for programs, progress and errors on stderr.

rich drops colours where stdout is no terminal or NO_COLOR is set. Nothing here imports torch.
"""

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPED_WIDTH = 200
"""Columns of a table that goes into a file or a pipe: wide enough that rich cuts nothing."""


def out() -> Console:
    """Standard output, looked up now (so that redirecting it works)."""
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


def err() -> Console:
    """Standard error."""
    return Console(file=sys.stderr, highlight=False, width=None if sys.stderr.isatty() else PIPED_WIDTH)


def fail(message: object) -> None:
    """One line on stderr."""
    sys.stderr.write(f"interp: {' '.join(str(message).split())}\n")


def say(*lines: str) -> None:
    """Plain lines on stdout; brackets in them are text, not markup."""
    console = out()
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "", *, signed: Sequence[str] = ()) -> None:
    """A table on stdout. Numbers are right-justified, those of the columns `signed` with their sign and as many decimals, so that they can
    be compared by eye; strings are shown as they are, control characters made visible."""
    cells = [list(row) for row in rows]
    drawn = Table(title=Text(title) if title else None, title_justify="left", header_style="bold")
    for i, column in enumerate(columns):
        numeric = all(row[i] is None or (isinstance(row[i], int | float) and not isinstance(row[i], bool)) for row in cells)
        drawn.add_column(Text(column), justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        told = (
            contribution(cell) if column in signed and isinstance(cell, float) else cell for column, cell in zip(columns, row, strict=True)
        )
        drawn.add_row(*(cell if isinstance(cell, Text) else Text(_shown(cell)) for cell in told))
    out().print(drawn)


def verdict(holds: bool | None) -> Text:
    """`holds` in green, `FAILS` in red, a dash for what does not apply; the word alone where there are no colours."""
    if holds is None:
        return Text("-")
    return Text("holds", style="green") if holds else Text("FAILS", style="bold red")


def judged(word: str) -> Text:
    """The verdict on a claim: green where it holds, red where it fails; the word alone where there are no colours."""
    if word == "fails":
        return verdict(False)
    return Text(word, style="green" if word == "holds" else "")


def emit(payload: Mapping[str, Any]) -> None:
    """One JSON object on stdout. A number that is not finite (NaN, infinity) is written as null: JSON has no such numbers."""
    sys.stdout.write(json.dumps(plain(payload), ensure_ascii=False, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Mappings, sequences and numpy or torch scalars as what `json` writes.

    >>> plain({"slope": float("nan"), "interval": (0.5, 1), "holds": True})
    {'slope': None, 'interval': [0.5, 1], 'holds': True}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item") and callable(value.item):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def visible(text: str) -> str:
    """A string with its line breaks and control characters spelled out.

    >>> visible("a\\nb")
    'a\\\\nb'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def contribution(value: float) -> str:
    """A signed number of logits: four decimals, powers of ten for what they would not show.

    >>> contribution(11.39501), contribution(-0.0086086), contribution(1.6e-6), contribution(0.0)
    ('+11.3950', '-0.0086', '+1.6e-06', '0')
    """
    return "0" if value == 0 else f"{value:+.4f}" if abs(value) >= 5e-5 else f"{value:+.1e}"


def _shown(cell: Any) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if not isinstance(cell, float):
        return visible(str(cell))
    return f"{cell:.5g}"

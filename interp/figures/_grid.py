"""A grid of signed cells: symmetric colours around zero, signs or values in the cells, NaN, infinite and clipped cells marked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from interp.figures._style import DIVERGING, MISSING
from interp.figures._text import count, number

DARK_INK = "#16191d"
LIGHT_INK = "#ffffff"
NARROW = 9
"""Pixels of a cell below which not even a sign fits."""
_SIGN_FROM = 0.15
"""Cells at least this share of the colour range carry their sign where the value itself does not fit."""


@dataclass(frozen=True)
class Cells:
    """Traces of a grid, the colour limit they use and the notes that explain what is special about some cells."""

    traces: tuple[go.Heatmap, ...]
    limit: float
    notes: tuple[str, ...]


def colour_limit(values: np.ndarray, limit: float | None) -> float:
    """The end of a symmetric colour range: `limit`, else the largest finite modulus (1 where everything is zero)."""
    if limit is not None:
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0 or not np.isfinite(limit):
            raise ValueError(f"limit: wants a positive finite number (the contribution at the ends of the colour range), got {limit!r}")
        return float(limit)
    finite = np.abs(values[np.isfinite(values)])
    largest = float(finite.max()) if finite.size else 0.0
    return largest if largest > 0 else 1.0


def shade(value: float, limit: float) -> str:
    """The colour of a signed value, `rgb(r, g, b)`; grey where it is not a number."""
    if np.isnan(value):
        return MISSING
    at = 0.5 + 0.5 * float(np.clip(value / limit, -1, 1))
    return str(sample_colorscale([list(stop) for stop in DIVERGING], [at])[0])


def ink_on(colour: str) -> str:
    """Dark or light text, whichever reads better on `rgb(...)` or `#rrggbb`."""
    if colour.startswith("#"):
        r, g, b = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    else:
        r, g, b = (int(float(c)) for c in colour[4:-1].split(","))
    return DARK_INK if 0.299 * r + 0.587 * g + 0.114 * b > 140 else LIGHT_INK


def _cell_text(values: np.ndarray, limit: float, *, full: bool) -> np.ndarray:
    # the same number of decimals in every cell: a column of numbers is compared by eye
    decimals = int(np.clip(1 - np.floor(np.log10(limit)), 2 if limit < 100 else 0, 6))
    text = np.full(values.shape, "", dtype=object)
    for at in np.ndindex(values.shape):
        v = values[at]
        if np.isnan(v):
            continue
        beyond = "▸" if abs(v) > limit * (1 + 1e-12) else ""
        if np.isinf(v):
            text[at] = "−∞" if v < 0 else "+∞"
        elif full:
            written = f"{v:+.{decimals}f}".replace("-", "−")
            text[at] = beyond + (written if float(f"{v:.{decimals}f}") else "0")
        elif abs(v) >= _SIGN_FROM * limit:
            text[at] = beyond + ("−" if v < 0 else "+")
    return text


def signed_cells(
    values: np.ndarray,
    *,
    x: Sequence[str],
    y: Sequence[str],
    limit: float,
    full: bool,
    hover: str,
    colorbar: dict[str, Any] | None,
    xaxis: str = "x",
    yaxis: str = "y",
    narrow: bool = False,
) -> Cells:
    """Heatmap traces of `values` (rows, columns) on category axes `x`, `y`.

    `full` writes each value into its cell, else cells of some weight carry their sign. `hover` is a plotly hovertemplate without user
    text (labels come in by `%{x}` and `%{y}`). NaN cells are grey and say so; infinite ones take the end colour and an ∞; finite ones
    beyond `limit` take the end colour and a ▸. In cells too `narrow` for any of these, nothing is written and a note says so.
    """
    values = np.asarray(values, dtype=np.float64)
    drawn = np.where(np.isinf(values), np.sign(values) * limit, values)
    text = np.full(values.shape, "", dtype=object) if narrow else _cell_text(values, limit, full=full)
    ink = np.array([[ink_on(shade(v, limit)) for v in row] for row in drawn])
    traces: list[go.Heatmap] = []
    # plotly picks one text colour a trace: pale and dark cells are two traces
    for colour in (DARK_INK, LIGHT_INK):
        here = (ink == colour) & ~np.isnan(drawn)
        if here.any() or (colour == LIGHT_INK and not traces):
            traces.append(
                go.Heatmap(
                    z=np.where(here, drawn, np.nan),
                    x=list(x),
                    y=list(y),
                    xaxis=xaxis,
                    yaxis=yaxis,
                    zmin=-limit,
                    zmax=limit,
                    colorscale=DIVERGING,
                    showscale=colorbar is not None and not traces,
                    colorbar=colorbar,
                    xgap=1,
                    ygap=1,
                    text=np.where(here, text, ""),
                    texttemplate="%{text}",
                    textfont={"color": colour, "size": None if full else 10},
                    hovertemplate=hover + "<extra></extra>",
                    hoverongaps=False,
                )
            )
    notes = ["Cells too narrow for their signs: orange is positive, blue negative; hover gives each value."] if narrow else []
    missing = np.isnan(values)
    if missing.any():
        traces.append(
            go.Heatmap(
                z=np.where(missing, 0.0, np.nan),
                x=list(x),
                y=list(y),
                xaxis=xaxis,
                yaxis=yaxis,
                colorscale=[(0, MISSING), (1, MISSING)],
                showscale=False,
                xgap=1,
                ygap=1,
                text=np.where(missing & (not narrow), "NaN", ""),
                texttemplate="%{text}",
                hovertemplate="%{y}, %{x}: not a number<extra></extra>",
                hoverongaps=False,
            )
        )
        notes.append(f"{count(int(missing.sum()), 'grey cell')}: not a number (NaN).")
    infinite = int(np.isinf(values).sum())
    if infinite:
        notes.append(f"{count(infinite, 'cell')} infinite: drawn in the end colour, marked ∞.")
    clipped = int((np.isfinite(values) & (np.abs(values) > limit * (1 + 1e-12))).sum())
    if clipped:
        notes.append(f"{count(clipped, 'cell')} beyond ±{number(limit)}: drawn in the end colour, marked ▸.")
    return Cells(tuple(traces), limit, tuple(notes))


def signed_colorbar(limit: float, *, title: str, length: float) -> dict[str, Any]:
    """A colour bar labelled at both ends and zero; `length` in pixels."""
    return {
        "title": {"text": f"{title}<br>&nbsp;", "side": "top"},
        "thickness": 12,
        "len": max(length, 110),
        "lenmode": "pixels",
        "y": 1,
        "yanchor": "top",
        "outlinewidth": 0,
        "tickmode": "array",
        "tickvals": [-limit, -limit / 2, 0, limit / 2, limit],
        "ticktext": [number(v, 2, signed=True) for v in (-limit, -limit / 2, 0, limit / 2, limit)],
    }

"""Project-then-sum against concat-then-project: gap and bound, layer by layer."""

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go

from interp.figures._door import require
from interp.figures._style import ALARM, FAINT, NEGATIVE, NEUTRAL, POSITIVE, describe, finish, log_ticks
from interp.figures._text import count, number, thin

_NAMES = ("model", "tokens", "rows", "holds", "worst_ratio")


def equivalence(equivalence: Any) -> go.Figure:
    """The gap between the two sides of the identity and the bound that rounding allows, per layer, on a log scale.

    Filled marks are gaps, bars over them the bounds; blue circles compare the two sides in float64, orange diamonds compare with what
    the model itself computed. A gap that is exactly 0 has no logarithm: it is drawn on a marked floor. A layer that does not hold is a
    large red cross.

    Raises TypeError for anything that is not an Equivalence.

    >>> import interp
    >>> model = interp.load_model("mha-induction")
    >>> figure = interp.figures.equivalence(interp.equivalence(model, "c1 h4 a0 p7 e5 k2 b3 d6 c1"))
    >>> figure.layout.yaxis.type
    'log'
    """
    require(equivalence, _NAMES, figure="equivalence", wants="an Equivalence (interp.equivalence(model, text))")
    rows = tuple(equivalence.rows)
    if not rows:
        raise ValueError("figures.equivalence: this result has no layers to draw")
    names = [f"L{r.layer}" for r in rows]
    gaps = {
        "float64, both sides": ([r.gap for r in rows], [r.bound for r in rows], [r.holds for r in rows], NEGATIVE, "circle"),
        "against the model's own output": (
            [r.native_gap for r in rows],
            [r.native_bound for r in rows],
            [r.native_ratio <= 1 for r in rows],
            POSITIVE,
            "diamond",
        ),
    }
    everything = np.array([v for gap, bound, *_ in gaps.values() for v in (*gap, *bound)], dtype=float)
    positive = everything[np.isfinite(everything) & (everything > 0)]
    top = float(positive.max()) if positive.size else 1.0
    floor = 10.0 ** (np.floor(np.log10(float(positive.min()))) - 1) if positive.size else 1e-18
    ceiling = 10.0 ** (np.ceil(np.log10(top)) + 1)

    fig = go.Figure()
    at = np.arange(len(rows), dtype=float)
    zeros = broken = 0
    for side, (label, (gap_list, bound_list, holds, colour, symbol)) in enumerate(gaps.items()):
        gap = np.array(gap_list, dtype=float)
        bound = np.array(bound_list, dtype=float)
        shift = at + (-0.14 if side == 0 else 0.14)
        exact = gap == 0
        bad = ~np.isfinite(gap)
        zeros += int(exact.sum())
        broken += int(bad.sum())
        y = np.where(bad, ceiling / 3, np.where(exact, floor, gap))
        fails = ~np.array(holds, dtype=bool)
        hover = [
            f"{n}, {label}: gap {number(g)} of bound {number(b)}{'' if not f else ' — DOES NOT HOLD'}"
            for n, g, b, f in zip(names, gap, bound, fails, strict=True)
        ]
        fig.add_scatter(
            x=shift,
            y=np.where(bound > 0, bound, np.nan),
            mode="markers",
            # thick and short, or thin and long: told apart without their colours
            marker={"symbol": "line-ew", "size": 13 if side == 0 else 19, "line": {"width": 4 if side == 0 else 2, "color": colour}},
            name=f"bound, {label}",
            hovertext=hover,
            hoverinfo="text",
        )
        fig.add_scatter(
            x=shift,
            y=y,
            mode="markers",
            marker={
                "symbol": ["x" if f else "triangle-down-open" if e else symbol for f, e in zip(fails, exact, strict=True)],
                "size": [15 if f else 9 for f in fails],
                "color": [ALARM if f else colour for f in fails],
                "opacity": 1,
                "line": {"width": 1, "color": [ALARM if f else colour for f in fails]},
            },
            name=f"gap, {label}",
            hovertext=hover,
            hoverinfo="text",
            showlegend=False,
        )
        fig.add_scatter(x=[None], y=[None], mode="markers", marker={"symbol": symbol, "size": 9, "color": colour}, name=f"gap, {label}")
    notes = []
    if zeros:
        fig.add_hline(y=floor, line={"color": FAINT, "width": 1, "dash": "dot"})
        fig.add_annotation(
            text="exactly 0",
            xref="paper",
            x=1,
            xanchor="right",
            y=np.log10(floor),
            yanchor="bottom",
            showarrow=False,
            font={"size": 11, "color": NEUTRAL},
        )
        notes.append(f"{count(zeros, 'gap')} exactly 0 (▽): drawn on the dotted floor, since 0 has no logarithm.")
    if broken:
        notes.append(f"{count(broken, 'gap')} NaN or infinite: drawn as a cross at the upper edge.")
    levels, level_texts = log_ticks(float(np.log10(floor)), float(np.log10(ceiling)))
    fig.update_layout(
        xaxis={
            "title": "layer",
            "tickmode": "array",
            "tickvals": thin(len(rows), 30),
            "ticktext": [names[i] for i in thin(len(rows), 30)],
            "range": [-0.6, len(rows) - 0.4],
            "showgrid": False,
            "zeroline": False,
        },
        yaxis={
            "title": "largest gap between the sides",
            "type": "log",
            "range": [np.log10(floor) - 0.5, np.log10(ceiling)],
            "tickmode": "array",
            "tickvals": levels,
            "ticktext": level_texts,
        },
    )
    failing = [r for r in rows if not (r.holds and r.native_ratio <= 1)]
    axes = sorted({r.axis for r in rows})
    what = " and ".join(axes)
    layers = count(len(rows), "layer")
    if equivalence.holds:
        where = f" in all {layers}" if len(rows) > 1 else ""
        found = f"worst gap {number(equivalence.worst_ratio, 2)} of its bound" if equivalence.worst_ratio else "to the last bit in float64"
        title = f"Summing {what} one by one equals the model's projection{where}: {found}"
        alarm = None
    else:
        worst = max(failing or rows, key=lambda r: max(_ranked(r.ratio), _ranked(r.native_ratio)))
        title = f"Summing {what} one by one does NOT equal the model's projection in {len(failing)} of {layers}"
        alarm = (
            f"EQUIVALENCE FAILED: L{worst.layer}: gap {number(worst.gap, 2)} against bound {number(worst.bound, 2)} "
            f"({number(worst.ratio, 2)} times); against the model's output {number(worst.native_gap, 2)} against "
            f"{number(worst.native_bound, 2)} ({number(worst.native_ratio, 2)} times)"
        )
    few = thin(len(rows), 8)
    return finish(
        fig,
        title=title,
        subtitle=[describe(equivalence.model, equivalence.tokens)],
        notes=notes,
        alarm=alarm,
        height=300,
        legend_rows=1,
        narrow={"xaxis.tickvals": few, "xaxis.ticktext": [names[i] for i in few]},
    )


def _ranked(ratio: float) -> float:
    """A NaN ratio counts as the worst."""
    return math.inf if math.isnan(ratio) else float(ratio)

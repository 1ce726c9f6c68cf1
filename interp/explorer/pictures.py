"""Figures as a page shows them, at its width and with their words in HTML; and the few pictures that only the explorer needs."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int

from analyses.ledger import Ledger

from .. import figures
from ..figures._door import entry_label, quantity
from ..figures._style import INK, NEGATIVE, NEUTRAL, POSITIVE, finish
from ..figures._text import count, cut, escape, number, safe, thin, visible
from .view import Cell

TOP = 20
"""Rows of the ledger that are listed and drawn as bars."""


def of_ledger(ledger: Ledger) -> go.Figure:
    """The picture that suits the split: a map of heads, bars or a map over sources or lags, else the largest rows as bars."""
    if ledger.by == "head" and any(e.kind == "head" for e in ledger.entries):
        return figures.heads(ledger)
    if ledger.by in ("source", "head+source", "lag"):
        return figures.sources(ledger)
    return figures.ledger(ledger, top=TOP)


def order(ledger: Ledger) -> Int[np.ndarray, " n"]:
    """Row numbers of a one-position ledger, largest modulus first, the rounding left out: the order of the bars."""
    values = ledger.values[:-1, 0]
    return np.argsort(-np.where(np.isfinite(values), np.abs(values), np.inf), kind="stable")


def clicked(ledger: Ledger, point: dict[str, Any]) -> Cell | None:
    """The part under a click on `of_ledger(ledger)`; None where there is none."""
    across, down = point.get("x"), point.get("y")
    if ledger.by == "head" and isinstance(down, str) and isinstance(across, str):
        slot = {"MLP": "mlp", "Extractor": "extractor"}.get(across)
        return _parsed(f"{down}{across}" if slot is None else f"{down} {slot}")
    if ledger.by in ("source", "head+source", "lag") and isinstance(across, str):
        where = down if isinstance(down, str) else ""
        if ledger.by == "lag":
            only = {e.layer for e in ledger.entries if e.lag is not None}
            where = where or f"L{only.pop()}"
            return _parsed(f"{where} {across}")
        if not where and ledger.by == "head+source":
            where = next((f"L{e.layer}" + ("" if e.head is None else f"H{e.head}") for e in ledger.entries if e.source is not None), "")
        return _parsed(f"{where}<-{across.split(' ')[0]}")
    if isinstance(down, int | float) and not isinstance(down, bool) and 0 <= down < min(TOP, len(ledger.entries) - 1):
        return Cell.of(ledger.entries[int(order(ledger)[int(down)])])
    return None


def _parsed(text: str) -> Cell | None:
    try:
        return Cell.parse(text)
    except ValueError:
        return None


def neuron(values: Float[np.ndarray, " t"], tokens: tuple[str, ...], at: int, name: str) -> go.Figure:
    """What a neuron puts out at every position of the prompt, strongest positions named."""
    labels = [f"{i} {safe(t, 14)}" for i, t in enumerate(tokens)]
    strongest = np.argsort(-np.abs(values), kind="stable")[:3]
    fig = go.Figure(
        go.Bar(
            x=labels,
            y=values,
            marker={
                "color": [POSITIVE if v > 0 else NEGATIVE for v in values],
                "pattern": {"shape": ["/" if v < 0 else "" for v in values], "size": 5, "solidity": 0.35},
                "line": {"color": INK, "width": [2 if i == at else 0 for i in range(len(values))]},
            },
            customdata=[number(float(v), 4, signed=True) for v in values],
            hovertemplate="%{x}: %{customdata}<extra></extra>",
            showlegend=False,
        )
    )
    every, few = thin(len(tokens), 46), thin(len(tokens), 14)
    fig.update_layout(
        xaxis={"title": "token", "type": "category", "tickmode": "array", "tickvals": [labels[i] for i in every], "tickangle": -60},
        yaxis={"title": "activation", "zeroline": True},
    )
    named = ", ".join(f"“{cut(visible(tokens[i]), 24)}” (token {i}): {number(float(values[i]), signed=True)}" for i in strongest)
    return finish(
        fig,
        title=f"{name} is strongest at {named}",
        notes=["Activation after the activation function, in this prompt. The outlined bar is the destination."],
        height=240,
        bottom=110,
        narrow={"xaxis.tickvals": [labels[i] for i in few]},
    )


def gains(values: Float[np.ndarray, " lag"], layer: int, lag: int | None) -> go.Figure:
    """The gain of one Extractor's kernel a lag, one lag marked."""
    lags = np.arange(len(values))
    fig = go.Figure(
        go.Scatter(
            x=lags,
            y=values,
            mode="lines+markers",
            line={"color": NEUTRAL},
            marker={"size": 4},
            hovertemplate="lag %{x}: %{y:.4g}<extra></extra>",
            showlegend=False,
        )
    )
    if lag is not None and lag < len(values):
        fig.add_scatter(
            x=[lag],
            y=[values[lag]],
            mode="markers",
            marker={"color": POSITIVE, "size": 13, "symbol": "diamond"},
            showlegend=False,
            hovertemplate="lag %{x}: %{y:.4g}<extra></extra>",
        )
    fig.update_layout(
        xaxis={"title": "lag (rows back; 0 = present row)"}, yaxis={"title": "gain (rms out / rms in)", "rangemode": "tozero"}
    )
    title = (
        f"L{layer} at lag {lag}: kernel gain {number(float(values[lag]))}"
        if lag is not None and lag < len(values)
        else f"Kernel gain of L{layer}"
    )
    return finish(
        fig,
        title=f"{title}; largest at lag {int(np.nanargmax(values))} ({number(float(np.nanmax(values)))})",
        notes=["Norm of the matrix that the layer applies to the row so far back, divided by the square root of the width. Weights alone."],
        height=240,
    )


def before_after(before: Ledger, after: Ledger, rows: list[int]) -> go.Figure:
    """The given rows of two ledgers as pairs of bars."""
    labels = [f"{i + 1}. {escape(cut(entry_label(before, row), 34))}" for i, row in enumerate(rows)]
    fig = go.Figure()
    for name, ledger, colour in (("before", before, NEUTRAL), ("after", after, POSITIVE)):
        fig.add_bar(
            x=[float(ledger.values[row, 0]) for row in rows],
            y=labels,
            orientation="h",
            name=name,
            marker={"color": colour},
            hovertemplate=f"%{{y}}, {name}: %{{x:+.4g}} logits<extra></extra>",
        )
    fig.update_layout(
        barmode="group",
        xaxis={"title": "contribution (logits)", "zeroline": True},
        yaxis={"autorange": "reversed", "showgrid": False, "type": "category"},
        bargap=0.3,
    )
    return finish(
        fig,
        title=f"{quantity(before)[0].upper()}{quantity(before)[1:]}: {number(float(before.total[0]), 4, signed=True)} before, "
        f"{number(float(after.total[0]), 4, signed=True)} after",
        notes=[f"The {count(len(rows), 'row')} that are largest or change most."],
        height=34.0 * len(rows) + 30,
        legend_rows=1,
    )


def changed_most(before: Ledger, after: Ledger, k: int = 12) -> list[int]:
    """Row numbers that are in both ledgers, those first that are large or move much."""
    same = min(len(before.entries), len(after.entries)) - 1
    one, other = before.values[:same, 0], after.values[:same, 0]
    weight = np.nan_to_num(np.maximum(np.abs(one), np.abs(other)) + np.abs(one - other), nan=np.inf)
    return [int(i) for i in np.argsort(-weight, kind="stable")[:k]]


def fitted(fig: go.Figure, *, narrow: bool) -> dict[str, Any]:
    """A figure for the page: as wide as its place, title, notes and banner left to HTML, on a phone with the changes it brings along."""
    whole = fig.to_plotly_json()
    layout = {k: v for k, v in whole["layout"].items() if k not in ("title", "template", "width", "sliders")}
    meta = layout["meta"]
    layout["annotations"] = [a for a in layout.get("annotations", ()) if a.get("name") != "alarm"]
    top = layout["margin"]["t"]
    layout |= {"margin": {**layout["margin"], "t": 36, "l": 8, "r": 8}, "height": layout["height"] - top + 36, "autosize": True}
    layout |= {"dragmode": False, "paper_bgcolor": "rgba(0,0,0,0)"}
    data = [dict(t) for t in whole["data"]]
    if narrow:
        for path, value in (meta.get("narrow") or {}).items():
            _set(layout, path, value)
        for i in meta.get("narrow_hide") or ():
            data[i]["visible"] = False
        layout["height"] += meta.get("narrow_height") or 0
        _signs_only(data)
    return {"data": data, "layout": layout}


def _set(target: Any, path: str, value: Any) -> None:
    keys = [int(k) if k.isdecimal() else k for k in path.replace("[", ".").replace("]", "").split(".")]
    for key in keys[:-1]:
        target = target[key] if isinstance(key, int) else target.setdefault(key, {})
    target[keys[-1]] = value


def _signs_only(data: list[dict[str, Any]]) -> None:
    """Values do not fit the cells of a wide map on a phone: the sign of those that count stays."""
    for trace in data:
        if trace.get("type") != "heatmap" or trace.get("text") is None or len(trace["x"]) <= 8:
            continue
        limit = float(trace.get("zmax") or 1)

        def sign(text: str, limit: float = limit) -> str:
            try:
                return "" if abs(float(str(text).replace("−", "-"))) < 0.15 * limit else str(text)[:1]
            except ValueError:
                return str(text)[:1]

        trace["text"] = [[sign(t) for t in row] for row in trace["text"]]
        trace["textfont"] = {**trace["textfont"], "size": 9}

"""The claims of the sources as a table of verdicts."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from interp.figures._style import ALARM, FONT, INK, NEGATIVE, NEUTRAL, finish
from interp.figures._text import count, escape, unbroken, wrap

_FIELDS = ("id", "claim", "state", "verdict", "measured", "bound", "note")
_LINE = 15
_WIDTHS = {"verdict": 14, "id": 16, "claim": 44, "state": 9, "measured": 26, "bound": 22, "note": 44}
VERDICTS = {"holds": ("✔ holds", NEGATIVE), "fails": ("✘ FAILS", ALARM), "undecided": ("? undecided", "#8a5a00"), "n/a": ("– n/a", NEUTRAL)}


def field(row: Any, name: str) -> Any:
    """A field of a row that is a mapping or an object."""
    return row.get(name) if isinstance(row, Mapping) else getattr(row, name, None)


def told(value: Any) -> str:
    """A cell as plain text: numbers shortened, None as a dash."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}".replace("-", "−")
    return unbroken(str(value))


def claims(rows: Any, *, model: str | None = None) -> go.Figure:
    """A table of claims: verdict (symbol, word and colour), what was measured, the bound, and the note.

    `rows`: the result of `interp.verify(model)`, each row with `id, claim, state, verdict, measured, bound, note`.

    Raises TypeError for rows without these fields.

    >>> rows = [{"id": "causal", "claim": "nothing reads ahead", "verdict": "holds", "measured": 0, "bound": "0, bitwise"}]
    >>> claims(rows).layout.meta["title"]
    'Of 1 claim, 1 hold'
    """
    listed = getattr(rows, "rows", rows)
    if isinstance(listed, str | bytes) or not isinstance(listed, Sequence):
        raise TypeError(f"figures.claims draws the rows of interp.verify(model); got {type(rows).__name__}")
    for row in listed:
        if field(row, "id") is None or field(row, "verdict") is None:
            raise TypeError(f"figures.claims wants rows with {', '.join(_FIELDS)}; got {type(row).__name__}")
    order = ("verdict", "id", "claim", "state", "measured", "bound", "note")
    cells: dict[str, list[str]] = {name: [] for name in order}
    heights = []
    for row in listed:
        deepest = 1
        for name in order:
            text = (
                VERDICTS.get(str(field(row, "verdict")), (str(field(row, "verdict")), INK))[0]
                if name == "verdict"
                else told(field(row, name))
            )
            lines = wrap(text, int(1.15 * _WIDTHS[name]))
            deepest = max(deepest, len(lines))
            cells[name].append("<br>".join(escape(line) for line in lines))
        heights.append(deepest)
    colours = [VERDICTS.get(str(field(r, "verdict")), ("", INK))[1] for r in listed]
    fig = go.Figure(
        go.Table(
            columnwidth=[_WIDTHS[name] for name in order],
            header={
                "values": [f"<b>{n}</b>" for n in order],
                "align": "left",
                "fill": {"color": "#eef1f4"},
                "font": {"family": FONT, "size": 12, "color": INK},
                "height": 26,
            },
            cells={
                "values": [[f"<b>{c}</b>" for c in cells[name]] if name == "verdict" else cells[name] for name in order],
                "align": "left",
                "fill": {"color": "white"},
                "line": {"color": "#e3e6e9"},
                "font": {"family": FONT, "size": 11, "color": [colours if name == "verdict" else INK for name in order]},
                "height": _LINE + 10,  # the least; plotly makes a row as tall as its lines
            },
        )
    )
    tally = {v: sum(str(field(r, "verdict")) == v for r in listed) for v in ("holds", "fails", "undecided", "n/a")}
    parts = [f"{tally['holds']} hold", f"{tally['fails']} fail", f"{tally['undecided']} undecided", f"{tally['n/a']} not applicable"]
    whose = model or getattr(rows, "model", None)
    failing = [str(field(r, "id")) for r in listed if str(field(r, "verdict")) == "fails"]
    finish(
        fig,
        title=f"Of {count(len(listed), 'claim')}, {', '.join(p for p in parts if not p.startswith('0 ')) or 'none was judged'}",
        subtitle=[str(whose)] if whose else [],
        alarm=f"FAILS: {', '.join(failing)}" if failing else None,
        height=40 + sum(_LINE * lines + 10 for lines in heights),
        width=1180,
    )
    return fig.update_layout(margin={"l": 14, "r": 14, "b": 14})

"""The logit lens as a table: what each residual stream would say, read with its own statistics."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

from interp.figures._door import choose_position, quantity, require, setting
from interp.figures._style import FONT, INK, describe, finish
from interp.figures._text import cut, escape, number, safe, visible

_NAMES = ("model", "tokens", "positions", "answer", "streams", "values", "top", "note")
_ROW = 26


def place(stream: str) -> str:
    """`blocks.3.hook_resid_pre` as people say it: `after L2`. Other names stay."""
    parts = stream.split(".")
    if len(parts) != 3 or parts[0] != "blocks" or not parts[1].isdigit():
        return stream
    layer = int(parts[1])
    if parts[2] == "hook_resid_pre":
        return "before L0" if layer == 0 else f"after L{layer - 1}"
    return f"after L{layer}" if parts[2] == "hook_resid_post" else stream


def lens(lens: Any, *, position: int | None = None) -> go.Figure:
    """One row a stream: the logit read there and its likeliest tokens, likeliest first; the answer's cells are shaded.

    `lens`: a Lens (`interp.lens(model, text)`). `position`: one of `lens.positions` (default: the last). A Lens without `words` shows
    tokens by their ids. A row's logits do not add up over streams; the subtitle says so.

    Raises TypeError for anything that is not a Lens.

    >>> import interp
    >>> model = interp.load_model("mha-induction")
    >>> figure = interp.figures.lens(interp.lens(model, "c1 h4 a0 p7 e5 k2 b3 d6 c1"))
    >>> list(figure.data[0].cells["values"][0])
    ['before L0', 'after L0', 'after L1']
    """
    require(lens, _NAMES, figure="lens", wants="a Lens (interp.lens(model, text))")
    column = choose_position(lens, position)
    values = np.asarray(lens.values, dtype=np.float64)[:, column]
    words = getattr(lens, "words", ())
    names = [list(row[column]) for row in words] if words else [[f"id {int(i)}" for i in row[column]] for row in lens.top]
    last = names[-1][0]
    since = len(names) - 1
    while since > 0 and names[since - 1][0] == last:
        since -= 1
    places = [place(s) for s in lens.streams]
    streams = [safe(s, 32) if s == name else escape(s) for s, name in zip(places, lens.streams, strict=True)]
    ranks = range(len(names[0]))
    answer = str(lens.answer)
    shaded = [["#fbe3cc" if row[r] == answer else "white" for row in names] for r in ranks]
    columns = [streams, [number(v, 4, signed=True) for v in values], *[[safe(row[r], 18) for row in names] for r in ranks]]
    fig = go.Figure(
        go.Table(
            columnwidth=[30, 18, *[20] * len(ranks)],
            header={
                "values": ["<b>stream</b>", "<b>logits</b>", *[f"<b>{r + 1}.</b>" for r in ranks]],
                "align": ["left", "right", *["left"] * len(ranks)],
                "fill": {"color": "#eef1f4"},
                "font": {"family": FONT, "size": 12, "color": INK},
                "height": _ROW,
            },
            cells={
                "values": columns,
                "align": ["left", "right", *["left"] * len(ranks)],
                "fill": {"color": ["white", "white", *shaded]},
                "line": {"color": "#e3e6e9"},
                "font": {"family": FONT, "size": 12, "color": INK},
                "height": _ROW,
            },
        )
    )
    where = "already in the first stream" if since == 0 else f"from {places[since].removeprefix('after ')} on"
    end = number(values[-1], 4, signed=True)
    finish(
        fig,
        title=f"“{cut(visible(last), 24)}” is the likeliest token {where}; the {quantity(lens)} ends at {end}",
        subtitle=[f"{describe(lens.model, lens.tokens)}; {setting(lens, column)}", lens.note],
        notes=["Shaded: the answer."] if any(row[r] == answer for row in names for r in ranks) else [],
        height=_ROW * (len(streams) + 2),
        bottom=14,
    )
    return fig.update_layout(margin={"l": 14, "r": 14})

"""The prompt itself, each token coloured by what it contributes."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

from interp.figures._door import certificate_at, choose_position, quantity, require_ledger, setting
from interp.figures._grid import colour_limit, ink_on, shade, signed_colorbar
from interp.figures._style import DIVERGING, certificate_alarm, certificate_line, describe, finish
from interp.figures._text import columns, count, cut, number, safe, visible

_LINE = 104
"""Character cells on one line of tokens."""
_LONGEST = 24


def token_sums(ledger: Any, column: int) -> tuple[np.ndarray, float]:
    """What each token of the prompt contributes, over everything that names it as its source; and the sum of what names none."""
    values = np.asarray(ledger.values, dtype=np.float64)[:, column]
    sums = np.zeros(len(ledger.tokens))
    rest = 0.0
    for value, entry in zip(values, ledger.entries, strict=True):
        if entry.source is None:
            rest += float(value)
        else:
            sums[entry.source] += value
    return sums, rest


def tokens(ledger: Any, *, position: int | None = None, limit: float | None = None) -> go.Figure:
    """The prompt as running text, every token coloured by the sum of all entries whose source it is; hover gives token, position and value.

    `ledger`: a Ledger by="source" or "head+source". Orange pushes the logit up, blue and underlined with − down. Tokens that are never a
    source (after the read position) stay white.

    Raises TypeError for anything that is not a Ledger, ValueError for one without sources.

    >>> import interp
    >>> model = interp.load_model("mha-induction")
    >>> figure = interp.figures.tokens(interp.ledger(model, "c1 h4 a0 p7 e5 k2 b3 d6 c1", by="source"))
    >>> len(figure.data[0].text)
    9
    """
    require_ledger(ledger, "tokens")
    column = choose_position(ledger, position)
    if all(e.source is None for e in ledger.entries):
        raise ValueError(
            f'figures.tokens: this ledger (by="{ledger.by}") names no source tokens: make it with by="source" or by="head+source"'
        )
    sums, rest = token_sums(ledger, column)
    chosen = colour_limit(sums, limit)

    starts, lines, widths = [], [], []
    x = line = 0
    for token in ledger.tokens:
        width = columns(cut(visible(token), _LONGEST)) + 2
        if x and x + width > _LINE:
            x, line = 0, line + 1
        starts.append(x)
        lines.append(line)
        widths.append(width)
        x += width
        if "\n" in token:
            x, line = 0, line + 1
    finite = np.isfinite(sums)
    colours = [shade(v, chosen) for v in sums]
    marks = [
        "−" if f and v < -0.15 * chosen else "+" if f and v > 0.15 * chosen else "NaN" if np.isnan(v) else ""
        for v, f in zip(sums, finite, strict=True)
    ]
    hover = [
        f"token {i} {safe(t, 60)}<br>{number(v, 4, signed=True)} logits" for i, (t, v) in enumerate(zip(ledger.tokens, sums, strict=True))
    ]
    texts = [f"{safe(t, _LONGEST)}{f'<sup>{m}</sup>' if m else ''}" for t, m in zip(ledger.tokens, marks, strict=True)]
    fig = go.Figure(
        go.Bar(
            x=np.array(widths) - 0.15,
            base=starts,
            y=lines,
            orientation="h",
            width=0.8,
            marker={"color": colours, "line": {"color": "#c9ced3", "width": 0.5}},
            text=texts,
            textposition="inside",
            insidetextanchor="middle",
            constraintext="none",
            textangle=0,
            textfont={"family": "'DejaVu Sans Mono', Menlo, Consolas, monospace", "size": 11, "color": [ink_on(c) for c in colours]},
            hovertext=hover,
            hoverinfo="text",
            showlegend=False,
        )
    )
    height = 30.0 * (max(lines) + 1)
    # an invisible mark carries the colour bar, which a bar trace with ready-made colours has not got
    fig.add_scatter(
        x=[None],
        y=[None],
        mode="markers",
        showlegend=False,
        marker={
            "color": [0],
            "cmin": -chosen,
            "cmax": chosen,
            "colorscale": DIVERGING,
            "showscale": True,
            "colorbar": signed_colorbar(chosen, title="logits", length=min(height, 240)),
        },
    )
    fig.update_layout(
        xaxis={"visible": False, "range": [0, _LINE + 1], "fixedrange": True},
        yaxis={"visible": False, "range": [max(lines) + 0.6, -0.6], "fixedrange": True},
        bargap=0,
    )
    notes = [
        f"Orange, +: pushes the {quantity(ledger)} up; blue, −: down. Entries that belong to no token sum to {number(rest, signed=True)}."
    ]
    if (~finite).any():
        notes.append(f"{count(int((~finite).sum()), 'token')} NaN (grey) or infinite (end colour).")
    ranked = np.where(finite, np.abs(sums), -1)
    best = int(ranked.argmax())
    title = (
        f"“{cut(visible(ledger.tokens[best]), 24)}” (token {best}) moves the {quantity(ledger)} most: {number(sums[best], signed=True)} "
        f"of {number(float(np.asarray(ledger.total)[column]), signed=True)}"
    )
    certificate = certificate_at(ledger, column)
    return finish(
        fig,
        title=title,
        subtitle=[f"{describe(ledger.model, ledger.tokens)}; {setting(ledger, column)}", certificate_line(certificate)],
        notes=notes,
        alarm=certificate_alarm(certificate),
        height=max(height, 120),
        bottom=16,
    )

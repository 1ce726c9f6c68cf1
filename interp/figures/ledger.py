"""The ledger as bars: the largest entries, everything else as one row, the rounding, and the running sum to the total."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

from interp.figures._door import certificate_at, choose_position, entry_label, quantity, require_ledger, setting
from interp.figures._style import FAINT, INK, MISSING, NEGATIVE, NEUTRAL, POSITIVE, certificate_alarm, certificate_line, describe, finish
from interp.figures._text import columns, count, cut, escape, number


def _headline(ledger: Any, labels: list[str], values: np.ndarray, total: float) -> str:
    finite = np.where(np.isfinite(values), values, 0.0)
    told = []
    if finite.size and finite.max() > 0:
        told.append(f"{cut(labels[int(finite.argmax())], 40)} adds most ({number(finite.max(), signed=True)})")
    if finite.size and finite.min() < 0:
        told.append(f"{cut(labels[int(finite.argmin())], 40)} takes most ({number(finite.min(), signed=True)})")
    what = f"{quantity(ledger)[0].upper()}{quantity(ledger)[1:]}"
    return f"{what} is {number(total, 4, signed=True)}: {' and '.join(told) or 'every entry is zero'}"


def ledger(ledger: Any, *, position: int | None = None, top: int = 20) -> go.Figure:
    """The `top` largest entries as signed bars and, beside them, the running sum from zero to the total.

    The entries not shown make one row, `N others (sum)`; the rounding is a row of its own; the last bar is the total that the model
    printed. Bars to the left are negative and hatched. Entries that are NaN or infinite are shown by name without a bar, and a note says
    so.

    Raises TypeError for anything that is not a Ledger, ValueError where `top` < 1.

    >>> import interp
    >>> model = interp.load_model("mha-induction")
    >>> figure = interp.figures.ledger(interp.ledger(model, "c1 h4 a0 p7 e5 k2 b3 d6 c1", by="component"))
    >>> figure.layout.xaxis.title.text
    'contribution (logits)'
    """
    require_ledger(ledger, "ledger")
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise ValueError(f"top: wants a whole number >= 1, got {top!r}")
    column = choose_position(ledger, position)
    values = np.asarray(ledger.values, dtype=np.float64)[:, column]
    total = float(np.asarray(ledger.total)[column])
    labels = [entry_label(ledger, i) for i in range(len(ledger.entries))]
    rounding = np.array([e.kind == "rounding" for e in ledger.entries])
    weight = np.where(rounding, -1.0, np.where(np.isfinite(values), np.abs(values), np.inf))
    order = np.argsort(-weight, kind="stable")[: int((~rounding).sum())]
    kept, left = order[:top], order[top:]

    names = [labels[i] for i in kept]
    sizes = [float(values[i]) for i in kept]
    hover = [f"{labels[i]} ({ledger.entries[i].kind}): {number(values[i], 6, signed=True)} logits" for i in kept]
    colours = [POSITIVE if v > 0 else NEGATIVE for v in sizes]
    if left.size:
        names.append(f"{count(int(left.size), 'other')} (sum)")
        sizes.append(float(values[left].sum()))
        largest = number(float(np.abs(values[left]).max()))
        hover.append(f"{names[-1]}, each at most {largest} in modulus: {number(sizes[-1], 6, signed=True)} logits")
        colours.append(NEUTRAL)
    for row in np.flatnonzero(rounding):
        names.append("rounding")
        sizes.append(float(values[row]))
        hover.append(f"rounding of the model's own arithmetic: {number(values[row], 6, signed=True)} logits")
        colours.append(NEUTRAL)
    steps = np.array(sizes)
    ends = np.cumsum(np.where(np.isfinite(steps), steps, 0.0))
    starts = np.concatenate([[0.0], ends[:-1]])
    names.append("total, as printed")
    sizes.append(total)
    hover.append(f"total: {number(total, 7, signed=True)} logits")
    colours.append(INK)

    size = np.array(sizes)
    broken = ~np.isfinite(size)
    drawn = np.where(broken, 0.0, size)
    rows = list(range(len(names)))
    patterns = ["/" if v < 0 and c != INK else "" for v, c in zip(drawn, colours, strict=True)]
    marker = {
        "color": [MISSING if b else c for b, c in zip(broken, colours, strict=True)],
        "pattern": {"shape": patterns, "size": 5, "solidity": 0.35},
    }
    bars = go.Bar(
        x=drawn,
        y=rows,
        orientation="h",
        marker=marker,
        text=[number(v, signed=True) for v in sizes],
        textposition="outside",
        cliponaxis=False,
        hovertext=[escape(h) for h in hover],
        hoverinfo="text",
        showlegend=False,
    )
    running = go.Bar(
        x=np.concatenate([drawn[:-1], [total if np.isfinite(total) else 0.0]]),
        base=np.concatenate([starts, [0.0]]),
        y=rows,
        orientation="h",
        marker=marker,
        hovertext=[
            escape(f"running sum after {n}: {number(e, 6, signed=True)} logits") for n, e in zip(names, [*ends, total], strict=True)
        ],
        hoverinfo="text",
        xaxis="x2",
        showlegend=False,
    )
    # the line that joins the ends of the running sum, so that each bar is seen to start where the last one ended
    joints_x: list[float | None] = []
    joints_y: list[float | None] = []
    for i, end in enumerate(ends):
        joints_x += [end, end, None]
        joints_y += [i - 0.4, i + 1.4, None]
    path = go.Scatter(
        x=joints_x, y=joints_y, mode="lines", line={"color": FAINT, "width": 1}, xaxis="x2", hoverinfo="skip", showlegend=False
    )
    fig = go.Figure([bars, running, path])

    longest = max(columns(n) for n in names)

    def bold(text: str, row: int) -> str:
        return f"<b>{text}</b>" if row == rows[-1] else text

    low, high = min(float(drawn.min()), 0.0), max(float(drawn.max()), 0.0)
    room = 0.22 * ((high - low) or 1.0)
    reach = np.concatenate([ends, starts, [total if np.isfinite(total) else 0.0]])
    pad = 0.06 * ((float(reach.max()) - float(reach.min())) or 1.0)
    fig.update_layout(
        xaxis={
            "title": "contribution (logits)",
            "domain": [0, 0.6],
            "range": [low - (room if low < 0 else 0.05 * room), high + (room if high > 0 else 0.05 * room)],
        },
        xaxis2={
            "title": "running sum (logits)",
            "domain": [0.64, 1],
            "anchor": "y",
            "range": [float(reach.min()) - pad, float(reach.max()) + pad],
        },
        yaxis={
            "tickmode": "array",
            "tickvals": rows,
            "ticktext": [bold(escape(cut(n, 34)), i) for i, n in enumerate(names)],
            "range": [len(rows) - 0.5, -0.5],
            "showgrid": False,
        },
        bargap=0.22,
    )
    fig.update_xaxes(zeroline=True, zerolinewidth=1, nticks=6)
    amount = len(values) - int(rounding.sum())
    notes = [
        f"{amount} {'entry' if amount == 1 else 'entries'} and the rounding row add up to the total; bars to the left, hatched: negative."
    ]
    if longest > 34:
        notes.append("Long labels are cut; hover shows them whole.")
    if broken.any():
        notes.append(f"{count(int(broken.sum()), 'row')} NaN or infinite: no bar can be drawn, and the running sum leaves them out.")
    certificate = certificate_at(ledger, column)
    return finish(
        fig,
        title=_headline(ledger, [labels[i] for i in np.flatnonzero(~rounding)], values[~rounding], total),
        subtitle=[
            f"{describe(ledger.model, ledger.tokens)}; {setting(ledger, column)}; entries by {ledger.by}",
            certificate_line(certificate),
        ],
        notes=notes,
        alarm=certificate_alarm(certificate),
        height=max(22.0 * len(rows), 110),
        # a phone has room for one panel, and for shorter labels
        narrow={
            "xaxis.domain": [0, 1],
            "xaxis.range": [low - 3 * room if low < 0 else -0.05 * room, high + 3 * room if high > 0 else 0.05 * room],
            "xaxis.nticks": 4,
            "xaxis2.visible": False,
            "yaxis.ticktext": [bold(escape(cut(n, 20)), i) for i, n in enumerate(names)],
        },
        narrow_hide=[1, 2],
    )

"""How each row nears its final row, sublayer by sublayer, beside the null."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

from interp.figures._door import require
from interp.figures._style import NEGATIVE, NEUTRAL, POSITIVE, describe, finish
from interp.figures._text import count, escape, number, thin

_NAMES = ("model", "tokens", "streams", "layers", "distance", "cosine", "null_distance", "null_cosine", "gain", "gains")
_PANELS = (("distance", "distance still to go (share of the whole way)"), ("cosine", "cosine with the final row"))


def _headline(drive: Any) -> str:
    """How much nearer than the null, or farther, and than how many of its draws."""
    gains = drive.gains[0]
    if not np.isfinite(gains).all():
        return "The way to the final row is not a number: a stream is NaN or infinite"
    mean, beaten = float(gains.mean()), int((gains > 0).sum())
    if abs(mean) < 0.005:
        found = "as near to the final row as the null"
    else:
        found = f"{abs(mean):.0%} of their way {'nearer to' if mean > 0 else 'farther from'} the final row than the null"
    return f"Between start and end, rows are {found}; nearer than {beaten} of its {count(len(gains), 'draw')}"


def drive(drive: Any) -> go.Figure:
    """Distance (left) and cosine (right) of every stream to the row it ends as, from the embedding to the last sublayer.

    `drive`: a Drive (`interp.drive(model, text)`). Blue: the mean over rows, in a band that holds the middle 80 % of rows; grey, dashed:
    the null, the same writes in random order with random signs, in a band that holds 95 % of its draws; orange, dotted: the last row,
    whose prediction a ledger explains. Values that are not finite are left out, and a note counts them.

    Raises TypeError for anything that is not a Drive.

    >>> import interp
    >>> figure = interp.figures.drive(interp.drive(interp.load_model("ishe-austen"), "It is a truth"))
    >>> figure.layout.xaxis.title.text
    'after layer'
    """
    require(drive, _NAMES, figure="drive", wants="a Drive (interp.drive(model, text))")
    at = np.arange(len(drive.streams))
    names = [escape(s) for s in drive.streams]
    fig = go.Figure()
    lost = 0
    apart = False
    for i, (kind, _) in enumerate(_PANELS):
        axes = {"xaxis": f"x{i + 1 if i else ''}", "yaxis": f"y{i + 1 if i else ''}"}
        rows = np.asarray(getattr(drive, kind), dtype=np.float64)
        null = np.asarray(getattr(drive, f"null_{kind}"), dtype=np.float64).T
        lost += int((~np.isfinite(rows)).sum())
        for values, (low, high), what, colour, fill, dash in (
            (null, (2.5, 97.5), "null", NEUTRAL, "rgba(127,135,144,0.22)", "dash"),
            (rows, (10, 90), "mean over rows", NEGATIVE, "rgba(33,102,172,0.20)", "solid"),
        ):
            edges = np.percentile(values, [low, high], axis=1)
            apart |= bool(((values.mean(1) < edges[0] - 1e-9) | (values.mean(1) > edges[1] + 1e-9)).any())
            fig.add_scatter(
                x=np.concatenate([at, at[::-1]]),
                y=np.concatenate([edges[1], edges[0][::-1]]),
                fill="toself",
                fillcolor=fill,
                line={"width": 0},
                mode="lines",
                hoverinfo="skip",
                showlegend=False,
                **axes,
            )
            fig.add_scatter(
                x=at,
                y=values.mean(1),
                mode="lines",
                line={"color": colour, "width": 2.4, "dash": dash},
                name=what,
                legendgroup=what,
                showlegend=i == 0,
                customdata=names,
                hovertemplate=f"%{{customdata}}, {what}: %{{y:.3f}}<extra></extra>",
                **axes,
            )
        fig.add_scatter(
            x=at,
            y=rows[:, -1],
            mode="lines",
            line={"color": POSITIVE, "width": 1.6, "dash": "dot"},
            name="last row",
            legendgroup="last row",
            showlegend=i == 0,
            customdata=names,
            hovertemplate="%{customdata}, last row: %{y:.3f}<extra></extra>",
            **axes,
        )
    # a layer's name stands where its last sublayer has been added
    ends = [i for i in at if i + 1 == len(at) or drive.layers[i + 1] != drive.layers[i]]
    marks = [(i, "start" if drive.layers[i] < 0 else f"L{drive.layers[i]}") for i in ends]

    def ticks(room: int) -> tuple[list[int], list[str]]:
        chosen = [marks[j] for j in thin(len(marks), room)]
        return [int(i) for i, _ in chosen], [name for _, name in chosen]

    places, texts = ticks(14)
    for i, (kind, title) in enumerate(_PANELS):
        axis = f"{i + 1 if i else ''}"
        left = 0.0 if i == 0 else 0.54
        fig.update_layout(
            {
                f"xaxis{axis}": {
                    "title": "after layer",
                    "domain": [left, left + 0.46],
                    "anchor": f"y{axis}",
                    "tickmode": "array",
                    "tickvals": places,
                    "ticktext": texts,
                    "tickangle": 0,
                    "range": [-0.3, len(at) - 0.7],
                    "zeroline": False,
                },
                f"yaxis{axis}": {"title": title, "anchor": f"x{axis}", **({"rangemode": "tozero"} if kind == "distance" else {})},
            }
        )
    notes = [
        "Blue band: the middle 80 % of rows. Grey band: 95 % of the draws of the null (the same writes in random order with random signs)."
    ]
    if apart:
        notes.append("A mean outside its band: a few rows (a first token, often) stand far apart from the others.")
    if lost:
        notes.append(f"{count(lost, 'value')} NaN or infinite: left out.")
    few, few_texts = ticks(7)
    return finish(
        fig,
        title=_headline(drive),
        subtitle=[
            describe(drive.model, drive.tokens),
            f"gain on the null, mean over sublayers and rows: distance {number(drive.gain.distance, 3, signed=True)}, "
            f"cosine {number(drive.gain.cosine, 3, signed=True)}; one prompt",
        ],
        notes=notes,
        height=280,
        legend_rows=1,
        narrow={
            "xaxis.domain": [0, 1],
            "yaxis.domain": [0.58, 1],
            "xaxis2.domain": [0, 1],
            "yaxis2.domain": [0, 0.42],
            "legend.y": -58 / 560,
            **{f"{axis}.tickvals": few for axis in ("xaxis", "xaxis2")},
            **{f"{axis}.ticktext": few_texts for axis in ("xaxis", "xaxis2")},
        },
        narrow_height=280,
    )

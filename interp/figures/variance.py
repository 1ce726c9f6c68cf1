"""Variance along the sequence: measured, predicted and theory on log-log axes."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

from interp.figures._door import require
from interp.figures._style import NEUTRAL, depth_colours, finish, log_ticks
from interp.figures._text import count, escape, number, unbroken

_NAMES = ("model", "init", "sequences", "seeds", "rows")
_LEGEND_ROOM = 12
_THEORY = "slope of theory (fresh weights)"
_POINTS = 64
"""Positions drawn one by one; longer sequences are drawn as means over log-wide blocks, or the right end is a black smear."""


SITES = {
    "attn.hook_extraction": "extraction",
    "attn.hook_z": "heads (z)",
    "hook_attn_out": "sublayer output",
    "hook_resid_post": "stream after the layer",
}
"""Hook names as people say them; other sites keep their hook's name."""


def _site(row: Any) -> str:
    return SITES.get(row.site, unbroken(row.site))


def _layer(row: Any) -> int:
    return -1 if row.layer is None else int(row.layer)


def _place(row: Any) -> str:
    return _site(row) if row.layer is None else f"L{row.layer} {_site(row)}"


def _signed(value: float) -> str:
    """Two decimals and a true minus sign; what rounds to zero has no sign."""
    return "0.00" if abs(value) < 0.005 else f"{value:+.2f}".replace("-", "−")


def _slope(row: Any) -> str:
    if not np.isfinite(row.slope):
        return "no slope"
    return f"{_signed(row.slope)} [{_signed(row.interval[0])}, {_signed(row.interval[1])}]{'' if row.power_law else ' *'}"


def _stacked(panels: int) -> dict[str, Any]:
    """The layout of a phone: panels below one another instead of side by side."""
    total = 320 + 280 * (panels - 1)
    share = (total - 90 * (panels - 1)) / panels / total
    changes: dict[str, Any] = {"legend.y": -58 / total}
    for i in range(panels):
        top = 1 - i * (share + 90 / total)
        axis = str(i + 1) if i else ""
        changes |= {f"xaxis{axis}.domain": [0, 1], f"yaxis{axis}.domain": [max(top - share, 0), top]}
        changes |= {f"annotations[{i}].x": 0.5, f"annotations[{i}].y": top}
    return changes


def _log_blocks(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means over blocks of positions that are equally wide on a log axis; a short profile as it stands."""
    if len(x) <= _POINTS:
        return x, y
    block = np.unique(np.floor(np.log(x) / np.log(x.max() + 1) * _POINTS), return_inverse=True)[1]
    size = np.bincount(block)
    return np.exp(np.bincount(block, np.log(x)) / size), np.bincount(block, y) / size


def _headline(profile: Any) -> str:
    """The range of slopes at each site."""
    parts = []
    for site in dict.fromkeys(_site(r) for r in profile.rows):
        slopes = [r.slope for r in profile.rows if _site(r) == site and np.isfinite(r.slope)]
        if not slopes:
            continue
        low, high = _signed(min(slopes)), _signed(max(slopes))
        parts.append(f"{low if low == high else f'{low} to {high}'} at the {site}")
    when = "At initialisation" if profile.init else "As trained"
    laws = sorted({r.theory_slope for r in profile.rows if profile.init and getattr(r, "theory_slope", None) is not None})
    theory = f" (theory: {' or '.join(_signed(law) for law in laws)})" if laws else ""
    return f"{when}, the variance's log-log slope along the sequence is {'; '.join(parts) or 'not measurable'}{theory}"


def variance(profile: Any) -> go.Figure:
    """Variance against position, one panel a site, one line a layer: measured (solid), predicted from the weights (dashed), theory
    (dotted).

    `profile`: a VarianceProfile. Slopes with their intervals (bootstrap over sequences, or over seeds at initialisation) are in the
    legend for up to 12 lines, in the hover always. Positions start at 1. Values that are zero, negative or not finite have no logarithm:
    they are left out, and a note counts them.

    Raises TypeError for anything that is not a VarianceProfile.

    >>> import interp
    >>> model = interp.load_model("ihe-austen")
    >>> figure = interp.figures.variance(interp.variance_profile(model, sites="attn.hook_extraction", sequences=8))
    >>> figure.layout.xaxis.title.text
    'position (1 = first token)'
    """
    require(profile, _NAMES, figure="variance", wants="a VarianceProfile (interp.variance_profile(model, ...))")
    rows = tuple(profile.rows)
    if not rows:
        raise ValueError("figures.variance: this profile has no sites to draw")
    sites = list(dict.fromkeys(_site(r) for r in rows))
    layers = sorted({_layer(r) for r in rows})
    colours = dict(zip(layers, depth_colours(len(layers)), strict=True))
    gap = 0.08
    share = (1 - gap * (len(sites) - 1)) / len(sites)
    fig = go.Figure()
    lost = 0
    blocks = False
    named = set(layers) if len(rows) <= _LEGEND_ROOM else {layers[0], layers[-1]}
    seen: set[str] = set()
    # theory speaks of fresh weights; beside many trained curves its lines would only hide them
    theory = profile.init or len(rows) <= _LEGEND_ROOM
    positive: list[float] = []
    for row in rows:
        i = sites.index(_site(row))
        axes = {"xaxis": f"x{i + 1 if i else ''}", "yaxis": f"y{i + 1 if i else ''}"}
        label = escape(f"{_place(row)}: {_slope(row)}")
        for values, what, dash, width, colour in (
            (row.variance, "measured", "solid", 2.2, colours[_layer(row)]),
            (
                row.predicted if row.predicted is not None else row.predicted_diagonal,
                "predicted from the weights",
                "dash",
                1.6,
                colours[_layer(row)],
            ),
            (row.theory if theory else None, _THEORY, "dot", 2.0, colours[_layer(row)]),
        ):
            if values is None:
                continue
            y = np.asarray(values, dtype=float)
            binned = len(y) > _POINTS
            x, y = _log_blocks(np.asarray(row.positions, dtype=float), y)
            blocks |= binned
            good = np.isfinite(y) & (y > 0)
            lost += int((~good).sum())
            positive += y[good].tolist()
            measured = what == "measured"
            seen.add(what)
            fig.add_scatter(
                x=x,
                y=np.where(good, y, np.nan),
                mode="lines" if len(x) > 1 else "markers",
                line={"color": colour, "dash": dash, "width": width},
                name=label,
                legendgroup=_place(row),
                showlegend=measured and _layer(row) in named,
                hovertemplate=f"{escape(_place(row))}, {what}<br>position %{{x}}: %{{y:.4g}}<br>slope {_slope(row)}<extra></extra>",
                **axes,
            )
    for what, dash in (("measured", "solid"), ("predicted from the weights", "dash"), (_THEORY, "dot")):
        if what in seen:
            fig.add_scatter(x=[None], y=[None], mode="lines", line={"color": NEUTRAL, "dash": dash, "width": 2}, name=what)
    span = [float(np.log10(min(positive))), float(np.log10(max(positive)))] if positive else [-1.0, 1.0]
    pad = max(0.08 * (span[1] - span[0]), 0.15)
    longest = max(float(np.max(r.positions)) for r in rows)
    ticks = [v for v in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if v <= longest]
    levels, level_texts = log_ticks(span[0] - pad, span[1] + pad)
    for i, site in enumerate(sites):
        left = i * (share + gap)
        fig.update_layout(
            {
                f"xaxis{i + 1 if i else ''}": {
                    "title": "position (1 = first token)",
                    "type": "log",
                    "domain": [left, left + share],
                    "anchor": f"y{i + 1 if i else ''}",
                    "tickmode": "array",
                    "tickvals": ticks[:: 1 if len(sites) < 3 else 2],
                    "range": [-0.05, max(np.log10(longest), 0.3) + 0.05],
                },
                f"yaxis{i + 1 if i else ''}": {
                    "title": "variance (mean square, stream units²)" if i == 0 else None,
                    "type": "log",
                    "anchor": f"x{i + 1 if i else ''}",
                    # one range for all panels, so that they can be compared by eye
                    "range": [span[0] - pad, span[1] + pad],
                    "tickmode": "array",
                    "tickvals": levels,
                    "ticktext": level_texts,
                },
            }
        )
        fig.add_annotation(
            text=f"<b>{escape(site)}</b>",
            xref="paper",
            yref="paper",
            x=left + share / 2,
            y=1,
            yanchor="bottom",
            yshift=3,
            showarrow=False,
            font={"size": 13},
        )
    notes = ["Legend: log-log slope and its interval."]
    curved = sum(not r.power_law for r in rows)
    if curved:
        notes.append(f"*: not a power law ({curved} of {count(len(rows), 'curve')}), so that its slope is only a trend.")
    if lost:
        notes.append(f"{count(lost, 'value')} zero, negative or not finite: left out (no logarithm).")
    if blocks:
        notes.append("Long sequence: each point is the mean over a block of positions (blocks equally wide on the log axis).")
    if len(rows) > _LEGEND_ROOM:
        notes.append("Legend: first and last layer; darker lines are earlier layers, hover gives every slope.")
    if any(r.predicted is None and r.predicted_diagonal is not None for r in rows):
        notes.append("Predicted: lag-diagonal form (correlations between different rows left out).")
    checks = [(r, c) for r in rows for c in (r.identity, getattr(r, "native", None)) if c is not None]
    failing = [(r, c) for r, c in checks if not c.holds]
    alarm = None
    if failing:
        row, worst = failing[0]
        alarm = (
            f"IDENTITY FAILED at {_place(row)}: the formula misses the measured second moment by {number(worst.gap, 2)}, "
            f"bound {number(worst.bound, 2)} ({number(worst.ratio, 2)} times)"
        )
    told = []
    if checks and not failing:
        tight = max((c for _, c in checks), key=lambda c: c.ratio)
        told = [
            f"identity of formula and measured second moment holds ({count(len(checks), 'check')}): "
            f"worst gap {number(tight.gap, 2)} of bound {number(tight.bound, 2)}"
        ]
    state = "random weights" if profile.init else "trained weights"
    source = getattr(profile, "predicted_from", 0)
    source = f"; predicted from {count(source, 'other sequence')}" if source else ""
    seeds = f", {count(profile.seeds, 'seed')}" if profile.init else ""
    legend_rows = -(-(min(len(rows), 2 * len(sites)) if len(rows) > _LEGEND_ROOM else len(rows)) // 3) + 1
    return finish(
        fig,
        title=_headline(profile),
        subtitle=[f"{profile.model}, {state}, {count(profile.sequences, 'sequence')}{seeds}; intervals 95 %{source}", *told],
        notes=notes,
        alarm=alarm,
        height=320,
        legend_rows=legend_rows,
        narrow=_stacked(len(sites)),
        narrow_height=280 * (len(sites) - 1),
    )

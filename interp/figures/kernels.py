"""What an Extractor has instead of attention patterns: its weight per lag and the spectrum of its gate, both read off the weights."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

from interp.figures._door import require
from interp.figures._style import depth_colours, finish, log_ticks
from interp.figures._text import count, unbroken

_LEGEND_ROOM = 12


def _numpy(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.detach().float().cpu().numpy() if hasattr(tensor, "detach") else tensor, dtype=np.float64)


def lag_gain(mixer: Any) -> np.ndarray:
    """Root-mean-square gain of the extraction per lag, (lag,): `||M_k||_F / sqrt(d)` for the matrix `M_k` that lag `k` applies.

    For SHE and iSHE `M_k = W_ext[k]`; for HE and iHE `M_k = W_in diag(w_lag[k])`. Independent inputs of variance 1 leave with this
    standard deviation (before the gate, and before iSHE's and iHE's scale).
    """
    if hasattr(mixer, "W_ext"):
        kernel = _numpy(mixer.W_ext)
        return np.sqrt((kernel**2).sum(axis=(1, 2)) / kernel.shape[2])
    weights, inward = _numpy(mixer.w_lag), _numpy(mixer.W_in)
    return np.sqrt(((weights**2) * (inward**2).sum(axis=0)).sum(axis=1) / weights.shape[1])


def kernels(model: Any) -> go.Figure:
    """Gain per lag (left) and singular values of the gate `W_adj` (right), one line a layer, darker lines earlier layers.

    `model`: a decoder with Extractors. Lag 0 is the present row. Layers without an Extractor are left out.

    Raises TypeError for what is no model, ValueError for a model without Extractors.

    >>> import interp
    >>> figure = interp.figures.kernels(interp.load_model("ihe-austen"))
    >>> sorted({line.name for line in figure.data})
    ['L0', 'L1', 'L2', 'L3']
    """
    require(model, ("blocks",), figure="kernels", wants="a decoder with Extractors")
    mixers = {}
    for layer, block in enumerate(model.blocks):
        mixer = getattr(block, "attn", None)
        if mixer is not None and (hasattr(mixer, "W_ext") or hasattr(mixer, "w_lag")) and hasattr(mixer, "W_adj"):
            mixers[layer] = mixer
    if not mixers:
        raise ValueError("figures.kernels: this model has no Extractor; for attention use figures.attention")
    colours = dict(zip(mixers, depth_colours(len(mixers)), strict=True))
    named = set(mixers) if len(mixers) <= _LEGEND_ROOM else {min(mixers), max(mixers)}
    fig = go.Figure()
    gains, lost = {}, 0
    positive: tuple[list[float], list[float]] = ([], [])
    for layer, mixer in mixers.items():
        gain = lag_gain(mixer)
        spectrum = np.linalg.svd(np.nan_to_num(_numpy(mixer.W_adj)), compute_uv=False)
        gains[layer] = gain
        for values, what, axes in (
            (gain, "lag", {"xaxis": "x", "yaxis": "y"}),
            (spectrum, "singular value", {"xaxis": "x2", "yaxis": "y2"}),
        ):
            good = np.isfinite(values) & (values > 0)
            lost += int((~good).sum())
            positive[what != "lag"].extend(values[good].tolist())
            fig.add_scatter(
                x=np.arange(len(values)),
                y=np.where(good, values, np.nan),
                mode="lines+markers" if len(values) <= 16 else "lines",
                line={"color": colours[layer], "width": 1.8},
                name=f"L{layer}",
                legendgroup=str(layer),
                showlegend=what == "lag" and layer in named,
                hovertemplate=f"L{layer}, {what} %{{x}}: %{{y:.4g}}<extra></extra>",
                **axes,
            )
    longest = max(max(len(g) for g in gains.values()) - 1, 1)
    ticks = [log_ticks(np.log10(min(v)) - 0.1, np.log10(max(v)) + 0.1) if v else ([], []) for v in positive]
    fig.update_layout(
        xaxis={
            "title": "lag (rows back; 0 = present row)",
            "domain": [0, 0.56],
            "anchor": "y",
            "zeroline": False,
            "range": [-0.02 * longest, 1.01 * longest],
        },
        yaxis={"title": "gain (rms out / rms in)", "type": "log", "anchor": "x", "tickvals": ticks[0][0], "ticktext": ticks[0][1]},
        xaxis2={"title": "singular value of W_adj (rank)", "domain": [0.68, 1], "anchor": "y2", "zeroline": False},
        yaxis2={"title": "size (rms out / rms in)", "type": "log", "anchor": "x2", "tickvals": ticks[1][0], "ticktext": ticks[1][1]},
    )
    for text, x in (("extraction: gain per lag", 0.28), ("gate: spectrum", 0.84)):
        fig.add_annotation(
            text=f"<b>{text}</b>", xref="paper", yref="paper", x=x, y=1, yanchor="bottom", yshift=3, showarrow=False, font={"size": 13}
        )
    shares = {layer: float(g[0] ** 2 / (g**2).sum()) for layer, g in gains.items() if np.isfinite(g).all() and (g**2).sum() > 0}
    if shares:
        peaks = {layer: int(gains[layer].argmax()) for layer in shares}
        lags = sorted(set(peaks.values()))
        where = f"lag {lags[0]}" if len(lags) == 1 else f"lags {lags[0]} to {lags[-1]}"
        low, high = (f"{share:.0%}" for share in (min(shares.values()), max(shares.values())))
        span = low if low == high else f"{low} to {high}"
        title = f"The extraction weighs {where} most; the present row (lag 0) holds {span} of the squared kernel weight"
    else:
        title = "No layer has finite kernel weights"
    config = getattr(model, "config", None)
    name = unbroken(str(getattr(model, "loaded_as", None) or getattr(config, "mixer", "Extractor")))
    notes = [
        "Read off the weights, before the gate and before iSHE's and iHE's division by the square root of the position: no prompt enters."
    ]
    if lost:
        notes.append(f"{count(lost, 'value')} zero or not finite: left out (no logarithm).")
    if len(mixers) > _LEGEND_ROOM:
        notes.append("Legend: first and last layer.")
    return finish(
        fig,
        title=title,
        subtitle=[f"{name}, {count(len(mixers), 'layer')} with an Extractor"],
        notes=notes,
        height=300,
        legend_rows=1,
        narrow={
            "xaxis.domain": [0, 1],
            "yaxis.domain": [0.58, 1],
            "xaxis2.domain": [0, 1],
            "yaxis2.domain": [0, 0.42],
            "annotations[0].x": 0.5,
            "annotations[1].x": 0.5,
            "annotations[1].y": 0.42,
            "legend.y": -58 / 580,
        },
        narrow_height=280,
    )

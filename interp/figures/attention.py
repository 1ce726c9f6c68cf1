"""Attention patterns: every head small, one head large, linked by a slider."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from interp.figures._style import FAINT, MISSING, POSITIVE, SEQUENTIAL, describe, finish
from interp.figures._text import count, safe, thin

_LARGE_CELLS = 800_000
"""Numbers kept for the large panel, over all heads that it can show: 4 bytes each in the file."""
_LARGE_HEADS = 400
_PLOT = 780


def _patterns(result: Any) -> tuple[dict[int, np.ndarray], list[str], str]:
    """Layer -> (head, query, key), the tokens, the model's name."""
    if isinstance(result, tuple) and len(result) == 2:
        pattern, tokens = result
        layers = dict(pattern) if isinstance(pattern, Mapping) else None
        if layers is None:
            array = _array(pattern)
            if array.ndim not in (3, 4):
                raise ValueError(
                    "pattern: wants (head, query, key), (layer, head, query, key) or a mapping layer -> (head, query, key); "
                    f"got shape {array.shape}"
                )
            layers = dict(enumerate(array if array.ndim == 4 else array[None]))
        return {int(k): _one(v, k) for k, v in layers.items()}, [str(t) for t in tokens], ""
    if not hasattr(result, "keys") or not hasattr(result, "__getitem__"):
        raise TypeError(
            f"figures.attention draws a cache (interp.run_with_cache(model, text)[1]) or (pattern, tokens); got {type(result).__name__}"
        )
    found = {}
    for key in result.keys():  # noqa: SIM118 - an ActivationCache iterates over values in some versions
        parts = str(key).split(".")
        if len(parts) >= 3 and parts[0] == "blocks" and parts[-1] == "hook_pattern":
            found[int(parts[1])] = _one(result[key], parts[1])
    if not found:
        raise ValueError(
            "figures.attention: this cache has no hook_pattern: an Extractor does not attend (use figures.kernels), or "
            'the cache was filtered (names_filter="*hook_pattern" keeps what is needed)'
        )
    tokens = getattr(result, "str_tokens", None)
    if tokens and not isinstance(tokens[0], str):
        tokens = tokens[0]
    length = next(iter(found.values())).shape[-1]
    if not tokens:
        tokens = [f"token {i}" for i in range(length)]
    return found, list(tokens), str(getattr(result, "model_name", "") or "")


def _array(value: Any) -> np.ndarray:
    return np.asarray(value.detach().float().cpu().numpy() if hasattr(value, "detach") else value, dtype=np.float32)


def _one(value: Any, layer: Any) -> np.ndarray:
    array = _array(value)
    if array.ndim == 4:
        if array.shape[0] != 1:
            raise ValueError(f"pattern: layer {layer} holds a batch of {array.shape[0]} prompts; a figure shows one: pass pattern[i:i+1]")
        array = array[0]
    if array.ndim != 3 or array.shape[1] != array.shape[2]:
        raise ValueError(f"pattern: layer {layer} wants shape (head, query, key) with as many keys as queries, got {array.shape}")
    return array


def _pooled(square: np.ndarray, size: int) -> np.ndarray:
    """The largest weight of each block, so that a thumbnail of `size` cells hides no peak."""
    n = square.shape[-1]
    if n <= size:
        return square
    edges = np.unique(np.linspace(0, n, size + 1).astype(int)[:-1])
    return np.fmax.reduceat(np.fmax.reduceat(square, edges, axis=0), edges, axis=1)


def _blank_future(square: np.ndarray) -> np.ndarray:
    """Zeros above the diagonal blank; a weight on a later token, which a causal model cannot have, stays visible."""
    future = np.triu(np.ones(square.shape, dtype=bool), 1)
    return np.where(future & (square == 0), np.nan, square)


def _share(square: np.ndarray, offset: int | None) -> float:
    """Mean weight on the first token (`offset` None) or on the token `offset` back, over the rows where these differ."""
    n = square.shape[0]
    rows = np.arange(min(2, n - 1), n)
    columns = np.zeros_like(rows) if offset is None else np.maximum(rows - offset, 0)
    return float(square[rows, columns].mean())


def attention(
    result: Any,
    *,
    layers: Sequence[int] | None = None,
    focus: tuple[int, int] | None = None,
) -> go.Figure:
    """All heads as thumbnails and one head large with its tokens; the slider chooses which.

    `result`: a cache with `hook_pattern` of one prompt, or `(pattern, tokens)` with pattern (head, query, key), (layer, head, query,
    key) or a mapping layer -> (head, query, key). `layers`: which to draw (default all). `focus`: (layer, head) shown large at first;
    default the head that looks most at the previous token. Thumbnails of long prompts show the largest weight of each block. Where all
    heads would make too large a file, the slider offers those of sharpest attention, and a note says so. NaN cells are grey.

    Raises TypeError or ValueError for anything else.

    >>> import interp
    >>> model = interp.load_model("mha-induction")
    >>> logits, cache = interp.run_with_cache(model, "c1 h4 a0 p7 e5 k2 b3 d6 c1")
    >>> figure = interp.figures.attention(cache)
    >>> len(figure.layout.sliders[0].steps)  # one a head
    8
    """
    found, tokens, model = _patterns(result)
    if layers is not None:
        unknown = [layer for layer in layers if layer not in found]
        if unknown or not len(layers):
            raise ValueError(f"layers: {unknown or 'none'} given, but patterns exist for {sorted(found)}")
        found = {layer: found[layer] for layer in layers}
    length = next(iter(found.values())).shape[-1]
    if len(tokens) != length or any(p.shape[-1] != length for p in found.values()):
        raise ValueError(
            f"tokens: {len(tokens)} tokens for patterns of {sorted({p.shape[-1] for p in found.values()})} positions; they must agree"
        )
    heads = [(layer, head) for layer in sorted(found) for head in range(found[layer].shape[0])]
    by_head = {(layer, head): found[layer][head] for layer, head in heads}
    previous = {h: _share(by_head[h], 1) for h in heads}
    first = {h: _share(by_head[h], None) for h in heads}
    own = {h: _share(by_head[h], 0) for h in heads}
    sharp = {h: float(np.nan_to_num(by_head[h]).max(axis=1).mean()) for h in heads}
    if focus is None:
        focus = max(heads, key=lambda h: np.nan_to_num(previous[h], nan=-1.0))
    elif tuple(focus) not in by_head:
        raise ValueError(f"focus: L{focus[0]}H{focus[1]} is not among the heads drawn")
    focus = (int(focus[0]), int(focus[1]))

    budget = max(1, min(_LARGE_HEADS, _LARGE_CELLS // (length * length)))
    offered = heads
    if len(heads) > budget:
        chosen = sorted(heads, key=lambda h: (h != focus, -sharp[h]))[:budget]
        offered = sorted(chosen)

    # overview: the longer of (layers, heads) runs across
    order = sorted(found)
    most = max(p.shape[0] for p in found.values())
    across_layers = len(order) >= most
    n_x, n_y = (len(order), most) if across_layers else (most, len(order))
    tile = int(min(length, 40 if len(heads) <= 64 else 20))
    pixels = min(96.0, _PLOT / n_x)
    overview_height = pixels * n_y if len(heads) > 1 else 0.0
    step = tile + 1
    mosaic = np.full((n_y * step - 1, n_x * step - 1), np.nan, dtype=np.float32)
    centres = {}
    for layer, head in heads:
        col, row = (order.index(layer), head) if across_layers else (head, order.index(layer))
        mosaic[row * step : row * step + tile, col * step : col * step + tile] = _blank_future(_pooled(by_head[layer, head], tile))
        centres[layer, head] = (col * step + (tile - 1) / 2, row * step + (tile - 1) / 2)

    large_height = float(np.clip(length * 15, 220, 540))
    space = 128.0 if len(heads) > 1 else 0.0
    height = overview_height + space + large_height
    labels = [f"{i} {safe(t, 14)}" for i, t in enumerate(tokens)]
    bar = {
        "title": {"text": "weight", "side": "top"},
        "thickness": 12,
        "len": 180,
        "lenmode": "pixels",
        "y": large_height / height,
        "yanchor": "top",
        "outlinewidth": 0,
    }

    def large(key: tuple[int, int]) -> go.Heatmap:
        return go.Heatmap(
            z=_blank_future(by_head[key]).astype(np.float32),
            x=labels,
            y=labels,
            zmin=0,
            zmax=1,
            colorscale=SEQUENTIAL,
            colorbar=bar,
            xgap=1 if length <= 80 else 0,
            ygap=1 if length <= 80 else 0,
            hovertemplate="from %{y}<br>to %{x}: %{z:.4f}<extra></extra>",
            hoverongaps=False,
        )

    def outline(key: tuple[int, int]) -> list[dict[str, Any]]:
        x, y = centres[key]
        half = step / 2
        return [
            {
                "type": "rect",
                "xref": "x2",
                "yref": "y2",
                "x0": x - half,
                "x1": x + half,
                "y0": y - half,
                "y1": y + half,
                "line": {"color": POSITIVE, "width": 2},
            }
        ]

    fig = go.Figure(large(focus))
    every = thin(length, int(large_height / 13))
    every_x = thin(length, int(_PLOT / 16))
    fig.update_layout(
        xaxis={
            "title": "source token (attended to)",
            "type": "category",
            "tickmode": "array",
            "tickvals": [labels[i] for i in every_x],
            "tickangle": 0 if length <= 6 else -60,
            "showgrid": False,
        },
        yaxis={
            "title": "reading token",
            "type": "category",
            "domain": [0, large_height / height],
            "range": [length - 0.5, -0.5],
            "tickmode": "array",
            "tickvals": [labels[i] for i in every],
            "showgrid": False,
        },
    )
    if len(heads) > 1:
        fig.add_trace(
            go.Heatmap(
                z=mosaic,
                xaxis="x2",
                yaxis="y2",
                zmin=0,
                zmax=1,
                colorscale=SEQUENTIAL,
                showscale=False,
                hoverinfo="skip",
                hoverongaps=False,
            )
        )
        fig.add_trace(
            go.Scatter(
                x=[centres[h][0] for h in heads],
                y=[centres[h][1] for h in heads],
                xaxis="x2",
                yaxis="y2",
                mode="markers",
                marker={"size": max(pixels * 0.8, 8), "opacity": 0, "symbol": "square", "color": FAINT},
                customdata=[f"L{layer}H{head}" for layer, head in heads],
                hovertext=[
                    f"L{h[0]}H{h[1]}: on the previous token {previous[h]:.0%}, the token itself {own[h]:.0%}, the first {first[h]:.0%}; "
                    f"largest weight {sharp[h]:.0%} on average"
                    for h in heads
                ],
                hoverinfo="text",
                showlegend=False,
            )
        )
        middle = (tile - 1) / 2
        layer_marks = [(i * step + middle, f"L{layer}") for i, layer in enumerate(order)]
        head_marks = [(i * step + middle, f"H{i}") for i in range(most)]
        across, down = (layer_marks, head_marks) if across_layers else (head_marks, layer_marks)
        across = across[:: max(1, -(-len(across) * 24 // _PLOT))]
        down = down[:: max(1, int(14 / pixels) + 1 if pixels < 14 else 1)]
        fig.update_layout(
            xaxis2={
                "anchor": "y2",
                "domain": [0, min(1.0, n_x * pixels / _PLOT)],
                "side": "top",
                "tickmode": "array",
                "tickvals": [at for at, _ in across],
                "ticktext": [name for _, name in across],
                "range": [-1, n_x * step - 1],
                "showgrid": False,
                "zeroline": False,
            },
            yaxis2={
                "anchor": "x2",
                "domain": [1 - overview_height / height, 1],
                "tickmode": "array",
                "tickvals": [at for at, _ in down],
                "ticktext": [name for _, name in down],
                "range": [n_y * step - 1, -1],
                "showgrid": False,
                "zeroline": False,
            },
            shapes=outline(focus),
            sliders=[
                {
                    "active": offered.index(focus),
                    "y": (large_height + space - 22) / height,
                    "yanchor": "top",
                    "x": 0,
                    "len": 1,
                    "pad": {"t": 0, "b": 0, "l": 0, "r": 0},
                    "currentvalue": {"prefix": "shown large: ", "font": {"size": 13}, "offset": 8},
                    "font": {"size": 10},
                    "steps": [
                        {
                            "label": f"L{layer}H{head}",
                            "method": "animate",
                            "args": [
                                [f"L{layer}H{head}"],
                                {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}},
                            ],
                        }
                        for layer, head in offered
                    ],
                }
            ],
        )
        fig.frames = [go.Frame(name=f"L{h[0]}H{h[1]}", data=[large(h)], traces=[0], layout={"shapes": outline(h)}) for h in offered]

    notes = []
    if len(offered) < len(heads):
        notes.append(
            f"The slider offers the {count(len(offered), 'head')} of sharpest attention, to keep the file small; layers= draws others."
        )
    if tile < length and len(heads) > 1:
        notes.append("Thumbnails show the largest weight of each block of tokens.")
    missing = sum(int(np.isnan(p).sum()) for p in by_head.values())
    if missing:
        fig.update_layout(plot_bgcolor=MISSING)
        notes.append(f"{count(missing, 'weight')} NaN: drawn as background.")
    ahead = sum(int((np.triu(np.nan_to_num(p), 1) != 0).sum()) for p in by_head.values())
    notes.append(
        "Above the diagonal is blank: a token cannot look ahead."
        if not ahead
        else f"{count(ahead, 'weight')} on later tokens: this attention is not causal."
    )
    if length == 1:
        title = f"A single token: all {count(len(heads), 'head')} can only look at it"
    else:
        best = max(heads, key=lambda h: np.nan_to_num(previous[h], nan=-1.0))
        title = f"L{best[0]}H{best[1]} looks most at the previous token ({previous[best]:.0%} of its weight)"
        if length > 2 and len(heads) > 1:
            still = max(heads, key=lambda h: np.nan_to_num(own[h], nan=-1.0))
            sinks = sum(first[h] > 0.5 for h in heads)
            title += (
                f", L{still[0]}H{still[1]} at the token itself ({own[still]:.0%}); {sinks} of {len(heads)} heads put over half on the first"
            )
    what = " · ".join(part for part in (model, f"{count(length, 'token')} as fed: ") if part)
    subtitle = describe(model, tokens) if model else what + describe("", tokens).split(": ", 1)[1]
    narrow: dict[str, Any] = {"xaxis.tickvals": [labels[i] for i in thin(length, 14)]}
    if len(heads) > 1:
        few = [across[i] for i in thin(len(across), 8)]
        narrow |= {"xaxis2.domain": [0, 1], "xaxis2.tickvals": [at for at, _ in few], "xaxis2.ticktext": [name for _, name in few]}
    finish(fig, title=title, subtitle=[subtitle], notes=notes, height=height, narrow=narrow)
    return fig

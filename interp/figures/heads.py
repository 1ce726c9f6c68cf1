"""Layers by heads: what every head adds to the logit."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

from interp.figures._door import certificate_at, choose_position, quantity, require_ledger, setting
from interp.figures._grid import NARROW, colour_limit, signed_cells, signed_colorbar
from interp.figures._style import certificate_alarm, certificate_line, describe, finish
from interp.figures._text import number, thin

_STRIP = 66
"""Pixels of one column of the strip beside the heads."""


def _headline(ledger: Any, heads: list[tuple[float, int, int]], column: int) -> str:
    """What was found: the strongest head, its share, and how concentrated the heads' account is."""
    finite = [h for h in heads if np.isfinite(h[0])]
    if not finite:
        return f"No head has a finite contribution to the {quantity(ledger)}"
    value, layer, head = max(finite, key=lambda h: abs(h[0]))
    moduli = np.sort(np.abs([h[0] for h in finite]))[::-1]
    whole = float(moduli.sum())
    if whole == 0:
        return f"Every head adds exactly 0 to the {quantity(ledger)}"
    half = int(np.searchsorted(np.cumsum(moduli), whole / 2) + 1)
    verb = "adds most to" if value > 0 else "takes most from"
    spread = f"; half of what all {len(finite)} heads move comes from {half} of them" if len(finite) > 1 else ""
    total = number(float(ledger.total[column]), signed=True)
    return f"L{layer}H{head} {verb} the {quantity(ledger)}: {number(value, signed=True)} of {total}{spread}"


def heads(ledger: Any, *, position: int | None = None, limit: float | None = None) -> go.Figure:
    """The contribution of every head to the logit, layer by layer, with each layer's other parts in a strip beside them.

    `ledger`: a Ledger by="head". `position`: one of `ledger.positions` (default: the last). `limit`: the contribution (logits) at the ends
    of the colour range; default the strongest head. Orange adds, blue takes away, and each cell carries its value or its sign. NaN
    cells are grey, cells beyond the range are marked.

    Raises TypeError for anything that is not a Ledger, ValueError for one without heads.

    >>> import interp
    >>> model = interp.load_model("mha-induction")
    >>> figure = interp.figures.heads(interp.ledger(model, "c1 h4 a0 p7 e5 k2 b3 d6 c1", by="head"))
    >>> figure.data[0].z.shape  # layers, heads
    (2, 4)
    """
    require_ledger(ledger, "heads")
    column = choose_position(ledger, position)
    values = np.asarray(ledger.values, dtype=np.float64)[:, column]
    rows = [(float(v), e) for v, e in zip(values, ledger.entries, strict=True)]
    by_head = [(v, e.layer, e.head) for v, e in rows if e.kind == "head" and getattr(e, "source", None) is None]
    if not by_head:
        raise ValueError(
            f'figures.heads: this ledger (by="{ledger.by}", model {ledger.model}) has no heads; an Extractor has one channel a layer: '
            'make the ledger with by="source" or by="lag" for it, by="head" for attention'
        )
    n_layers = 1 + max(e.layer for _, e in rows if e.layer is not None)
    n_heads = 1 + max(head for _, _, head in by_head)
    grid = np.zeros((n_layers, n_heads))
    present = np.zeros((n_layers, n_heads), dtype=bool)
    for value, layer, head in by_head:
        grid[layer, head] += value
        present[layer, head] = True
    with_heads = [layer for layer in range(n_layers) if present[layer].any()]

    strip: dict[str, np.ndarray] = {}
    elsewhere = 0.0
    names = {"mlp": "MLP", "extractor": "Extractor"}
    for value, entry in rows:
        if entry.kind == "head":
            continue
        if entry.layer is None:
            elsewhere += value
            continue
        strip.setdefault(names.get(entry.kind, "biases"), np.zeros(n_layers))[entry.layer] += value
    columns = [c for c in ("MLP", "Extractor", "biases") if c in strip]

    cell_height = float(np.clip(520 / n_layers, 13, 40))
    height = max(n_layers * cell_height, 120)
    plot_width = 900 - 64 - 24 - 80
    strip_width = _STRIP * len(columns)
    full = (plot_width - strip_width) / n_heads >= 40
    chosen = colour_limit(grid, limit)
    y = [f"L{i}" for i in range(n_layers)]
    x = [f"H{i}" for i in range(n_heads)]
    # a layer without heads (an Extractor's, in a mixed decoder) has no cells: left empty, never drawn as zero
    shown = signed_cells(
        grid[with_heads],
        x=x,
        y=[y[i] for i in with_heads],
        limit=chosen,
        full=full,
        narrow=(plot_width - strip_width) / n_heads < NARROW,
        hover="%{y}%{x}: %{z:+.4g} logits",
        colorbar=signed_colorbar(chosen, title="logits", length=height),
    )
    fig = go.Figure(shown.traces)
    notes = list(shown.notes)
    share = strip_width / plot_width
    fig.update_layout(
        xaxis={"title": "head", "type": "category", "domain": [0, 1 - share - (0.02 if columns else 0)]},
        yaxis={"title": "layer", "type": "category", "categoryorder": "array", "categoryarray": y[::-1], "range": [-0.5, n_layers - 0.5]},
    )
    every = thin(n_heads, int((plot_width - strip_width) / 30))
    fig.update_xaxes(tickmode="array", tickvals=[x[i] for i in every], showgrid=False, tickangle=0)
    every = thin(n_layers, int(height / 16))
    fig.update_yaxes(tickmode="array", tickvals=[y[i] for i in every], showgrid=False)
    if columns:
        side = signed_cells(
            np.stack([strip[c] for c in columns], axis=1),
            x=columns,
            y=y,
            limit=chosen,
            full=True,
            hover="%{y} %{x}: %{z:+.4g} logits",
            colorbar=None,
            xaxis="x2",
        )
        fig.add_traces(side.traces)
        fig.update_layout(xaxis2={"type": "category", "domain": [1 - share, 1], "anchor": "y", "showgrid": False, "tickangle": 0})
        notes += [n.replace("cell", "strip cell") for n in side.notes]
    notes.append(
        f"Orange or +: pushes the {quantity(ledger)} up; blue or −: down. "
        f"Not on the map (embedding, final bias, rounding): {number(elsewhere, signed=True)}."
    )
    certificate = certificate_at(ledger, column)
    return finish(
        fig,
        title=_headline(ledger, by_head, column),
        subtitle=[f"{describe(ledger.model, ledger.tokens)}; {setting(ledger, column)}", certificate_line(certificate)],
        notes=notes,
        alarm=certificate_alarm(certificate),
        height=height,
        narrow={
            "xaxis.tickvals": [x[i] for i in thin(n_heads, 6)],
            "xaxis.domain": [0, 0.56 if columns else 1],
            **({"xaxis2.domain": [0.6, 1], "xaxis2.tickfont": {"size": 9}} if columns else {}),
        },
    )

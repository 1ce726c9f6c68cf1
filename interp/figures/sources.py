"""Which source token (or lag) reaches the logit through which component."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

from interp.figures._door import certificate_at, choose_position, quantity, require_ledger, setting
from interp.figures._grid import NARROW, colour_limit, signed_cells, signed_colorbar
from interp.figures._style import MISSING, NEGATIVE, POSITIVE, certificate_alarm, certificate_line, describe, finish
from interp.figures._text import count, cut, number, safe, thin, visible

_PLOT = 700


def _row_key(entry: Any) -> tuple[int, int, str]:
    """A sort key and the name of the row an entry belongs to."""
    if entry.layer is None:
        return (-1, -1, "all layers")
    if entry.head is None:
        return (entry.layer, -1, f"L{entry.layer}")
    return (entry.layer, entry.head, f"L{entry.layer}H{entry.head}")


def sources(ledger: Any, *, position: int | None = None, top: int = 30, limit: float | None = None) -> go.Figure:
    """What each source token contributes to the logit, and through which component.

    `ledger`: a Ledger by="head+source" or "lag" gives a map, source tokens (lags) across and heads (layers) down, one
    by="source" signed bars. On a map the `top` rows of largest modulus stand in the order of the model and the others make one row;
    `limit` is the contribution (logits) at the ends of the colour range. Entries that belong to no source are not drawn; a note gives
    their sum.

    Raises TypeError for anything that is not a Ledger, ValueError for one without sources or `top` < 1.

    >>> import interp
    >>> model = interp.load_model("mha-induction")
    >>> figure = interp.figures.sources(interp.ledger(model, "c1 h4 a0 p7 e5 k2 b3 d6 c1", by="head+source"))
    >>> figure.data[0].z.shape  # heads of all layers, tokens
    (8, 9)
    """
    require_ledger(ledger, "sources")
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise ValueError(f"top: wants a whole number >= 1, got {top!r}")
    column = choose_position(ledger, position)
    values = np.asarray(ledger.values, dtype=np.float64)[:, column]
    lags = any(e.lag is not None for e in ledger.entries)
    placed = [(float(v), e, e.lag if lags else e.source) for v, e in zip(values, ledger.entries, strict=True)]
    with_source = [(v, e, at) for v, e, at in placed if at is not None]
    if not with_source:
        raise ValueError(
            f'figures.sources: this ledger (by="{ledger.by}") names no source tokens: make it with by="source", "head+source" or "lag"'
        )
    n_columns = 1 + max(at for _, _, at in with_source)
    rows: dict[tuple[int, int, str], np.ndarray] = {}
    for value, entry, at in with_source:
        rows.setdefault(_row_key(entry), np.zeros(n_columns))[at] += value
    elsewhere = float(sum(v for v, _, at in placed if at is None))
    # the position in front makes repeated tokens distinct categories
    across = [f"lag {k}" if lags else f"{k} {safe(ledger.tokens[k], 14)}" for k in range(n_columns)]
    labels = [str(k) for k in range(n_columns)] if lags else across
    every = thin(n_columns, int(_PLOT / (24 if lags else 15)))
    few = thin(n_columns, 10 if lags else 14)

    def weight(key: tuple[int, int, str]) -> float:
        return float(np.abs(np.where(np.isfinite(rows[key]), rows[key], np.inf)).sum())

    kept = sorted(sorted(rows, key=weight, reverse=True)[:top])
    left = [key for key in rows if key not in set(kept)]
    names = [key[2] for key in kept]
    grid = [rows[key] for key in kept]
    if left:
        names.append(f"{count(len(left), 'other')} (sum)")
        grid.append(np.sum([rows[key] for key in left], axis=0))
    cells = np.stack(grid)
    bars = len(rows) == 1
    if bars:
        fig, height, notes = _bars(cells[0], across)
    else:
        # the row of the others is a sum of many: the range is that of the rows drawn one by one, beyond which its cells are marked
        chosen = colour_limit(cells[: len(kept)], limit)
        fig, height, notes = _map(cells, across, names, chosen, down="head" if any(key[1] >= 0 for key in kept) else "layer")
    fig.update_layout(
        xaxis={
            "title": "lag (rows back; 0 = the reading row itself)" if lags else "source token (position, text)",
            "type": "category",
            "tickmode": "array",
            "tickvals": [across[i] for i in every],
            "ticktext": [labels[i] for i in every],
            "tickangle": 0 if n_columns <= 7 or lags else -60,
            "showgrid": False,
        }
    )

    total = float(np.asarray(ledger.total)[column])
    title = _headline(ledger, cells, names[: len(kept)], total, lags=lags)
    notes += [
        f"Orange, +: pushes the logit up; blue, −: down. Entries of no source token (MLPs, biases, rounding) are not drawn; "
        f"they sum to {number(elsewhere, signed=True)}."
    ]
    if len(every) < n_columns:
        notes.append(f"One label in {every[1] - every[0]} is written; hover names each.")
    certificate = certificate_at(ledger, column)
    return finish(
        fig,
        title=title,
        subtitle=[f"{describe(ledger.model, ledger.tokens)}; {setting(ledger, column)}", certificate_line(certificate)],
        notes=notes,
        alarm=certificate_alarm(certificate),
        height=height,
        narrow={"xaxis.tickvals": [across[i] for i in few], "xaxis.ticktext": [labels[i] for i in few]},
    )


def _headline(ledger: Any, cells: np.ndarray, names: list[str], total: float, *, lags: bool) -> str:
    """The source (lag) of largest sum, and the largest single cell among the rows drawn one by one, where there are several."""
    sums = np.where(np.isfinite(cells).all(0), np.nan_to_num(cells).sum(0), 0.0)
    at = int(np.abs(sums).argmax())
    source = f"Lag {at}" if lags else f"“{cut(visible(ledger.tokens[at]), 24)}” (token {at})"
    verb = "adds most to" if sums[at] > 0 else "takes most from"
    told = f"{source} {verb} the {quantity(ledger)}: {number(sums[at], signed=True)} of {number(total, signed=True)}"
    if len(cells) == 1:
        return told
    finite = np.where(np.isfinite(cells[: len(names)]), np.abs(cells[: len(names)]), -1)
    r, c = np.unravel_index(int(finite.argmax()), finite.shape)
    where = f"{'lag' if lags else 'token'} {c} through {names[r]}"
    return f"{told}; the largest single cell is {where}, {number(float(cells[r, c]), signed=True)}"


def _map(cells: np.ndarray, across: list[str], names: list[str], limit: float, *, down: str) -> tuple[go.Figure, float, list[str]]:
    n_rows, n_columns = cells.shape
    height = max(n_rows * float(np.clip(460 / n_rows, 16, 34)), 120)
    shown = signed_cells(
        cells,
        x=across,
        y=names,
        limit=limit,
        full=n_columns * 40 <= _PLOT,
        narrow=n_columns * NARROW > _PLOT,
        hover="%{x} through %{y}: %{z:+.4g} logits",
        colorbar=signed_colorbar(limit, title="logits", length=height),
    )
    fig = go.Figure(shown.traces)
    fig.update_yaxes(
        title=down, type="category", tickmode="array", tickvals=names, range=[n_rows - 0.5, -0.5], showgrid=False, zeroline=False
    )
    return fig, height, list(shown.notes)


def _bars(values: np.ndarray, across: list[str]) -> tuple[go.Figure, float, list[str]]:
    finite = np.isfinite(values)
    drawn = np.where(finite, values, 0.0)
    fig = go.Figure(
        go.Bar(
            x=across,
            y=drawn,
            width=None if len(values) > 6 else 0.13 * len(values),  # two bars need not fill the page
            marker={
                "color": [MISSING if not f else POSITIVE if v > 0 else NEGATIVE for v, f in zip(values, finite, strict=True)],
                "pattern": {"shape": ["/" if v < 0 else "" for v in drawn], "size": 5, "solidity": 0.35},
            },
            customdata=[number(v, 4, signed=True) for v in values],
            hovertemplate="%{x}: %{customdata} logits<extra></extra>",
            showlegend=False,
        )
    )
    if len(values) <= 20:
        fig.update_traces(text=[number(v, 2, signed=True) for v in values], textposition="outside", cliponaxis=False, textangle=0)
    reach = float(np.abs(drawn).max()) or 1.0
    low, high = min(float(drawn.min()), 0.0), max(float(drawn.max()), 0.0)
    fig.update_yaxes(title="contribution (logits)", zeroline=True, range=[low - 0.12 * reach if low < 0 else 0, high + 0.12 * reach])
    notes = [] if finite.all() else [f"{count(int((~finite).sum()), 'token')} NaN or infinite: no bar can be drawn, hover names it."]
    return fig, 280.0, notes

"""What a comparison of mixers found: curves, paired differences, loss by position and by lags kept, variance slopes; and its page."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from interp.figures._door import require
from interp.figures._style import FAINT, INK, finish
from interp.figures._text import count, number

SHOWN = ("differences", "curves", "positions", "lags", "slopes")

# A mixer's family is told by colour and marker, its row factor by dash: both survive greyscale.
_LOOKS = {
    "mha": ("#111111", "solid", "circle"),
    "she": ("#2166ac", "solid", "square"),
    "ishe": ("#2166ac", "dash", "square-open"),
    "kshe": ("#2166ac", "dot", "square-x"),
    "he": ("#c65d00", "solid", "diamond"),
    "ihe": ("#c65d00", "dash", "diamond-open"),
    "khe": ("#c65d00", "dot", "diamond-x"),
}
LITTLE = 0.005
"""Nats per token below which a title does not speak of an improvement."""

_VERDICTS = {"supported": ("#1a5fb4", "circle"), "refuted": ("#b00020", "x"), "undecided": ("#7f8790", "circle-open")}


def comparison(result: Any, *, show: str = "differences") -> go.Figure:
    """One picture of a `Comparison` (interp.comparison.compare).

    `show`: "differences" (paired over seeds, with intervals and verdicts), "curves" (validation loss against steps), "positions" (loss by
    position in the window), "lags" (loss with far lags of the trained decoders left out), "slopes" (of the variance, before and after).

    Raises TypeError for what is no comparison, ValueError for another `show` and for "lags" without an Extractor.
    """
    require(result, ("results", "statements", "plan", "seeds"), figure="comparison", wants="a Comparison (interp.comparison.compare)")
    drawn = {"differences": _differences, "curves": _curves, "positions": _positions, "lags": _lags, "slopes": _slopes}
    if show not in drawn:
        raise ValueError(f"show: one of {', '.join(map(repr, SHOWN))} is needed, got {show!r}")
    return drawn[show](result)


def _look(mixer: str) -> dict[str, Any]:
    colour, dash, symbol = _LOOKS.get(mixer, (INK, "longdash", "star"))
    return {"line": {"color": colour, "dash": dash, "width": 2}, "marker": {"color": colour, "symbol": symbol, "size": 8}}


def _setting(result: Any) -> str:
    plan = result.plan
    return (
        f"{count(len(result.results), 'mixer')}, {count(result.seeds, 'seed')} each, {result.steps:,} steps of "
        f"{result.tokens_per_step:,} tokens; "
        f"{plan['n_layers']} layers, width {plan['d_model']}, context {plan['n_ctx']}; loss on {result.reported_windows:,} held-out windows"
    )


def _ranked(result: Any) -> list[Any]:
    return sorted(result.results, key=lambda r: r.loss)


def _differences(result: Any) -> go.Figure:
    said = result.statements
    if not said:
        raise ValueError("figures.comparison: these mixers decide none of the statements; show='curves' draws any")
    fig = go.Figure()
    for verdict, (colour, symbol) in _VERDICTS.items():
        rows = [(len(said) - 1 - n, s) for n, s in enumerate(said) if s.verdict == verdict]
        if not rows:
            continue
        known = [all(map(math.isfinite, s.interval)) for _, s in rows]
        fig.add_scatter(
            x=[s.mean for _, s in rows],
            y=[y for y, _ in rows],
            mode="markers",
            name=verdict,
            marker={"color": colour, "symbol": symbol, "size": 11, "line": {"width": 2, "color": colour}},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [s.interval[1] - s.mean if k else 0 for (_, s), k in zip(rows, known, strict=True)],
                "arrayminus": [s.mean - s.interval[0] if k else 0 for (_, s), k in zip(rows, known, strict=True)],
                "color": colour,
                "thickness": 1.6,
            },
            customdata=[[f"{s.interval[0]:+.4f} to {s.interval[1]:+.4f}", s.text] for _, s in rows],
            hovertemplate="%{customdata[1]}<br>mean %{x:+.4f}, 95 % interval %{customdata[0]}<extra></extra>",
        )
    fig.add_scatter(
        x=[d for s in said for d in s.differences],
        y=[len(said) - 1 - n + 0.22 for n, s in enumerate(said) for _ in s.differences],
        mode="markers",
        name="one seed",
        marker={"color": FAINT, "size": 5, "symbol": "line-ns", "line": {"width": 1.5, "color": FAINT}},
        hovertemplate="one seed: %{x:+.4f}<extra></extra>",
    )
    for n, s in enumerate(said):
        y = len(said) - 1 - n
        fig.add_shape(type="line", x0=s.limit, x1=s.limit, y0=y - 0.42, y1=y + 0.42, line={"color": INK, "width": 1.2, "dash": "dot"})
    fig.update_layout(
        xaxis={
            "title": "difference of validation loss (nats per token; left of the dotted limit speaks for the statement)",
            "zeroline": True,
        },
        yaxis={
            "tickvals": [len(said) - 1 - n for n in range(len(said))],
            "ticktext": [_short(s) for s in said],
            "range": [-0.6, len(said) - 0.4],
            "showgrid": False,
        },
    )
    tally = {v: sum(s.verdict == v for s in said) for v in _VERDICTS}
    told = ", ".join(f"{n} {verdict}" for verdict, n in tally.items() if n)
    return finish(
        fig,
        title=f"{count(len(said), 'statement')} about the mixers: {told}",
        subtitle=[_setting(result)],
        notes=[
            "Mean over seeds of the paired difference, with Student's 95 % interval (bars); small ticks are single seeds. "
            "Supported: the whole interval is left of the limit; refuted: right of it."
        ],
        height=46 * len(said) + 30,
        legend_rows=1,
        bottom=70,
    )


def _short(statement: Any) -> str:
    kind, _, rest = statement.id.partition("-")
    if rest == "lags":
        return f"{kind}: near quarter of lags<br>less all lags"
    return f"{kind} less {rest}"


def _curves(result: Any) -> go.Figure:
    fig = go.Figure()
    drawn = []
    for r in _ranked(result):
        steps = np.array([p[0] for p in r.curve[0]])
        losses = np.array([[p[2] for p in run] for run in r.curve])
        drawn.append(losses)
        for seed, losses_of_seed in enumerate(losses):
            fig.add_scatter(
                x=steps,
                y=losses_of_seed,
                mode="lines",
                line={**_look(r.mixer)["line"], "width": 0.7},
                opacity=0.45,
                showlegend=False,
                hovertemplate=f"{r.mixer}, seed {seed}, step %{{x}}: %{{y:.3f}}<extra></extra>",
            )
        fig.add_scatter(
            x=steps,
            y=losses.mean(0),
            mode="lines+markers",
            **_look(r.mixer),
            name=f"{r.mixer} {r.loss:.3f}",
            hovertemplate=f"{r.mixer}, mean of seeds, step %{{x}}: %{{y:.3f}}<extra></extra>",
        )
    everything = np.concatenate(drawn)
    low, high = float(everything.min()), float(everything[:, min(1, everything.shape[1] - 1) :].max())
    clipped = bool((everything > high + 1e-9).any())
    fig.update_layout(
        xaxis={"title": "optimisation step"},
        yaxis={"title": "validation loss (nats per token)", "range": [low - 0.05 * (high - low) - 0.01, high + 0.05 * (high - low) + 0.01]},
    )
    best, worst = _ranked(result)[0], _ranked(result)[-1]
    title = f"{best.mixer} ends lowest at {best.loss:.3f} nats per token, {worst.mixer} highest at {worst.loss:.3f}"
    notes = ["Thin lines: single seeds; thick: their mean. The legend gives the loss of the decoders as stored, in order."]
    if clipped:
        notes.append("The first point of a curve may lie above the axis.")
    return finish(fig, title=title, subtitle=[_setting(result)], notes=notes, height=420, legend_rows=2)


def _positions(result: Any) -> go.Figure:
    fig = go.Figure()
    falls = {}
    for r in _ranked(result):
        losses = np.array(r.by_position)
        blocks = _bands(losses.shape[1])
        means = np.array([[losses[s, a - 1 : b].mean() for a, b in blocks] for s in range(len(losses))])
        falls[r.mixer] = float(means.mean(0)[-1] - means.mean(0)[-2]) if len(blocks) > 1 else 0.0
        fig.add_scatter(
            x=[math.sqrt(a * b) for a, b in blocks],
            y=means.mean(0),
            error_y={"type": "data", "array": _deviation(means), "thickness": 1, "width": 3},
            mode="lines+markers",
            **_look(r.mixer),
            name=r.mixer,
            customdata=[f"{a} to {b}" for a, b in blocks],
            hovertemplate=f"{r.mixer}, positions %{{customdata}}: %{{y:.3f}}<extra></extra>",
        )
    blocks = _bands(len(result.results[0].by_position[0]))
    fig.update_layout(
        xaxis={
            "title": "position in the window (tokens seen, bands; log scale)",
            "type": "log",
            "tickvals": [math.sqrt(a * b) for a, b in blocks],
            "ticktext": [f"{a}–{b}" if a != b else str(a) for a, b in blocks],
        },
        yaxis={"title": "validation loss (nats per token)"},
    )
    last = f"{blocks[-1][0]}–{blocks[-1][1]}"
    before = f"{blocks[-2][0]}–{blocks[-2][1]}" if len(blocks) > 1 else last
    rising = [m for m, fall in falls.items() if fall > 0]
    falling = [m for m, fall in falls.items() if fall <= 0]
    title = f"From positions {before} to {last} the loss rises for {_listed(rising)} and falls for {_listed(falling)}"
    return finish(
        fig,
        title=title,
        subtitle=[_setting(result)],
        notes=["Mean over the band, the windows and the seeds; bars: standard deviation over seeds. The text differs from band to band."],
        height=400,
        legend_rows=1,
        bottom=74,
    )


def _bands(t: int) -> list[tuple[int, int]]:
    """Positions 1, 2, 3–4, 5–8, ..; from 1, ends included."""
    edges = [0] + [2**k for k in range(int(math.log2(t)) + 1)]
    edges += [t] if edges[-1] < t else []
    return [(a + 1, b) for a, b in itertools.pairwise(edges)]


def _lags(result: Any) -> go.Figure:
    extractors = [r for r in _ranked(result) if r.by_lags]
    if not extractors:
        raise ValueError("figures.comparison: no Extractor was compared, so there are no lags to leave out")
    fig = go.Figure()
    best, lows = {}, [0.0]
    for r in extractors:
        kept = [n for n, _ in r.by_lags]
        losses = np.array([values for _, values in r.by_lags])  # (lags, seed)
        gain = losses - losses[0]
        least = int(gain.mean(1).argmin())
        best[r.mixer] = float(gain.mean(1)[least]), kept[least]
        lows.append(float((gain.mean(1) - _deviation(gain.T)).min()))
        fig.add_scatter(
            x=kept,
            y=gain.mean(1),
            error_y={
                "type": "data",
                "array": _deviation(gain.T),
                "thickness": 1,
                "width": 3,
            },
            mode="lines+markers",
            **_look(r.mixer),
            name=r.mixer,
            hovertemplate=f"{r.mixer}, %{{x}} lags kept: %{{y:+.4f}}<extra></extra>",
        )
    full = result.plan["n_ctx"]
    ticks = [n for n, _ in extractors[0].by_lags]
    shown = [v for r in extractors for n, values in r.by_lags for v in [np.mean(values) - np.mean(r.by_lags[0][1])] if n >= 4]
    span = max(max(shown, default=0.1), 0.02)
    low = min(lows)
    fig.update_layout(
        xaxis={"title": "lags kept, nearest first (log scale)", "type": "log", "tickvals": ticks, "ticktext": [str(n) for n in ticks]},
        yaxis={"title": "change of validation loss (nats per token)", "zeroline": True, "range": [low - 0.15 * span, span * 1.25]},
    )
    fig.add_hline(y=0, line={"color": INK, "width": 1, "dash": "dot"})
    told = [f"{mixer} by {-gain:.3f} ({kept} kept)" for mixer, (gain, kept) in best.items() if gain < -LITTLE]
    others = [mixer for mixer, (gain, _) in best.items() if gain >= -LITTLE]
    title = f"Leaving out far lags lowers the loss of {_listed(told)}" if told else "No trained Extractor is better without its far lags"
    title += f"; hardly or not at all that of {_listed(others)}" if told and others else ""
    return finish(
        fig,
        title=title,
        subtitle=[_setting(result)],
        notes=[
            f"The writes of far lags left out by hooks, the row factor unchanged, nothing trained again. "
            f"0 is the decoder with all {full} lags. "
            "Bars: standard deviation over seeds. Points with 2 lags may lie above the axis."
        ],
        height=400,
        legend_rows=1,
    )


def _slopes(result: Any) -> go.Figure:
    fig = go.Figure()
    order = _ranked(result)
    moved = {}
    for when, offset, symbol in (("before", -0.16, "circle-open"), ("after", 0.16, "circle")):
        x, y, texts, colours = [], [], [], []
        for n, r in enumerate(order):
            rows = [s for s in r.slopes if s.site != "hook_attn_out"]
            for s in rows:
                for slope in getattr(s, when):
                    x.append(n + offset + 0.05 * (s.layer - (len(rows) - 1) / 2))
                    y.append(slope)
                    texts.append(f"{r.mixer} L{s.layer}")
                    colours.append(_LOOKS.get(r.mixer, (INK, "", ""))[0])
            moved[r.mixer, when] = float(np.mean([slope for s in rows for slope in getattr(s, when)]))
        fig.add_scatter(
            x=x,
            y=y,
            mode="markers",
            name=f"{when} training",
            text=texts,
            marker={"symbol": symbol, "size": 7, "color": colours, "line": {"width": 1.4, "color": colours}},
            hovertemplate="%{text}: %{y:+.2f}<extra></extra>",
        )
    for level in (0.0, 1.0):
        fig.add_hline(y=level, line={"color": INK, "width": 1, "dash": "dot"})
    fig.update_layout(
        xaxis={
            "tickvals": list(range(len(order))),
            "ticktext": [r.mixer for r in order],
            "showgrid": False,
            "zeroline": False,
            "title": "mixer (its layers left to right)",
        },
        yaxis={"title": "log-log slope of the variance over positions"},
    )
    names = [m for m in ("she", "ishe", "he", "ihe", "kshe", "khe") if (m, "after") in moved] or [order[0].mixer]
    told = ", ".join(f"{m} {moved[m, 'before']:+.2f} to {moved[m, 'after']:+.2f}".replace("-", "−") for m in names[:4])
    return finish(
        fig,
        title=f"Training bends the variance law: mean slope of {told}",
        subtitle=[_setting(result)],
        notes=["At the extraction (attention: at its heads), a point for every layer and seed. Dotted: 1 and 0, theory for fresh weights."],
        height=380,
        legend_rows=1,
    )


def _deviation(by_seed: np.ndarray) -> np.ndarray:
    """Standard deviation over seeds, the first axis; zero for one seed."""
    return by_seed.std(0, ddof=1) if len(by_seed) > 1 else np.zeros(by_seed.shape[1])


def _listed(names: Sequence[str]) -> str:
    return "none" if not names else names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# ---- the page


def page(result: Any) -> str:
    """The comparison as one self-contained HTML page: statements, table, figures, how it was made."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent.parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shows = [
        s for s in SHOWN if not (s == "lags" and not any(r.by_lags for r in result.results)) and (s != "differences" or result.statements)
    ]
    figures = [(show, comparison(result, show=show)) for show in shows]
    return templates.get_template("comparison.html.j2").render(
        results=_ranked(result),
        statements=result.statements,
        setting=_setting(result),
        notes=result.notes,
        plan=result.plan,
        environment=result.environment,
        number=number,
        median=lambda values: float(np.median(values)),
        figures=[
            {
                "id": show,
                "title": fig.layout.meta["title"],
                "notes": fig.layout.meta["notes"],
                "div": Markup(
                    _untitled(fig).to_html(
                        full_html=False,
                        div_id=f"figure-{show}",
                        include_plotlyjs=False,
                        include_mathjax=False,
                        config={"displaylogo": False, "responsive": True},
                    )
                ),
            }
            for show, fig in figures
        ],
        plotlyjs=Markup(get_plotlyjs()),
    )


def _untitled(fig: go.Figure) -> go.Figure:
    """The figure without the texts that the page sets itself."""
    height = fig.layout.height - fig.layout.margin.t + 34
    return go.Figure(fig).update_layout(title=None, width=None, autosize=True, height=height, margin={"t": 34})

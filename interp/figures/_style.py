"""What all figures share: colours, fonts, the block of title, subtitle and notes, the banner of a failed certificate.

Colours are blue (negative) and orange (positive), which colour-blind readers tell apart; a sign is never told by colour
alone: bars point left or right and are hatched when negative, cells carry a sign or their value.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from interp.figures._text import count, escape, number, token_line, wrap

FONT = "Arial, 'Liberation Sans', Helvetica, 'DejaVu Sans', sans-serif"
INK = "#24292f"
FAINT = "#8a939c"
GRID = "#e3e6e9"
ALARM = "#b00020"
NEGATIVE = "#2166ac"
POSITIVE = "#c65d00"
NEUTRAL = "#7f8790"
MISSING = "#9aa0a6"
DIVERGING = [
    (0.0, "#0b3c6f"),
    (0.17, "#2166ac"),
    (0.34, "#79aed6"),
    (0.5, "#fafafa"),
    (0.66, "#f5b06a"),
    (0.83, "#c65d00"),
    (1.0, "#6f2f00"),
]
SEQUENTIAL = [(0.0, "#fafafa"), (0.25, "#b9d3ea"), (0.5, "#6aa3d0"), (0.75, "#2166ac"), (1.0, "#08264a")]
WIDTH = 900
TITLE_WIDTH = 98
SUBTITLE_WIDTH = 152
_TITLE_LINE = 22
_SUBTITLE_LINE = 16


def depth_colours(n: int) -> list[str]:
    """One colour per layer, dark to light in steady luminance (cividis), so that order survives greyscale and colour blindness."""
    stops = np.array([[0, 32, 76], [53, 70, 107], [102, 105, 112], [150, 143, 112], [204, 184, 85]], dtype=float)
    at = np.linspace(0, 1, n) if n > 1 else np.array([0.0])
    rgb = np.stack([np.interp(at, np.linspace(0, 1, len(stops)), stops[:, c]) for c in range(3)], axis=1)
    return [f"rgb({r:.0f},{g:.0f},{b:.0f})" for r, g, b in rgb]


def log_ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Ticks of a log axis between two decimal logarithms: decades, with 2 and 5 between where there are few; at most about nine."""
    exponents = range(int(np.floor(low)), int(np.ceil(high)) + 1)
    step = max(1, -(-len(exponents) // 9))
    levels = [m * 10.0**e for e in exponents[::step] for m in ((1, 2, 5) if high - low < 2 else (1,))]
    texts = [f"{v:g}" if high - low < 5 and 1e-3 <= v < 1e4 else f"10<sup>{np.log10(v):.0f}</sup>".replace("-", "−") for v in levels]
    return levels, texts


def describe(model: str, tokens: Sequence[str]) -> str:
    """`model · 14 tokens as fed: …`, plain text."""
    return f"{model} · {count(len(tokens), 'token')} as fed: {token_line(tuple(tokens))}"


def certificate_line(certificate: Any) -> str:
    """Gap and bound of a certificate in one plain line."""
    worst = max(certificate.checks, key=lambda c: np.inf if np.isnan(c.ratio) else c.ratio, default=None)
    head = (
        f"entries sum to {number(certificate.explained, 7)}, model printed {number(certificate.printed, 7)} ({certificate.dtype}), "
        f"rounding {number(certificate.rounding, 2, signed=True)}"
    )
    if worst is None:
        return f"certificate without checks: {head}"
    state = "holds" if certificate.holds else "FAILED"
    return (
        f"certificate {state}: {head}; {count(len(certificate.checks), 'check')}, worst {worst.name}: "
        f"gap {number(worst.gap, 2)} of bound {number(worst.bound, 2)} ({worst.kind})"
    )


def certificate_alarm(certificate: Any) -> str | None:
    """The text of the red banner, or None when every check holds."""
    if certificate.holds:
        return None
    failed = [c for c in certificate.checks if not c.holds]
    told = "; ".join(
        f"{c.name} gap {number(c.gap, 2)} against bound {number(c.bound, 2)} ({number(c.ratio, 2)} times)"
        + (f" at {c.where}" if c.where else "")
        for c in failed[:3]
    )
    more = f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
    return f"CERTIFICATE FAILED, do not trust these numbers: {told or 'no check was made'}{more}"


def finish(
    fig: go.Figure,
    *,
    title: str,
    subtitle: Sequence[str] = (),
    notes: Sequence[str] = (),
    alarm: str | None = None,
    height: float,
    width: int = WIDTH,
    legend_rows: int = 0,
    bottom: float = 64,
    narrow: dict[str, Any] | None = None,
    narrow_hide: Sequence[int] = (),
    narrow_height: float = 0,
) -> go.Figure:
    """Sets title, subtitle, notes and banner above the plot with a margin that fits them; `height` is the plot area's, in pixels.
    A legend of `legend_rows` lines goes below the plot. On a phone the report changes the layout by `narrow` (dotted paths), hides the
    traces `narrow_hide` and makes the plot `narrow_height` pixels taller.

    All texts are plain (made visible, not escaped): they are wrapped and escaped here, and kept plain in `layout.meta` for
    whoever sets them in HTML instead (the report).
    """
    scale = width / WIDTH
    title_lines = wrap(title, int(TITLE_WIDTH * scale))
    small = [line for text in (*subtitle, *notes) for line in wrap(text, int(SUBTITLE_WIDTH * scale))]
    alarm_lines = wrap(alarm, int(100 * scale)) if alarm else []
    top = 16 + _TITLE_LINE * len(title_lines) + _SUBTITLE_LINE * len(small) + 20
    if alarm_lines:
        fig.add_annotation(
            text="<br>".join(f"<b>{escape(line)}</b>" for line in alarm_lines),
            xref="paper",
            yref="paper",
            x=0,
            y=1,
            xanchor="left",
            yanchor="bottom",
            yshift=26,
            align="left",
            showarrow=False,
            font={"color": "white", "size": 13},
            bgcolor=ALARM,
            borderpad=5,
            name="alarm",
        )
    bottom += 20 * legend_rows
    # room above the plot area for column headings and colour-bar titles
    top += 22 + (16 * len(alarm_lines) + 18 if alarm_lines else 0)
    fig.update_layout(
        title={
            "text": "<br>".join(f"<b>{escape(line)}</b>" for line in title_lines),
            "font": {"size": 17},
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"l": 14, "t": 24},
            "subtitle": {"text": "<br>".join(escape(line) for line in small), "font": {"size": 12}},
        },
        font={"family": FONT, "size": 12, "color": INK},
        paper_bgcolor="white",
        plot_bgcolor="white",
        width=width,
        height=top + height + bottom,
        margin={"l": 64, "r": 24, "t": top, "b": bottom},
        legend={"orientation": "h", "y": -58 / height, "yanchor": "top", "x": 0, "xanchor": "left", "font": {"size": 11}},
        hoverlabel={"align": "left", "font": {"family": FONT, "size": 12}},
        meta={
            "title": title,
            "subtitle": list(subtitle),
            "notes": list(notes),
            "alarm": alarm or "",
            "narrow": narrow or {},
            "narrow_hide": list(narrow_hide),
            "narrow_height": narrow_height,
            "alt": f"{title}. {' '.join(notes)}".strip(),
        },
    )
    fig.update_xaxes(automargin=True, linecolor=FAINT, gridcolor=GRID, zerolinecolor=FAINT, title_standoff=8)
    fig.update_yaxes(zeroline=False, automargin=True, linecolor=FAINT, gridcolor=GRID, zerolinecolor=FAINT, title_standoff=8)
    return fig

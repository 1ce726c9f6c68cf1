"""A view as files: JSON with every number, one HTML file that opens offline."""

import html
import json
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
import plotly.io

from .. import console
from ..figures._style import certificate_alarm, certificate_line
from . import pictures
from .engine import Engine, Prompt
from .jobs import Status
from .panels import token_text
from .snippets import prompt_snippet
from .view import Cell, View


def name(model: str, what: str, ending: str) -> str:
    """A file's name that any system takes."""
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in f"{model}-{what}")
    return f"{plain}.{ending}"


def as_json(engine: Engine, view: View) -> str:
    """The view, the prompt as fed, the whole ledger with its certificate, and what is removed."""
    from ..payload import ledger_payload

    prompt, ledger = engine.prompt(view), engine.ledger(view)
    told: dict[str, Any] = {
        "view": view.to_dict(),
        "link": view.link(),
        "text": prompt.text,
        "predictions": [vars(p) for p in engine.predictions(view)],
        "ledger": ledger_payload(ledger, ledger.values[:, 0].tolist()),
    }
    if view.out:
        done = engine.removal(view)
        names = ("kind", "how", "labels", "baseline", "predicted", "direct", "after", "total", "holds")
        told["removed"] = {n: getattr(done.ablation, n) for n in names}
        told["ledger_without"] = ledger_payload(done.after, done.after.values[:, 0].tolist())
    return json.dumps(console.plain(told), ensure_ascii=False, indent=1, allow_nan=False)


def as_html(engine: Engine, view: View, snippet: str) -> str:
    """Pictures, certificates and the snippet in one page; nothing in it is fetched."""
    prompt, ledger = engine.prompt(view), engine.ledger(view)
    drawn: list[go.Figure] = [pictures.of_ledger(ledger)]
    lines = [certificate_alarm(ledger.certificate) or certificate_line(ledger.certificate)]
    if view.out:
        done = engine.removal(view)
        drawn.append(pictures.before_after(done.before, done.after, pictures.changed_most(done.before, done.after)))
        lines += [str(done.ablation), certificate_alarm(done.after.certificate) or certificate_line(done.after.certificate)]
    return _page(f"{view.model}, {_tokens(prompt)}", lines, drawn, snippet)


def _page(title: str, lines: Sequence[str], drawn: Sequence[go.Figure], snippet: str) -> str:
    config = {"displaylogo": False, "responsive": True}
    plots = [f.to_html(include_plotlyjs=i == 0, include_mathjax=False, full_html=False, config=config) for i, f in enumerate(drawn)]
    said = "".join(f"<p>{html.escape(console.visible(line))}</p>" for line in lines)
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{html.escape(title)}</title>"
        "<style>body{font-family:sans-serif;max-width:60em;margin:1em auto;padding:0 1em}"
        "pre{white-space:pre-wrap;background:#f5f6f8;padding:1em}</style>"
        f"</head><body><h1>{html.escape(title)}</h1>{said}{''.join(plots)}"
        f"<h2>As Python</h2><pre>{html.escape(snippet)}</pre></body></html>"
    )


def job_json(status: Status) -> str:
    """The result of a long computation: its summary, and its table row by row."""
    columns, rows = status.result["table"]
    told = {"model": status.model, "kind": status.kind, "holds": status.result["holds"], "summary": status.result["lines"]}
    return json.dumps(told | {"rows": [dict(zip(columns, row, strict=True)) for row in rows]}, ensure_ascii=False, indent=1)


def job_html(status: Status, snippet: str) -> str:
    """The same as one page that opens offline."""
    return _page(f"{status.model}: {status.kind}", status.result["lines"], [plotly.io.from_json(status.result["figure"])], snippet)


def snippet(engine: Engine, view: View) -> str:
    """The view as Python."""
    prompt, ledger = engine.prompt(view), engine.ledger(view)
    answer, against = engine.answers(view)
    look = view.look if view.look is not None and any(Cell.of(e) == view.look for e in ledger.entries) else None

    def named(token: int) -> str | int:
        typed = engine.spell(view.model, token)
        return token if typed.startswith("#") else typed

    return prompt_snippet(engine.source(view.model), view, prompt, named(answer), None if against is None else named(against), cell=look)


def _tokens(prompt: Prompt) -> str:
    shown = " ".join(token_text(t) for t in prompt.tokens[:40])
    return shown if len(prompt.tokens) <= 40 else f"{shown} … ({len(prompt.tokens)} tokens)"

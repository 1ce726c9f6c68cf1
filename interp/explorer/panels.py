"""Results as parts of the page: one function a part, a result in, components out. Nothing is computed here.

Text that came from a user or a tokenizer reaches the page only as text of an element (React escapes it) or through `figures`, which escape.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from dash import dcc, html

from analyses.ledger import Ledger

from ..figures._door import entry_label, quantity
from ..figures._style import certificate_alarm, certificate_line
from ..figures._text import cut, number, visible
from ..figures.claims import VERDICTS
from . import pictures
from .engine import Facts, Prediction, Prompt, Removal
from .jobs import Status
from .layout import aria
from .view import Cell, Problem, View

SHOWN_TOKENS = 600
_NUMBER = re.compile(r"[+−-]?\d[\d.,]*(e[+−-]?\d+)?(%| points)?")
GRAPH: Any = {"displayModeBar": False, "responsive": True}


def problem(error: Problem, here: Sequence[str]) -> Any:
    """What is wrong, said beside the control that puts it right; elsewhere only where to look."""
    if error.place in here:
        return html.Div(str(error), className="problem", role="alert")
    where = {
        "model": "the model",
        "prompt": "the prompt",
        "position": "the destination",
        "answer": "the answer",
        "against": "what it is compared with",
        "by": "the split",
    }.get(error.place, "the message above")
    return html.P(f"Waiting for {where}: see the message there.", className="waiting")


def broken(error: Exception) -> Any:
    """An error of our own: the page goes on."""
    text = " ".join(str(error).split())[:300]
    return html.Div(
        f"This part failed: {type(error).__name__}: {text}. The rest of the page works; the terminal has the details.",
        className="problem",
        role="alert",
    )


def token_text(token: str, length: int = 24) -> str:
    """A token as it is shown: whitespace visible."""
    return cut(visible(token), length)


def button(
    text: Any,
    kind: str,
    *,
    label: str | None = None,
    look: str = "small",
    pressed: bool | None = None,
    **part: Any,
) -> Any:
    """A button that says what it does to the view by its id."""
    told = ({} if pressed is None else aria(pressed="true" if pressed else "false")) | (aria(label=label) if label else {})
    return html.Button(text, id={"type": kind, **part}, className=look, n_clicks=0, **told)


# ---- the prompt


def tokens(prompt: Prompt) -> Any:
    """The tokens as fed, each a button that makes it the destination."""
    first = max(0, min(prompt.at - SHOWN_TOKENS // 2, len(prompt.tokens) - SHOWN_TOKENS))
    shown = range(first, min(first + SHOWN_TOKENS, len(prompt.tokens)))
    row = [
        button(
            [html.Span(str(i), className="index"), html.Bdi(token_text(prompt.tokens[i]))],
            "token",
            index=i,
            look="token" + (" chosen" if i == prompt.at else " later" if i > prompt.at else ""),
            label=f"token {i}: {token_text(prompt.tokens[i])}" + (", the destination" if i == prompt.at else ""),
            pressed=i == prompt.at,
        )
        for i in shown
    ]
    rest = len(prompt.tokens) - len(shown)
    parts: list[Any] = [html.Div(row, className="tokens", role="group", **aria(label="tokens as fed"))]
    if rest:
        parts.append(html.P(f"{rest:,} more tokens are not listed; the number below reaches them.", className="note"))
    if prompt.templated:
        parts.append(
            html.Details([html.Summary("the prompt with its chat template, as fed"), html.Pre(prompt.text, id="templated")], open=True)
        )
    return html.Div(parts)


def predictions(likely: Sequence[Prediction], named: Sequence[tuple[str, Prediction]], prompt: Prompt) -> Any:
    """The likeliest next tokens, and where answer and against stand among them."""
    roles = {p.id: role for role, p in named}
    extra = [p for _, p in named if p.id not in {q.id for q in likely}]
    rows = [_prediction(p, roles.get(p.id)) for p in (*likely, *extra)]
    head = html.Tr([html.Th(c, scope="col") for c in ("rank", "token", "probability", "logit", "take as")])
    after = f"after token {prompt.at} “{token_text(prompt.tokens[prompt.at])}”"
    return html.Div(
        html.Table([html.Caption(f"What the model expects {after}"), html.Thead(head), html.Tbody(rows)], className="predictions"),
        className="wide",
    )


def _prediction(p: Prediction, role: str | None) -> Any:
    bar = html.Span(className="bar", style={"width": f"{max(100 * p.probability, 0.5):.1f}%"})
    return html.Tr(
        [
            html.Td(str(p.rank), className="number"),
            html.Th([html.Bdi(token_text(p.token)), *([html.Span(role, className="role")] if role else [])], scope="row"),
            html.Td([html.Span(f"{p.probability:.2%}", className="number"), html.Span(bar, className="track", **aria(hidden="true"))]),
            html.Td(f"{p.logit:.3f}".replace("-", "−"), className="number"),
            html.Td(
                [
                    button("answer", "answer", token=p.id, label=f"take {token_text(p.token)} as the answer", pressed=role == "answer"),
                    button("against", "against", token=p.id, label=f"compare with {token_text(p.token)}", pressed=role == "against"),
                ],
                className="actions",
            ),
        ],
        className=role or "",
    )


# ---- the ledger


def standing(ledger: Ledger) -> Any:
    """The number explained and its certificate, in view wherever the page is scrolled."""
    certificate = ledger.certificate
    alarm = certificate_alarm(certificate)
    what = quantity(ledger)
    at = ledger.positions[0]
    number_line: list[Any] = [
        html.Span(html.Bdi(what[0].upper() + what[1:])),
        " = ",
        html.Strong(signed(ledger.total[0]), id="total"),
        html.Span(f" after token {at} “{token_text(ledger.tokens[at])}”", className="note"),
    ]
    worst = certificate.worst
    short = (
        f"{len(certificate.checks)} checks hold; rows add up to the printed number, "
        f"rounding {number(certificate.rounding, 2, signed=True)}; "
        f"worst {worst.name}: gap {number(worst.gap, 2)} of bound {number(worst.bound, 2)} ({worst.kind})"
    )
    details = html.Details(
        [
            html.Summary(
                [
                    html.Span("certificate holds ✔" if alarm is None else "CERTIFICATE FAILED ✘", className="verdict"),
                    html.Span(short if alarm is None else alarm),
                ]
            )
        ]
        + [html.P(line) for line in (certificate_line(certificate), *certificate.summary()[1:], *ledger.notes)],
        id="certificate",
        className="good" if alarm is None else "bad",
    )
    return html.Div([html.P(number_line, className="sum"), details])


def figure(fig: Any, name: str, *, narrow: bool) -> Any:
    """A picture with its words above it."""
    meta = fig.layout.meta
    graph = dcc.Graph(id={"type": "figure", "name": name}, figure=pictures.fitted(fig, narrow=narrow), config=GRAPH, clear_on_unhover=True)
    return html.Figure(
        [
            html.Figcaption([html.Strong(meta["title"]), *[html.Span(note, className="note") for note in meta["notes"]]]),
            *([html.Div(meta["alarm"], className="problem")] if meta["alarm"] else []),
            html.Div(graph, id=name, className="plot", role="img", **aria(label=meta["alt"])),
        ]
    )


def ledger_rows(ledger: Ledger, view: View) -> Any:
    """The largest rows as a table: everything the picture offers to a mouse, for a keyboard."""
    order = pictures.order(ledger)
    kept, left = order[: pictures.TOP], order[pictures.TOP :]
    rows = []
    for i in kept:
        cell = Cell.of(ledger.entries[int(i)])
        rows.append(_row(entry_label(ledger, int(i)), float(ledger.values[i, 0]), cell, view))
    if left.size:
        rows.append(_row(f"{left.size:,} smaller rows together", float(ledger.values[left, 0].sum()), None, view))
    rows.append(_row("rounding of the model’s own arithmetic", float(ledger.values[-1, 0]), None, view))
    rows.append(
        html.Tr(
            [html.Th("total, as printed", scope="row"), html.Td(signed(ledger.total[0]), className="number"), html.Td()], className="total"
        )
    )
    head = html.Tr([html.Th(c, scope="col") for c in ("part", "adds (logits)", "")])
    return html.Div(
        html.Table(
            [html.Caption("The largest rows; all of them, rounding included, add up to the total."), html.Thead(head), html.Tbody(rows)]
        ),
        className="wide",
    )


def _row(label: str, value: float, cell: Cell | None, view: View) -> Any:
    actions = []
    if cell is not None:
        actions.append(button("look", "look", where="rows", cell=str(cell), label=f"look at {cell}", pressed=cell == view.look))
        actions += _removers(cell, view, "rows")
    style = "" if abs(value) < 5e-5 else "negative" if value < 0 else "positive"
    return html.Tr(
        [html.Th(html.Bdi(label), scope="row"), html.Td(signed(value), className=f"number {style}"), html.Td(actions, className="actions")],
        className="looked" if cell is not None and cell == view.look else "",
    )


def _removers(cell: Cell, view: View, where: str) -> list[Any]:
    """Buttons that remove a part; for a source in one head, the head or the source."""
    if cell.removes is not None:
        parts = [cell]
    elif cell.head is not None and cell.source is not None and where != "rows":
        parts = [Cell(layer=cell.layer, head=cell.head), Cell(layer=cell.layer, source=cell.source)]
    else:
        return []
    made = []
    for part in parts:
        text = "remove" if len(parts) == 1 else f"remove {part}"
        if part in view.out:
            made.append(button("put back", "back", where=where, cell=str(part), label=f"put {part} back", pressed=True))
        else:
            made.append(button(text, "remove", where=where, cell=str(part), label=f"remove {part}"))
    return made


# ---- one part


def part(title: str, cell: Cell, view: View, body: Sequence[Any]) -> Any:
    """What is looked at, with its own buttons."""
    return html.Div(
        [
            html.H3([html.Bdi(title), " "]),
            html.Div([*_removers(cell, view, "part"), button("close", "close", where="part")], className="actions"),
            html.Div(list(body), className="beside" if len(body) > 1 else ""),
        ]
    )


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
    """A plain table; the first column names the row."""
    head = html.Tr([html.Th(c, scope="col") for c in columns])
    body = [
        html.Tr(
            [
                html.Th(row[0], scope="row"),
                *[html.Td(c, className="number" if isinstance(c, str) and _NUMBER.fullmatch(c) else "") for c in row[1:]],
            ]
        )
        for row in rows
    ]
    return html.Div(html.Table([html.Caption(caption), html.Thead(head), html.Tbody(body)]), className="wide")


def look_button(cell: Cell) -> Any:
    """Go on to another part."""
    return button("look", "look", where="part", cell=str(cell), label=f"look at {cell}")


# ---- what is removed


def chips(view: View) -> Any:
    """What is removed, each with a button that puts it back."""
    if not view.out:
        return html.P("Nothing is removed. Press “remove” at a row above, or at a part you look at.", className="waiting")
    made = [
        button(
            [str(cell), html.Span(" ×", **aria(hidden="true"))],
            "back",
            where="chips",
            cell=str(cell),
            label=f"put {cell} back",
            look="chip",
        )
        for cell in view.out
    ]
    return html.Div([html.Span("Removed: "), *made, button("put all back", "clear", where="chips")], className="chips")


def without(done: Removal, view: View) -> Any:
    """What is left of the number, in a line that stays in view."""
    a = done.ablation
    names = ", ".join(str(cell) for cell in view.out[:4]) + (f" and {len(view.out) - 4} more" if len(view.out) > 4 else "")
    told = f" (change {signed(-a.total)}; the ledger predicted {signed(-a.predicted)})"
    goto = html.Button("see below", className="small", **dict[str, Any]({"data-goto": "out-section"}))
    return html.P([f"Without {names}: ", html.Strong(signed(done.after.total[0]), id="total-without"), told, " ", goto], className="sum")


def removal(done: Removal, view: View, *, narrow: bool) -> Any:
    """Prediction beside measurement, then both runs side by side."""
    a = done.ablation
    verdict = "agree within rounding ✔" if a.holds else "DISAGREE: the entry does not say what the part does ✘"
    compared = table(
        "How the number moves",
        ("", "change (logits)", "what it is"),
        [
            ("predicted", signed(-a.predicted), "minus the removed rows of the ledger"),
            (
                "measured, direct",
                signed(-a.direct),
                f"those writes alone taken out of the last residual stream, scale frozen; the two {verdict}",
            ),
            (
                "measured, total",
                signed(-a.total),
                "ablated for real, everything downstream runs again; what differs is what later parts do about it",
            ),
        ],
    )
    what = quantity(done.before)
    values = [(what, signed(done.before.total[0]), signed(done.after.total[0]), signed(done.after.total[0] - done.before.total[0]))]
    for before, after in done.named:
        token = f"“{token_text(before.token)}”"
        values.append((f"logit of {token}", f"{before.logit:.3f}", f"{after.logit:.3f}", signed(after.logit - before.logit)))
        values.append(
            (
                f"probability of {token}",
                f"{before.probability:.2%}",
                f"{after.probability:.2%}",
                f"{100 * (after.probability - before.probability):+.2f} points".replace("-", "−"),
            )
        )
        values.append((f"rank of {token}", str(before.rank), str(after.rank), ""))
    if len(done.named) == 1:
        values = values[1:]
    sides = table("The answer before and after", ("", "before", "after", "change"), values)
    likely = table(
        "The likeliest next tokens before and after",
        ("rank", "before", "", "after", ""),
        [
            (str(i + 1), token_text(b.token), f"{b.probability:.2%}", token_text(c.token), f"{c.probability:.2%}")
            for i, (b, c) in enumerate(zip(*done.likely, strict=True))
        ],
    )
    rows = pictures.changed_most(done.before, done.after)
    ledgers = table(
        f"The ledger by {done.before.by}, before and after",
        ("part", "before", "after", "change"),
        [
            (
                entry_label(done.before, i),
                signed(done.before.values[i, 0]),
                signed(done.after.values[i, 0]),
                signed(done.after.values[i, 0] - done.before.values[i, 0]),
            )
            for i in rows
        ],
    )
    left = done.after.certificate
    line = html.P(
        f"Ledger after: {certificate_alarm(left) or certificate_line(left)}",
        className="note" if left.holds else "problem",
        id="certificate-after",
    )
    picture = figure(pictures.before_after(done.before, done.after, rows), "pairs-figure", narrow=narrow)
    return html.Div(
        [compared, html.Div([sides, likely], className="columns"), html.Div([picture, html.Div([ledgers, line])], className="beside")]
    )


# ---- claims and variance


def job(status: Status | None, *, narrow: bool) -> Any:
    """Where a long computation stands, or its result."""
    if status is None:
        return html.P("Nothing has been computed on this page yet.", className="waiting")
    what = f"{JOBS[status.kind]} of {status.model}"
    if status.state == "running":
        share: dict[str, Any] = {} if status.share is None else {"value": str(round(status.share, 4))}
        percent = "" if status.share is None else f"{status.share:.0%}, "
        return html.Div(
            [
                html.Label(f"{what}: {percent}{status.step} ({status.seconds:.0f} s)", htmlFor="job-progress", id="job-step"),
                html.Progress(id="job-progress", max="1", **share),
            ],
            className="job",
        )
    if status.state == "cancelled":
        return html.P(f"{what}: cancelled after {status.seconds:.0f} s.", className="waiting", role="status")
    if status.state == "failed":
        return html.Div(f"{what}: {status.message}", className="problem", role="alert")
    import plotly.io

    result = status.result
    columns, rows = result["table"]
    if status.kind == "claims":
        verdicts = [row[columns.index("verdict")] for row in rows]
        tally = {"fail": "fails", "hold": "holds", "undecided": "undecided", "not applicable": "n/a"}
        verdict = ", ".join(f"{verdicts.count(v)} {word}" for word, v in tally.items())
    else:
        verdict = "the identity holds ✔" if result["holds"] else "the identity FAILS ✘"
    parts: list[Any] = [
        html.P([html.Strong(f"{what}: {verdict}"), html.Span(f" ({status.seconds:.0f} s)", className="note")], role="status", id="job-done")
    ]
    files = [button(kind.upper(), "job-file", name=kind) for kind in ("json", "html", "png")]
    parts.append(html.Div(files, className="controls"))
    if status.kind == "claims":
        parts.append(_claims_table(columns, rows))
    else:
        parts.append(figure(plotly.io.from_json(result["figure"]), "job-figure", narrow=narrow))
        parts.append(table("Slopes", columns, rows))
    return html.Div(parts)


def _claims_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    at = {c: i for i, c in enumerate(columns)}
    shown = [
        (
            row[at["id"]],
            html.Span(
                VERDICTS.get(row[at["verdict"]], (row[at["verdict"]], ""))[0], className=f"verdict-{row[at['verdict']].replace('/', '')}"
            ),
            row[at["state"]],
            row[at["measured"]],
            row[at["bound"]],
            html.Span([row[at["claim"]], html.Span(row[at["note"]], className="note")]),
        )
        for row in rows
    ]
    return table("Claims, each judged by a measurement", ("claim", "verdict", "weights", "measured", "bound", "what is claimed"), shown)


JOBS = {"claims": "Claims", "variance": "Variance along the sequence", "init": "Variance at initialisation"}


def about(facts: Facts) -> str:
    """A loaded model in a line."""
    return f"{facts.layers} layers, context {facts.context:,} tokens, {facts.megabytes:,.1f} MB of weights"


def memory(loaded: Sequence[tuple[str, float]], resident: float | None) -> str:
    """What is in memory."""
    held = "; ".join(f"{name} {size:,.0f} MB" if size >= 10 else f"{name} {size:.1f} MB" for name, size in loaded) or "no model"
    return f"In memory: {held}" + ("" if resident is None else f" (whole process {resident:,.0f} MB)")


def signed(value: float) -> str:
    """A contribution or a total, four decimals and a true sign; NaN and infinity by name."""
    if not np.isfinite(value):
        return str(value)
    return f"{value:+.4f}".replace("-", "−")

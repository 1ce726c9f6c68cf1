"""What happens when: every action becomes a new `View`, every part of the page is drawn from that `View` alone.

No state of a page is kept here: it lives in its URL. So two browsers cannot disturb each other, a link reproduces a view, and an open
page goes on after the server was restarted. In here: which control changes what, and which part depends on what.
"""

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, html, no_update

from ..figures._door import entry_label
from ..figures._text import number
from . import export, panels, pictures
from .engine import Engine
from .jobs import Jobs
from .snippets import model_snippet
from .view import Cell, Problem, View

ACTIONS = ("token", "at", "option", "answer", "against", "look", "remove", "back", "clear", "close", "figure")
"""Controls that come and go with what is shown, by the type in their id."""

CONTROLS = ("model", "page", "text", "answer", "against", "by", "look", "how")


def register(app: Dash, engine: Engine, jobs: Jobs) -> None:
    """Hang every callback on the app."""
    _follow(app, engine)
    _parts(app, engine)
    _files(app, engine)
    _long(app, engine, jobs)
    app.clientside_callback(
        ClientsideFunction("explorer", "page"), Output("prompt-page", "hidden"), Output("model-page", "hidden"), Input("page", "value")
    )


# ---- actions


def _follow(app: Dash, engine: Engine) -> None:
    @app.callback(
        Output("url", "hash"),
        Output("view", "data"),
        *[Output(name, "value") for name in CONTROLS],
        Output("link-notes", "children"),
        Output("look-note", "children"),
        Input("url", "hash"),
        Input("again", "data"),
        *[Input(name, "value") for name in CONTROLS if name != "text"],
        *[Input(name, "n_clicks") for name in ("read", "swap", "reset")],
        *[Input({"type": kind, **_rest(kind)}, _event(kind)) for kind in ACTIONS],
        State("text", "value"),
        State("view", "data"),
    )
    def follow(fragment: str | None, *rest: Any) -> Any:
        text, shown = rest[-2:]
        before, _ = View.parse(shown)
        wrong: tuple[str, ...] = ()
        note = None
        happened = [(ctx.triggered_prop_ids[t["prop_id"]], t["value"]) for t in ctx.triggered]
        if shown is None or any(who == "url" for who, _ in happened):
            view, wrong = View.parse(fragment)
        else:
            view = before
            try:
                for who, value in happened:  # several, when they came faster than the answers
                    view = act(view, engine, who, value, text)
            except Problem as error:
                note = panels.problem(error, ("look",))
            except ValueError as error:
                note = panels.problem(Problem("look", str(error)), ("look",))
        view = view if view.model else replace(view, model=engine.names[0])
        link = view.link()
        if link == shown and not wrong and note is None:
            return no_update
        values = {name: _shown(view, engine, name) for name in CONTROLS}
        if shown is not None and values["text"] == _shown(before, engine, "text"):
            values["text"] = no_update  # what is being typed is not the view's yet
        return (link, link, *values.values(), [html.P(line, className="problem") for line in wrong], note)


def act(view: View, engine: Engine, who: Any, value: Any, text: str | None) -> View:
    """The view after one action.

    Args:
        view: before.
        engine: for what an action needs to know of the model.
        who: the control's id, a name or `{"type": .., ..}`.
        value: what it now holds, or how often it was pressed.
        text: what the prompt box holds.

    Raises:
        ValueError: a part that no model has.
    """
    if isinstance(who, str):
        return _act_by_name(view, engine, who, value, text)
    if not who or value in (None, 0):  # a control that just appeared
        return view
    kind = who["type"]
    if kind == "token":
        return replace(view, at=int(who["index"]))
    if kind == "at":
        return view if int(value) == engine.prompt(view).at else replace(view, at=int(value))
    if kind == "option":
        return _option(view, engine, who["name"], bool(value))
    if kind in ("answer", "against"):
        typed = engine.spell(view.model, int(who["token"]))
        other = view.against if kind == "answer" else view.answer
        if kind == "answer":
            return replace(view, answer=typed, against=None if typed == other else other)
        return replace(view, against=typed, answer=None if typed == other else other)
    if kind == "look":
        return replace(view, look=Cell.parse(who["cell"]))
    if kind == "remove":
        return view.removing(Cell.parse(who["cell"]))
    if kind == "back":
        return view.restoring(Cell.parse(who["cell"]))
    if kind == "clear":
        return replace(view, out=())
    if kind == "close":
        return replace(view, look=None)
    if kind == "figure" and who["name"] == "ledger-figure":
        cell = pictures.clicked(engine.ledger(view), value["points"][0])
        return view if cell is None else replace(view, look=cell)
    return view


def _act_by_name(view: View, engine: Engine, who: str, value: Any, text: str | None) -> View:
    if who == "model":
        return view if value in (None, view.model) else view.with_model(value)
    if who in ("page", "by", "how", "answer", "against"):
        return view.setting(who, value)
    if who == "read":
        typed = text or ""
        same = typed == (engine.example(view.model) if view.text is None else view.text)
        return view if same else view.with_text(typed)
    if who == "look":
        return (
            view
            if (value or "") == ("" if view.look is None else str(view.look))
            else replace(view, look=Cell.parse(value) if value else None)
        )
    if who == "swap":
        return (
            view
            if view.against is None
            else replace(view, answer=view.against, against=view.answer or engine.predictions(view, 1)[0].typed)
        )
    if who == "reset":
        return replace(view, answer=None, against=None)
    return view


def _option(view: View, engine: Engine, name: str, on: bool) -> View:
    if name == "chat":
        return view if on == view.chat else view.with_tokenising(chat=on, bos=view.bos)
    usual = engine.facts(view.model).bos
    bos = None if on == usual else on
    return view if bos == view.bos else view.with_tokenising(chat=view.chat, bos=bos)


def _rest(kind: str) -> dict[str, Any]:
    return {
        "token": {"index": ALL},
        "at": {"name": ALL},
        "option": {"name": ALL},
        "answer": {"token": ALL},
        "against": {"token": ALL},
        "figure": {"name": ALL},
        "clear": {"where": ALL},
        "close": {"where": ALL},
    }.get(kind, {"where": ALL, "cell": ALL})


def _event(kind: str) -> str:
    return {"at": "value", "option": "value", "figure": "clickData"}.get(kind, "n_clicks")


def _shown(view: View, engine: Engine, name: str) -> Any:
    if name == "text":
        return engine.example(view.model) if view.text is None else view.text
    value = getattr(view, name)
    if name in ("answer", "against"):
        return value or ""
    if name == "look":
        return "" if value is None else str(value)
    return value


# ---- parts

PROMPT = ("model", "text", "chat", "bos", "at")
ASKED = (*PROMPT, "answer", "against")
REMOVED = (*ASKED, "by", "out", "how")

DEPENDS: dict[str, tuple[str, ...]] = {
    "about": ("model",),
    "options": ("model", "chat", "bos"),
    "tokens": PROMPT,
    "predictions": ASKED,
    "answers": ASKED,
    "standing": (*ASKED, "by"),
    "without": REMOVED,
    "picture": (*ASKED, "by", "narrow"),
    "rows": (*ASKED, "by", "look", "out"),
    "part": (*ASKED, "look", "out", "narrow"),
    "out": (*REMOVED, "narrow"),
    "snippet": (*REMOVED, "look"),
    "model-snippet": ("model",),
}
"""What each panel shows depends on these fields of the view ("narrow": on whether the page is): a change of one draws it again."""

IN_FULL = {
    "about": ("model",),
    "tokens": ("prompt", "position"),
    "answers": ("answer", "against"),
    "rows": ("by",),
    "part": ("look", "by"),
    "out": ("out", "by"),
}
"""Which problems a panel tells in full: those of the controls beside it."""


def _parts(app: Dash, engine: Engine) -> None:
    draw: dict[str, Callable[[View, bool], Any]] = {
        "about": lambda view, _: about(engine, view),
        "options": lambda view, _: options(engine, view),
        "tokens": lambda view, _: tokens(engine, view),
        "predictions": lambda view, _: predictions(engine, view),
        "answers": lambda view, _: answers(engine, view),
        "standing": lambda view, _: panels.standing(engine.ledger(view)),
        "without": lambda view, _: without(engine, view),
        "picture": lambda view, narrow: panels.figure(pictures.of_ledger(engine.ledger(view)), "ledger-figure", narrow=narrow),
        "rows": lambda view, _: rows(engine, view),
        "part": lambda view, narrow: one_part(engine, view, narrow),
        "out": lambda view, narrow: removal(engine, view, narrow),
        "snippet": lambda view, _: html.Pre(export.snippet(engine, view), id="python", tabIndex=0),
        "model-snippet": lambda view, _: model_snippets(engine, view),
    }
    # The browser knows which panels a new view concerns, so that only those are asked for.
    app.clientside_callback(
        ClientsideFunction("explorer", "concerned"),
        *[Output(f"{name}-key", "data") for name in DEPENDS],
        Input("view", "data"),
        Input("narrow", "data"),
        Input("again", "data"),
        State("depends", "data"),
        *[State(f"{name}-key", "data") for name in DEPENDS],
    )
    for name in DEPENDS:
        _part(app, name, draw[name])


def _part(app: Dash, name: str, draw: Callable[[View, bool], Any]) -> None:
    @app.callback(Output(name, "children"), Input(f"{name}-key", "data"))
    def show(key: Any) -> Any:
        if key is None:
            return no_update
        view, _ = View.parse(key["fragment"])
        return drawn(lambda: draw(view, bool(key["narrow"])), IN_FULL.get(name, ()))


def drawn(draw: Callable[[], Any], places: Sequence[str]) -> Any:
    """What `draw` gives, or why it cannot, in its place."""
    try:
        return draw()
    except Problem as error:
        return panels.problem(error, places)
    except Exception as error:  # a part that fails must not take the page with it
        traceback.print_exc(file=sys.stderr)
        return panels.broken(error)


def about(engine: Engine, view: View) -> Any:
    """The loaded model, and what is in memory."""
    facts = engine.facts(view.model)
    return html.P([panels.about(facts), ". ", panels.memory(*engine.memory())], className="note")


def options(engine: Engine, view: View) -> Any:
    """How text becomes tokens, where the model leaves a choice."""
    from dash import dcc

    facts = engine.facts(view.model)
    boxes = []
    if facts.chat:
        boxes.append(("chat", "apply the chat template", view.chat))
    if facts.bos is not None:
        boxes.append(("bos", "begin with BOS", facts.bos if view.bos is None else view.bos))
    return html.Div(
        [
            dcc.Checklist([{"label": text, "value": name}], [name] if on else [], id={"type": "option", "name": name}, className="choice")
            for name, text, on in boxes
        ],
        className="options",
    )


def tokens(engine: Engine, view: View) -> Any:
    """The tokens as fed and the number of the destination."""
    from dash import dcc

    try:
        prompt = engine.prompt(view)
    except Problem as error:
        if error.place != "position":
            raise
        return html.Div([panels.problem(error, ("position",)), panels.button("read at the end", "token", index=-1)])
    last = len(prompt.tokens) - 1
    number_box = dcc.Input(id={"type": "at", "name": "at"}, type="number", min=0, max=last, step=1, value=prompt.at, debounce=True)
    label = html.Label([f"Destination (0 to {last})", number_box], className="inline")
    return html.Div([panels.tokens(prompt), label])


def predictions(engine: Engine, view: View) -> Any:
    """What comes next; with a wrong answer typed, all the same."""
    prompt, likely = engine.prompt(view), engine.predictions(view)
    try:
        answer, against = engine.answers(view)
    except Problem:
        return panels.predictions(likely, (), prompt)
    ids = [(role, i) for role, i in (("answer", answer), ("against", against)) if i is not None]
    named = engine.rank(view.model, engine.logits(view), [i for _, i in ids])
    return panels.predictions(likely, [(role, p) for (role, _), p in zip(ids, named, strict=True)], prompt)


def answers(engine: Engine, view: View) -> Any:
    """What is wrong with the answers, and the likelier spelling of one that lacks its space."""
    said: list[Any] = []
    try:
        engine.answers(view)
    except Problem as error:
        said.append(panels.problem(error, ("answer", "against")))
    for role in ("answer", "against"):
        typed = getattr(view, role)
        spaced = None if typed is None else engine.near_miss(view, typed)
        if spaced is not None:
            token = engine.token(view, spaced)
            said.append(
                html.P(
                    [
                        "Did you mean it with a space in front? ",
                        panels.button(f"take “{panels.token_text(spaced)}”", role, token=f"{token}"),
                    ],
                    className="note",
                )
            )
    return said


def rows(engine: Engine, view: View) -> Any:
    """The largest rows of the ledger."""
    account = engine.ledger(view)
    reason = engine.facts(view.model).splits[view.by]
    return html.Div([panels.ledger_rows(account, view), *([html.P(f"Note: {reason}.", className="note")] if reason else [])])


def model_snippets(engine: Engine, view: View) -> Any:
    """Claims and variance as Python."""
    source = engine.source(view.model)
    code = [html.Pre(model_snippet(source, kind), tabIndex=0) for kind in panels.JOBS]
    return html.Details([html.Summary("As Python"), *code])


def without(engine: Engine, view: View) -> Any:
    """What is left of the number when parts are removed; nothing when none are, or when section 5 says why not."""
    if not view.out:
        return None
    try:
        return panels.without(engine.removal(view), view)
    except Problem:
        return None


def removal(engine: Engine, view: View, narrow: bool) -> Any:
    """What is removed, and what that does."""
    chips = panels.chips(view)
    if not view.out:
        return chips
    return html.Div([chips, drawn(lambda: panels.removal(engine.removal(view), view, narrow=narrow), ("out", "by"))])


def one_part(engine: Engine, view: View, narrow: bool) -> Any:
    """What can be seen of the part looked at."""
    cell = view.look
    if cell is None:
        return html.P("Nothing is looked at yet.", className="waiting")
    engine.check_cell(view, cell)
    prompt = engine.prompt(view)
    if cell.neuron is not None:
        return _neuron(engine, view, cell, narrow)
    if cell.lag is not None:
        return _lag(engine, view, cell, cell.lag, narrow)
    if cell.head is not None:
        return _head(engine, view, cell, narrow)
    if cell.source is not None and cell.layer is not None and engine.extractor(view, cell.layer) is not None:
        return _lag(engine, view, cell, prompt.at - cell.source, narrow)
    if cell.source is not None:
        return _source(engine, view, cell)
    return _sublayer(engine, view, cell)


def _adds(engine: Engine, view: View, by: str, cell: Cell) -> float | None:
    account = engine.ledger(view, by)
    found = [v for e, v in zip(account.entries, account.values[:, 0], strict=True) if Cell.of(e) == cell]
    return float(sum(found)) if found else None


def _largest(engine: Engine, view: View, by: str, keep: Callable[[Any], bool], k: int = 12) -> list[tuple[Any, ...]]:
    """The largest rows of another split that belong to a part, each with a button that goes there."""
    account = engine.ledger(view, by)
    rows = []
    for i in pictures.order(account):
        entry = account.entries[int(i)]
        cell = Cell.of(entry)
        if cell is not None and keep(entry):
            rows.append((html.Bdi(entry_label(account, int(i))), panels.signed(account.values[i, 0]), panels.look_button(cell)))
        if len(rows) == k:
            break
    return rows


def _head(engine: Engine, view: View, cell: Cell, narrow: bool) -> Any:
    from .. import figures

    prompt = engine.prompt(view)
    assert cell.layer is not None and cell.head is not None
    whole = Cell(layer=cell.layer, head=cell.head)
    pattern = engine.pattern(view, cell.layer)[cell.head]
    adds = _adds(engine, view, "head", whole)
    said = "" if adds is None else f" adds {panels.signed(adds)}"
    if cell.source is not None:
        of = _adds(engine, view, "head+source", cell)
        said += f", {panels.signed(of or 0.0)} of it read from token {cell.source} “{panels.token_text(prompt.tokens[cell.source])}”"
    account = engine.ledger(view, "head+source")
    rows = [
        (float(v), e.source)
        for e, v in zip(account.entries, account.values[:, 0], strict=True)
        if e.layer == cell.layer and e.head == cell.head and e.source is not None
    ]
    rows.sort(key=lambda r: -abs(r[0]))
    shown = [
        (
            html.Bdi(f"{j} “{panels.token_text(prompt.tokens[j])}”"),
            f"{pattern[prompt.at, j]:.1%}",
            panels.signed(v),
            panels.look_button(Cell(layer=cell.layer, head=cell.head, source=j)),
        )
        for v, j in rows[:10]
    ]
    picture = figures.attention(({cell.layer: pattern[None]}, prompt.tokens), focus=(cell.layer, 0))
    most = int(pattern[prompt.at].argmax())
    token = f"token {most} “{panels.token_text(prompt.tokens[most])}”"
    found = f"At the destination, {whole} attends most to {token} ({pattern[prompt.at, most]:.0%})"
    picture.layout.meta = {**picture.layout.meta, "title": found}
    return panels.part(
        f"{whole}{said}",
        cell,
        view,
        [
            panels.figure(picture, "pattern-figure", narrow=narrow),
            panels.table(
                f"What {whole} reads at the destination, and what that adds", ("source token", "attention", "adds (logits)", ""), shown
            ),
        ],
    )


def _lag(engine: Engine, view: View, cell: Cell, lag: int, narrow: bool) -> Any:
    assert cell.layer is not None
    prompt = engine.prompt(view)
    gains = engine.gains(view, cell.layer)
    adds = _adds(engine, view, "lag" if cell.lag is not None else "head+source", cell)
    source = prompt.at - lag
    read = (
        f"lag {lag} is token {source} “{panels.token_text(prompt.tokens[source])}”"
        if source >= 0
        else f"lag {lag} reaches before the prompt"
    )
    title = f"{cell}: {read}" + ("" if adds is None else f"; it adds {panels.signed(adds)}")
    if gains is not None:
        body = [panels.figure(pictures.gains(gains, cell.layer, lag), "gain-figure", narrow=narrow)]
    else:
        pattern = engine.pattern(view, cell.layer)
        rows = [
            (f"L{cell.layer}H{h}", f"{pattern[h, prompt.at, source]:.1%}", panels.look_button(Cell(layer=cell.layer, head=h)))
            for h in range(pattern.shape[0])
        ]
        body = [panels.table(f"Attention of each head of layer {cell.layer} to the token {lag} back", ("head", "attention", ""), rows)]
    return panels.part(title, cell, view, body)


def _neuron(engine: Engine, view: View, cell: Cell, narrow: bool) -> Any:
    assert cell.layer is not None and cell.neuron is not None
    prompt = engine.prompt(view)
    values = engine.activations(view, cell.layer, cell.neuron)
    adds = _adds(engine, view, "neuron", cell)
    strongest = sorted(range(len(values)), key=lambda i: -abs(values[i]))[:10]
    rows = [
        (
            html.Bdi(f"{i} “{panels.token_text(prompt.tokens[i])}”"),
            number(float(values[i]), 4, signed=True),
            html.Bdi(f"… {''.join(panels.token_text(t) for t in prompt.tokens[max(0, i - 6) : i + 1])}"),
        )
        for i in strongest
    ]
    return panels.part(
        f"{cell} puts out {number(float(values[prompt.at]), 4, signed=True)} at the destination and adds {panels.signed(adds or 0.0)}",
        cell,
        view,
        [
            panels.figure(pictures.neuron(values, prompt.tokens, prompt.at, str(cell)), "neuron-figure", narrow=narrow),
            panels.table("Strongest positions in this prompt", ("token", "activation", "with what came before"), rows),
        ],
    )


def _source(engine: Engine, view: View, cell: Cell) -> Any:
    prompt = engine.prompt(view)
    assert cell.source is not None
    everywhere = cell.layer is None
    adds = _adds(engine, view, "source", cell) if everywhere else None
    rows = _largest(engine, view, "head+source", lambda e: e.source == cell.source and (everywhere or e.layer == cell.layer))
    token = f"token {cell.source} “{panels.token_text(prompt.tokens[cell.source])}”"
    title = (
        f"What is read from {token}"
        + ("" if everywhere else f" in layer {cell.layer}")
        + ("" if adds is None else f" adds {panels.signed(adds)}")
    )
    body = [panels.table("Through which parts", ("part", "adds (logits)", ""), rows)]
    if everywhere:
        body.append(
            html.P(
                "This is what the layers read from the row of that token; what earlier layers moved into the row counts as the row.",
                className="note",
            )
        )
    return panels.part(title, cell, view, body)


def _sublayer(engine: Engine, view: View, cell: Cell) -> Any:
    by = "neuron" if cell.slot == "mlp" else "head+source" if engine.extractor(view, cell.layer or 0) is not None else "head"
    kinds = ("neuron",) if cell.slot == "mlp" else ("head", "extractor")
    adds = _adds(engine, view, "component", cell)
    rows = _largest(engine, view, by, lambda e: e.layer == cell.layer and e.kind in kinds)
    what = "neurons" if cell.slot == "mlp" else "heads" if by == "head" else "sources"
    title = f"{cell}" + ("" if adds is None else f" adds {panels.signed(adds)}")
    return panels.part(title, cell, view, [panels.table(f"Its largest {what}", ("part", "adds (logits)", ""), rows)])


# ---- files


def _files(app: Dash, engine: Engine) -> None:
    @app.callback(
        Output("download", "data"), Output("png", "data"), Output("copied", "children"),
        Input("json", "n_clicks"), Input("html", "n_clicks"), Input("image", "n_clicks"), State("view", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def save(*given: Any) -> Any:
        view, _ = View.parse(given[-1])
        try:
            if ctx.triggered_id == "json":
                return (
                    {
                        "content": export.as_json(engine, view),
                        "filename": export.name(view.model, view.by, "json"),
                        "type": "application/json",
                    },
                    no_update,
                    "",
                )
            if ctx.triggered_id == "html":
                page = export.as_html(engine, view, export.snippet(engine, view))
                return {"content": page, "filename": export.name(view.model, view.by, "html"), "type": "text/html"}, no_update, ""
            picture = pictures.of_ledger(engine.ledger(view))
            return no_update, {"figure": json.loads(picture.to_json()), "name": export.name(view.model, view.by, "png")}, ""
        except Problem as error:
            return no_update, no_update, panels.problem(error, (error.place,))

    app.clientside_callback(
        ClientsideFunction("explorer", "image"), Output("image", "title"), Input("png", "data"), prevent_initial_call=True
    )
    app.clientside_callback(
        ClientsideFunction("explorer", "copy"), Output("copied", "title"), Input("copy", "n_clicks"), prevent_initial_call=True
    )


# ---- claims and variance


def _long(app: Dash, engine: Engine, jobs: Jobs) -> None:
    buttons = {f"start-{kind}": kind for kind in panels.JOBS}

    @app.callback(
        Output("job", "data"), Output("job-note", "children"),
        *[Input(name, "n_clicks") for name in buttons], Input("cancel", "n_clicks"), State("view", "data"), State("job", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def start(*given: Any) -> Any:
        fragment, current = given[-2:]
        if ctx.triggered_id == "cancel":
            if current:
                jobs.cancel(current)
            return no_update, None
        view, _ = View.parse(fragment)
        try:
            if current:
                jobs.cancel(current)
            return jobs.start(
                name=view.model, place=engine.place(view.model), kind=buttons[ctx.triggered_id], device=engine.device, dtype=engine.dtype
            ), None
        except ValueError as error:
            return no_update, panels.problem(Problem("job", str(error)), ("job",))

    @app.callback(
        Output("download", "data", allow_duplicate=True), Output("png", "data", allow_duplicate=True),
        Input({"type": "job-file", "name": ALL}, "n_clicks"), State("job", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def save(pressed: Sequence[int], current: str | None) -> Any:
        status = jobs.status(current) if current else None
        if not any(pressed) or status is None or status.result is None:
            return no_update, no_update
        kind = ctx.triggered_id["name"]
        filename = export.name(status.model, status.kind, kind)
        if kind == "json":
            return {"content": export.job_json(status), "filename": filename, "type": "application/json"}, no_update
        if kind == "html":
            snippet = model_snippet(engine.source(status.model), status.kind)
            return {"content": export.job_html(status, snippet), "filename": filename, "type": "text/html"}, no_update
        return no_update, {"figure": json.loads(status.result["figure"]), "name": filename}

    @app.callback(
        Output("job-panel", "children"), Output("tick", "disabled"), Output("cancel", "disabled"),
        Input("job", "data"), Input("tick", "n_intervals"), Input("narrow", "data"), Input("cancel", "n_clicks"),
    )  # fmt: skip
    def watch(current: str | None, _: Any, narrow: bool, __: Any) -> Any:
        status = jobs.status(current) if current else None
        if current and status is None:
            lost = panels.problem(
                Problem("job", "The server was restarted and does not know this computation any more. Start it again."), ("job",)
            )
            return lost, True, True
        running = status is not None and status.state == "running"
        return drawn(lambda: panels.job(status, narrow=bool(narrow)), ()), not running, not running

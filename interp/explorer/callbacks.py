"""What happens when: every action becomes a new `View`, every part of the page is drawn from that `View` alone.

No state of a page is kept here: it lives in its URL. So two browsers cannot disturb each other, a link reproduces a view, and an open
page goes on after the server was restarted. In here: which control changes what, and which part depends on what.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, html, no_update

from . import export, panels, parts, pictures
from .actions import act
from .engine import Engine
from .jobs import Jobs
from .snippets import model_snippet
from .view import Problem, View

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
        "about": lambda view, _: parts.about(engine, view),
        "options": lambda view, _: parts.options(engine, view),
        "tokens": lambda view, _: parts.tokens(engine, view),
        "predictions": lambda view, _: parts.predictions(engine, view),
        "answers": lambda view, _: parts.answers(engine, view),
        "standing": lambda view, _: panels.standing(engine.ledger(view)),
        "without": lambda view, _: parts.without(engine, view),
        "picture": lambda view, narrow: panels.figure(pictures.of_ledger(engine.ledger(view)), "ledger-figure", narrow=narrow),
        "rows": lambda view, _: parts.rows(engine, view),
        "part": lambda view, narrow: parts.one_part(engine, view, narrow),
        "out": lambda view, narrow: parts.removal(engine, view, narrow),
        "snippet": lambda view, _: html.Pre(export.snippet(engine, view), id="python", tabIndex=0),
        "model-snippet": lambda view, _: parts.model_snippets(engine, view),
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
        return parts.drawn(lambda: draw(view, bool(key["narrow"])), IN_FULL.get(name, ()))


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
                return _file(export.as_json(engine, view), view.model, view.by, "json"), no_update, ""
            if ctx.triggered_id == "html":
                return _file(export.as_html(engine, view, export.snippet(engine, view)), view.model, view.by, "html"), no_update, ""
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


def _file(content: str, model: str, what: str, ending: str) -> dict[str, str]:
    """What `dcc.Download` takes."""
    kinds = {"json": "application/json", "html": "text/html"}
    return {"content": content, "filename": export.name(model, what, ending), "type": kinds[ending]}


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
        if kind == "json":
            return _file(export.job_json(status), status.model, status.kind, "json"), no_update
        if kind == "html":
            snippet = model_snippet(engine.source(status.model), status.kind)
            return _file(export.job_html(status, snippet), status.model, status.kind, "html"), no_update
        return no_update, {"figure": json.loads(status.result["figure"]), "name": export.name(status.model, status.kind, "png")}

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
        return parts.drawn(lambda: panels.job(status, narrow=bool(narrow)), ()), not running, not running

"""What an action of the user makes of a view: a control and its value in, the next `View` out. Nothing is drawn here."""

from dataclasses import replace
from typing import Any

from . import pictures
from .engine import Engine
from .view import Cell, View


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

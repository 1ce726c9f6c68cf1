"""What each part of the page shows of a view: asks the engine, hands the result to `panels` and `pictures`. One function a part."""

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from dash import dcc, html

from .. import figures
from ..figures._door import entry_label
from ..figures._text import number
from . import panels, pictures
from .engine import Engine
from .snippets import model_snippet
from .view import Cell, Problem, View


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

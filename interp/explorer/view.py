"""What a page shows, as one frozen value that a link carries: `View` <-> the fragment of the URL.

The fragment (what follows `#`) is never sent in a request, so a long prompt fits and no log holds it. In here: parsing, spelling, and
how an action of the user changes a view. Not in here: models, numbers, markup.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, urlencode

from analyses.ledger import SPLITS

PAGES = ("prompt", "model")
HOW = ("zero", "mean")
Kind = Literal["heads", "lags", "sources", "neurons"]
MAX_REMOVED = 200

_CELL = re.compile(
    r"L(?P<layer>\d{1,4}) ?(?:H(?P<head>\d{1,6})(?: ?<- ?(?P<from>\d{1,7}))?|N(?P<neuron>\d{1,7})|lag ?(?P<lag>\d{1,7})"
    r"|<- ?(?P<source>\d{1,7})|(?P<slot>attn|mlp|mixer|extractor))|(?:<-|from) ?(?P<everywhere>\d{1,7})",
    re.IGNORECASE,
)


class Problem(ValueError):  # noqa: N818 - said to a user, not an error of the program
    """Something a user can put right; `place` names the control beside which the page says it."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(message)
        self.place = place


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One part of a model that an entry of a ledger names: a head, a source token, both, a lag, a neuron or a whole sublayer.

    >>> str(Cell.parse("l5h3 <- 4")), Cell.parse("from 4").removes, Cell.parse("L2N7").removes
    ('L5H3<-4', ('sources', 4), ('neurons', (2, 7)))
    """

    layer: int | None = None
    head: int | None = None
    source: int | None = None
    lag: int | None = None
    neuron: int | None = None
    slot: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Cell":
        """Raises ValueError for what names no part."""
        found = _CELL.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} names no part of a model; write L5H3, L5H3<-4, <-4, L5<-4, L2 lag 3, L2N100, L5 attn or L5 mlp")
        part = {k: v for k, v in found.groupdict().items() if v is not None}
        source = part.pop("from", None) or part.pop("everywhere", None) or part.pop("source", None)
        slot = part.pop("slot", None)
        numbers = {k: int(v) for k, v in part.items()}
        return cls(**numbers, source=None if source is None else int(source), slot=None if slot is None else slot.lower())

    @classmethod
    def of(cls, entry: Any) -> "Cell | None":
        """The part that an entry of a ledger names; None for embeddings, biases and the rounding."""
        slot = entry.kind if entry.kind in ("attn", "mlp", "mixer", "extractor") else None
        where = {name: getattr(entry, name) for name in ("layer", "head", "source", "lag", "neuron")}
        if all(where[name] is None for name in ("head", "source", "lag", "neuron")):
            return None if slot is None or entry.layer is None else cls(layer=entry.layer, slot=slot)
        return cls(**where)

    def __str__(self) -> str:
        if self.neuron is not None:
            return f"L{self.layer}N{self.neuron}"
        if self.lag is not None:
            return f"L{self.layer} lag {self.lag}"
        if self.slot is not None:
            return f"L{self.layer} {self.slot}"
        where = "" if self.layer is None else f"L{self.layer}"
        head = "" if self.head is None else f"H{self.head}"
        return where + head + ("" if self.source is None else f"<-{self.source}")

    @property
    def removes(self) -> tuple[Kind, Any] | None:
        """The keyword and the target of `interp.ablate` that remove this part; None where only parts of it can be removed."""
        if self.neuron is not None:
            return "neurons", (self.layer, self.neuron)
        if self.lag is not None:
            return "lags", (self.layer, self.lag)
        if self.head is not None:
            return ("heads", (self.layer, self.head)) if self.source is None else None
        if self.source is not None:
            return "sources", self.source if self.layer is None else (self.layer, self.source)
        return None


@dataclass(frozen=True, kw_only=True)
class View:
    """Everything that decides what is on the page.

    Attributes:
        page: "prompt", or "model" for claims and variance.
        model: a name of the explorer's own list, never a path.
        text: the prompt as typed; None is the model's example.
        chat: whether the prompt goes through the model's chat template.
        bos: whether BOS goes in front; None follows the model.
        at: the destination, a position in the prompt, negative from the end.
        answer, against: a text of one token or "#id"; None is the model's top token, or nothing.
        by: how the ledger is split.
        look: the part looked at.
        out: the parts removed, all of one kind.
        how: what they are replaced by.
    """

    page: str = "prompt"
    model: str = ""
    text: str | None = None
    chat: bool = False
    bos: bool | None = None
    at: int = -1
    answer: str | None = None
    against: str | None = None
    by: str = "head"
    look: Cell | None = None
    out: tuple[Cell, ...] = ()
    how: str = "zero"

    @classmethod
    def parse(cls, fragment: str | None) -> "tuple[View, tuple[str, ...]]":
        """The view that a link means, and a line about each part of it that means nothing (which is left out).

        >>> view, wrong = View.parse("#model=mha-austen&by=lag&at=x")
        >>> view.by, view.at, wrong
        ('lag', -1, ("the link's at='x' is left out: a whole number is needed",))
        """
        view, wrong = cls(), []
        for name, value in parse_qsl((fragment or "").removeprefix("#"), keep_blank_values=True, errors="replace"):
            try:
                view = replace(view, **{name: _PARSE[name](value)})
            except KeyError:
                wrong.append(f"the link's {name[:40]!r} is left out: there is no such setting")
            except ValueError as error:
                wrong.append(f"the link's {name}={value[:40]!r} is left out: {error}")
        return view, tuple(wrong)

    def link(self) -> str:
        """The fragment that `parse` reads back; what is as by default is not in it."""
        said = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                said[field.name] = _spell(value)
        return "#" + urlencode(said, quote_via=quote)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return plain | {"look": None if self.look is None else str(self.look), "out": [str(c) for c in self.out]}

    # ---- what a user does

    def setting(self, name: str, value: str | None) -> "View":
        """One of page, by, how, answer and against, as its control has it; nothing chosen leaves a choice as it is, and empties a box."""
        if not value:
            return replace(self, **dict[str, Any]({name: None})) if name in ("answer", "against") else self
        return replace(self, **dict[str, Any]({name: _PARSE[name](value)}))

    def with_model(self, name: str) -> "View":
        """Another model: its own example, its own answers; nothing that named a part of the old one stays."""
        return View(page=self.page, model=name, by=self.by)

    def with_text(self, text: str) -> "View":
        """Another prompt: read at its end; what named a position of the old one goes."""
        look = None if self.look is None or self.look.source is not None else self.look
        return replace(self, text=text, at=-1, look=look, out=tuple(c for c in self.out if c.source is None))

    def with_tokenising(self, *, chat: bool, bos: bool | None) -> "View":
        """Chat template or BOS switched: positions shift, so the end is read again."""
        moved = self.with_text(self.text or "")
        return replace(moved, text=self.text, chat=chat, bos=bos)

    def removing(self, cell: Cell) -> "View":
        """One part more removed. `interp.ablate` removes one kind at a time: another kind starts anew."""
        if cell.removes is None or cell in self.out:
            return self
        kind = cell.removes[0]
        same = tuple(c for c in self.out if c.removes is not None and c.removes[0] == kind)
        return replace(self, out=(*same, cell)[-MAX_REMOVED:])

    def restoring(self, cell: Cell) -> "View":
        """One part less removed."""
        return replace(self, out=tuple(c for c in self.out if c != cell))

    @property
    def targets(self) -> dict[str, list[Any]]:
        """The keyword that `interp.ablate` needs for what is removed; empty when nothing is."""
        asked = [c.removes for c in self.out if c.removes is not None]
        return {asked[0][0]: [target for _, target in asked]} if asked else {}


def one_of(allowed: Sequence[str]) -> Any:
    """A parser that takes one of `allowed`."""

    def parse(value: str) -> str:
        if value not in allowed:
            raise ValueError(f"one of {', '.join(allowed)} is needed")
        return value

    return parse


def _whole(value: str) -> int:
    if re.fullmatch(r"-?\d{1,9}", value) is None:
        raise ValueError("a whole number is needed")
    return int(value)


def _yes(value: str) -> bool:
    if value not in ("yes", "no"):
        raise ValueError("yes or no is needed")
    return value == "yes"


def _cells(value: str) -> tuple[Cell, ...]:
    cells = tuple(dict.fromkeys(Cell.parse(part) for part in value.split(",") if part))
    kinds = {c.removes[0] if c.removes is not None else None for c in cells}
    if len(kinds) > 1 or None in kinds or len(cells) > MAX_REMOVED:
        raise ValueError(f"at most {MAX_REMOVED} heads, lags, sources or neurons are removed at a time, and of one kind")
    return cells


_PARSE: Mapping[str, Any] = {
    "page": one_of(PAGES),
    "model": str,
    "text": str,
    "chat": _yes,
    "bos": _yes,
    "at": _whole,
    "answer": str,
    "against": str,
    "by": one_of(SPLITS),
    "look": Cell.parse,
    "out": _cells,
    "how": one_of(HOW),
}


def _spell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ",".join(str(c) for c in value)
    return str(value)

"""What a figure asks of its argument, checked before anything is drawn."""

from typing import Any

import numpy as np

from interp.figures._text import cut, unbroken, visible


def require(result: Any, names: tuple[str, ...], *, figure: str, wants: str) -> None:
    """Raises TypeError naming what was given when `result` lacks one of the attributes that `figure` reads."""
    missing = [name for name in names if not hasattr(result, name)]
    if missing:
        raise TypeError(f"figures.{figure} draws {wants}; got {type(result).__name__} without {', '.join(missing)}")


LEDGER_NAMES = ("by", "model", "tokens", "positions", "answer", "entries", "labels", "values", "total", "certificate")


def require_ledger(ledger: Any, figure: str) -> None:
    """The ledger's door."""
    require(ledger, LEDGER_NAMES, figure=figure, wants="a Ledger (interp.ledger(model, text, ...))")


def choose_position(ledger: Any, position: int | None) -> int:
    """The column of `values` to draw: `position` as it stands in `ledger.positions`, the last one by default."""
    positions = [int(p) for p in ledger.positions]
    if position is None:
        return len(positions) - 1
    if isinstance(position, bool) or not isinstance(position, int | np.integer):
        raise TypeError(f"position: wants an int from ledger.positions, got {type(position).__name__}")
    wanted = int(position) + len(ledger.tokens) if position < 0 else int(position)
    if wanted not in positions:
        raise ValueError(f"position: {position} is not in this ledger; it holds {', '.join(map(str, positions[:12]))}")
    return positions.index(wanted)


def certificate_at(ledger: Any, column: int) -> Any:
    """The certificate of one position, the worst one where a ledger keeps no others."""
    kept = getattr(ledger, "certificates", None)
    return kept[column] if kept else ledger.certificate


def quantity(ledger: Any) -> str:
    """What the entries add up to, plain text."""
    answer = cut(visible(str(ledger.answer)), 24)
    against = getattr(ledger, "against", None)
    return f"logit of “{answer}”" if against is None else f"logit of “{answer}” − “{cut(visible(str(against)), 24)}”"


def setting(ledger: Any, column: int) -> str:
    """Where the logit was read, plain text: `after token 13 “·to”`."""
    at = int(ledger.positions[column])
    token = f" “{cut(visible(ledger.tokens[at]), 24)}”" if 0 <= at < len(ledger.tokens) else ""
    return f"read after token {at}{token}"


def entry_label(ledger: Any, index: int) -> str:
    """The label of an entry as figures show it, plain text: a source token by position and visible text."""
    entry, label = ledger.entries[index], ledger.labels[index]
    if entry.source is None or not 0 <= entry.source < len(ledger.tokens):
        return unbroken(label)
    token = f"{entry.source} “{cut(visible(ledger.tokens[entry.source]), 24)}”"
    if entry.layer is None:
        return token
    head = "" if entry.head is None else f"H{entry.head}"
    return f"L{entry.layer}{head} ← {token}"

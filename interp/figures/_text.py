"""Text on figures: whitespace made visible, user strings made harmless, long lines wrapped, numbers written for people.

Plotly reads a small HTML (tags, entities) and TeX between dollar signs in every text it draws, so nothing that came
from a user may reach a figure without passing `safe`.
"""

import html
import math
import unicodedata

WHITESPACE = {" ": "·", "\n": "⏎", "\r": "␍", "\t": "⇥", "\u00a0": "⍽"}
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"}


def visible(text: str) -> str:
    """Whitespace and control characters replaced by marks: space ·, newline ⏎, tab ⇥, others by their code point.

    >>> visible(" Mary\\n")
    '·Mary⏎'
    >>> visible("a\\u202eb")
    'a⟨202E⟩b'
    """
    if text == "":
        return "∅"
    shown = [WHITESPACE.get(c) or (f"⟨{ord(c):04X}⟩" if unicodedata.category(c) in _INVISIBLE else c) for c in text]
    if unicodedata.combining(text[0]):
        shown.insert(0, "◌")
    return "".join(shown)


def cut(text: str, length: int) -> str:
    """At most `length` characters, the last of them an ellipsis when something was left out.

    >>> cut("perpendicular", 6)
    'perpe…'
    """
    return text if len(text) <= length else text[: length - 1] + "…"


def escape(text: str) -> str:
    """Markup and TeX taken out of the meaning of a text; for text that has been made visible already.

    Only entities that plotly knows are used (it leaves `&quot;` as it stands).

    >>> escape("<b>$x$</b> & co")
    '&lt;b&gt;&#36;x&#36;&lt;/b&gt; &amp; co'
    """
    return html.escape(text, quote=False).replace("$", "&#36;")


def safe(text: str, length: int = 24) -> str:
    """A user's string as a figure may carry it: visible, cut to `length`, escaped."""
    return escape(cut(visible(text), length))


def unbroken(text: str) -> str:
    """A label whose ordinary spaces stay spaces (`L3 attn`), while other invisible characters are shown."""
    return " ".join(visible(word) if word else "" for word in text.split(" "))


def columns(text: str) -> int:
    """Width in character cells: wide East Asian characters and emoji count two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells, broken at spaces, inside a word only where the word alone is longer.

    >>> wrap("one two three", 8)
    ['one two', 'three']
    >>> wrap("abcdefghij", 4)
    ['abcd', 'efgh', 'ij']
    """
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        candidate = f"{line} {word}" if line else word
        if columns(candidate) <= width:
            line = candidate
            continue
        if line:
            lines.append(line)
        rest = word
        while columns(rest) > width:
            size = 0
            taken = 0
            for c in rest:
                size += columns(c)
                if size > width and taken:
                    break
                taken += 1
            lines.append(rest[:taken])
            rest = rest[taken:]
        line = rest
    return [*lines, line] if line or not lines else lines


def number(value: float, digits: int = 3, *, signed: bool = False) -> str:
    """A number with `digits` significant digits and a true minus sign.

    >>> number(-0.0123456), number(1.5, signed=True), number(3.2e-7), number(float("nan"))
    ('−0.0123', '+1.5', '3.2e−07', 'NaN')
    """
    value = float(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "−∞" if value < 0 else "+∞" if signed else "∞"
    text = f"{value:+.{digits}g}" if signed and value != 0 else f"{value:.{digits}g}"
    return text.replace("-", "−")


def count(n: int, noun: str) -> str:
    """`1 token`, `3 tokens`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def token_line(tokens: tuple[str, ...] | list[str], budget: int = 110) -> str:
    """The tokens as fed, made visible, separated by thin bars; the middle left out (and counted) beyond `budget` cells."""
    shown = [cut(visible(t), 24) for t in tokens]
    if sum(columns(s) + 1 for s in shown) <= budget:
        return "|".join(shown)
    half = (budget - 20) // 2
    head: list[str] = []
    tail: list[str] = []
    for pieces, chosen in ((shown, head), (shown[::-1], tail)):
        used = 0
        for piece in pieces:
            used += columns(piece) + 1
            if used > half:
                break
            chosen.append(piece)
    left = len(shown) - len(head) - len(tail)
    return "|".join(head) + f"| … {left} more … |" + "|".join(tail[::-1])


def thin(n: int, room: int) -> list[int]:
    """Indices to label when only `room` of `n` labels fit: evenly spaced, the first always among them, the last where it does not crowd.

    >>> thin(5, 10), thin(10, 4)
    ([0, 1, 2, 3, 4], [0, 3, 6, 9])
    """
    if n <= max(room, 1):
        return list(range(n))
    step = -(-n // max(room, 1))
    return list(range(0, n, step))

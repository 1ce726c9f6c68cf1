"""The decoders that ship with this package, and the held-out text that none of them was trained on.

Each is a folder that `HookedDecoder.from_pretrained` reads, with its recipe, its log and a card (README.md) beside it. ``build.py`` makes
them all: ``python -m models.zoo.build --text FILE``. Nothing here loads torch.
"""

from difflib import get_close_matches
from pathlib import Path

FOLDER = Path(__file__).parent
HELDOUT_FILE = "heldout.txt"


def names() -> list[str]:
    """The shipped decoders, in alphabetical order.

    >>> "ishe-austen" in names()
    True
    """
    return sorted(config.parent.name for config in FOLDER.glob("*/config.json"))


def path(name: str) -> Path:
    """The folder of a shipped decoder.

    Raises:
        ValueError: None has that name; the message names the nearest.
    """
    known = names()
    if name not in known:
        nearest = get_close_matches(name, known, cutoff=0.3) or known
        raise ValueError(f"name: no shipped decoder {name!r}; did you mean {' or '.join(map(repr, nearest))}?")
    return FOLDER / name


def heldout_text() -> str:
    """The last 8 % of five novels by Jane Austen, 286 kB, on which the shipped Austen decoders were validated and not trained.

    Three newlines between novels, two between paragraphs. `mha-induction` knows nothing of it: its language is another.
    """
    return (FOLDER / HELDOUT_FILE).read_text(encoding="utf-8")

"""The progress of a long measurement, told to whoever asks."""

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TypeVar

OnStep = Callable[[int, int, str], None]
"""Called as each step begins: steps done, steps in all, what is done now."""

T = TypeVar("T")


class Steps:
    """Counts steps and tells each as it begins; with more of them than announced, the total grows.

    >>> told = []
    >>> steps = Steps(3, lambda *step: told.append(step))
    >>> steps("first"); [item for item in steps.over("ab", "letters")]
    ['a', 'b']
    >>> told
    [(0, 3, 'first'), (1, 3, 'letters'), (2, 3, 'letters')]
    """

    def __init__(self, total: int, on_step: OnStep | None) -> None:
        self.done, self.total, self._tell = 0, total, on_step

    def __call__(self, what: str) -> None:
        if self._tell is not None:
            self._tell(self.done, max(self.total, self.done + 1), what)
        self.done += 1

    def over(self, items: Iterable[T], what: str) -> Iterator[T]:
        """The items, a step each."""
        for item in items:
            self(what)
            yield item


def size(items: Iterable[object]) -> int:
    """How many items there are, 0 for an iterable that does not say."""
    return len(items) if isinstance(items, Sized) else 0

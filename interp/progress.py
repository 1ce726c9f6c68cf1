"""Progress on stderr: a bar on a terminal, plain lines where stderr goes into a file."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from . import console

T = TypeVar("T")


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A spinner with the time so far, for work whose steps cannot be counted; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(), **_quiet()) as shown:
        shown.add_task(what, total=None)
        yield


@contextmanager
def step_bar() -> Iterator[Callable[[int, int, str], None]]:
    """Yields what measurements want as `on_step`: a bar with what is done now and the time left, or a line for each kind of step where
    stderr is no terminal."""
    if not sys.stderr.isatty():
        yield _StepLines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, speed_estimate_period=120, **_quiet()) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


class _StepLines:
    """A line on stderr when another kind of step begins; `variance: draw 2 of 6` is of the kind `variance`."""

    def __init__(self) -> None:
        self._kind = ""

    def __call__(self, done: int, total: int, what: str) -> None:
        kind = what.split(":", maxsplit=1)[0]
        if kind != self._kind:
            self._kind = kind
            sys.stderr.write(f"{kind} .. (step {done + 1} of {total})\n")


def _quiet() -> dict[str, Any]:
    """Drawn on stderr and gone at the end."""
    return {"console": console.err(), "transient": True}


def track(items: Sequence[T], what: str, *, show: bool = True) -> Iterator[T]:
    """Iterate over `items` with a bar named `what` and what is left; nothing is drawn where stderr is no terminal or `show` is false."""
    from rich.progress import track as rich_track

    yield from rich_track(items, what, console=console.err(), transient=True, disable=not (show and sys.stderr.isatty()))


@contextmanager
def training_bar(steps: int) -> Iterator[Callable[[Any], None]]:
    """Yields what `models.training.train` wants as `on_step`: shows the loss and the time left."""
    if not sys.stderr.isatty():
        yield _line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    )
    validation = ""
    with Progress(*columns, console=console.err(), transient=False) as bar:
        task = bar.add_task("", total=steps)

        def on_step(step: Any) -> None:
            nonlocal validation
            if step.validation_loss is not None:
                validation = f", validation {step.validation_loss:.3f}"
            bar.update(task, completed=step.step, description=f"loss {step.loss:.3f}{validation}")

        yield on_step


def _line(step: Any) -> None:
    if step.validation_loss is not None:
        done = f"step {step.step}/{step.steps}: loss {step.loss:.4f}, validation {step.validation_loss:.4f}"
        sys.stderr.write(f"{done}, {step.seconds:.0f} s, ETA {step.eta:.0f} s\n")


@contextmanager
def comparison_bar() -> Iterator[tuple[Callable[[Any], None], Callable[[str], None]]]:
    """Yields what `comparison.compare` wants as `on_progress` and `on_question`: one bar over all runs, with the run at work."""
    if not sys.stderr.isatty():
        yield _comparison_line, lambda name: print(f"evaluating {name}", file=sys.stderr)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console.err(), transient=True, speed_estimate_period=300) as bar:
        task = bar.add_task("starting", total=None)

        def on_progress(progress: Any) -> None:
            bar.update(task, total=progress.total, completed=progress.done, description=f"{progress.run.name}: loss {progress.loss:.3f}")

        yield on_progress, lambda name: bar.update(task, description=f"evaluating {name}")


def _comparison_line(progress: Any) -> None:
    if progress.done % 250 == 0 or progress.done == progress.total:
        sys.stderr.write(f"step {progress.done}/{progress.total}: {progress.run.name}, loss {progress.loss:.4f}\n")

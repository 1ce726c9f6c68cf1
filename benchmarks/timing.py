"""How the benchmarks measure: interleaved repetitions in one process, thread CPU time, ratios of medians and of minima.

A ratio of two things that took turns carries over to other machines and survives a busy one; an absolute time does neither. Fresh
allocations above 32 MiB cost a page fault a page, which would be charged to whoever allocates more: so the allocator is told to keep what
it has, and since it reads its settings when a process starts, the process starts itself again with them.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592"}
SETTINGS = {**ALLOCATOR, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
REPETITIONS = 15

Ways = Mapping[str, Callable[[], object]]
Times = Mapping[str, list[float]]


def restart_with_settings() -> None:
    """Run this script again under `SETTINGS`, unless it already does."""
    if any(os.environ.get(name) != value for name, value in SETTINGS.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **SETTINGS})


def interleaved(ways: Ways, repetitions: int = REPETITIONS) -> dict[str, list[float]]:
    """Seconds of thread CPU time of each way, the ways taking turns; one turn before that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repetitions + 1):
        for name, way in ways.items():
            start = time.thread_time()
            way()
            if turn:
                times[name].append(time.thread_time() - start)
    return times


@dataclass(frozen=True)
class Row:
    """One measured ratio and its target.

    Attributes:
        item: what is measured.
        shape: at which size.
        ours, theirs: the two numbers, in `unit`.
        against: what `theirs` is of.
        ratio: of medians; a speed-up where more is better, a cost where less is.
        of_minima: the same ratio of minima; None for what has no spread.
        target: the ratio to reach; None where there is none.
        more_is_better: which way the target is meant.
        note: what to know about this row.
    """

    item: str
    shape: str
    ours: float
    theirs: float
    unit: str
    against: str
    ratio: float
    of_minima: float | None = None
    target: float | None = None
    more_is_better: bool = False
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the ratio of medians reaches the target."""
        if self.target is None:
            return None
        return self.ratio >= self.target if self.more_is_better else self.ratio <= self.target

    @property
    def goal(self) -> str:
        return "" if self.target is None else f"{'>=' if self.more_is_better else '<='} {self.target:g}"


def speedup(item: str, shape: str, times: Times, ours: str, peer: str, target: float | None = None, note: str = "") -> Row:
    """How many times faster than a peer."""
    a, b = times[ours], times[peer]
    ratio, least = median(b) / median(a), min(b) / min(a)
    return Row(item, shape, median(a) * 1e3, median(b) * 1e3, "ms", peer, ratio, least, target, True, note)


def cost(item: str, shape: str, times: Times, ours: str, peer: str, target: float | None = None, note: str = "") -> Row:
    """What share of a peer's time."""
    a, b = times[ours], times[peer]
    ratio, least = median(a) / median(b), min(a) / min(b)
    return Row(item, shape, median(a) * 1e3, median(b) * 1e3, "ms", peer, ratio, least, target, False, note)


def size(item: str, shape: str, ours: int, theirs: int, against: str, target: float, more_is_better: bool = False, note: str = "") -> Row:
    """A ratio of live bytes: theirs to ours where more is better, ours to theirs where less is."""
    ratio = theirs / ours if more_is_better else ours / theirs
    return Row(item, shape, ours / 2**20, theirs / 2**20, "MiB", against, ratio, None, target, more_is_better, note)

"""Ledgers over many prompts, one at a time: mean, standard error and a bootstrap interval per entry, in constant memory.

The bootstrap resamples prompts (a prompt is what varies). It is the Poisson bootstrap: every replicate weighs each prompt by an
independent Poisson(1) count, so a stream of prompts needs one running sum a replicate and no prompt is kept (Chamandy, Muralidharan,
Najmi & Naidu, *Estimating uncertainty for massive data streams*, 2012). With one prompt, or an entry seen once, there is no interval.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .ledger import Entry, Ledger

Array = npt.NDArray[np.float64]
REPLICATES = 1000
MAX_BYTES = 2**28
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class LedgerMean:
    """Entries averaged over prompts: one line an entry, `interval` (entry, 2) at `confidence`, and how the certificates fared."""

    model: str
    by: str
    prompts: int
    entries: tuple[Entry, ...]
    count: npt.NDArray[np.int64]
    mean: Array
    standard_error: Array
    interval: Array
    confidence: float
    total_mean: float
    holds: bool
    worst_ratio: float
    worst_check: str

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(e.label for e in self.entries)

    def top(self, k: int = 10) -> list[tuple[str, float, tuple[float, float]]]:
        """The `k` entries with the largest |mean|, as (label, mean, interval)."""
        if not isinstance(k, int) or k < 1:
            raise ValueError(f"k: a whole number >= 1 is needed, got {k!r}")
        order = np.argsort(-np.abs(self.mean), kind="stable")[:k]
        return [(self.labels[i], float(self.mean[i]), (float(self.interval[i, 0]), float(self.interval[i, 1]))) for i in order]

    def to_dataframe(self) -> Any:
        """A pandas frame with one line an entry: its fields, count, mean, standard_error, low, high."""
        import pandas as pd

        return pd.DataFrame([e.__dict__ for e in self.entries]).assign(
            count=self.count, mean=self.mean, standard_error=self.standard_error, low=self.interval[:, 0], high=self.interval[:, 1]
        )


@dataclass
class LedgerAverage:
    """The running sums. `add` takes the ledger of one prompt at one position; `result` may be asked at any time."""

    seed: int = 0
    prompts: int = 0
    total: float = 0.0
    worst_ratio: float = 0.0
    worst_check: str = ""
    holds: bool = True
    model: str = ""
    by: str = ""
    keys: dict[tuple[Any, ...], int] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    count: Array = field(default_factory=lambda: np.zeros(0))
    mean: Array = field(default_factory=lambda: np.zeros(0))
    m2: Array = field(default_factory=lambda: np.zeros(0))
    weights: Array = field(default_factory=lambda: np.zeros((0, 0)))
    weighted: Array = field(default_factory=lambda: np.zeros((0, 0)))

    def add(self, ledger: Ledger) -> None:
        """Take in one ledger of one position.

        Raises:
            ValueError: several positions, or another split than before.
        """
        if len(ledger.positions) != 1:
            raise ValueError(f"ledger: one position is averaged, got {len(ledger.positions)}")
        if self.prompts and (ledger.by, ledger.model) != (self.by, self.model):
            raise ValueError(f"ledger: {ledger.model} by {ledger.by!r} cannot be averaged with {self.model} by {self.by!r}")
        if not self.prompts:
            self.model, self.by = ledger.model, ledger.by
            replicates = max(100, min(REPLICATES, MAX_BYTES // (16 * len(ledger.entries))))
            self.weights, self.weighted = np.zeros((0, replicates)), np.zeros((0, replicates))
            self._random = np.random.default_rng(self.seed)
        at = np.array([self._index(e) for e in ledger.entries])
        self._grow()
        values = ledger.values[:, 0]
        self.count[at] += 1
        delta = values - self.mean[at]
        self.mean[at] += delta / self.count[at]
        self.m2[at] += delta * (values - self.mean[at])
        draw = self._random.poisson(1.0, self.weights.shape[1])
        self.weights[at] += draw
        self.weighted[at] += values[:, None] * draw
        self.prompts += 1
        self.total += float(ledger.total[0])
        worst = ledger.certificate.worst
        self.holds = self.holds and ledger.holds
        if not (worst.ratio <= self.worst_ratio or math.isnan(self.worst_ratio)):  # a NaN is worst, and stays
            self.worst_ratio, self.worst_check = worst.ratio, worst.name

    def result(self) -> LedgerMean:
        """Means and intervals so far.

        Raises:
            ValueError: nothing was added.
        """
        if not self.prompts:
            raise ValueError("prompts: at least one is needed")
        with np.errstate(invalid="ignore", divide="ignore"):
            error = np.where(self.count > 1, np.sqrt(self.m2 / (self.count - 1) / self.count), np.nan)
            replicates = np.where(self.weights > 0, self.weighted / self.weights, np.nan)
        interval = np.full((len(self.entries), 2), math.nan)
        several = self.count > 1
        if several.any():
            tail = (1 - CONFIDENCE) / 2
            interval[several] = np.nanquantile(replicates[several], [tail, 1 - tail], axis=1).T
        return LedgerMean(
            model=self.model,
            by=self.by,
            prompts=self.prompts,
            entries=tuple(self.entries),
            count=self.count.astype(np.int64),
            mean=self.mean.copy(),
            standard_error=error,
            interval=interval,
            confidence=CONFIDENCE,
            total_mean=self.total / self.prompts,
            holds=self.holds,
            worst_ratio=self.worst_ratio,
            worst_check=self.worst_check,
        )

    def _index(self, e: Entry) -> int:
        """Entries are the same across prompts when they are the same part of the model; a source's token text is not part of that."""
        key = (e.kind, e.layer, e.head, e.source, e.lag, e.neuron, e.label if e.source is None else None)
        if key not in self.keys:
            self.keys[key] = len(self.entries)
            label = e.label if e.source is None else e.label.split("'")[0].split('"')[0].strip()
            self.entries.append(Entry(**{**e.__dict__, "label": label}))
        return self.keys[key]

    def _grow(self) -> None:
        missing = len(self.entries) - len(self.mean)
        if missing:
            self.count, self.mean, self.m2 = (np.concatenate([x, np.zeros(missing)]) for x in (self.count, self.mean, self.m2))
            blank = np.zeros((missing, self.weights.shape[1]))
            self.weights, self.weighted = np.concatenate([self.weights, blank]), np.concatenate([self.weighted, blank])

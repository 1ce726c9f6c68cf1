"""Numbers with their spread: streaming moments along a sequence, log-log slopes, and intervals that hold up.

In here: mergeable second moments per position in constant memory (`Moments`, `MomentStream`), the power-law fit with its rule
(`fit_power_law`), and intervals: over seeds or prompts (`mean_interval`, Student's t; `bootstrap_interval`, BCa) and for the slope of
one trained model (`slope_interval`, a bootstrap over blocks of sequences). Not in here: models, hooks, theory lines.

Why not the textbook line's own error: neighbouring positions of one curve share their sequences, so their errors are strongly
correlated and an ordinary least-squares error of the slope is far too small. Sequences are what varies, so sequences are resampled.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from scipy import stats
from torch import Tensor

Array = npt.NDArray[np.float64]

CONFIDENCE = 0.95

POWER_LAW_DEVIATION = 0.10
"""A curve is called a power law when the line through its logarithms misses it by at most 10 % (root mean square)."""

Mask = Bool[Tensor, "_b _t"] | Int[Tensor, "_b _t"]
"""1 (or True) for a real row, 0 for padding."""

MIN_BLOCKS = 8
"""Fewer blocks of sequences than this and a bootstrap over them says nothing; no interval is given then."""


# ---------------------------------------------------------------------------------------------------------------- moments


@dataclass(frozen=True)
class Moments:
    """Count, mean and centred second moment of the values at each position, over sequences, in float64 on the CPU.

    Attributes:
        count: (t,) real rows seen at each position.
        mean: (t, w) mean over sequences of each element.
        m2: (t,) sum over sequences and elements of the squared distance to that mean.
    """

    count: Float[Tensor, " t"]
    mean: Float[Tensor, "t w"]
    m2: Float[Tensor, " t"]

    @property
    def variance(self) -> Float[Tensor, " t"]:
        """`Var(i)`: mean over sequences and width of the square, after subtracting each element's mean over sequences.

        Divides by the count, as the definition does; NaN where no row was seen.
        """
        return self.m2 / (self.count * self.mean.shape[1])

    @property
    def second_moment(self) -> Float[Tensor, " t"]:
        """Mean over sequences and width of the square, nothing subtracted; NaN where no row was seen."""
        return torch.where(self.count > 0, self.variance + self.mean.square().mean(1), torch.nan)

    def merge(self, other: "Moments") -> "Moments":
        """Moments of both samples together (Chan, Golub and LeVeque's pairwise update, in float64).

        Positions that only one of the two has seen are kept.

        Raises:
            ValueError: the two have different widths.

        >>> a, b = (moments(torch.tensor(v).view(-1, 1, 1)) for v in ([1.0, 2.0], [6.0]))
        >>> a.merge(b).mean.item(), a.merge(b).m2.item()
        (3.0, 14.0)
        """
        if self.mean.shape[1] != other.mean.shape[1]:
            raise ValueError(f"other: moments of width {self.mean.shape[1]} cannot be merged with width {other.mean.shape[1]}")
        t = max(len(self.count), len(other.count))
        a, b = _extended(self, t), _extended(other, t)
        count = a.count + b.count
        share = torch.where(count > 0, b.count / count.clamp(min=1), 0.0)
        delta = b.mean - a.mean
        return Moments(
            count=count,
            mean=a.mean + delta * share[:, None],
            m2=a.m2 + b.m2 + delta.square().sum(1) * a.count * share,
        )


def moments(
    x: Float[Tensor, "b t *width"],
    mask: Mask | None = None,
    *,
    shift: Float[Tensor, "t w"] | None = None,
) -> Moments:
    """Moments of one batch, by position.

    Sums and sums of squares are taken of `x - shift` in float32 (float64 for float64 input): with the shift near the mean nothing
    cancels, where `E[x^2] - E[x]^2` in float32 is off by 1 % already when the mean is 100 standard deviations.

    Args:
        x: (b, t, *width) activations.
        mask: (b, t), 1 for a real row. Padded rows count nowhere, and positions count real rows only: a left-padded sequence is
            moved to the front first.
        shift: (t, w) subtracted before summing; the batch's own mean by default.

    Raises:
        ValueError: a mask of another shape.
    """
    flat = x.detach().flatten(2)
    flat = flat if flat.dtype == torch.float64 else flat.float()
    if mask is not None:
        if mask.shape != x.shape[:2]:
            raise ValueError(f"mask: shape {tuple(x.shape[:2])} is needed to match the activations, got {tuple(mask.shape)}")
        flat, real = _to_the_front(flat, mask.to(x.device).bool())
        count = real.sum(0).to(flat.dtype)
        flat = torch.where(real[:, :, None], flat, 0.0)  # a NaN in a padded row must not survive a multiplication by zero
    else:
        real = None
        count = torch.full((x.shape[1],), float(x.shape[0]), device=x.device, dtype=flat.dtype)
    n = count.clamp(min=1)[:, None]
    at = flat.sum(0) / n if shift is None else shift.to(flat)
    centred = flat - at
    if real is not None:
        centred = torch.where(real[:, :, None], centred, 0.0)
    total = centred.sum(0)
    square = torch.linalg.vecdot(centred, centred, dim=0).double().cpu()
    count64, total64, at64 = count.double().cpu(), total.double().cpu(), at.double().cpu()
    off = total64 / count64.clamp(min=1)[:, None]
    return Moments(
        count=count64,
        mean=torch.where(count64[:, None] > 0, at64 + off, 0.0),
        m2=(square - count64[:, None] * off.square()).clamp(min=0).sum(1),
    )


class MomentStream:
    """Moments over any number of sequences in constant memory, kept in blocks of consecutive sequences.

    Blocks start as single sequences; whenever there are `blocks` of them, neighbours are merged and the block size doubles. So a
    stream holds between `blocks / 2` and `blocks` blocks (or every sequence, while there are few), enough to bootstrap over, and
    `total` over all of them does not depend on how the batches were cut beyond rounding.

    >>> stream = MomentStream(blocks=4)
    >>> for _ in range(10):
    ...     stream.add(torch.randn(3, 5, 2))
    >>> stream.sequences, len(stream.blocks), stream.total.count.tolist()
    (30, 4, [30.0, 30.0, 30.0, 30.0, 30.0])
    """

    def __init__(self, blocks: int = 64) -> None:
        if blocks < 2 or blocks % 2:
            raise ValueError(f"blocks: an even number of at least 2 is needed, got {blocks}")
        self.max_blocks = blocks
        self.block_size = 1
        self.sequences = 0
        self._blocks: list[Moments] = []
        self._filled = 0  # sequences in the last block

    def add(self, x: Float[Tensor, "b t *width"], mask: Mask | None = None) -> None:
        """Take in a batch of sequences (see `moments`); the order of the sequences is the order of the blocks."""
        shift = self._shift(x)
        start, b = 0, x.shape[0]
        while start < b:
            if not self._blocks or self._filled == self.block_size:
                self._open_block()
            take = min(b - start, self.block_size - self._filled)
            part = slice(start, start + take)
            new = moments(x[part], None if mask is None else mask[part], shift=shift)
            if self._filled:
                self._blocks[-1] = self._blocks[-1].merge(new)
            else:
                self._blocks.append(new)
            self._filled += take
            self.sequences += take
            start += take

    def merge(self, other: "MomentStream") -> None:
        """Take in another stream's blocks after one's own. The finer of the two is coarsened to the other's block size first."""
        mine, theirs = list(self._blocks), list(other._blocks)
        size, their_size = self.block_size, other.block_size
        while size < their_size:
            mine, size = _paired(mine), size * 2
        while their_size < size:
            theirs, their_size = _paired(theirs), their_size * 2
        joined = mine + theirs
        while len(joined) > self.max_blocks:
            joined, size = _paired(joined), size * 2
        self._blocks, self.block_size = joined, size
        self.sequences += other.sequences
        self._filled = size  # the last block may be short: leave it so, a new sequence opens the next one

    @property
    def blocks(self) -> tuple[Moments, ...]:
        return tuple(self._blocks)

    @property
    def total(self) -> Moments:
        """Moments over all sequences so far.

        Raises:
            ValueError: none were added.
        """
        if not self._blocks:
            raise ValueError("no sequences were added to this stream")
        blocks = list(self._blocks)
        while len(blocks) > 1:
            blocks = _paired(blocks)
        return blocks[0]

    def _open_block(self) -> None:
        if len(self._blocks) == self.max_blocks:
            self._blocks = _paired(self._blocks)
            self.block_size *= 2
        self._filled = 0

    def _shift(self, x: Tensor) -> Tensor | None:
        """A running mean where every position of this batch has been seen; else the batch looks after itself."""
        last = self._blocks[-1] if self._blocks else None
        if last is None or len(last.count) < x.shape[1] or bool((last.count == 0).any()):
            return None
        return last.mean[: x.shape[1]]


def _paired(blocks: list[Moments]) -> list[Moments]:
    pairs = [blocks[i].merge(blocks[i + 1]) for i in range(0, len(blocks) - 1, 2)]
    return pairs + blocks[len(pairs) * 2 :]


def _extended(m: Moments, t: int) -> Moments:
    if len(m.count) == t:
        return m
    pad = t - len(m.count)
    return Moments(
        count=torch.cat([m.count, m.count.new_zeros(pad)]),
        mean=torch.cat([m.mean, m.mean.new_zeros(pad, m.mean.shape[1])]),
        m2=torch.cat([m.m2, m.m2.new_zeros(pad)]),
    )


def _to_the_front(x: Float[Tensor, "b t w"], real: Bool[Tensor, "b t"]) -> tuple[Float[Tensor, "b t w"], Bool[Tensor, "b t"]]:
    """Real rows first, in their order: the position of a row is the number of real rows up to it."""
    if not bool((real[:, 1:] & ~real[:, :-1]).any()):
        return x, real
    order = torch.argsort((~real).to(torch.uint8), dim=1, stable=True)
    return x.gather(1, order[:, :, None].expand_as(x)), real.gather(1, order)


# ------------------------------------------------------------------------------------------------------------- power laws


@dataclass(frozen=True)
class PowerLaw:
    """The straight line through `ln value` over `ln position`, each position weighted alike.

    Attributes:
        slope, intercept: of the line; NaN with fewer than three positive values.
        r2: share of the variance of `ln value` that the line explains. Near a slope of 0 it is small however good the line is, so
            it is reported and does not decide.
        deviation: root mean square of `ln value - line`, about the relative error of the law.
        holds: whether the deviation is at most `POWER_LAW_DEVIATION`.
        left_out: positions without a finite positive value, which the fit leaves out.
    """

    slope: float
    intercept: float
    r2: float
    deviation: float
    holds: bool
    left_out: int

    @property
    def statement(self) -> str:
        """The verdict in words, with its rule."""
        if math.isnan(self.slope):
            return "no slope: fewer than three positions with a positive value"
        rule = f"the line misses it by {self.deviation:.0%} rms, limit {POWER_LAW_DEVIATION:.0%}"
        return f"power law ({rule})" if self.holds else f"no power law ({rule}; R^2 {self.r2:.2f})"


def fit_power_law(positions: Sequence[float] | Array | npt.NDArray[np.int64], values: Sequence[float] | Array) -> PowerLaw:
    """Fit `value = c position^slope` by least squares on logarithms.

    Raises:
        ValueError: lengths differ, or a position is not positive.

    >>> law = fit_power_law([1, 2, 4, 8], [3.0, 6.0, 12.0, 24.0])
    >>> round(law.slope, 12), round(law.r2, 12), law.holds
    (1.0, 1.0, True)
    """
    x, y = np.asarray(positions, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"values: one value a position is needed, got shapes {x.shape} and {y.shape}")
    if not (x > 0).all():
        raise ValueError("positions: they start at 1, so that they have a logarithm")
    kept = np.isfinite(y) & (y > 0)
    left_out = int((~kept).sum())
    if kept.sum() < 3:
        return PowerLaw(math.nan, math.nan, math.nan, math.nan, False, left_out)
    lx, ly = np.log(x[kept]), np.log(y[kept])
    slope = float(_slope_weights(x[kept]) @ ly)
    intercept = float(ly.mean() - slope * lx.mean())
    residual = ly - intercept - slope * lx
    deviation = float(np.sqrt(np.mean(residual**2)))
    spread = float(np.mean((ly - ly.mean()) ** 2))
    r2 = 1.0 - deviation**2 / spread if spread > 0 else 1.0
    return PowerLaw(slope, intercept, r2, deviation, deviation <= POWER_LAW_DEVIATION, left_out)


def _slope_weights(positions: Array) -> Array:
    """The slope of a least-squares line is a fixed weighted sum of the logarithms of the values."""
    centred = np.log(positions) - np.log(positions).mean()
    weights: Array = centred / (centred @ centred)
    return weights


# -------------------------------------------------------------------------------------------------------------- intervals


@dataclass(frozen=True)
class Estimate:
    """A mean (or another statistic) with its interval.

    Attributes:
        value: the estimate.
        low, high: the interval at `confidence`; NaN where too little was seen for one.
        spread: standard deviation of what was averaged (n - 1 in the denominator), NaN for a single value.
        n: how many independent things were seen (seeds, prompts, blocks of sequences).
        method: how the interval was made.
    """

    value: float
    low: float
    high: float
    spread: float
    n: int
    confidence: float
    method: str

    @property
    def interval(self) -> tuple[float, float]:
        return self.low, self.high

    def __str__(self) -> str:
        how = f"{self.confidence:.0%}, {self.method}, n = {self.n}, sd {self.spread:.2g}"
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}] ({how})"


def mean_interval(values: Sequence[float] | Array, *, confidence: float = CONFIDENCE) -> Estimate:
    """Mean of independent values (seeds, prompts, paired differences) with Student's t interval.

    Raises:
        ValueError: no values, or one that is not finite.

    >>> e = mean_interval([1.0, 2.0, 3.0])
    >>> e.value, round(e.low, 3), round(e.high, 3)
    (2.0, -0.484, 4.484)
    """
    v = _finite(values)
    spread = float(v.std(ddof=1)) if len(v) > 1 else math.nan
    half = float(stats.t.ppf(0.5 + confidence / 2, len(v) - 1)) * spread / math.sqrt(len(v)) if len(v) > 1 else math.nan
    mean = float(v.mean())
    return Estimate(mean, mean - half, mean + half, spread, len(v), confidence, "Student's t")


def bootstrap_interval(
    values: Sequence[float] | Array, *, confidence: float = CONFIDENCE, resamples: int = 1999, seed: int = 0
) -> Estimate:
    """Mean of independent values with a BCa bootstrap interval (`scipy.stats.bootstrap`), for skewed values where t is poor.

    Raises:
        ValueError: no values, or one that is not finite.

    >>> e = bootstrap_interval([0.0, 1.0] * 50)
    >>> 0.35 < e.low < 0.5 < e.high < 0.65
    True
    """
    v = _finite(values)
    mean = float(v.mean())
    spread = float(v.std(ddof=1)) if len(v) > 1 else math.nan
    method = "BCa bootstrap"
    if len(v) < 3:
        return Estimate(mean, math.nan, math.nan, spread, len(v), confidence, method)
    if spread == 0.0:
        return Estimate(mean, mean, mean, spread, len(v), confidence, method)
    low, high, _ = _bootstrap(v, np.mean, confidence, resamples, seed)
    return Estimate(mean, low, high, spread, len(v), confidence, method)


def slope_interval(blocks: Sequence[Moments], *, confidence: float = CONFIDENCE, resamples: int = 999, seed: int = 0) -> Estimate:
    """Log-log slope of `Var(i)` over the positions of one model, with a block-bootstrap interval (BCa) over sequences.

    Blocks of consecutive sequences are drawn with replacement and the variance of the drawn text is recomputed from their moments,
    at all positions at once, so that correlations between positions, and between neighbouring sequences, are in the interval.

    Args:
        blocks: moments of disjoint blocks of sequences (`MomentStream.blocks`).
        confidence: of the interval.
        resamples: draws of as many blocks as there are.
        seed: of the drawing.

    Returns:
        `value` the slope over all blocks; `spread` the standard deviation of the bootstrapped slopes. The interval is NaN with
        fewer than `MIN_BLOCKS` blocks.

    Raises:
        ValueError: no blocks.
    """
    if not blocks:
        raise ValueError("blocks: moments of at least one block of sequences are needed")
    method = "block bootstrap over sequences, BCa"
    resampled = _ResampledVariance.of(blocks)
    everything = np.arange(len(blocks))
    positive = resampled.variance(everything) > 0
    if positive.sum() < 3:
        return Estimate(math.nan, math.nan, math.nan, math.nan, len(blocks), confidence, method)
    weights = _slope_weights(np.flatnonzero(positive).astype(np.float64) + 1.0)

    def slope(drawn: npt.NDArray[np.int64], axis: int = -1) -> Array:
        variance = resampled.variance(np.moveaxis(np.asarray(drawn), axis, -1))[..., positive]
        return np.asarray(np.log(np.maximum(variance, np.finfo(np.float64).tiny)) @ weights)

    value = float(slope(everything))
    if len(blocks) < MIN_BLOCKS:
        return Estimate(value, math.nan, math.nan, math.nan, len(blocks), confidence, method)
    few = slope(np.random.default_rng(seed).integers(0, len(blocks), (16, len(blocks))))
    if np.ptp(few) <= 1e-12:  # the same curve whatever is drawn: nothing to resample
        return Estimate(value, value, value, 0.0, len(blocks), confidence, method)
    low, high, spread = _bootstrap(everything, slope, confidence, resamples, seed)
    return Estimate(value, low, high, spread, len(blocks), confidence, method)


@dataclass(frozen=True)
class _ResampledVariance:
    """What the variance of any draw of blocks needs: a few numbers a block and the Gram matrix of the block means."""

    count: Array  # (k, t)
    within: Array  # (k, t) centred squares inside the block
    square: Array  # (k, t) count |mean|^2
    gram: Float[Tensor, "t k k"]  # of count * mean; in float32, it is 1/k of the variance and from centred means
    width: int

    @staticmethod
    def of(blocks: Sequence[Moments]) -> "_ResampledVariance":
        t = max(len(b.count) for b in blocks)
        blocks = [_extended(b, t) for b in blocks]
        count = torch.stack([b.count for b in blocks])  # (k, t)
        mean = torch.stack([b.mean for b in blocks])  # (k, t, w)
        # Means are taken from the overall mean: products of means far from zero would cancel.
        centre = (count[:, :, None] * mean).sum(0) / count.sum(0).clamp(min=1)[:, None]
        mean = torch.where(count[:, :, None] > 0, mean - centre, 0.0)
        weighted = (count[:, :, None] * mean).transpose(0, 1)  # (t, k, w)
        return _ResampledVariance(
            count=count.numpy(),
            within=torch.stack([b.m2 for b in blocks]).numpy(),
            square=(count * mean.square().sum(-1)).numpy(),
            gram=(weighted @ weighted.transpose(1, 2)).float(),
            width=mean.shape[2],
        )

    def variance(self, drawn: npt.NDArray[np.int64]) -> Array:
        """(..., n) block numbers -> (..., t) variance of the text they make up."""
        k = self.count.shape[0]
        flat = drawn.reshape(-1, drawn.shape[-1])
        times = np.zeros((len(flat), k))
        np.add.at(times, (np.arange(len(flat))[:, None], flat), 1.0)
        n = times @ self.count
        drawn32 = torch.from_numpy(times).float()
        between = ((drawn32 @ self.gram) * drawn32).sum(-1).T.double().numpy()  # (t, n, k) once, then (n, t)
        with np.errstate(invalid="ignore", divide="ignore"):
            value = (times @ (self.within + self.square) - between / n) / (n * self.width)
        return np.where(n > 0, np.maximum(value, 0.0), 0.0).reshape(*drawn.shape[:-1], -1)


def _bootstrap(values: Any, statistic: Callable[..., Any], confidence: float, resamples: int, seed: int) -> tuple[float, float, float]:
    """Low, high and standard deviation of the draws."""
    rng = np.random.default_rng(seed)
    result = stats.bootstrap(
        (values,), statistic, vectorized=True, n_resamples=resamples, confidence_level=confidence, method="BCa", rng=rng
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high), float(result.standard_error)


def _finite(values: Sequence[float] | Array) -> Array:
    v = np.asarray(values, dtype=np.float64).ravel()
    if not len(v):
        raise ValueError("values: at least one is needed, got none")
    if not np.isfinite(v).all():
        raise ValueError(f"values: {int((~np.isfinite(v)).sum())} of {len(v)} are not finite")
    return v

"""The floating-point theory, in one place: what rounding allows between two accounts of the same number.

In here: unit roundoffs, `gamma_n`, the rounding terms of every operation that a ledger crosses, the budget that adds them up,
and the two result types `Check` and `Certificate`. Not in here: any model, any hook, any tensor larger than a row per operation.

A bound is *proved* when it holds for every rounding pattern (Higham, *Accuracy and Stability of Numerical Algorithms*, ch. 3-4, [H02]:
`|fl(s) - s| <= gamma_n S`, `S` the sum of the moduli). Rigorous bounds are far too wide to find a swapped head, so where a check says
*practical* it is judged by six (or eight) standard deviations of a model of rounding: errors independent, with mean square `C (u |x|)^2`
for a rounded value `x` whose mantissa is log-uniform. That model is calibrated (`benchmarks/calibrate.py`), not a theorem.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = [
    "Budget",
    "Certificate",
    "Check",
    "IncompleteLedger",
    "NormTerms",
    "Precision",
    "Products",
    "Roundings",
    "check",
    "gamma",
    "ratio",
    "unit",
]

C = 0.18
"""Mean square of one rounding error in units of `(u |x|)^2`: `(3/8) / (3 ln 2)` for a log-uniform mantissa."""

SIGMAS = 6.0
"""A practical bound on one number is this many standard deviations."""

ROW_SIGMAS = 8.0
"""The same for the worst of many rows: a ledger has one row a sublayer, and the maximum of hundreds of them is judged."""

Rows = Float[Tensor, " r"]


def unit(dtype: torch.dtype) -> float:
    """Unit roundoff of a floating type, half its machine epsilon: float64 `2^-53`, float32 `2^-24`, float16 `2^-11`, bfloat16 `2^-8`.

    >>> unit(torch.float32) == 2.0**-24
    True
    """
    return torch.finfo(dtype).eps / 2


def gamma(n: float, u: float) -> float:
    """`gamma_n = n u / (1 - n u)`, infinite once `n u >= 1` ([H02], section 3.1)."""
    return n * u / (1 - n * u) if n * u < 1 else math.inf


def ratio(gap: float, bound: float) -> float:
    """`gap / bound`, where `0/0` counts as 0, `x/0` as infinite, and a NaN anywhere stays NaN (which never holds)."""
    if math.isnan(gap) or math.isnan(bound):
        return math.nan
    if bound == 0.0:
        return 0.0 if gap == 0.0 else math.inf
    if math.isinf(gap):
        return math.inf
    return gap / bound


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The roundoffs of one run.

    `storage` what tensors are kept in, `accumulate` what sums of products run in (float32 for 16-bit storage), `norm` the inside of a
    norm, `inputs` the rounding of a matmul's inputs (TF32: `2^-11`, else 0). `out` and `mid` are the extra roundings of a result to a
    storage narrower than what computed it; zero where there is none.
    """

    storage: float
    accumulate: float
    norm: float
    inputs: float
    out: float
    mid: float

    @staticmethod
    def of(dtype: torch.dtype, norm_dtype: torch.dtype | None = None, tf32: bool = False) -> "Precision":
        """The precision of a run whose weights and activations are `dtype` and whose norms compute in `norm_dtype`."""
        narrow = dtype in (torch.float16, torch.bfloat16)
        storage = unit(dtype)
        accumulate = unit(torch.float32) if narrow else storage
        norm = unit(norm_dtype) if norm_dtype is not None else accumulate
        return Precision(
            storage=storage,
            accumulate=accumulate,
            norm=norm,
            inputs=2.0**-11 if tf32 else 0.0,
            out=storage if narrow else 0.0,
            mid=storage if storage > norm else 0.0,
        )


DOUBLE = Precision.of(torch.float64)


@runtime_checkable
class Term(Protocol):
    """One kind of operation, seen through a direction at `r` rows: its rigorous bound and its practical variance."""

    def proved(self, p: Precision) -> Rows: ...
    def variance(self, p: Precision) -> Rows: ...


@dataclass(frozen=True, kw_only=True)
class Products:
    """A sum of `n` products whose result is folded on a direction `g` and summed over the width.

    Fields (each one value a row): `modulus` = sum of |terms| |g|; `square` = sum of terms^2 g^2; `out_square` = out^2 . g^2;
    `out_modulus` = |out| . |g|. With `A_n = (n/3) out^2 + (n/6 + 1) sum terms^2`, the mean square of partial sums in random order.
    """

    n: int
    modulus: Rows
    square: Rows
    out_square: Rows
    out_modulus: Rows

    def proved(self, p: Precision) -> Rows:
        # 1 % over the formula covers |W| and W^2 folded in float32.
        return 1.01 * (gamma(self.n, p.accumulate) + 2 * p.inputs) * self.modulus + p.out * self.out_modulus

    def variance(self, p: Precision) -> Rows:
        partial = self.n / 3 * self.out_square + (self.n / 6 + 1) * self.square
        return C * (p.accumulate**2 * partial + 2 * p.inputs**2 * self.square + p.out**2 * self.out_square)


@dataclass(frozen=True, kw_only=True)
class Roundings:
    """A value rounded once to storage (an addition to the stream, a gate, a multiplier), folded: `|r| . |g|` and `r^2 . g^2`."""

    modulus: Rows
    square: Rows

    def proved(self, p: Precision) -> Rows:
        return p.storage * self.modulus

    def variance(self, p: Precision) -> Rows:
        return C * p.storage**2 * self.square


@dataclass(frozen=True, kw_only=True)
class NormTerms:
    """A LayerNorm or RMSNorm of width `d` read along `g`: `t = (r - mean) w g / sigma`, `y = sum t`.

    `condition` is `1 + 2 mean^2 / var` for LayerNorm (the variance of a shifted row is ill-conditioned; of a constant row, whose read is
    zero, it is huge but finite), 1 for RMSNorm.
    `shift_*` carry the rounding of the mean, zero for RMSNorm; `bias_*` the addition of the norm's bias.
    """

    d: int
    read: Rows
    modulus: Rows
    square: Rows
    condition: Rows
    centred: bool
    shift_modulus: Rows
    shift_square: Rows
    bias_modulus: Rows
    bias_square: Rows

    def proved(self, p: Precision) -> Rows:
        scale = (0.5 * gamma(self.d + 4, p.norm) * self.condition + 2 * p.norm) * self.read.abs()
        elements = ((3 if self.centred else 2) * p.norm + 2 * p.mid) * self.modulus
        return scale + elements + gamma(self.d, p.norm) * self.shift_modulus + (p.norm + p.out) * self.bias_modulus

    def variance(self, p: Precision) -> Rows:
        scale = p.norm**2 * (self.d / 36 * self.condition**2 + 4) * self.read**2
        elements = (3 * p.norm**2 + 2 * p.mid**2) * self.square
        return C * (scale + elements + p.norm**2 * self.shift_square + (p.norm**2 + p.out**2) * self.bias_square)


def norm_terms(
    r: Float[Tensor, "r d"], direction: Float[Tensor, "r d"], bias_read: Float[Tensor, "r d"] | None, centred: bool
) -> NormTerms:
    """Rounding terms of a norm at its cached input `r`; `direction` = `w g / sigma` before centring, `bias_read` = `b_norm g`."""
    mean = r.mean(-1, keepdim=True) if centred else torch.zeros_like(r[:, :1])
    t = (r - mean) * direction
    zero = r.new_zeros(r.shape[0])
    total = direction.sum(-1)
    variance = (r - mean).square().mean(-1)
    d = r.shape[-1]
    return NormTerms(
        d=d,
        read=t.sum(-1),
        modulus=t.abs().sum(-1),
        square=t.square().sum(-1),
        condition=1 + 2 * mean[:, 0].square() / variance.clamp(min=1e-100) if centred else torch.ones_like(zero),
        centred=centred,
        shift_modulus=r.abs().mean(-1) * total.abs() if centred else zero,
        shift_square=(d / 3 * mean[:, 0].square() + variance / 6) * total.square() if centred else zero,
        bias_modulus=zero if bias_read is None else bias_read.abs().sum(-1),
        bias_square=zero if bias_read is None else bias_read.square().sum(-1),
    )


@dataclass
class Budget:
    """Rounding terms by the row of the ledger (or the sublayer) that pays them. Adds proved bounds, and variances of practical ones."""

    terms: dict[str, list[Term]] = field(default_factory=dict)

    def add(self, row: str, *terms: Term) -> None:
        self.terms.setdefault(row, []).extend(terms)

    def proved(self, p: Precision, rows: Iterable[str] | None = None) -> Rows:
        """Sum of the rigorous bounds of `rows` (all by default), one value a position."""
        return torch.stack([t.proved(p) for t in self._of(rows)]).sum(0)

    def sigma(self, p: Precision, rows: Iterable[str] | None = None) -> Rows:
        """Standard deviation of the practical model over `rows` (all by default), one value a position."""
        return torch.stack([t.variance(p) for t in self._of(rows)]).sum(0).sqrt()

    def _of(self, rows: Iterable[str] | None) -> list[Term]:
        return [t for row in (self.terms if rows is None else rows) for t in self.terms[row]]


@dataclass(frozen=True)
class Check:
    """One comparison: `gap` between two accounts, the `bound` it is judged by, and where the worst case sits.

    `kind` is "exact" (must be equal), "proved" (a theorem) or "practical" (sigmas of a calibrated model); `proved` is the rigorous
    bound where the judge is a practical one.
    """

    name: str
    gap: float
    bound: float
    ratio: float
    holds: bool
    proved: float | None
    kind: str
    where: str

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "FAILS"
        tail = f", proved {self.proved:.2g}" if self.proved is not None else ""
        place = f" at {self.where}" if self.where else ""
        return f"{self.name} {verdict}: gap {self.gap:.2g}, bound {self.bound:.2g} ({self.kind}{tail}), ratio {self.ratio:.2g}{place}"


def check(name: str, gap: float, bound: float, *, kind: str, where: str = "", proved: float | None = None) -> Check:
    """Judge `gap` by `bound`: it holds iff the ratio is at most 1 (a NaN never is)."""
    r = ratio(gap, bound)
    return Check(name, gap, bound, r, r <= 1.0, proved, kind, where)


@dataclass(frozen=True)
class Certificate:
    """What a ledger is worth: the number the model printed, the sum that explains it, and every check with its bound.

    `rounding = printed - explained` is a row of the ledger, so the rows add up to what was printed; the `native` check says
    whether rounding can account for it. A certificate holds iff all its checks hold.
    """

    printed: float
    explained: float
    rounding: float
    dtype: str
    norm_dtype: str
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        return all(c.holds for c in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(c for c in self.checks if not c.holds)

    @property
    def worst(self) -> Check:
        """The failed check furthest over its bound (a NaN is furthest), or else the one closest to it.

        Continuity counts only when it fails: a correctly rounded sum uses its whole half unit, so its clean ratio is near 1 by nature.
        """
        judged = self.failed or [c for c in self.checks if c.name != "continuity"]
        return max(judged, key=lambda c: math.inf if math.isnan(c.ratio) else c.ratio)

    def __getitem__(self, name: str) -> Check:
        for c in self.checks:
            if c.name == name:
                return c
        raise ValueError(f"certificate has no check {name!r}; it has {', '.join(c.name for c in self.checks)}")

    def summary(self) -> list[str]:
        """Lines for a person: the sum, what was printed, what rounding allows, then every check."""
        lines = [f"entries sum to {self.explained:.7f}; model printed {self.printed:.7f} ({self.dtype}); rounding row {self.rounding:+.1e}"]
        for c in self.checks:
            if c.name == "native":
                lines[0] += f", expected within {c.bound:.0e} ({SIGMAS:.0f} sigma; proved {c.proved:.2g})"
                if self.dtype in ("bfloat16", "float16"):
                    lines.append(f"entries below {c.bound:.2g} cannot be told from rounding by the native check")
        return lines + [str(c) for c in self.checks]

    def __str__(self) -> str:
        return "\n".join(self.summary())


class IncompleteLedger(ValueError):  # noqa: N818 - the name says what happened, as StopIteration does
    """A ledger whose certificate does not hold: names the check, its gap, its bound and the place. `.certificate` has the rest."""

    def __init__(self, certificate: Certificate) -> None:
        super().__init__("ledger is incomplete: " + "; ".join(str(c) for c in certificate.failed))
        self.certificate = certificate

"""One identity, checked on the model's own arithmetic: project-then-sum == concat-then-project, over heads and over lags.

Side A is the very module and stored weight that the forward pass calls (output projection, or an Extractor's kernel), in float64 on
its cached input. Side B is the per-head or per-lag slices through the view that the ledger uses. The two differ by at most
`2 gamma_n S` at `u = 2^-53`, a theorem ([H02], ch. 3-4): no tolerance is chosen. Beside it the *native* row compares side B with what
the model cached, in the model's own precision. [C23b], sections on heads and on sublayer 1 as a reduction.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .certificate import DOUBLE, Precision, gamma, ratio
from .fold import mixer_acts
from .protocols import Cached
from .views import Attention, DecoderView, Mixer, Sublayer, own_projection

MAX_DIRECTIONS = 64


@dataclass(frozen=True, kw_only=True)
class EquivalenceRow:
    """One layer. `gap`, `bound` and `ratio` at the worst element of the float64 comparison, `native_*` at the worst of the native one."""

    layer: int
    axis: str
    gap: float
    bound: float
    ratio: float
    native_gap: float
    native_bound: float
    native_ratio: float

    @property
    def holds(self) -> bool:
        return self.ratio <= 1.0 and self.native_ratio <= 1.0


@dataclass(frozen=True, kw_only=True)
class Equivalence:
    """The identity for every layer that mixes positions. `skipped` names layers without a view, and why."""

    model: str
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    dtype: str
    rows: tuple[EquivalenceRow, ...]
    skipped: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return all(r.holds for r in self.rows)

    @property
    def worst_ratio(self) -> float:
        """The largest gap over its bound in float64; NaN if any is."""
        ratios = [r.ratio for r in self.rows]
        return math.nan if any(math.isnan(r) for r in ratios) else max(ratios)

    def to_dataframe(self) -> Any:
        """A pandas frame with one line a layer."""
        import pandas as pd

        return pd.DataFrame([{**r.__dict__, "holds": r.holds} for r in self.rows])

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "FAILS"
        return (
            f"project-then-sum == concat-then-project {verdict} in {len(self.rows)} layers; worst gap {self.worst_ratio:.2g} of its bound"
        )


@torch.no_grad()
def equivalence(view: DecoderView, cache: Cached, *, tokens: Sequence[str] = (), token_ids: Sequence[int] = ()) -> Equivalence:
    """Check every layer of one prompt.

    Args:
        view: the decoder read as a sum; built before the run, so that a later fault in model or cache shows.
        cache: the prompt's activations, name -> (1, t, ...), with at least `view.hooks`.
        tokens, token_ids: the prompt as fed.

    Raises:
        ValueError: the model has no sublayer that mixes positions and can be split.
    """
    rows, skipped = [], []
    for s in view.sublayers:
        match s.parts:
            case Attention():
                rows.append(_heads(view, s, s.parts, cache))
            case Mixer():
                rows.append(_lags(view, s, s.parts, cache))
            case None if s.slot != "mlp":
                skipped.append(f"{s.label}: {s.why_whole}")
    if not rows:
        raise ValueError(f"model: {view.name} has no sublayer that mixes positions and can be split; {'; '.join(skipped) or 'none at all'}")
    dtype = str(view.dtype).removeprefix("torch.")
    return Equivalence(
        model=view.name, tokens=tuple(tokens), token_ids=tuple(token_ids), dtype=dtype, rows=tuple(rows), skipped=tuple(skipped)
    )


def _heads(view: DecoderView, s: Sublayer, a: Attention, cache: Cached) -> EquivalenceRow:
    z = cache[a.z][0].double()
    W = a.W_O.detach().double()
    heads = torch.einsum("the,hed->thd", z, W)
    bias = torch.zeros(()) if a.b_O is None else a.b_O.detach().double()
    b = heads.sum(1) + bias
    modulus = z.flatten(1).abs() @ W.flatten(0, 1).abs() + bias.abs()
    n = z[0].numel() + (a.b_O is not None)
    # A module may round the product to storage before it adds the bias: one rounding more.
    return _row(view, s, "heads", own_projection(s, z), b, modulus, n, cache[s.raw][0].double(), roundings=int(a.b_O is not None))


def _lags(view: DecoderView, s: Sublayer, m: Mixer, cache: Cached) -> EquivalenceRow:
    """Per-lag writes seen along a set of directions: the unit vectors where they are few, else random signs (a difference anywhere
    in the row changes a random signed sum with probability one)."""
    acts = mixer_acts(m, cache)
    t, d = acts["input"].shape[1], view.d_model
    rows = list(range(t))
    if d <= MAX_DIRECTIONS:
        directions = torch.eye(d, dtype=torch.float64)
    else:
        signs = torch.randint(0, 2, (MAX_DIRECTIONS, d), generator=torch.Generator().manual_seed(0))
        directions = signs.double() * 2 - 1
    directions = directions.to(acts["input"].device)
    own = m.module.replay(acts, rows)[0]
    native = cache[s.raw][0].double()
    summed, modulus, terms = [], [], 0
    for g in directions:
        u = g.expand(1, t, d)
        w = m.module.writes(acts, u, rows)
        constants = m.module.constants(acts, u, rows).values()
        summed.append(w.value[0].sum((0, 2)) + sum((c[0] for c in constants), torch.zeros_like(own[:, 0])))
        modulus.append(w.magnitude[0].sum((0, 2)) + sum((c[0].abs() for c in constants), torch.zeros_like(own[:, 0])))
        terms = w.terms * t
    b, S = torch.stack(summed, -1), torch.stack(modulus, -1)
    return _row(
        view,
        s,
        "lags",
        own @ directions.T,
        b,
        S,
        terms,
        native @ directions.T,
        roundings=2,
        native_modulus=native.abs() @ directions.abs().T,
    )


def _row(
    view: DecoderView,
    s: Sublayer,
    axis: str,
    a: Float[Tensor, "t k"],
    b: Float[Tensor, "t k"],
    modulus: Float[Tensor, "t k"],
    n: int,
    native: Float[Tensor, "t k"],
    *,
    roundings: int,
    native_modulus: Tensor | None = None,
) -> EquivalenceRow:
    """The worst element of both comparisons. `roundings` are further roundings of the result (a gate, a scale), each `u |result|`."""
    out = native.abs() if native_modulus is None else native_modulus
    p = Precision.of(view.dtype, view.norm_dtype, native.is_cuda and torch.backends.cuda.matmul.allow_tf32)
    bound = 2 * gamma(n + roundings, DOUBLE.accumulate) * modulus
    native_bound = (gamma(n + roundings, p.accumulate) + 2 * p.inputs) * modulus + (p.out * (1 + roundings)) * out + bound
    gap, limit = _worst((a - b).abs(), bound)
    native_gap, native_limit = _worst((native - b).abs(), native_bound)
    return EquivalenceRow(
        layer=s.layer,
        axis=axis,
        gap=gap,
        bound=limit,
        ratio=ratio(gap, limit),
        native_gap=native_gap,
        native_bound=native_limit,
        native_ratio=ratio(native_gap, native_limit),
    )


def _worst(gap: Tensor, bound: Tensor) -> tuple[float, float]:
    ratios = torch.where(gap == 0, torch.zeros_like(gap), gap / bound).nan_to_num(nan=math.inf)
    i = int(ratios.argmax())
    return float(gap.flatten()[i]), float(bound.flatten()[i])

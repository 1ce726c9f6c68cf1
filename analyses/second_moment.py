"""What the variance of an Extractor's extraction is made of: the second-moment formula, exact for given weights.

For given weights the second moment of the extraction is exactly

    E|ext_i|^2 / d = (s_i^2 / d) sum_{j,j'<=i} tr(W[i-j]^T M_jj' W[i-j']),   M_jj' = E[x_j^T x_j']                        (she, ishe)
    E|ext_i|^2 / d = (s_i^2 / d) sum_{j,j'<=i} sum_m w[i-j]_m w[i-j']_m (W_in^T M_jj' W_in)_mm                            (he, ihe)

On the batch that `M` came from this is an identity, and a check of the code. With `M` from other text, and centred (`M_jj'` less
`E[x_j]^T E[x_j']`), it predicts the measured variance. Only j = j' kept, it shows what the cross terms between lags are worth.

In here: the kernel as the formula reads it (`LagKernel`) and the moments it needs, streamed (`InputMoments`). Not in here: the measured
variance, and how identity and prediction are judged (variance.py).
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from .statistics import Array

ROW_FACTORS = ("one", "count", "kernel")
"""What `s_i` of a mixer with lags can be made of: nothing, the number of rows, the energy of the kernel."""


@dataclass(frozen=True, kw_only=True)
class LagKernel:
    """The extraction of an Extractor as the formula reads it: `ext_i = s_i sum_{j<=i} v_j W[i-j] + bias`, all in float64.

    Attributes:
        lag: (l, d, d) a matrix a lag, or (l, d) a vector a lag.
        value: (d, d) and `value_bias` (d,): `v = x value + value_bias`; None where the rows themselves are summed.
        bias: (d,) added after the row factor, or None.
        row_factor: `s_i`: "one", "count" (`1/sqrt(i)`) or "kernel" (`(sum_{k<i} mean(W[k]^2) / sigma_0^2)^(-1/2)`).
    """

    lag: Float64[Tensor, "l d d"] | Float64[Tensor, "l d"]
    value: Float64[Tensor, "d d"] | None
    value_bias: Float64[Tensor, " d"] | None
    bias: Float64[Tensor, " d"] | None
    row_factor: str

    @staticmethod
    def of(mixer: Any) -> "LagKernel | None":
        """Read a mixer by its weights' names: `W_ext`, or `w_lag` and `W_in`; and its `scale`. None for any other mixer."""
        lag = getattr(mixer, "W_ext", None)
        lag = getattr(mixer, "w_lag", None) if lag is None else lag
        scale = getattr(mixer, "scale", None)
        if lag is None or not isinstance(scale, str) or scale not in ROW_FACTORS:
            return None
        vector = lag.ndim == 2
        return LagKernel(
            lag=lag.detach().double().cpu(),
            value=_double(mixer.W_in) if vector else None,
            value_bias=_double(getattr(mixer, "b_in", None)) if vector else None,
            bias=_double(getattr(mixer, "b_ext", None)),
            row_factor=scale,
        )

    def values(self, x: Float[Tensor, "b t d"]) -> Float64[Tensor, "b t d"]:
        """`v`, what the lags weigh."""
        v = x.double()
        if self.value is not None:
            v = v @ self.value.to(v)
        return v if self.value_bias is None else v + self.value_bias

    def moduli(self, x: Float[Tensor, "b t d"]) -> Float64[Tensor, "b t d"]:
        """`sum |terms|` of the extraction at each row, what its rounding is bounded by."""
        v = x.double().abs()
        if self.value is not None:
            v = v @ self.value.abs()
        if self.value_bias is not None:
            v = v + self.value_bias.abs()
        out = torch.zeros_like(v)
        t = v.shape[1]
        for k in range(t):
            w = self.lag[k].abs()
            out[:, k:] += v[:, : t - k] @ w if w.ndim == 2 else v[:, : t - k] * w
        out = out * self.scale(t)[:, None]
        return out if self.bias is None else out + self.bias.abs()

    def scale(self, t: int) -> Float64[Tensor, " t"]:
        """`s_i` for i = 1..t."""
        i = torch.arange(1, t + 1, dtype=torch.float64)
        if self.row_factor == "one":
            return torch.ones_like(i)
        if self.row_factor == "count":
            return i.rsqrt()
        drawn = 1 / 3 if self.lag.ndim == 2 else 1 / (3 * self.lag.shape[-1])  # the variance that the weights are drawn with
        return torch.stack([(self.lag[:n].square().mean(tuple(range(1, self.lag.ndim))).sum() / drawn).rsqrt() for n in range(1, t + 1)])

    def products(self, delta: int, t: int) -> Float64[Tensor, "n ..."]:
        """`W[k] W[k+delta]^T` (or `w[k] w[k+delta]`) for k = 0..t-1-delta, what the input moments are weighed with."""
        a, b = self.lag[: t - delta], self.lag[delta:t]
        return a * b if a.ndim == 2 else a @ b.transpose(1, 2)


@dataclass
class InputMoments:
    """Streaming `M_jj'` of the values a kernel sums: for each offset `j - j'`, one block a source row.

    `second[delta][c]` is the sum over sequences of `v_j^T v_j'` at `j' = c`, `j = c + delta`: (t - delta, d, d), or its diagonal
    (t - delta, d) for a vector kernel, where no other element enters. Only `delta = 0` is kept where `full` is False.
    """

    kernel: LagKernel
    full: bool
    sequences: int = 0
    first: Tensor | None = None
    second: list[Tensor] = field(default_factory=list)

    @staticmethod
    def bytes(kernel: LagKernel, t: int) -> int:
        """What the full form takes for sequences of length `t`."""
        return t * (t + 1) // 2 * kernel.lag[0].numel() * 8

    def add(self, x: Float[Tensor, "b t d"]) -> None:
        v = self.kernel.values(x).transpose(0, 1).cpu()  # (t, b, d)
        t, b, d = v.shape
        vector = self.kernel.lag.ndim == 2
        if self.first is None:
            self.first = v.new_zeros(t, d)
            self.second = [v.new_zeros(t - o, d) if vector else v.new_zeros(t - o, d, d) for o in range(t if self.full else 1)]
        if self.first.shape[0] != t:
            raise ValueError(f"other: sequences of one length are needed, got {self.first.shape[0]} and {t}")
        self.first += v.sum(1)
        for delta, block in enumerate(self.second):
            late, early = v[delta:], v[: t - delta]
            if vector:
                block.add_((late * early).sum(1))
            else:
                block.baddbmm_(late.transpose(1, 2), early)
        self.sequences += b

    def second_moment(self, *, centred: bool, cross: bool) -> Float64[Tensor, " t"]:
        """The formula, (t,).

        Args:
            centred: the variance instead of the raw second moment (means subtracted from `M`).
            cross: all pairs of lags; else j = j' alone.
        """
        if self.first is None:
            raise ValueError("no sequences were added")
        if cross and not self.full:
            raise ValueError("only the lag-diagonal was kept: the cross terms are not known")
        kernel, n = self.kernel, self.sequences
        mean = self.first / n
        t, d = mean.shape
        out = torch.zeros(t, dtype=torch.float64)
        for delta in range(t if cross else 1):
            m = self.second[delta] / n
            if centred:
                late, early = mean[delta:], mean[: t - delta]
                m = m - (late * early if m.ndim == 2 else late[:, :, None] * early[:, None, :])
            # weighed[k, c]: lag k at source row c + delta, lag k + delta at source row c; both end in row k + c + delta.
            weighed = kernel.products(delta, t).flatten(1) @ m.flatten(1).T
            at = torch.arange(t - delta)[:, None] + torch.arange(t - delta)[None, :] + delta
            ends = at < t
            out.index_add_(0, at[ends], weighed[ends] * (2.0 if delta else 1.0))
        s = kernel.scale(t)
        out = out * s.square() / d
        if kernel.bias is not None and not centred:
            out = out + (2 * s[:, None] * self._mean_sum(mean) * kernel.bias).mean(1) + kernel.bias.square().mean()
        return out

    def predictions(self, t: int) -> tuple[Array | None, Array]:
        """(full, lag-diagonal) variance predicted for positions 1..t; the full form None where it was not kept."""
        if self.first is None or self.first.shape[0] != t:
            got = 0 if self.first is None else self.first.shape[0]
            raise ValueError(f"other: sequences of length {t}, as in batches, are needed for a prediction; got {got}")
        full = self.second_moment(centred=True, cross=True).numpy() if self.full else None
        return full, self.second_moment(centred=True, cross=False).numpy()

    def _mean_sum(self, mean: Float64[Tensor, "t d"]) -> Float64[Tensor, "t d"]:
        """`sum_j E[v_j] W[i-j]`, what a bias multiplies."""
        out = torch.zeros_like(mean)
        t = mean.shape[0]
        for k in range(t):
            w = self.kernel.lag[k]
            out[k:] += mean[: t - k] @ w if w.ndim == 2 else mean[: t - k] * w
        return out


def _double(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach().double().cpu()

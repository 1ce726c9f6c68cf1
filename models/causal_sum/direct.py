"""The direct sums: the equation as it is written, and one lag at a time in place. Bitwise causal: no arithmetic that makes row i ever
sees a later row."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .kernel import Kernel, accumulator, narrowed, unit


def literal_sum(x: Float[Tensor, "b t d"], W: Float[Tensor, "l d d"] | Float[Tensor, "l d"]) -> Float[Tensor, "b t d"]:
    """The equation as it is written, a double loop over destination and source: the reference, slow."""
    x_, W_ = x.to(accumulator(x, W)), W.to(accumulator(x, W))
    lags = W_.unbind(0)  # never W_[k] under autograd: each index writes a whole-W gradient
    rows = []
    for i in range(x.shape[1]):
        terms = [x_[:, j] @ lags[i - j] if W.ndim == 3 else x_[:, j] * lags[i - j] for j in range(i + 1)]  # each (b,d)
        rows.append(torch.stack(terms).sum(0))
    return torch.stack(rows, 1).to(x.dtype)


def per_lag_sum(x: Float[Tensor, "b t d"], W: Float[Tensor, "l d d"] | Float[Tensor, "l d"]) -> Float[Tensor, "b t d"]:
    """One lag at a time, time-major and in place: y[k:] += x[:t-k] W[k]; its own backward, with no whole-W temporary."""
    function = _FullPerLag if W.ndim == 3 else _VectorPerLag
    wide = accumulator(x, W)
    return function.apply(x.to(wide), W.to(wide)).to(x.dtype)


def last_row(newest_first: Float[Tensor, "b i d"], W: Float[Tensor, "l d d"] | Float[Tensor, "l d"]) -> Float[Tensor, "b d"]:
    """The last row alone of the sum over i rows that are given newest first: one matrix product; its bound is `direct_bound`'s."""
    (b, i, d), wide = newest_first.shape, accumulator(newest_first, W)
    rows, lags = newest_first.to(wide), W[:i].to(wide)
    out = rows.reshape(b, i * d) @ lags.reshape(i * d, d) if W.ndim == 3 else (rows * lags).sum(1)
    return out.to(newest_first.dtype)


def direct_bound(x: Float[Tensor, "b t d"], W: Float[Tensor, "l d d"] | Float[Tensor, "l d"]) -> Float[Tensor, "b t d"]:
    """Bound on the rounding error of any direct sum, whatever its order.

    A sum of n products with unit roundoff u errs by at most ``gamma_n S``, ``S = sum |terms|``, ``gamma_n = n u/(1 - n u)`` [H02, 3.1]
    (row i, counted from 1, has ``n = i d`` products, or ``i`` for the vector kernel); rounding to a narrower type adds that type's
    ``u`` times the magnitude of what is rounded. Evaluated in float64, whose own error is inflated away.
    """
    products = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=torch.float64) * (x.shape[2] if W.ndim == 3 else 1)
    u = unit(accumulator(x, W))
    magnitude = per_lag_sum(x.detach().double().abs(), W.detach().double().abs())
    return narrowed((products * u / (1 - products * u))[:, None] * magnitude, magnitude, x, W)


PER_LAG = Kernel("per-lag", per_lag_sum, direct_bound)
LITERAL = Kernel("literal", literal_sum, direct_bound)


class _FullPerLag(torch.autograd.Function):
    """y[k:] += x[:t-k] W[k]; with g = dL/dy: dx[:t-k] += g[k:] W[k]^T, dW[k] = x[:t-k]^T g[k:]. Time-major, so rows are one matrix."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor) -> Tensor:
        b, t, d = x.shape
        rows = x.transpose(0, 1).reshape(t * b, d)
        y = torch.mm(rows, W[0])
        for k in range(1, t):
            y[k * b :].addmm_(rows[: (t - k) * b], W[k])
        ctx.save_for_backward(rows, W)
        return y.view(t, b, d).transpose(0, 1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rows, W = ctx.saved_tensors
        b, t, d = g.shape
        g = g.transpose(0, 1).reshape(t * b, d)
        grad_x = grad_W = None
        if ctx.needs_input_grad[0]:
            grad = torch.mm(g, W[0].T)
            for k in range(1, t):
                grad[: (t - k) * b].addmm_(g[k * b :], W[k].T)
            grad_x = grad.view(t, b, d).transpose(0, 1)
        if ctx.needs_input_grad[1]:
            grad_W = torch.empty_like(W)
            for k in range(t):
                torch.mm(rows[: (t - k) * b].T, g[k * b :], out=grad_W[k])
            grad_W[t:] = 0
        return grad_x, grad_W


class _VectorPerLag(torch.autograd.Function):
    """A vector per lag: y[k:] += w[k] * x[:t-k]; dx[:t-k] += w[k] * g[k:], dw[k] = x[:t-k] * g[k:] summed over batch and rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        b, t, d = x.shape
        rows = x.transpose(0, 1).reshape(t * b, d)
        y = rows * w[0]
        for k in range(1, t):
            y[k * b :].addcmul_(rows[: (t - k) * b], w[k])
        ctx.save_for_backward(rows, w)
        return y.view(t, b, d).transpose(0, 1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rows, w = ctx.saved_tensors
        b, t, d = g.shape
        g = g.transpose(0, 1).reshape(t * b, d)
        grad_x = grad_w = None
        if ctx.needs_input_grad[0]:
            grad = g * w[0]
            for k in range(1, t):
                grad[: (t - k) * b].addcmul_(g[k * b :], w[k])
            grad_x = grad.view(t, b, d).transpose(0, 1)
        if ctx.needs_input_grad[1]:
            grad_w = torch.zeros_like(w)
            for k in range(t):
                torch.sum(rows[: (t - k) * b] * g[k * b :], 0, out=grad_w[k])
        return grad_x, grad_w

"""What a kernel is, and the arithmetic that all of them share."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Kernel:
    """A way to compute the sum, and the bound on its distance to the exact sum of its inputs.

    Attributes:
        name: What the kernel is called.
        sum: ``(x, W) -> y``.
        bound: ``(x, W) -> float64 (b,t,d)``, a bound on ``|sum(x, W) - exact|``, proved in its docstring.
    """

    name: str
    sum: Callable[..., Tensor]
    bound: Callable[[Tensor, Tensor], Tensor]


def accumulator(x: Tensor, W: Tensor) -> torch.dtype:
    """The type that sums are taken in: float32, or float64 where an input is."""
    return torch.promote_types(torch.promote_types(x.dtype, W.dtype), torch.float32)


def unit(dtype: torch.dtype) -> float:
    """The unit roundoff u."""
    return torch.finfo(dtype).eps / 2


def gamma(n: float, u: float) -> float:
    """``gamma_n = n u / (1 - n u)``: n roundings in a row change a number by at most this share of it [H02, 3.1]."""
    return n * u / (1 - n * u)


def narrowed(bound: Tensor, magnitude: Tensor, x: Tensor, W: Tensor) -> Tensor:
    """`bound` with the last rounding to a narrower input type added, and the float64 error of its own evaluation inflated away.

    `magnitude` bounds the exact sum's modulus.
    """
    if x.dtype != accumulator(x, W):
        bound = bound + unit(x.dtype) * (magnitude + bound)
    return bound * (1 + 1e-9)


def norm_product(x: Tensor, W: Tensor) -> Tensor:
    """``P_e = sum_c ||x_c||_2 ||W_ce||_2``, norms over rows and lags, in float64: (b,d). It bounds every element of the sum."""
    rows, lags = x.detach().double().norm(dim=1), W.detach().double().norm(dim=0)  # (b,d), (d,d) or (d,)
    return rows @ lags if W.ndim == 3 else rows * lags

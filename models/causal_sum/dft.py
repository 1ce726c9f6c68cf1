"""The sum over lags with the Fourier transform as two fixed real matrices: nothing but matrix products, for training at short contexts.

With ``N = 2 t - 1`` the circular convolution of length N is the linear one in its first t rows, and t frequencies are all of them. The
complex product of a frequency is three real ones (Gauss): with the sums that the transforms give at once,

    X V = (Xr + Xi) Vr  - Xi (Vr + Vi)   +  i ((Xr + Xi) Vr + Xr (Vi - Vr))

Not causal in its rounding. Full weights only: with a vector per lag the transform is all there is, and the FFT makes it cheaper.
"""

import math
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .kernel import Kernel, accumulator, gamma, narrowed, norm_product, unit


def dft_sum(x: Float[Tensor, "b t d"], W: Float[Tensor, "l d d"]) -> Float[Tensor, "b t d"]:
    """The transform as matrix products, with its own backward.

    Raises:
        ValueError: `W` is a vector per lag.
    """
    if W.ndim != 3:
        raise ValueError(f"W: the DFT takes a matrix per lag (l,d,d), got {tuple(W.shape)}; for a vector per lag use FFT")
    wide = accumulator(x, W)
    return _MatrixDFT.apply(x.to(wide), W[: x.shape[1]].to(wide)).to(x.dtype)


def dft_bound(x: Float[Tensor, "b t d"], W: Float[Tensor, "l d d"]) -> Float[Tensor, "b t d"]:
    """Bound on the rounding error of `dft_sum`: the same at every row, a share of ``P_e = sum_c ||x_c|| ||W_ce||``, norms over time.

    - A transform is a product with a t-column matrix of moduli up to sqrt 2 (the sums of two), stored to u: at every frequency it errs by
      ``sqrt 2 gamma_(t+1) sum_j |x_j| <= sqrt 2 a ||x||``, ``a = gamma_(t+1) sqrt t``; the exact one has at most the norm
      ``sqrt(2 N) ||x||`` over all N frequencies.
    - Each of Gauss's products is an inner product of length d; over the frequencies, by Cauchy-Schwarz, its errors add up to
      ``2 N ((1 + a)^2 (1 + gamma_d) - 1) P``, those of the sum of two (a rounding more) to ``4 N ((1 + a)^2 (1 + gamma_d)(1 + u) - 1) P``.
    - The way back is an inner product of 2 t terms with a stored matrix, ``(1/N) sum (cos Re + sin Im)``: two such sums, ``gamma_(2t+1)``.

    Together ``8 ((1 + a)^2 (1 + gamma_d)(1 + u)(1 + gamma_(2t+1)) - 1) P``, about ``8 (2 t sqrt t + d + 2 t) u P``. That the errors of long
    inner products add up without any cancelling is what makes it wide; measured ones are a thousandth of it.
    """
    (_, t, d), u = x.shape, unit(accumulator(x, W))
    product = norm_product(x, W[:t])
    a = gamma(t + 1, u) * math.sqrt(t)
    share = 8 * math.expm1(2 * math.log1p(a) + math.log1p(gamma(d, u)) + math.log1p(u) + math.log1p(gamma(2 * t + 1, u)))
    return narrowed((share * product)[:, None], product[:, None], x, W).expand(-1, t, -1)


DFT = Kernel("dft", dft_sum, dft_bound)


@lru_cache(maxsize=8)
def _matrices(t: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(3t,t) to ``Xr, Xi, Xr + Xi``, (3t,t) to ``Vr, Vi - Vr, Vr + Vi``, (t,2t) from ``Yr, Yi`` back to rows."""
    with torch.inference_mode(False):
        n = 2 * t - 1
        steps = torch.arange(t, dtype=torch.long)
        angle = (steps[:, None] * steps % n).double() * (2 * math.pi / n)  # (frequency, row)
        cos, sin = angle.cos(), angle.sin()
        weight = torch.where(steps == 0, 1.0, 2.0).double() / n
        there = torch.cat([cos, -sin, cos - sin]), torch.cat([cos, -sin - cos, cos - sin])
        back = torch.cat([cos * weight[:, None], -sin * weight[:, None]]).T.contiguous()
        return there[0].to(device, dtype), there[1].to(device, dtype), back.to(device, dtype)


class _MatrixDFT(torch.autograd.Function):
    """Y = X V; with G the spectrum of dL/dy: dX = G V^H, dV = X^H G. Spectra (t,b,d) and (t,d,d), frequencies first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor) -> Tensor:
        _, t, d = x.shape
        to_lags = _matrices(t, x.dtype, x.device)[1]
        Xr, Xi, Xs = _row_spectra(x)
        Vr, Vd, Vs = (to_lags @ W.reshape(t, d * d)).view(3, t, d, d)
        ctx.save_for_backward(Xr, Xi, Vr, Vd, Vs)
        return _back(_gauss(Xs, Xr, Xi, Vr, Vd, Vs)).transpose(0, 1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        Xr, Xi, Vr, Vd, Vs = ctx.saved_tensors
        Gr, Gi, Gs = _row_spectra(g)
        grad_x = grad_W = None
        if ctx.needs_input_grad[0]:  # the conjugate of V has the sums Vr, -Vs, -Vd; the signs go to the small factor
            grad_x = _back(_gauss(Gs, -Gr, -Gi, Vr.mT, Vs.mT, Vd.mT)).transpose(0, 1)
        if ctx.needs_input_grad[1]:
            grad_W = _back(_gauss((Xr - Xi).mT, Xr.mT, -Xi.mT, Gr, Gi - Gr, Gs))
        return grad_x, grad_W


def _row_spectra(x: Float[Tensor, "b t d"]) -> tuple[Tensor, ...]:
    """Real part, imaginary part and their sum, (t,b,d) each."""
    b, t, d = x.shape
    return (_matrices(t, x.dtype, x.device)[0] @ x.transpose(0, 1).reshape(t, b * d)).view(3, t, b, d).unbind(0)


def _gauss(left_sum: Tensor, left_r: Tensor, left_i: Tensor, right_r: Tensor, right_d: Tensor, right_sum: Tensor) -> Tensor:
    """Real and imaginary part (2,t,m,d) of a complex product at each frequency, by three real ones."""
    common = left_sum @ right_r
    out = torch.empty(2, *common.shape, dtype=common.dtype, device=common.device)
    torch.baddbmm(common, left_i, right_sum, alpha=-1, out=out[0])
    torch.baddbmm(common, left_r, right_d, out=out[1])
    return out


def _back(Y: Tensor) -> Tensor:
    """Rows (t,m,d) from real and imaginary part (2,t,m,d)."""
    _, t, m, d = Y.shape
    return (_matrices(t, Y.dtype, Y.device)[2] @ Y.view(2 * t, m * d)).view(t, m, d)

"""The sum over lags by the fast Fourier transform: plain (not causal in its rounding) and blocked (bitwise causal).

Plain: pad to a length n >= 2 t - 1, so that the circular convolution is the linear one in its first t rows.

Blocked: the direct sum inside blocks of 32 rows; then, for S = 32, 64, .., every even block of S rows reaches the block behind it by a
circular convolution of length 2 S with the first 2 S lags. Rows i and j of one pair of blocks are met once: at the S where they fall into
neighbours. What wraps around falls on the first S rows, which are thrown away. So a row is made of rows up to its own only.

[H02] ch. 24 for the error of a transform; the bounds are derived below.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .direct import direct_bound, per_lag_sum
from .kernel import Kernel, accumulator, gamma, narrowed, norm_product, unit
from .spectra import SpectrumCache, channel_chunks, lag_spectrum

BLOCK = 32  # rows; half or twice as many cost the same within a tenth


def fft_sum(
    x: Float[Tensor, "b t d"], W: Float[Tensor, "l d d"] | Float[Tensor, "l d"], spectra: SpectrumCache | None = None
) -> Float[Tensor, "b t d"]:
    """The plain FFT, with its own backward. `spectra` keeps the transform of `W` between calls (not where its gradient is wanted)."""
    t, wide = x.shape[1], accumulator(x, W)
    n = transform_length(2 * t - 1)
    if spectra is None:
        return _Circular.apply(x.to(wide), W[:t].to(wide), None, n, 0, t).to(x.dtype)
    spectrum = spectra.reader(W, wide)(t, n)
    return _Circular.apply(x.to(wide), W[:t], spectrum, n, 0, t).to(x.dtype)


def blocked_sum(
    x: Float[Tensor, "b t d"], W: Float[Tensor, "l d d"] | Float[Tensor, "l d"], spectra: SpectrumCache | None = None
) -> Float[Tensor, "b t d"]:
    """The exactly causal FFT, with its own backward; `spectra` as in `fft_sum`. One block is the direct sum."""
    b, t, d = x.shape
    if t <= BLOCK:
        return per_lag_sum(x, W)
    wide = accumulator(x, W)
    read: Callable[[int, int], Tensor | None] = (lambda lags, n: None) if spectra is None else spectra.reader(W, wide)
    weight = W.to(wide) if spectra is None else W
    if torch.is_grad_enabled() and W.requires_grad and len(W) > t:  # lags that no pair of rows has get no gradient, not even its rounding
        weight = torch.cat([weight[:t], weight[t:].detach()])
    length = BLOCK * transform_length(math.ceil(t / BLOCK), powers_only=True)
    rows = F.pad(x.to(wide), (0, 0, 0, length - t))
    y = torch.zeros_like(rows)
    blocks = math.ceil(t / BLOCK)
    inside = per_lag_sum(rows[:, : blocks * BLOCK].reshape(b * blocks, BLOCK, d), W[:BLOCK].to(wide))
    y[:, : blocks * BLOCK] += inside.reshape(b, blocks * BLOCK, d)
    for size, pairs in levels(t):
        part = rows[:, : pairs * 2 * size].reshape(b * pairs, 2 * size, d)[:, :size]
        lags = min(2 * size, len(W))  # not t: the spectrum is the same for every t
        reached = _Circular.apply(part, weight[:lags], read(lags, 2 * size), 2 * size, size, 2 * size)
        y[:, : pairs * 2 * size].view(b, pairs, 2 * size, d)[:, :, size:] += reached.view(b, pairs, size, d)
    return y[:, :t].to(x.dtype)


def levels(t: int) -> list[tuple[int, int]]:
    """Block sizes S of the blocked sum over `t` rows, and how many pairs of blocks have rows in the second one."""
    sizes = [BLOCK << k for k in range(t.bit_length()) if BLOCK << k < t]
    return [(size, math.ceil((t - size) / (2 * size))) for size in sizes]


def transform_length(least: int, powers_only: bool = False) -> int:
    """The smallest power of two, or three times one, that is at least `least` (2 or more unless `powers_only`)."""
    power = 1 << max(least - 1, 0).bit_length()
    if powers_only:
        return power
    return max(power * 3 // 4 if power >= 8 and power * 3 // 4 >= least else power, 2)


def fft_bound(x: Float[Tensor, "b t d"], W: Float[Tensor, "l d d"] | Float[Tensor, "l d"]) -> Float[Tensor, "b t d"]:
    """Bound on the rounding error of `fft_sum`: the same at every row, ``c_n P``, ``P_e = sum_c ||x_c|| ||W_ce||``, see `_share`."""
    t, wide = x.shape[1], accumulator(x, W)
    product = norm_product(x, W[:t])  # (b,d)
    bound = _share(transform_length(2 * t - 1), W, wide) * product
    return narrowed(bound[:, None], product[:, None], x, W).expand(-1, t, -1)


def blocked_bound(x: Float[Tensor, "b t d"], W: Float[Tensor, "l d d"] | Float[Tensor, "l d"]) -> Float[Tensor, "b t d"]:
    """Bound on the rounding error of `blocked_sum`.

    Row i is a sum of m <= 1 + log2(t/32) parts: the direct one over its own block, and one circular convolution for every S whose second
    block it lies in. Each part errs by its own bound B_p (`direct_bound`; `_share` of the norms of the block of x and of the first 2 S
    lags, a later row in neither), and adding the parts by ``gamma_m`` of the moduli ``S + sum B_p``, ``S = sum |terms|`` [H02, 4.2].
    """
    b, t, d = x.shape
    if t <= BLOCK:
        return direct_bound(x, W)
    wide = accumulator(x, W)
    length = BLOCK * transform_length(math.ceil(t / BLOCK), powers_only=True)
    rows = F.pad(x.detach().to(wide), (0, 0, 0, length - t))
    blocks = math.ceil(t / BLOCK)
    bound = torch.zeros_like(rows, dtype=torch.float64)
    inside = direct_bound(rows[:, : blocks * BLOCK].reshape(b * blocks, BLOCK, d), W[:BLOCK].to(wide))
    bound[:, : blocks * BLOCK] = inside.reshape(b, blocks * BLOCK, d)
    for size, pairs in levels(t):
        part = rows[:, : pairs * 2 * size].reshape(b * pairs, 2 * size, d)[:, :size]
        reached = _share(2 * size, W, wide) * norm_product(part, W[: 2 * size])
        bound[:, : pairs * 2 * size].view(b, pairs, 2 * size, d)[:, :, size:] += reached.view(b, pairs, 1, d)
    bound = bound[:, :t]
    magnitude = per_lag_sum(x.detach().double().abs(), W.detach().double().abs())
    return narrowed(bound + gamma(1 + len(levels(t)), unit(wide)) * (magnitude + bound), magnitude, x, W)


def _share(n: int, W: Tensor, dtype: torch.dtype) -> float:
    """The share c_n of ``P = sum_c ||x_c|| ||W_ce||`` (norms over time) that a circular convolution of length n may err by.

    A transform is L = ceil(log2 n) levels, plus one for real input. A level adds r = 2 or 3 inputs, each times a number of modulus 1
    (stored to u, product to sqrt 2 gamma_2 [H02, 3.6]): relative to the moduli it errs by at most ``gamma_6``. A level of r = 3 counts as
    two of r = 2, which err by more, and so do the library's higher radices, which round less often.

    - Norm-wise a level stretches moduli by r and norms by sqrt r, so it errs by at most ``gamma_9`` of the norm, a transform by
      ``a = (1 + gamma_9)^(L+1) - 1`` ([H02, 24.2]): the spectra X, V of x and W by a share a of ``sqrt n ||x||``, ``sqrt n ||W||``.
    - The product over c at a frequency is a complex inner product of length d (1 for the vector kernel): ``2 gamma_2d sum |X||V|``.
      Summed over the frequencies, by Cauchy-Schwarz, ``sum_f sum_c |X_c||V_c| <= n P``.
    - An element of the inverse transform is a sum of all n products times numbers of modulus 1, over n: after L + 2 levels (the scaling
      one of them) it errs by ``(1 + gamma_6)^(L+2) - 1`` of ``sum |product| / n <= P``.

    So ``c_n = (1 + gamma_9)^(2(L+1)) (1 + 2 gamma_2d) (1 + gamma_6)^(L+2) - 1``, about ``(24 log2 n + 4 d) u``.
    """
    u, steps = unit(dtype), math.ceil(math.log2(n))
    inner = gamma(2 * (W.shape[-1] if W.ndim == 3 else 1), u)
    logarithm = 2 * (steps + 1) * math.log1p(gamma(9, u)) + math.log1p(2 * inner) + (steps + 2) * math.log1p(gamma(6, u))
    return math.expm1(logarithm)


FFT = Kernel("fft", fft_sum, fft_bound)
BLOCKED = Kernel("blocked fft", blocked_sum, blocked_bound)


class _Circular(torch.autograd.Function):
    """Rows `start` to `stop` of the circular convolution of length n of x (m,s,d) with the lags W; `spectrum` of W may be given.

    With X, V, G the spectra of x, W and of g = dL/dy at its rows: Y = X V, dX = G V^H, dV = X^H G, frequency by frequency. Only the
    small factor is ever conjugated: ``G V^H = conj(conj(G) V^T)``.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor, spectrum: Tensor | None, n: int, start: int, stop: int) -> Tensor:
        V = lag_spectrum(W, n) if spectrum is None else spectrum
        X = _by_frequency(torch.fft.rfft(x.transpose(1, 2).contiguous(), n=n), V)
        ctx.save_for_backward(X, V)
        ctx.shape = x.shape[1], W.shape, n, start, stop
        return _time(_times(X, V), V, n)[:, start:stop]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        X, V = ctx.saved_tensors
        rows, shape, n, start, stop = ctx.shape
        G = _by_frequency(torch.fft.rfft(F.pad(g.transpose(1, 2), (start, n - stop)), n=n), V)
        grad_x = grad_W = None
        if ctx.needs_input_grad[0]:
            grad_x = _time(_times(G.conj_physical(), V.mT if V.ndim == 3 else V).conj_physical(), V, n)[:, :rows]
        if ctx.needs_input_grad[1]:
            conjugate = X.conj_physical()
            if V.ndim == 3:
                grad_W = _lags(conjugate.mT @ G, shape[0], n)
            else:
                grad_W = torch.fft.irfft((conjugate * G).sum(0), n=n)[:, : shape[0]].T.contiguous()
        return grad_x, grad_W, None, None, None, None


def _by_frequency(X: Tensor, V: Tensor) -> Tensor:
    """A spectrum (m,d,f) as the product with V wants it: (f,m,d) for matrices, as it is for vectors."""
    return X.permute(2, 0, 1).contiguous() if V.ndim == 3 else X


def _times(X: Tensor, V: Tensor) -> Tensor:
    return X @ V if V.ndim == 3 else X * V


def _time(Y: Tensor, V: Tensor, n: int) -> Tensor:
    """The rows (m,n,d) of a product with V: `_by_frequency` undone, as a matrix, which torch transposes four times as fast."""
    if V.ndim == 3:
        f, m, d = Y.shape
        Y = Y.view(f, m * d).T.contiguous().view(m, d, f)
    return torch.fft.irfft(Y, n=n).transpose(1, 2)


def _lags(spectrum: Tensor, lags: int, n: int) -> Tensor:
    """The first `lags` matrices (l,d,d) behind a spectrum (f,d,d), a few input channels at a time."""
    d = spectrum.shape[-1]
    out = torch.empty(lags, d, d, dtype=spectrum.real.dtype, device=spectrum.device)
    for rows in channel_chunks(d, n):
        part = spectrum[:, rows].reshape(len(spectrum), -1).T.contiguous()
        out[:, rows] = torch.fft.irfft(part, n=n).T.contiguous()[:lags].view(lags, -1, d)
    return out

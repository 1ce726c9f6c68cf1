"""The transform of a kernel's lags, and where it is kept while the weight stays as it is."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

CHUNK = 2**19  # numbers transformed at a time: bounds memory and stays in the CPU's cache


def lag_spectrum(W: Tensor, n: int) -> Tensor:
    """The length-`n` real Fourier transform over the lags: (f,d,d) of a matrix per lag, (d,f) of a vector, ``f = n/2 + 1``.

    The lags are copied to the last axis first, a few input channels at a time: a transform over the first axis of (l,d,d) strides
    through memory.
    """
    if W.ndim == 2:
        return torch.fft.rfft(W.T.contiguous(), n=n)
    lags, d, _ = W.shape
    out = torch.empty(n // 2 + 1, d, d, dtype=torch.complex(W.new_empty(0), W.new_empty(0)).dtype, device=W.device)
    for rows in channel_chunks(d, n):
        part = W[:, rows].reshape(lags, -1).T.contiguous()  # (channels*d, l)
        out[:, rows] = torch.fft.rfft(part, n=n).T.reshape(n // 2 + 1, -1, d)
    return out


def channel_chunks(d: int, n: int) -> list[slice]:
    """Slices of the input channels whose (channels, d, n) numbers are about `CHUNK`."""
    step = max(CHUNK // (n * d), 1)
    return [slice(start, min(start + step, d)) for start in range(0, d, step)]


class SpectrumCache:
    """Spectra of one weight, computed once and used only while the weight is what it was. It lives in the module that owns the weight.

    The key is the tensor itself (held weakly: the cache keeps no model alive), its version, address, type and device, and two checksums
    of its content for edits that torch does not count (``weight.data``, a NumPy view): an exact integer sum of the bits of each lag,
    which sees every single change, and a projection on fixed noise, which sees exchanges. The checksums cost one pass over the weight.

    Nothing is kept or used where a gradient of the weight is wanted. A copy or a pickle of the cache is an empty one.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._weight: weakref.ref[Tensor] | None = None
        self._key: tuple[Any, ...] = ()
        self._sums: tuple[Tensor, ...] = ()
        self._spectra: dict[int, tuple[int, Tensor]] = {}  # by length: how many lags, and their spectrum

    def __reduce__(self) -> tuple[type["SpectrumCache"], tuple[()]]:
        return SpectrumCache, ()

    @property
    def bytes_held(self) -> int:
        """Size of the spectra that are kept."""
        return sum(spectrum.nbytes for _, spectrum in self._spectra.values())

    def reader(self, W: Tensor, dtype: torch.dtype) -> Callable[[int, int], Tensor]:
        """``(lags, n) -> lag_spectrum(W[:lags], n)`` in `dtype`'s arithmetic, kept spectra first; one check of the weight serves all."""
        if torch.is_grad_enabled() and W.requires_grad:
            raise RuntimeError("a kept spectrum has no gradient for its weight: call it under torch.no_grad()")
        if W.is_inference():  # counts no versions
            return lambda lags, n: lag_spectrum(W[:lags].to(dtype), n)
        key, sums = (W._version, W.data_ptr(), W.dtype, W.device, dtype), _checksums(W)
        same = self._weight is not None and self._weight() is W and self._key == key
        if not (same and all(map(torch.equal, self._sums, sums))):
            self.clear()
            self._weight, self._key, self._sums = weakref.ref(W), key, sums

        def read(lags: int, n: int) -> Tensor:
            if n not in self._spectra or self._spectra[n][0] != lags:  # one spectrum a length, whatever comes: bounded
                self._spectra[n] = lags, lag_spectrum(W[:lags].to(dtype), n)
            return self._spectra[n][1]

        return read


@torch.no_grad()
def _checksums(W: Tensor) -> tuple[Tensor, Tensor]:
    """Per lag: the sum of its bits read as integers (it wraps, and is exact), and its rows projected on fixed noise."""
    W = W.detach().contiguous()
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[W.element_size()]
    noise = torch.rand(W.shape[-1], generator=torch.Generator().manual_seed(0)).to(W)
    return W.view(integer).flatten(1).sum(1, dtype=integer), W @ noise

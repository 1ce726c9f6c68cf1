"""The kernels of the extraction: a sum over lags, each kernel with the bound on its own rounding error.

    full  (SHE, iSHE)  y_i = sum_{j<=i} x_j W[i-j]        W (l,d,d)      [C23b, Eq. 1], without s_i
    vector (HE, iHE)   y_i = sum_{j<=i} w[i-j] * x_j      w (l,d)        element-wise

Lag 0 is the present row. Not in this room: the row factor s_i, biases and the gate; those are the Extractor's.

| kernel | file | causal | what it is for |
|---|---|---|---|
| `LITERAL` | direct.py | bitwise | the reference, slow |
| `PER_LAG` | direct.py | bitwise | analyses, caching, replays, everything short |
| `BLOCKED` | fourier.py | bitwise | long inputs at frozen weights |
| `FFT` | fourier.py | no | training, statistics |
| `DFT` | dft.py | no | training at short contexts, full weights |

A kernel that is not causal computes the causal sum all the same; but its rounding errors are proportional to the whole sequence, so a
later row reaches an earlier one through the last bits, and one infinity reaches all of them. So where causality, patching or attribution
is the question, nothing but a causal kernel is used, and the analyses use the direct sum.

Every kernel accumulates in float32 (float64 for float64 input) and rounds once to the input's type.
"""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from .dft import DFT
from .direct import LITERAL, PER_LAG, last_row
from .fourier import BLOCKED, FFT
from .kernel import Kernel
from .spectra import SpectrumCache

__all__ = ["BLOCKED", "DFT", "FFT", "LITERAL", "PER_LAG", "Kernel", "Purpose", "SpectrumCache", "causal_sum", "last_row", "pick_kernel"]

Purpose = Literal["exact", "frozen", "training"]


def causal_sum(
    x: Float[Tensor, "b t d"],
    W: Float[Tensor, "l d d"] | Float[Tensor, "l d"],
    purpose: Purpose = "exact",
    spectra: SpectrumCache | None = None,
) -> Float[Tensor, "b t d"]:
    """The sum over lags by the kernel that `pick_kernel` picks.

    Args:
        x: The rows that the lags weigh.
        W: A matrix or a vector per lag.
        purpose: See `pick_kernel`.
        spectra: Where the transforms of `W` are kept between calls; used for ``frozen`` alone.

    Raises:
        ValueError: More rows than the kernel has lags.
    """
    if x.shape[1] > W.shape[0]:
        raise ValueError(f"{x.shape[1]} rows need as many lags, this kernel has {W.shape[0]}: cut the sequence to {W.shape[0]} rows")
    kernel = pick_kernel(x, W, purpose)
    return kernel.sum(x, W, spectra) if kernel is BLOCKED else kernel.sum(x, W)


def pick_kernel(x: Float[Tensor, "b t d"], W: Float[Tensor, "l d d"] | Float[Tensor, "l d"], purpose: Purpose = "exact") -> Kernel:
    """The rule.

    - ``exact``: the per-lag sum, for every shape and type. Analyses, caching, replays.
    - ``frozen``: inference at weights that stay as they are. From 256 rows on the blocked FFT, which is as causal as the direct sum.
    - ``training``: a plain transform where forward and backward are faster with it. A vector per lag: from 32 rows on the FFT. A matrix per
      lag costs a transform of its own, as much as four sequences: from 4 sequences and 256 tokens on, up to 64 rows the DFT, then the FFT.
    """
    b, t, _ = x.shape
    if purpose == "frozen" and t >= 256:
        return BLOCKED
    if purpose == "training" and W.ndim == 2 and t >= 32:
        return FFT
    if purpose == "training" and W.ndim == 3 and b >= 4 and t >= 32 and b * t >= 256:
        return DFT if t <= 64 else FFT
    return PER_LAG

"""The kernels of the extraction beside the equation as written, a loop over lags as one would write it, and torch's own convolution."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from live import LiveBytes
from timing import REPETITIONS, Row, cost, interleaved, size, speedup
from torch import Tensor

from models.causal_sum import BLOCKED, DFT, FFT, LITERAL, PER_LAG, Kernel, SpectrumCache, pick_kernel

D = 64
LOOP, EQUATION, CONV, IN_PLACE = "loop over lags", "equation", "depthwise conv1d", "in place, per lag"


def draw(b: int, t: int, vector: bool = False) -> tuple[Tensor, Tensor]:
    """Rows like a layer norm's and weights as an Extractor draws them."""
    generator = torch.Generator().manual_seed(0)
    shape = (t, D) if vector else (t, D, D)
    weight = torch.rand(shape, generator=generator) * 2 - 1
    return torch.randn(b, t, D, generator=generator), weight if vector else weight / D**0.5


def loop(x: Tensor, W: Tensor) -> Tensor:
    """The sum over lags as one would write it; ``unbind``, since under autograd ``W[k]`` would write a whole-W gradient a lag."""
    t, lags = x.shape[1], W.unbind(0)
    y = x @ lags[0]
    for k in range(1, t):
        y = y + F.pad(x[:, : t - k] @ lags[k], (0, 0, k, 0))
    return y


def conv(x: Tensor, w: Tensor) -> Tensor:
    """A causal depthwise convolution, torch's own layer for a vector per lag."""
    return F.conv1d(F.pad(x.mT, (len(w) - 1, 0)), w.flip(0).T[:, None], groups=D).mT


def both_ways(kernel: Callable[..., Tensor], x: Tensor, W: Tensor) -> Callable[[], None]:
    """Forward and backward, with gradients of rows and weights."""
    x, W = x.clone().requires_grad_(), W.clone().requires_grad_()

    def run() -> None:
        x.grad = W.grad = None
        kernel(x, W).sum().backward()

    return run


def cached(kernel: Kernel, x: Tensor, W: Tensor) -> Callable[[], Tensor]:
    """A kernel at frozen weights, their spectrum kept; the first call, which computes it, is not counted."""
    spectra = SpectrumCache()
    y = kernel.sum(x, W, spectra)
    assert ((y - PER_LAG.sum(x, W)).abs() <= kernel.bound(x, W) + PER_LAG.bound(x, W)).all()  # of a wrong result no time is worth knowing
    return lambda: kernel.sum(x, W, spectra)


def rows(quick: bool) -> Iterator[Row]:
    with torch.no_grad():
        yield from forward(quick)
        yield from vectors(quick)
        yield from errors()
    yield from training(quick)
    yield from memory()


def forward(quick: bool) -> Iterator[Row]:
    for t, target in ((64, 4.0), (256, 8.0), *(() if quick else ((512, 8.0),))):
        x, W = draw(8, t)
        ways = {"fft": cached(FFT, x, W), LOOP: lambda x=x, W=W: loop(x, W)}
        yield speedup("SHE forward, frozen weights", f"b8 t{t}", interleaved(ways), "fft", LOOP, target)
    for t in (256,) if quick else (256, 512):
        x, W = draw(8, t)
        ways = {"fft": cached(FFT, x, W), EQUATION: lambda x=x, W=W: LITERAL.sum(x, W)}
        times = interleaved(ways, 5 if quick else REPETITIONS)
        yield speedup("SHE forward, frozen weights", f"b8 t{t}", times, "fft", EQUATION, 80.0)
    for b, t in ((8, 256), (8, 512), (1, 2048)):
        x, W = draw(b, t)
        ways = {"blocked": cached(BLOCKED, x, W), IN_PLACE: lambda x=x, W=W: PER_LAG.sum(x, W)}
        yield speedup("SHE forward, exactly causal", f"b{b} t{t}", interleaved(ways), "blocked", IN_PLACE, 2.5)
    lengths = (128, 256, 512) if quick else (128, 256, 512, 1024)
    times = interleaved({f"t{t}": cached(FFT, *draw(8, t)) for t in lengths})
    for t in lengths[1:]:
        yield cost("cached forward, twice the length", f"b8 t{t}", times, f"t{t}", f"t{t // 2}", 2.4)


def vectors(quick: bool) -> Iterator[Row]:
    for b, t in ((16, 64), (16, 128), (8, 512), (1, 4096)):
        x, w = draw(b, t, vector=True)
        ways = {"fft": cached(FFT, x, w), "blocked": cached(BLOCKED, x, w), CONV: lambda x=x, w=w: conv(x, w)}
        if t >= 512:
            ways[IN_PLACE] = lambda x=x, w=w: PER_LAG.sum(x, w)
        times = interleaved(ways)
        yield speedup("HE forward, frozen weights", f"b{b} t{t}", times, "fft", CONV, 1.3)
        if t >= 512:
            yield speedup("HE forward, exactly causal", f"b{b} t{t}", times, "blocked", IN_PLACE)


def training(quick: bool) -> Iterator[Row]:
    """The kernel that the rule picks, whichever it is."""
    for b, t, target in ((1, 64, 1.5), (4, 128, 1.5), (16, 64, 1.5), (16, 128, 1.5), *(() if quick else ((32, 128, 4.0), (16, 256, 4.0)))):
        x, W = draw(b, t)
        kernel = pick_kernel(x, W, "training")
        ways = {"ours": both_ways(kernel.sum, x, W), LOOP: both_ways(loop, x, W)}
        yield speedup("SHE forward and backward", f"b{b} t{t}", interleaved(ways), "ours", LOOP, target, kernel.name)
    for b, t in ((16, 64), (16, 128), (8, 512)):
        x, w = draw(b, t, vector=True)
        kernel = pick_kernel(x, w, "training")
        ways = {"ours": both_ways(kernel.sum, x, w), CONV: both_ways(conv, x, w)}
        yield speedup("HE forward and backward", f"b{b} t{t}", interleaved(ways), "ours", CONV, 3.0, kernel.name)


def errors() -> Iterator[Row]:
    """The norm of the error beside that of the result, float32 against float64."""
    for t in (64, 512):
        x, W = draw(8, t)
        exact = PER_LAG.sum(x.double(), W.double())
        for kernel in (PER_LAG, BLOCKED, FFT, DFT):
            error = float((kernel.sum(x, W) - exact).norm() / exact.norm())
            yield Row("extraction error, fp32", f"b8 t{t}", error, 1.0, "", "fp64", error, None, 1e-6, False, kernel.name)


def memory() -> Iterator[Row]:
    """Live bytes, those of the weight being 1."""
    for kernel in (PER_LAG, BLOCKED, FFT, DFT):
        x, W = draw(1, 256)
        with LiveBytes() as live, torch.no_grad():
            kernel.sum(x, W)
        yield size("SHE forward, memory", "b1 t256", live.peak, W.nbytes, "W", 5.0, note=kernel.name)
        x, W = x.requires_grad_(), W.requires_grad_()
        with LiveBytes() as live:
            kernel.sum(x, W).sum().backward()
        yield size("SHE forward and backward, memory", "b1 t256", live.peak, W.nbytes, "W", 8.0, note=kernel.name)

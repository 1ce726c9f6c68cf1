"""Extraction and attribution on a CUDA device at d = 1024, l = 1024: absolute times, and results against the CPU's within the bounds.

    python benchmarks/gpu.py [--width 1024] [--lags 1024] [--repetitions 15]

Prints a section for docs/performance.md. Without a CUDA device it says so and ends with 2.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor

from models.causal_sum import BLOCKED, DFT, FFT, PER_LAG, Kernel, SpectrumCache

BATCH = 4


def milliseconds(way: Callable[[], object], repetitions: int) -> list[float]:
    """Times of a device that has finished, the first one not counted."""
    times = []
    for turn in range(repetitions + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        way()
        end.record()
        torch.cuda.synchronize()
        if turn:
            times.append(start.elapsed_time(end))
    return times


def both_ways(kernel: Kernel, x: Tensor, W: Tensor) -> Callable[[], None]:
    x, W = x.clone().requires_grad_(), W.clone().requires_grad_()

    def run() -> None:
        x.grad = W.grad = None
        kernel.sum(x, W).sum().backward()

    return run


def extraction(d: int, lags: int, repetitions: int) -> None:
    torch.manual_seed(0)
    for vector in (False, True):
        W = torch.rand((lags, d) if vector else (lags, d, d)) * 2 - 1
        W = W if vector else W / d**0.5
        x = torch.randn(BATCH, lags, d)
        reference, slack = PER_LAG.sum(x, W), PER_LAG.bound(x, W)
        x_, W_ = x.cuda(), W.cuda()
        for kernel in (PER_LAG, BLOCKED, FFT) if vector else (PER_LAG, BLOCKED, FFT, DFT):
            with torch.no_grad():
                ratio = float(((kernel.sum(x_, W_).cpu() - reference).abs() / (kernel.bound(x, W) + slack)).max())
                spectra = SpectrumCache()
                kept = (spectra,) if kernel in (BLOCKED, FFT) else ()
                forward = milliseconds(partial(kernel.sum, x_, W_, *kept), repetitions)
            backward = milliseconds(both_ways(kernel, x_, W_), repetitions)
            name = f"{'HE' if vector else 'SHE'}, {kernel.name}"
            print(f"| {name} | {median(forward):.2f} | {min(forward):.2f} | {median(backward):.2f} | {min(backward):.2f} | {ratio:.2g} |")


def attribution(d: int, t: int, repetitions: int) -> None:
    """All heads of a layer at every position, folded, beside the stack of head results."""
    h = d // 64
    z, W_O, u = torch.randn(t, h, 64), torch.randn(h, 64, d) / d**0.5, torch.randn(t, d)
    ours = torch.einsum("the,hed,td->ht", z.double(), W_O.double(), u.double())
    z_, W_, u_ = z.cuda(), W_O.cuda(), u.cuda()

    def folded() -> Tensor:
        return torch.einsum("the,the->ht", z_, torch.einsum("td,hed->the", u_, W_))

    def stacked() -> Tensor:
        return (torch.einsum("the,hed->thd", z_, W_) * u_[:, None]).sum(-1).T

    n, unit = d + 64, 2.0**-24
    magnitude = torch.einsum("the,hed,td->ht", z.double().abs(), W_O.double().abs(), u.double().abs())
    for name, way in (("folded", folded), ("stack of head results", stacked)):
        ratio = float(((way().cpu().double() - ours).abs() / (n * unit / (1 - n * unit) * magnitude)).max())
        times = milliseconds(way, repetitions)
        print(f"| attribution, {h} heads, {t} positions, {name} | {median(times):.3f} | {min(times):.3f} | | | {ratio:.2g} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--lags", type=int, default=1024)
    parser.add_argument("--repetitions", type=int, default=15)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing was measured", file=sys.stderr)
        return 2
    torch.backends.cuda.matmul.allow_tf32 = False  # the bounds are float32's
    device = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, float32"
    print(f"## On a GPU\n\n{device}, d = {options.width}, l = {options.lags}, batch {BATCH};")
    print("milliseconds; the last column is the largest gap to the CPU over the two bounds, at most 1.\n")
    print("| what | forward, median | least | and backward | least | gap / bound |\n|---|---|---|---|---|---|")
    extraction(options.width, options.lags, options.repetitions)
    attribution(options.width, options.lags, options.repetitions)
    return 0


if __name__ == "__main__":
    sys.exit(main())

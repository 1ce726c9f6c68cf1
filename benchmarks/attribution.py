"""What attribution costs: all heads folded, per source token, and a certified ledger, beside a forward and TransformerLens.

    python benchmarks/attribution.py MODEL [--positions 512] [--repetitions 15]

Interleaved repetitions in one process, thread CPU time; medians, minima, and ratios of medians. Live memory is the largest sum of tensors
that a method creates and holds, counted by a dispatch mode. MODEL is a Hugging Face folder (SmolLM2-135M was used for the docs).
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from live import LiveBytes
from transformer_lens import ActivationCache

import interp
from analyses.fold import Reading, head_source_values, head_values, output_direction
from analyses.views import Attention, DecoderView


def methods(model: Any, view: DecoderView, logits: torch.Tensor, cache: Any, ids: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Every way to attribute the top token's logit at every position."""
    last = cache[view.blocks[-1].post][0]
    tokens = logits[0].argmax(-1)
    reading = Reading(answers=tuple((int(k),) for k in tokens))
    _, _, u = output_direction(view, reading, last.double())
    u = u.to(last.dtype)
    heads = [s.parts for s in view.sublayers if isinstance(s.parts, Attention)]

    def folded() -> torch.Tensor:
        return torch.stack([head_values(a, cache[a.z][0], u) for a in heads])

    def sources() -> float:
        return sum(float(head_source_values(a, cache[a.pattern][0].transpose(0, 1), cache[a.v][0], u).sum()) for a in heads)

    def stacked() -> torch.Tensor:
        # A cache of its own each time: TransformerLens keeps the head results in it, so that a second call would cost nothing.
        stack = ActivationCache(dict(cache.cache_dict), model).stack_head_results(layer=-1)
        return (stack[:, 0] * u).sum(-1)

    def certified() -> Any:
        return interp.ledger(model, (logits, cache), position=-1, by="head")

    return {
        "forward": lambda: model(ids),
        "all heads, folded": folded,
        "heads x sources, folded": sources,
        "TransformerLens stack_head_results": stacked,
        "certified ledger by head, last position": certified,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--positions", type=int, default=512)
    parser.add_argument("--repetitions", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    model = interp.load_model(options.model)
    view = interp.load_view(model)
    ids = (torch.arange(options.positions) * 7919 % model.cfg.d_vocab)[None]
    logits, cache = interp.run_with_cache(model, ids, view.hooks)
    ways = methods(model, view, logits, cache, ids)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.repetitions):
        for name, way in ways.items():
            start = time.thread_time()
            way()
            times[name].append(time.thread_time() - start)
    forward = np.median(times["forward"])
    print(f"{options.model}, {options.positions} positions, medians of {options.repetitions} interleaved runs, one thread")
    for name, way in ways.items():
        with LiveBytes() as live:
            way()
        median = np.median(times[name])
        print(
            f"{name:<42} {median:8.3f} s  min {min(times[name]):8.3f}  {median / forward:7.3f} of a forward  {live.peak / 2**20:8.1f} MiB"
        )


if __name__ == "__main__":
    main()

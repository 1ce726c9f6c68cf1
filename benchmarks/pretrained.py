"""Caching and attribution on a pretrained model, beside Hugging Face's own forward, plain hooks, nnsight and TransformerLens."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from attribution import methods
from live import LiveBytes
from timing import REPETITIONS, Row, Times, cost, interleaved, size, speedup
from torch import Tensor

import interp

CACHED, FORWARD, FOLDED, STACKED = "cached", "same model, nobody listening", "all heads, folded", "TransformerLens stack_head_results"
SOURCES = "heads x sources, folded"


def rows(folder: str) -> Iterator[Row]:
    with torch.no_grad():
        model = interp.load_model(folder)
        yield from caching(model)
        yield from attribution(model)


def caching(model: Any) -> Iterator[Row]:
    """Three tensors a layer: what came in, and what each sublayer put out."""
    n = model.cfg.n_layers
    ids = (torch.arange(512) * 7919 % model.cfg.d_vocab).view(2, 256)
    names = [f"blocks.{i}.{name}" for i in range(n) for name in ("hook_resid_pre", "hook_attn_out", "hook_mlp_out")]
    plain = model.original_model
    ways = {
        CACHED: lambda: interp.run_with_cache(model, ids, names),
        FORWARD: lambda: model(ids),
        "Hugging Face forward": lambda: plain(ids).logits,
        "plain hooks": lambda: plain_hooks(plain, ids),
    }
    if (traced := nnsight(plain, ids)) is not None:
        ways["nnsight"] = traced
    times = interleaved(ways)
    shape = f"2 x 256 tokens, {len(names)} tensors"
    yield cost("caching", shape, times, CACHED, FORWARD, 1.06)
    for peer in list(ways)[2:]:
        yield cost("caching", shape, times, CACHED, peer)
    yield from memory_of_caching(ways, shape)


def memory_of_caching(ways: dict[str, Callable[[], Any]], shape: str) -> Iterator[Row]:
    """What the peak of a cached run has above that of a plain one, beside the bytes that are kept."""
    peaks = []
    for name in (CACHED, FORWARD):
        with LiveBytes() as live:
            kept = ways[name]()
        peaks.append(live.peak)
        if name == CACHED:
            held = sum(value.nbytes for value in kept[1].values())
        del kept
    yield size("caching, memory", shape, peaks[0] - peaks[1], held, "bytes kept", 1.5)


def plain_hooks(model: Any, ids: Tensor) -> list[Tensor]:
    """The same copies by torch's own forward hooks."""
    kept: list[Tensor] = []

    def keep(module: Any, args: Any, out: Any) -> None:
        kept.append((out[0] if isinstance(out, tuple) else out).clone())

    handles = []
    for layer in model.model.layers:
        handles.append(layer.register_forward_pre_hook(lambda module, args: kept.append(args[0].clone())))
        handles += [part.register_forward_hook(keep) for part in (layer.self_attn, layer.mlp)]
    model(ids)
    for handle in handles:
        handle.remove()
    return kept


def nnsight(model: Any, ids: Tensor) -> Callable[[], Any] | None:
    """The same tensors through nnsight's trace; None where it is not installed."""
    try:
        from nnsight import NNsight
    except ImportError:
        return None
    traced = NNsight(model)

    def run() -> Any:
        with traced.trace(ids):
            kept = list().save()  # noqa: C408  # nnsight patches `list`, not the literal
            for layer in traced.model.layers:
                kept.append(layer.input.clone())
                kept.append(layer.self_attn.output[0].clone())
                kept.append(layer.mlp.output.clone())
        return kept

    return run


def attribution(model: Any) -> Iterator[Row]:
    view = interp.load_view(model)
    t, h = 512, model.cfg.n_heads
    ids = (torch.arange(t) * 7919 % model.cfg.d_vocab)[None]
    logits, cache = interp.run_with_cache(model, ids, view.hooks)
    ways = methods(model, view, logits, cache, ids)
    times: Times = interleaved(ways, REPETITIONS)
    shape, live = f"{model.cfg.n_layers * h} heads, {t} positions", {}
    for name in (FOLDED, SOURCES, STACKED):
        with LiveBytes() as live[name]:
            ways[name]()
    yield speedup("attribution of all heads", shape, times, FOLDED, STACKED, 4.0)
    yield size("attribution of all heads, memory", shape, live[FOLDED].peak, live[STACKED].peak, STACKED, 200.0, True)
    yield cost("attribution of all heads", shape, times, FOLDED, "forward", 0.08)
    yield cost("attribution to every source token", shape, times, SOURCES, "forward", 0.15)
    square = h * t * t * logits.element_size()
    yield size("attribution to every source token, largest tensor", shape, live[SOURCES].largest, square, "(b,h,t,t)", 1.0)
    yield cost("certified ledger by head, last position", shape, times, "certified ledger by head, last position", "forward")

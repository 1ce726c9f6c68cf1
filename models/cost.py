"""What a forward pass costs: multiply-adds per token, by formula and counted while it runs.

Counted are matrix products and the sums over lags, as the explicit path computes them: attention's scores and weighted sums over all
``t x t`` pairs (half of which the mask then drops), an Extractor's lags over the causal half. Norms, gates, activations, softmax and
biases are left out; they are of the order of the width per token.
"""

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from .config import DecoderConfig
from .decoder import HookedDecoder


def mixer_multiply_adds(config: DecoderConfig, layer: int, t: int) -> float:
    """Multiply-adds per token of one layer's sublayer 1, mean over a sequence of `t` tokens.

        mha   4 d^2 + 2 d t              she   d^2 + d^2 (t+1)/2              he   3 d^2 + d (t+1)/2

    Raises:
        ValueError: a mixer of the user's own, whose cost is not known.
    """
    kind, d = config.layer_mixers[layer], config.d_model
    match kind:
        case "mha":
            return 4 * d * d + 2 * d * t
        case "she" | "ishe" | "kshe":
            return d * d + d * d * (t + 1) / 2
        case "he" | "ihe" | "khe":
            return 3 * d * d + d * (t + 1) / 2
    raise ValueError(f"mixer: the cost of {kind!r} is not known; the built-in mixers have a formula")


def multiply_adds(config: DecoderConfig, t: int) -> float:
    """Multiply-adds per token of a whole decoder, mean over a sequence of `t` tokens: mixers, FFNs, unembedding."""
    layouts = config.layer_layouts
    mixers = sum(mixer_multiply_adds(config, layer, t) for layer in range(config.n_layers) if layouts[layer] != "ffn_only")
    ffns = sum(2 * config.d_model * (config.d_mlp or 0) for layout in layouts if layout != "mixer_only")
    return mixers + ffns + config.d_model * config.d_vocab


def counted_multiply_adds(model: HookedDecoder, t: int) -> float:
    """The same, counted by torch's `FlopCounterMode` during a run of `t` tokens; it sees matrix products.

    The element-wise sums over lags of he, ihe and khe it cannot see: ``d (t+1)/2`` per layer and token, added by formula.
    """
    in_place: Any = {torch.ops.aten.addmm_: lambda _, a, b, *args, **kwargs: 2 * a[0] * a[1] * b[1]}
    counter = FlopCounterMode(display=False, custom_mapping=in_place)
    tokens = torch.zeros(1, t, dtype=torch.long, device=next(model.parameters()).device)
    with torch.no_grad(), model.explicit(), counter:
        model(tokens)
    vectors = sum(getattr(getattr(block, "attn", None), "by_vector", False) for block in model.blocks)
    return counter.get_total_flops() / 2 / t + vectors * model.config.d_model * (t + 1) / 2

"""Reading a sequence piece by piece, with what the mixers have read kept: how a decoder continues a text.

A mixer takes part with two methods: ``start(b, capacity)`` makes an empty past for that many sequences of so many rows, and
``extend(x, past)`` gives the output at the next rows x (b,n,d) and adds them to the past. Equal to a forward pass over everything read so
far up to rounding: the same terms in another order.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .norms import heard

Read = Callable[[Int[Tensor, "b n"]], Float[Tensor, "b v"]]


def reader(model: Any, capacity: int) -> Read:
    """A function that reads the next tokens (b,n) and returns the logits (b,v) after the last of them.

    The past is kept where every mixer can keep it and nobody listens. A hook sees whole sequences, so with one anywhere in the decoder,
    inside `explicit()` or with a mixer that has no `extend`, each call is a forward pass over everything read so far.

    Args:
        model: A `HookedDecoder`, in evaluation mode if it has dropout.
        capacity: The most tokens a sequence will have.
    """
    mixers = [getattr(block, "attn", None) for block in model.blocks]
    explicit = any(getattr(module, "force_explicit", False) for module in model.modules())
    kept = all(mixer is None or hasattr(mixer, "extend") for mixer in mixers)
    if explicit or not kept or heard(*model.hook_dict.values()):
        return recompute(model)
    return _keep(model, capacity)


def recompute(model: Any) -> Read:
    """A forward pass over everything read so far, each time: right for any model."""
    read: list[Tensor] = []

    @torch.no_grad()
    def logits(new: Int[Tensor, "b n"]) -> Float[Tensor, "b v"]:
        read[:] = [torch.cat([*read, new], 1)]
        return model(read[0])[:, -1]

    return logits


def _keep(model: Any, capacity: int) -> Read:
    pasts: list[Any] = []
    count = 0

    @torch.no_grad()
    def logits(new: Int[Tensor, "b n"]) -> Float[Tensor, "b v"]:
        nonlocal count
        if not pasts:
            pasts.extend(block.attn.start(len(new), capacity) if hasattr(block, "attn") else None for block in model.blocks)
        x = model.embed(new)
        if model.config.positions == "learned":
            x = x + model.pos_embed(new, None, count)
        for block, past in zip(model.blocks, pasts, strict=True):
            x = block(x, None, past)
        count += new.shape[1]
        last = x[:, -1:]
        return model.unembed(last if model.ln_final is None else model.ln_final(last))[:, 0]

    return logits

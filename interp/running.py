"""Text in, logits and a strict cache out."""

from typing import Any

from torch import Tensor

from analyses.capture import Cache, NamesFilter
from analyses.capture import run_with_cache as _run_ids

from .tokens import PaddingSide, Prompts, encode


def run_with_cache(
    model: Any,
    text: Prompts,
    names_filter: NamesFilter = None,
    *,
    prepend_bos: bool | None = None,
    padding_side: PaddingSide = "right",
    grad: bool = False,
) -> tuple[Tensor, Cache]:
    """Run a model on one prompt or several, and keep copies of its activations.

    Args:
        model: from `load_model`, in evaluation mode.
        text: a text, ids (t,) or (b, t), or a list of prompts, which are padded to one length. The mask is always passed and positions are
            counted over real tokens, so every prompt gets what it gets alone, within rounding; `cache.prompt(i)` is prompt `i` alone.
        names_filter: None (the documented hook names that the model has, each tensor once), a name, a glob, a list of them (every one
            must match) or a predicate.
        prepend_bos: see `encode`; `cache.str_tokens` are the tokens fed.
        padding_side: where shorter prompts of a batch are filled up.
        grad: keep the graph.

    Returns:
        (logits, cache): logits (b, t, v); tensors in TransformerLens' shapes, sharing no memory with the model or each other.

    Raises:
        ValueError: training mode, an unknown hook name (with the nearest real ones), or what `encode` refuses.

    >>> import interp
    >>> model = interp.load_model("ishe-austen")
    >>> logits, cache = interp.run_with_cache(model, "It is a truth", "blocks.*.hook_resid_post")
    >>> logits.shape[:2] == cache["blocks.0.hook_resid_post"].shape[:2]
    True
    """
    tokens = encode(model, text, prepend_bos, padding_side=padding_side)
    return _run_ids(
        model,
        tokens.ids,
        attention_mask=tokens.attention_mask,
        names_filter=names_filter,
        grad=grad,
        str_tokens=tokens.str_tokens,
    )

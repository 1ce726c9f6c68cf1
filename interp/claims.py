"""Variance along the sequence, and the claims of the sources, of a loaded model.

In here: binding a model, its text and its fresh copies to `analyses.variance`. Not in here: formulas.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from analyses import variance as _variance
from analyses.capture import model_name
from analyses.variance import Batch, VarianceProfile

from ._models import is_ours, wing
from .tokens import encode, text_ids

TextOrBatches = Any
"""None, a text, a list of prompts, ids (n, t), or an iterable of batches: ids (b, t) or pairs (ids, attention mask)."""

WINDOW = 128
"""Longest window that a text is cut into; a shorter context gives a shorter one."""

BATCH = 32

SEQUENCES, INIT_SEQUENCES = 256, 128
"""Windows measured by default: of a trained model (as many again predict), and for each draw of the weights."""

SEEDS, VECTOR_SEEDS = 6, 24
"""Draws of the weights by default. A mixer with one vector a lag (he, ihe) has so few weights in the first rows that the slope of one
draw spreads four times as much as with one matrix a lag."""


def variance_profile(
    model: Any,
    text_or_token_batches: TextOrBatches = None,
    *,
    init: bool = False,
    seeds: int | None = None,
    sites: str | Sequence[str] | None = None,
    sequences: int | None = None,
    other: TextOrBatches = None,
) -> VarianceProfile:
    """Variance of a model's activations by position, its log-log slope with an interval, and the theory beside it.

    A text is cut into windows of `n_ctx` tokens (at most 128), without BOS. For a trained Extractor the first half of the windows is
    measured and the second half, text the measurement never saw, predicts it.

    Args:
        model: from `load_model`.
        text_or_token_batches: None (the held-out text that ships with the decoders), a text, a list of prompts (padded, the padding
            left out), ids (n, t), or an iterable of batches: ids (b, t) or pairs (ids, attention mask). An iterable is read once, in
            constant memory.
        init: measure fresh decoders of the same configuration instead of the model's weights, over `seeds` draws.
        seeds: draws of the weights; by default 6, and 24 where a mixer has one vector a lag.
        sites: hook names; one without its block means every layer. By default the extraction or the heads, the sublayer's output and
            the stream after the layer.
        sequences: how many windows of a text to measure at most; by default 256, at initialisation 128.
        other: text or batches to predict from, instead of the second half.

    Returns:
        `.rows` with `.slope`, `.interval`, `.variance`, `.predicted`, `.identity`, ..; `.summary()`, `.to_dataframe()`.

    Raises:
        ValueError: a text of fewer than two windows, unknown sites, or `init` for a model whose configuration we cannot build.

    >>> import interp
    >>> model = interp.load_model("ihe-austen")
    >>> profile = interp.variance_profile(model, sites="attn.hook_extraction", sequences=32)
    >>> profile.holds, [row.layer for row in profile.rows]
    (True, [0, 1, 2, 3])
    """
    text = wing("zoo").heldout_text() if text_or_token_batches is None else text_or_token_batches
    if init:
        return _at_init(model, text, seeds, sites, sequences or INIT_SEQUENCES)
    if seeds is not None:
        raise ValueError("seeds: they draw fresh weights, so they go with init=True")
    limit = sequences or SEQUENCES
    measured: Iterable[Batch]
    rest: Iterable[Batch] | None
    if isinstance(text, str):
        wanted = 2 * limit if other is None else limit
        rows = windows(model, text)[:wanted]
        half = (len(rows) + 1) // 2 if other is None else len(rows)
        measured, rest = _batched(rows[:half]), _batched(rows[half:]) if len(rows) > half else None
    else:
        measured, rest = _batches(model, text), None
    if other is not None:
        rest = _batched(windows(model, other)) if isinstance(other, str) else _batches(model, other)
    return _variance.profile(model, measured, other=rest, sites=sites)


def windows(model: Any, text: str) -> Tensor:
    """A text as windows of ids (n, t), t the context or 128, whichever is shorter; what does not fill a window is left out.

    Raises:
        ValueError: fewer than two windows.
    """
    length = min(int(model.cfg.n_ctx), WINDOW)
    ids = torch.tensor(text_ids(model, text), dtype=torch.long, device=next(model.parameters()).device)
    count = len(ids) // length
    if count < 2:
        raise ValueError(f"text: {len(ids)} tokens are fewer than two windows of {length}; a variance needs more text")
    return ids[: count * length].view(count, length)


def fresh(model: Any) -> Callable[[int], Any]:
    """A function from a seed to a decoder of `model`'s own configuration with weights drawn anew.

    Raises:
        ValueError: the model is not one of our decoders, so that its initialisation is not known.
    """
    if not is_ours(model):
        name = model_name(model)
        raise ValueError(f"init: {name} is no decoder of this package, so how its weights were drawn is unknown; leave init out")
    config = model.config
    own = {name: type(block.attn) for name, block in zip(config.layer_mixers, model.blocks, strict=True) if hasattr(block, "attn")}
    like = next(model.parameters())

    def make(seed: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            drawn = type(model)(config, mixers=own).eval()
        return drawn.to(device=like.device, dtype=like.dtype)

    return make


def _at_init(model: Any, text: Any, seeds: int | None, sites: str | Sequence[str] | None, limit: int) -> VarianceProfile:
    make = fresh(model)
    if seeds is None:
        vector = any(getattr(getattr(b, "attn", None), "w_lag", None) is not None for b in model.blocks)
        seeds = VECTOR_SEEDS if vector else SEEDS
    batches = _batched(windows(model, text)[:limit]) if isinstance(text, str) else list(_batches(model, text))
    return _variance.profile_at_init(make, batches, seeds=seeds, sites=sites, name=model_name(model))


def _batches(model: Any, given: Any) -> Iterable[Batch]:
    if isinstance(given, Tensor):
        return _batched(given if given.ndim == 2 else given[None])
    if isinstance(given, Sequence) and given and all(isinstance(item, str) for item in given):
        parts = [encode(model, list(given[i : i + BATCH])) for i in range(0, len(given), BATCH)]
        return [(p.ids, p.attention_mask) for p in parts]
    if not isinstance(given, Iterable):
        raise TypeError(f"text_or_token_batches: a text, prompts, ids or batches of ids are needed, got {type(given).__name__}")
    return given


def _batched(rows: Tensor) -> list[Batch]:
    return list(rows.split(BATCH))

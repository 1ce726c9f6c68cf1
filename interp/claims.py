"""Variance along the sequence, and the claims of the sources, of a loaded model.

In here: binding a model, its text and its fresh copies to `analyses.variance`. Not in here: formulas.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from analyses import claims as _claims
from analyses import variance as _variance
from analyses.capture import model_name
from analyses.claims import Siblings, Verification
from analyses.progress import OnStep
from analyses.variance import Batch, VarianceProfile

from ._models import is_ours, wing
from .tokens import encode, text_ids

TextOrBatches = Any
"""None, a text, a list of prompts, ids (n, t), or an iterable of batches: ids (b, t) or pairs (ids, attention mask)."""

WINDOW = 128
"""Longest window that a text is cut into; a shorter context gives a shorter one."""

BATCH = 32

SEQUENCES, INIT_SEQUENCES, PRETRAINED_SEQUENCES = 256, 128, 32
"""Windows measured by default: of a decoder of ours (as many again predict), for each draw of the weights, of a pretrained model."""

PROMPTS, PROMPT_LENGTH, ROOM = 16, 24, 3
"""How many prompts the claims are judged on, their length, and the room left in front of them for padding rows."""

INDUCTION_ROWS = 512

SEEDS, VECTOR_SEEDS = 6, 12
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
    on_step: OnStep | None = None,
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
        seeds: draws of the weights; by default 6, and 12 where a mixer has one vector a lag.
        sites: hook names; one without its block means every layer. By default the extraction or the heads, the sublayer's output and
            the stream after the layer.
        sequences: how many windows of a text to measure at most; by default 256, at initialisation 128, of a pretrained model 32.
        other: text or batches to predict from, instead of the second half.
        on_step: called as each step begins, with the steps done, the steps in all and what is done now (for a progress display).

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
    text = default_text(model) if text_or_token_batches is None else text_or_token_batches
    if init:
        return _at_init(model, text, seeds, sites, sequences or INIT_SEQUENCES, on_step)
    if seeds is not None:
        raise ValueError("seeds: they draw fresh weights, so they go with init=True")
    limit = sequences or (SEQUENCES if is_ours(model) else PRETRAINED_SEQUENCES)
    measured: Iterable[Batch]
    rest: Iterable[Batch] | None
    if isinstance(text, str):
        halved = other is None and is_ours(model)
        rows = windows(model, text)[: 2 * limit if halved else limit]
        half = (len(rows) + 1) // 2 if halved else len(rows)
        measured, rest = _batched(rows[:half]), _batched(rows[half:]) if len(rows) > half else None
    else:
        measured, rest = _batches(model, text), None
    if other is not None:
        rest = _batched(windows(model, other)) if isinstance(other, str) else _batches(model, other)
    return _variance.profile(model, measured, other=rest, sites=sites, on_step=on_step)


def verify(model: Any, text: Any = None, *, on_step: OnStep | None = None) -> Verification:
    """Every claim of the sources as a measurement with a verdict: holds, fails, undecided, or n/a where its conditions are not met.

    Args:
        model: from `load_model`.
        text: a text to measure on; None is the held-out text that ships with the decoders. Prompts of 24 tokens (fewer where the
            context is shorter) are cut from it, without BOS, spread over its length; the variance takes windows as `variance_profile`.
        on_step: as in `variance_profile`.

    Returns:
        `.rows` with id, claim, state, verdict, measured, bound, note; `.holds` (no claim whose conditions are met fails),
        `.to_dataframe()`, `.summary()`.

    Raises:
        ValueError: training mode, or a text too short for two prompts.
        TypeError: `text` is not a string.

    >>> import interp
    >>> rows = interp.verify(interp.load_model("ihe-austen"))
    >>> rows["causal"].verdict, rows["project-sum"].verdict
    ('holds', 'n/a')
    """
    if text is not None and not isinstance(text, str):
        raise TypeError(f"text: a string is needed, got {type(text).__name__}")
    text = default_text(model) if text is None else text
    ours = is_ours(model)
    batches = _batched(windows(model, text)[: INIT_SEQUENCES if ours else PRETRAINED_SEQUENCES])
    return _claims.verify(
        model,
        prompts(model, text),
        siblings=siblings(model) if ours else None,
        batches=batches,
        seeds=_seeds(model) if ours else SEEDS,
        on_step=on_step,
    )


def default_text(model: Any) -> str:
    """What a model is measured on when no text is given: the held-out novels, or fresh repeated blocks for `mha-induction`, whose
    language has no other words."""
    induction = wing("induction")
    vocabulary = model.tokenizer.get_vocab() if getattr(model, "tokenizer", None) is not None else {}
    if set(vocabulary) != set(induction.SYMBOLS):
        return str(wing("zoo").heldout_text())
    rows = induction.repeated_blocks(rows=INDUCTION_ROWS, n_ctx=model.cfg.n_ctx, seed=(0, 2, 0)).inputs
    return " ".join(induction.SYMBOLS[i] for i in rows.flatten().tolist())


def prompts(model: Any, text: str) -> list[Tensor]:
    """Prompts (1, t) for the claims, spread evenly over a text."""
    length = max(min(int(model.cfg.n_ctx) - ROOM, PROMPT_LENGTH), 4)
    ids = torch.tensor(text_ids(model, text), dtype=torch.long, device=next(model.parameters()).device)
    count = min(len(ids) // length, PROMPTS)
    if count < 2:
        raise ValueError(f"text: {len(ids)} tokens are fewer than two prompts of {length}; the claims need more text")
    step = len(ids) // count
    return [ids[i * step : i * step + length][None] for i in range(count)]


def siblings(model: Any) -> Siblings:
    """Fresh decoders of a model's configuration, the same without norm and biases, and its mixers by name."""
    config = model.config
    heads = config.n_heads if config.d_model % config.n_heads == 0 else 1
    plain = replace(config, norm="none", mlp_bias=False, mixer_bias=False, unembed_bias=False)

    def mixer(kind: str, n_ctx: int) -> nn.Module:
        alone = replace(plain, n_layers=1, mixer=kind, layout="mixer_only", n_ctx=n_ctx, positions="none", d_vocab=2, n_heads=heads)
        built: nn.Module = _draw(model, alone, 0).blocks[0].attn
        return built

    return Siblings(fresh=fresh(model), plain=lambda: _draw(model, plain, 0), mixer=mixer)


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
    return lambda seed: _draw(model, model.config, seed)


def _draw(model: Any, config: Any, seed: int) -> Any:
    """A decoder of `config` with weights drawn by `seed`, the user's own mixers included; the caller's generator is left alone."""
    ours = wing("config").MIXERS
    layers = zip(model.config.layer_mixers, model.blocks, strict=True)
    own = {name: type(b.attn) for name, b in layers if name not in ours and hasattr(b, "attn")}
    like = next(model.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn = type(model)(config, mixers=own).eval()
    return drawn.to(device=like.device, dtype=like.dtype)


def _seeds(model: Any) -> int:
    vector = any(getattr(getattr(b, "attn", None), "w_lag", None) is not None for b in model.blocks)
    return VECTOR_SEEDS if vector else SEEDS


def _at_init(
    model: Any, text: Any, seeds: int | None, sites: str | Sequence[str] | None, limit: int, on_step: OnStep | None
) -> VarianceProfile:
    make = fresh(model)
    seeds = _seeds(model) if seeds is None else seeds
    batches = _batched(windows(model, text)[:limit]) if isinstance(text, str) else list(_batches(model, text))
    return _variance.profile_at_init(make, batches, seeds=seeds, sites=sites, name=model_name(model), on_step=on_step)


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

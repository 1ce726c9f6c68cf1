"""Every tensor's shape, step by step, in both readings of sublayer 1: concatenate then project, and project then sum.

The shapes come from a hooked run on torch's meta device, so that sizes of any order cost nothing; the two readings of the sublayer are
then computed from what that run handed its hook points: concat-then-project by the model's own projection, project-then-sum one head
(or lag) at a time ([E21]; [C23b] for the lags).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from ._models import wing

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ShapeRow:
    """One step.

    Attributes:
        step: what happens, in words.
        hook: the hook point that holds the tensor; None between two hook points.
        concatenated, summed: the shape in either reading; None where a reading has no such step.
    """

    step: str
    hook: str | None
    concatenated: Shape | None
    summed: Shape | None

    @property
    def differs(self) -> bool:
        return self.concatenated != self.summed


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """All steps of one forward pass, in the order they happen."""

    mixer: str
    rows: tuple[ShapeRow, ...]

    def to_dataframe(self) -> pd.DataFrame:
        """One line a step."""
        return pd.DataFrame([{**row.__dict__, "differs": row.differs} for row in self.rows])


def shapes(config: Any, *, batch: int = 1, seq: int | None = None) -> Shapes:
    """The shapes of one forward pass of a decoder.

    Args:
        config: a `models.DecoderConfig`.
        batch: sequences.
        seq: tokens in each; the whole context by default.

    Raises:
        TypeError: `config` is no configuration.
        ValueError: a size below 1, more tokens than the context holds, or a mixer that is not built in.

    >>> from models import DecoderConfig
    >>> config = DecoderConfig(n_layers=1, d_model=512, n_ctx=20, d_vocab=50000, mixer="mha", n_heads=8)
    >>> [(r.step, r.concatenated, r.summed) for r in shapes(config).rows if r.differs][-1]
    ('each head projected', None, (1, 20, 8, 512))
    """
    if not isinstance(config, wing("config").DecoderConfig):
        raise TypeError(f"config: a models.DecoderConfig is needed, got {type(config).__name__}")
    seq = config.n_ctx if seq is None else seq
    for name, value in (("batch", batch), ("seq", seq)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: a whole number of at least 1 is needed, got {value!r}")
    if seq > config.n_ctx:
        raise ValueError(f"seq: {seq} tokens do not fit the context of {config.n_ctx}; lower it, or raise n_ctx")
    if unknown := sorted(set(config.layer_mixers) - set(wing("config").MIXERS)):
        raise ValueError(f"mixer: {unknown[0]!r} is not built in, so its readings are not known")
    with torch.device("meta"), torch.no_grad():
        model = wing("decoder").HookedDecoder(config).eval()
        tokens = torch.zeros(batch, seq, dtype=torch.long)
        held: list[tuple[str, Tensor]] = []
        hooks = [(name, lambda x, hook: held.append((hook.name, x))) for name in model.hook_dict]
        with model.explicit(), model.hooks(fwd_hooks=hooks):
            logits = model(tokens)
        rows = [_same("tokens", None, tokens)]
        for name, tensor in held:
            rows += [_same(_told(name), name, tensor), *_readings(model, name, tensor)]
        rows.append(_same("logits", None, logits))
    return Shapes(mixer=config.mixer if isinstance(config.mixer, str) else ", ".join(config.mixer), rows=tuple(rows))


def _same(step: str, hook: str | None, tensor: Tensor) -> ShapeRow:
    shape = tuple(tensor.shape)
    return ShapeRow(step=step, hook=hook, concatenated=shape, summed=shape)


def _readings(model: Any, name: str, tensor: Tensor) -> Iterator[ShapeRow]:
    """The steps between two hook points where the readings part: after the heads' z, and around the sum over lags."""
    if name.endswith("attn.hook_z"):
        mixer = model.blocks[int(name.split(".")[1])].attn
        yield _one("heads side by side", "concatenated", tensor.transpose(1, 2))
        yield _one("heads concatenated", "concatenated", tensor.flatten(2))
        each = torch.einsum("bthe,hed->bthd", tensor, mixer.W_O)
        yield _one("each head projected", "summed", each)
        yield _both("projected | summed over heads", mixer.project(tensor), each.sum(2))
    elif name.endswith("attn.hook_extraction"):
        mixer = model.blocks[int(name.split(".")[1])].attn
        b, t, d = tensor.shape
        rows = tensor.new_empty(b, t, d)  # what the lags weigh: of the same shape as what they sum to
        lags = mixer.lag_weight[:t]
        kernel = lags if lags.ndim == 3 else torch.diag_embed(lags)
        stacked = kernel.flip(0).reshape(t * d, d)
        yield _one("last row: rows concatenated", "concatenated", rows.flatten(1))
        each = torch.einsum("btd,tdc->btc", rows, kernel.flip(0))
        yield _one("last row: each row through its lag", "summed", each)
        yield _both("last row: projected | summed over lags", rows.flatten(1) @ stacked, each.sum(1))


def _one(step: str, reading: str, tensor: Tensor) -> ShapeRow:
    return ShapeRow(step=step, hook=None, **{"concatenated": None, "summed": None} | {reading: tuple(tensor.shape)})


def _both(step: str, concatenated: Tensor, summed: Tensor) -> ShapeRow:
    return ShapeRow(step=step, hook=None, concatenated=tuple(concatenated.shape), summed=tuple(summed.shape))


_WORDS = {
    "hook_embed": "embedding",
    "hook_pos_embed": "positional embedding",
    "hook_resid_pre": "residual stream",
    "hook_resid_mid": "residual stream after the first sublayer",
    "hook_resid_post": "residual stream after the layer",
    "hook_scale": "norm: scale",
    "hook_normalized": "norm: rows over their scale",
    "hook_q": "queries",
    "hook_k": "keys",
    "hook_v": "values",
    "hook_attn_scores": "scores",
    "hook_pattern": "attention weights",
    "hook_z": "weighted sums of the values",
    "hook_value": "rows through W_in",
    "hook_adjustment": "gate",
    "hook_extraction": "extraction, the sum over lags",
    "hook_attn_out": "output of sublayer 1",
    "hook_pre": "FFN: neurons before the activation",
    "hook_post": "FFN: neurons after it",
    "hook_mlp_out": "output of sublayer 2",
}


def _told(name: str) -> str:
    return _WORDS.get(name.rpartition(".")[2], name)

"""Folding a direction through the weights: the formulas of a ledger, on tensors, one function each.

The final norm is linear once its scale is fixed, so a logit is `r . u + bias . g + b_U` with `u = P (gain * g) / sigma` and `g` the
token's column of `W_U`. Nothing of size (components, b, t, d) is ever built. [E21], [C23b].
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .protocols import Cached
from .views import Attention, DecoderView, Mixer, Neurons, Sublayer


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What is read at each row. Either logits: `answers` and `against`, token ids a row (each set is averaged, the difference is read);
    or a `probe` (d,): the stream's own dot product with a vector."""

    answers: tuple[tuple[int, ...], ...] = ()
    against: tuple[tuple[int, ...], ...] = ()
    probe: Tensor | None = None
    answer_text: str = ""
    against_text: str | None = None

    def signed(self, row: int) -> list[tuple[int, float]]:
        """(token, weight) of every logit that enters the number read at `row`."""
        plus, minus = self.answers[row], self.against[row] if self.against else ()
        return [(k, 1 / len(plus)) for k in plus] + [(k, -1 / len(minus)) for k in minus]


def head_values(a: Attention, z: Float[Tensor, "r h e"], u: Float[Tensor, "r d"]) -> Float[Tensor, "r h"]:
    """`z_i^h . (W_O^h u_i)`: what each head writes along `u`."""
    return (z * folded_heads(a, u)).sum(-1)


def head_source_values(
    a: Attention, pattern: Float[Tensor, "r h t"], v: Float[Tensor, "t kv e"], u: Float[Tensor, "r d"]
) -> Float[Tensor, "r h t"]:
    """`A_ij^h v_j . (W_O^h u_i)`: what each head writes along `u` from each source; `v` holds `b_V` already."""
    return torch.einsum("rhe,the->rht", folded_heads(a, u), v[:, list(a.kv_head)]) * pattern


def neuron_values(n: Neurons, post: Float[Tensor, "r n"], u: Float[Tensor, "r d"]) -> Float[Tensor, "r n"]:
    """`post_n (W_out[n] . u)`: what each neuron writes along `u`."""
    return post * (u @ n.W_out.detach().to(u).T)


def fold_sublayer(s: Sublayer, raw: Float[Tensor, "r d"], u: Float[Tensor, "r d"]) -> Float[Tensor, "r d"]:
    """`u` carried back through the multiplier and the post-norm, its scale frozen, to the output of the sublayer's own projection."""
    v = u * s.multiplier
    return v if s.post_norm is None else s.post_norm.fold(v, s.post_norm.scale(raw))


def folded_heads(a: Attention, u: Float[Tensor, "r d"]) -> Float[Tensor, "r h e"]:
    return torch.einsum("hed,rd->rhe", a.W_O.detach().to(u), u)


def output_direction(view: DecoderView, reading: Reading, last: Float[Tensor, "r d"]) -> tuple[Tensor, Tensor, Tensor]:
    """What a reading means at each row: `g` in the normalised space, the final scale (frozen, float64), and `u` in the stream."""
    if reading.probe is not None:
        g = reading.probe.to(last).expand_as(last)
        return g, torch.ones_like(last[:, :1]), g
    W, norm = view.readout.W_U.detach(), view.readout.norm
    columns = []
    for r in range(len(last)):
        tokens, weights = zip(*reading.signed(r), strict=True)
        columns.append(W[:, list(tokens)].to(last) @ torch.tensor(weights, dtype=last.dtype, device=last.device))
    g = torch.stack(columns) * view.readout.multiplier
    if norm is None:
        return g, torch.ones_like(last[:, :1]), g
    scale = norm.scale(last)
    return g, scale, norm.fold(g, scale)


def mixer_acts(m: Mixer, cache: Cached) -> dict[str, Tensor]:
    """What a mixer reads: its input rows, through the gain and bias of its block's own norm, and the hooks it names."""
    x = cache[m.input_from]
    if m.norm is not None:
        # The very function of the explicit forward, in its own precision: the same bits the mixer was given.
        x = m.norm.affine(x).to(next(m.module.parameters()).dtype)  # type: ignore[operator]
    acts = {"input": x}
    acts |= {r: cache[m.prefix + r] for r in m.module.reads}
    mask = getattr(cache, "attention_mask", None)
    return acts if mask is None else acts | {"attention_mask": mask}

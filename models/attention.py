"""Sublayer 1, attention: fused when nobody listens to scores or pattern, explicit when somebody does."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from .config import DecoderConfig
from .norms import heard

# One matrix product for all heads wants the heads side by side, a copy of W_Q, W_K, W_V; for so few rows the copy costs more than it gains.
FEW_ROWS = 64


def uniform(*shape: int, fan_in: int) -> nn.Parameter:
    """A parameter drawn as torch's linear layers are: U(-1/sqrt(fan_in), 1/sqrt(fan_in))."""
    bound = 1 / math.sqrt(fan_in)
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))


@dataclass
class KeptKeys:
    """What attention has read: `count` rows of (b,h,capacity,e)."""

    keys: Tensor
    values: Tensor
    count: int = 0


class MultiHeadAttention(nn.Module):
    """``z_i^h = sum_{j<=i} A_ij^h v_j^h``, ``out_i = sum_h z_i^h W_O^h + b_O``; A the softmax of ``q_i . k_j / sqrt(e)`` [E21].

    Padded keys get no weight (a padded row sees itself alone, so that its softmax is defined).

    The fused and the explicit path are not bitwise equal. With u the unit roundoff, T sources and gamma_n = n u / (1 - n u), the scores
    of either err by at most ``delta = gamma_(e+4) max_j |q_i|.|k_j| / sqrt(e)``, a weight by a factor ``exp(2 delta)`` and the sum by
    gamma_T; so ``z`` differs by at most ``(4 delta + 2 gamma_(T+8)) sum_j A_ij |v_j|``, to first order in u.
    """

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        d, h = config.d_model, config.n_heads
        e = d // h
        self.force_explicit = False
        self.W_Q, self.W_K, self.W_V = (uniform(h, d, e, fan_in=d) for _ in range(3))
        self.b_Q, self.b_K, self.b_V = (uniform(h, e, fan_in=d) if config.mixer_bias else None for _ in range(3))
        self.W_O = uniform(h, e, d, fan_in=d)
        self.b_O = uniform(d, fan_in=d) if config.mixer_bias else None
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()  # (b,t,h,e)
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()  # (b,h,i,j)
        self.hook_z = HookPoint()  # (b,t,h,e)
        self.hook_attn_scores.pos_dim = self.hook_pattern.pos_dim = 2

    def forward(self, x: Float[Tensor, "b t d"], attention_mask: Int[Tensor, "b t"] | None = None) -> Float[Tensor, "b t d"]:
        q = self.hook_q(self._heads(x, self.W_Q, self.b_Q)).transpose(1, 2)  # (b,h,t,e)
        k = self.hook_k(self._heads(x, self.W_K, self.b_K)).transpose(1, 2)
        v = self.hook_v(self._heads(x, self.W_V, self.b_V)).transpose(1, 2)
        if self.force_explicit or heard(self.hook_attn_scores, self.hook_pattern):
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # (b,h,i,j)
            scores = self.hook_attn_scores(scores.masked_fill(~visible(x, attention_mask), -torch.inf))
            z = self.hook_pattern(scores.softmax(-1)) @ v
        elif attention_mask is None:
            z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            z = F.scaled_dot_product_attention(q, k, v, attn_mask=visible(x, attention_mask))
        z = self.hook_z(z.transpose(1, 2))  # (b,t,h,e)
        return self.project(z)

    def start(self, b: int, capacity: int) -> "KeptKeys":
        """An empty past for `b` sequences of up to `capacity` rows."""
        h, _, e = self.W_Q.shape
        keys, values = self.W_K.new_empty(2, b, h, capacity, e)
        return KeptKeys(keys, values)

    def extend(self, x: Float[Tensor, "b n d"], past: "KeptKeys") -> Float[Tensor, "b n d"]:
        """The output at the rows that follow those of `past`, which they join."""
        q, k, v = (
            self._heads(x, W, b).transpose(1, 2)  # (b,h,n,e)
            for W, b in ((self.W_Q, self.b_Q), (self.W_K, self.b_K), (self.W_V, self.b_V))
        )
        first, past.count = past.count, past.count + x.shape[1]
        past.keys[:, :, first : past.count] = k
        past.values[:, :, first : past.count] = v
        mask = torch.ones(x.shape[1], past.count, dtype=torch.bool, device=x.device).tril(first) if x.shape[1] > 1 else None
        z = F.scaled_dot_product_attention(q, past.keys[:, :, : past.count], past.values[:, :, : past.count], attn_mask=mask)
        return self.project(z.transpose(1, 2))

    def project(self, z: Float[Tensor, "b t h e"]) -> Float[Tensor, "b t d"]:
        """The output projection alone, heads concatenated: what a replay of this layer calls."""
        return F.linear(z.flatten(2), self.W_O.flatten(0, 1).T, self.b_O)  # (b,t,h*e) (h*e,d)

    @staticmethod
    def _heads(x: Tensor, W: Tensor, bias: Tensor | None) -> Float[Tensor, "b t h e"]:
        (b, t, d), (h, _, e) = x.shape, W.shape
        if b * t > FEW_ROWS:
            flat = F.linear(x, W.transpose(1, 2).reshape(h * e, d), None if bias is None else bias.flatten())
            return flat.view(b, t, h, e)
        heads = (x.reshape(b * t, d) @ W).view(h, b, t, e).permute(1, 2, 0, 3)
        return heads if bias is None else heads + bias


def visible(x: Float[Tensor, "b t d"], attention_mask: Int[Tensor, "b t"] | None) -> Bool[Tensor, "b_or_1 1 t t"]:
    """Which source each destination may see: earlier real rows, and always itself."""
    t = x.shape[1]
    causal = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
    if attention_mask is None:
        return causal[None, None]
    itself = torch.eye(t, dtype=torch.bool, device=x.device)
    return (causal & (attention_mask.bool()[:, None, None, :] | itself)).expand(-1, 1, -1, -1)

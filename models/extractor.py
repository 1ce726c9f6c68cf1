"""Sublayer 1, the Extractor: she, ishe, he and ihe from one class, and its own view for a ledger.

    she, ishe [C23b, Eq. 1]    ext_i = s_i sum_{j<=i} x_j W_ext[i-j] (+ b_ext)            out_i = ext_i * adj_i
    he, ihe                    ext_i = s_i sum_{j<=i} w_lag[i-j] * (x_j W_in (+ b_in))    out_i = (ext_i * adj_i) W_out (+ b_out)
    adj_i = x_i W_adj (+ b_adj);   s_i = 1, or 1/sqrt(i) for ishe and ihe, i counted from 1 over real rows

Lag 0 is the present row ([C23b] writes k+1). The lag carries the position: no positional embedding is needed. he has the properties
[C23b] states of HE (static weights by relative position, element-wise dynamic adjustment, attention's parameter count at ``l = d``);
where the layer of [C23] differs in detail we do not claim to match it. Biases, off by default, are ours.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from .attention import uniform
from .causal_sum import causal_sum
from .config import EXTRACTORS, DecoderConfig


class Writes(NamedTuple):
    """What each source row writes along a direction.

    Attributes:
        value: The write itself.
        magnitude: The sum of the absolute values of its terms, which a rounding bound needs.
    """

    value: Float64[Tensor, "b channel row source"]
    magnitude: Float64[Tensor, "b channel row source"]


class Extractor(nn.Module):
    """A static weight per lag, gated element-wise by the present row.

    Initialised ``W_ext ~ U(-1/sqrt(d), 1/sqrt(d))``, ``w_lag ~ U(-1, 1)``, the rest as torch's linear layers; then SHE's variance
    grows like the row number and iSHE's is flat.

    Attributes:
        W_ext: (l,d,d), she and ishe.
        w_lag: (l,d), he and ihe; there ``W_in``, ``W_out`` (d,d) too.
        W_adj: (d,d).
    """

    n_channels = 1
    channel_kind = "extractor"
    reads = ("hook_adjustment",)  # beside the input rows

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        kind, d, l = config.layer_mixers[layer], config.d_model, config.n_ctx
        if kind not in EXTRACTORS:
            raise ValueError(f"layer {layer} is {kind!r}; an Extractor is one of {', '.join(map(repr, EXTRACTORS))}")
        self.by_vector = kind in ("he", "ihe")
        self.by_count = kind in ("ishe", "ihe")
        matrices, biases = (("W_in", "W_adj", "W_out"), ("b_in", "b_adj", "b_out")) if self.by_vector else (("W_adj",), ("b_ext", "b_adj"))
        if self.by_vector:
            self.w_lag = uniform(l, d, fan_in=1)
        else:
            self.W_ext = uniform(l, d, d, fan_in=d)
        for name in matrices:
            self.register_parameter(name, uniform(d, d, fan_in=d))
        for name in biases:
            self.register_parameter(name, uniform(d, fan_in=d) if config.mixer_bias else None)
        if self.by_vector:
            self.hook_value = HookPoint()  # (b,t,d)
        self.hook_extraction = HookPoint()  # (b,t,d)
        self.hook_adjustment = HookPoint()  # (b,t,d)

    @property
    def lag_weight(self) -> nn.Parameter:
        """The stored weight of the sum over lags: ``W_ext`` or ``w_lag``."""
        return self.w_lag if self.by_vector else self.W_ext

    def forward(self, x: Float[Tensor, "b t d"], attention_mask: Int[Tensor, "b t"] | None = None) -> Float[Tensor, "b t d"]:
        adjustment = self.hook_adjustment(F.linear(x, self.W_adj.T, self.b_adj))
        value = self.hook_value(self._value(x, attention_mask)) if self.by_vector else self._value(x, attention_mask)
        extraction = self.row_factor(x, attention_mask) * causal_sum(value, self.lag_weight)  # (b|1,t,1) (b,t,d)
        if not self.by_vector:
            return self.hook_extraction(extraction if self.b_ext is None else extraction + self.b_ext) * adjustment
        return F.linear(self.hook_extraction(extraction) * adjustment, self.W_out.T, self.b_out)

    def row_factor(self, x: Float[Tensor, "b t d"], attention_mask: Int[Tensor, "b t"] | None = None) -> Float[Tensor, "b_or_1 t 1"]:
        """``s_i``: 1, or one over the root of the number of real rows up to and including i."""
        if not self.by_count:
            return x.new_ones(1, x.shape[1], 1)
        real = x.new_ones(1, x.shape[1], dtype=torch.long) if attention_mask is None else attention_mask
        count = real.cumsum(1).clamp(min=1)[..., None]
        return count.to(torch.promote_types(x.dtype, torch.float32)).rsqrt().to(x.dtype)

    def _value(self, x: Tensor, attention_mask: Tensor | None) -> Float[Tensor, "b t d"]:
        """What the lags weigh: the rows themselves, or their projection; nothing of a padded row."""
        value = F.linear(x, self.W_in.T, self.b_in) if self.by_vector else x
        return value if attention_mask is None else value.masked_fill(attention_mask[..., None] == 0, 0)

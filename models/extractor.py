"""Sublayer 1, the Extractor: she, ishe, he, ihe (and kshe, khe) from one class, and its own view for a ledger.

    she, ishe [C23b, Eq. 1]    ext_i = s_i sum_{j<=i} x_j W_ext[i-j] (+ b_ext)            out_i = ext_i * adj_i
    he, ihe                    ext_i = s_i sum_{j<=i} w_lag[i-j] * (x_j W_in (+ b_in))    out_i = (ext_i * adj_i) W_out (+ b_out)
    adj_i = x_i W_adj (+ b_adj);   s_i = 1, or 1/sqrt(i) for ishe and ihe, i counted from 1 over real rows

    kshe, khe (an experiment of ours, in neither paper)      s_i = (sum_{k<i} mean(W[k]^2) / sigma_0^2)^(-1/2)

`sigma_0^2` is the variance that W is drawn with, so that at initialisation this is about 1/sqrt(i); it follows the kernel while that is
trained, the gradient flows through it, and for white rows the variance of the extraction stays flat. For correlated rows it does not.

Lag 0 is the present row ([C23b] writes k+1). The lag carries the position: no positional embedding is needed. he has the properties
[C23b] states of HE (static weights by relative position, element-wise dynamic adjustment, attention's parameter count at ``l = d``);
where the layer of [C23] differs in detail we do not claim to match it. Biases, off by default, are ours.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from .attention import uniform
from .causal_sum import Purpose, SpectrumCache, causal_sum, last_row
from .config import EXTRACTORS, DecoderConfig
from .norms import heard

SCALES = {"she": "one", "he": "one", "ishe": "count", "ihe": "count", "kshe": "kernel", "khe": "kernel"}
LEAST_ENERGY = 1e-8  # a kernel of zeros gets a factor of 1e4, which every type can hold, and still sums to zero

# A product of factors, its modulus, its square: the same fold of the factors themselves, of their moduli, of their squares.
_POWERS: tuple[Callable[[Tensor], Tensor], ...] = (torch.positive, torch.abs, torch.square)


class Writes(NamedTuple):
    """What each source row writes along a direction.

    Attributes:
        value: The write itself.
        magnitude: The sum of |terms| through the whole chain of products, which a rigorous rounding bound needs.
        square: The sum of terms^2, which a calibrated one needs.
        terms: Products that one source adds to one output, in the longest chain.
    """

    value: Float64[Tensor, "b channel row source"]
    magnitude: Float64[Tensor, "b channel row source"]
    square: Float64[Tensor, "b channel row source"]
    terms: int


@dataclass
class KeptRows:
    """What an Extractor has read: `count` rows at the end of (b,capacity,d), the newest first, as the lags want them; s_i of all rows."""

    rows: Tensor
    factor: Tensor
    count: int = 0


class Extractor(nn.Module):
    """A static weight per lag, gated element-wise by the present row.

    Initialised ``W_ext ~ U(-1/sqrt(d), 1/sqrt(d))``, ``w_lag ~ U(-1, 1)``, the rest as torch's linear layers; then SHE's variance
    grows like the row number and iSHE's is flat.

    Attributes:
        W_ext: (l,d,d), she, ishe and kshe.
        w_lag: (l,d), he, ihe and khe; there ``W_in``, ``W_out`` (d,d) too.
        W_adj: (d,d).
        scale: what the row factor s_i is made of: "one", the "count" of rows, or the "kernel".
    """

    n_channels = 1
    channel_kind = "extractor"
    reads = ("hook_adjustment",)  # beside the input rows

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        kind, d, n_lags = config.layer_mixers[layer], config.d_model, config.n_ctx
        if kind not in EXTRACTORS:
            raise ValueError(f"layer {layer} is {kind!r}; an Extractor is one of {', '.join(map(repr, EXTRACTORS))}")
        self.by_vector = kind in ("he", "ihe", "khe")
        self.scale = SCALES[kind]
        if self.by_vector:
            self.W_in, self.W_out = uniform(d, d, fan_in=d), uniform(d, d, fan_in=d)
            self.b_in, self.b_out = (uniform(d, fan_in=d) if config.mixer_bias else None for _ in range(2))
            self.w_lag = uniform(n_lags, d, fan_in=1)
            self.hook_value = HookPoint()  # (b,t,d)
        else:
            self.W_ext = uniform(n_lags, d, d, fan_in=d)
            self.b_ext = uniform(d, fan_in=d) if config.mixer_bias else None
        self.W_adj = uniform(d, d, fan_in=d)
        self.b_adj = uniform(d, fan_in=d) if config.mixer_bias else None
        self.hook_extraction = HookPoint()  # (b,t,d)
        self.hook_adjustment = HookPoint()  # (b,t,d)
        self.force_explicit = False  # the direct sum, whether or not anybody listens
        self.listened = False  # whether somebody listens anywhere in the decoder, which says so before each pass
        self._spectra = SpectrumCache()

    @property
    def lag_weight(self) -> nn.Parameter:
        """The stored weight of the sum over lags: ``W_ext`` or ``w_lag``."""
        return self.w_lag if self.by_vector else self.W_ext

    def forward(self, x: Float[Tensor, "b t d"], attention_mask: Int[Tensor, "b t"] | None = None) -> Float[Tensor, "b t d"]:
        adjustment = self.hook_adjustment(F.linear(x, self.W_adj.T, self.b_adj))
        value = self.hook_value(self._value(x, attention_mask)) if self.by_vector else self._value(x, attention_mask)
        extraction = causal_sum(value, self.lag_weight, self._purpose(), self._spectra)
        if self.scale != "one":
            extraction = extraction * self.row_factor(x, attention_mask)
        return self._gated(extraction, adjustment)

    def _gated(self, extraction: Float[Tensor, "b t d"], adjustment: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        if self.by_vector:
            return F.linear(self.hook_extraction(extraction) * adjustment, self.W_out.T, self.b_out)
        return self.hook_extraction(extraction if self.b_ext is None else extraction + self.b_ext) * adjustment

    def _purpose(self) -> Purpose:
        """What the sum over lags is for, which decides on its kernel: ``exact`` whenever somebody may look at it."""
        if self.training:
            self._spectra.clear()  # the weights are about to change
        if self.force_explicit or self.listened or heard(self.hook_extraction, self.hook_adjustment):
            return "exact"
        if torch.is_grad_enabled():
            return "training" if self.training else "exact"
        return "exact" if self.training else "frozen"

    # ---- reading on: a past of rows, see generation.py ----

    def start(self, b: int, capacity: int) -> "KeptRows":
        """An empty past for `b` sequences of up to `capacity` rows."""
        rows = self.W_adj.new_empty(b, capacity, self.W_adj.shape[0])
        return KeptRows(rows, self.row_factor(rows[:1]))

    def extend(self, x: Float[Tensor, "b n d"], past: "KeptRows") -> Float[Tensor, "b n d"]:
        """The output at the rows that follow those of `past`, which they join: O(i d^2) for a row i of she, O(i d) of he."""
        value, first, capacity = self._value(x, None), past.count, past.rows.shape[1]
        past.count = first + x.shape[1]
        past.rows[:, capacity - past.count : capacity - first] = value.flip(1)
        if first == 0:
            extraction = causal_sum(value, self.lag_weight, self._purpose(), self._spectra)
        else:
            ends = [past.rows[:, capacity - i :] for i in range(first + 1, past.count + 1)]
            extraction = torch.stack([last_row(newest_first, self.lag_weight) for newest_first in ends], 1)
        return self._gated(extraction * past.factor[:, first : past.count], F.linear(x, self.W_adj.T, self.b_adj))

    def truncated(self, x: Float[Tensor, "b t d"], kept: int) -> Float[Tensor, "b t d"]:
        """The extraction with all but the first `kept` lags left out, for unpadded rows; the row factor stays what it is."""
        lags = torch.cat([self.lag_weight[:kept], torch.zeros_like(self.lag_weight[kept:])])
        extraction = causal_sum(self._value(x, None), lags) * self.row_factor(x)
        return extraction if self.by_vector or self.b_ext is None else extraction + self.b_ext

    def row_factor(self, x: Float[Tensor, "b t d"], attention_mask: Int[Tensor, "b t"] | None = None) -> Float[Tensor, "b_or_1 t 1"]:
        """``s_i`` in the type of `x`: 1, or one over the root of how many real rows there are up to and including i, or of their energy."""
        if self.scale == "one":
            return x.new_ones(1, x.shape[1], 1)
        real = x.new_ones(1, x.shape[1], dtype=torch.long) if attention_mask is None else attention_mask
        count = real.cumsum(1).clamp(min=1)[..., None]
        if self.scale == "count":
            return count.to(torch.promote_types(x.dtype, torch.float32)).rsqrt().to(x.dtype)
        return self._energy(x.shape[1])[count - 1].clamp(min=LEAST_ENERGY).rsqrt().to(x.dtype)

    def _energy(self, t: int) -> Float64[Tensor, " t"]:
        """``sum_{k<i} mean(W[k]^2) / sigma_0^2`` for i = 1..t; weights drawn from ``U(-a, a)`` have variance a^2/3."""
        weight = self.lag_weight[:t].double()
        drawn = 1 / 3 if self.by_vector else 1 / (3 * weight.shape[-1])
        return weight.square().flatten(1).mean(1).cumsum(0) / drawn

    def _value(self, x: Float[Tensor, "b t d"], attention_mask: Int[Tensor, "b t"] | None) -> Float[Tensor, "b t d"]:
        """What the lags weigh: the rows themselves, or their projection; nothing of a padded row."""
        value = F.linear(x, self.W_in.T, self.b_in) if self.by_vector else x
        return value if attention_mask is None else value.masked_fill(attention_mask[..., None] == 0, 0)

    # ---- the view of a ledger: linear in each source row once the gate of the destination row is fixed ----

    @torch.no_grad()
    def writes(self, acts: Mapping[str, Tensor], u: Float[Tensor, "b row d"], rows: Sequence[int]) -> Writes:
        """What each source row j writes to row i along the direction ``u_i``, the direction folded through the weights first.

            she   s_i x_j . (W_ext[i-j] (adj_i * u_i))
            he    s_i (x_j W_in) . (w_lag[i-j] * adj_i * (W_out u_i))

        In float64 whatever the decoder computes in; nothing larger than one row's (source, d, b) is built beside the widened weights,
        their moduli and their squares.

        Args:
            acts: ``input`` (b,t,d), the mixer's input rows, after the norm's gain and bias; ``hook_adjustment`` (b,t,d), the gate;
                optionally ``attention_mask`` (b,t).
            u: A direction for each of `rows`.
            rows: Destination rows, absolute and not negative.

        Returns:
            (b, 1, row, source) each; a source later than the row is zero. The moduli count `b_in` beside each source's own products,
            so that they bound the whole sum; its value is a constant.
        """
        x, gate, mask = _double(acts["input"]), _double(acts["hook_adjustment"]), acts.get("attention_mask")
        weight, u = _double(self.lag_weight[: max(rows, default=-1) + 1]), _double(u)
        weights = [power(weight) for power in _POWERS]
        terms = self._terms(x, mask)
        factor = self.row_factor(x, mask).expand(len(x), -1, -1)  # (b,t,1)
        out = x.new_zeros(3, len(x), 1, len(rows), x.shape[1])
        for n, i in enumerate(rows):
            direction = [power(u[:, n]) for power in _POWERS]  # (b,d) each
            if self.by_vector:
                direction = [along @ power(_double(self.W_out)).T for along, power in zip(direction, _POWERS, strict=True)]
            s, adj = factor[:, i], gate[:, i]
            for k, power in enumerate(_POWERS):
                folded = _fold(weights[k][: i + 1], power(s * adj) * direction[k])  # (b,i+1,d), by source
                out[k, :, 0, n, : i + 1] = (terms[k][:, : i + 1] * folded).sum(-1)
        d = x.shape[-1]
        return Writes(out[0], out[1], out[2], 2 * d + 2 if self.by_vector else d + 2)

    @torch.no_grad()
    def constants(
        self, acts: Mapping[str, Tensor], u: Float[Tensor, "b row d"], rows: Sequence[int]
    ) -> dict[str, Float64[Tensor, "b row"]]:
        """What no source wrote, along ``u_i``, by the name of its bias; empty without biases. Arguments as in `writes`."""
        gate, u = _double(acts["hook_adjustment"])[:, list(rows)], _double(u)  # (b,row,d)
        if not self.by_vector:
            return {} if self.b_ext is None else {"b_ext": (gate * u) @ _double(self.b_ext)}
        if self.b_in is None or self.b_out is None:
            return {}
        x, mask = _double(acts["input"]), acts.get("attention_mask")
        value = _double(self.b_in).expand_as(x)
        value = value if mask is None else value.masked_fill(mask[..., None] == 0, 0)
        extraction = (self.row_factor(x, mask) * causal_sum(value, _double(self.lag_weight)))[:, list(rows)]
        return {"b_in": (extraction * gate * (u @ _double(self.W_out).T)).sum(-1), "b_out": u @ _double(self.b_out)}

    @torch.no_grad()
    def replay(self, acts: Mapping[str, Tensor], rows: Sequence[int]) -> Float64[Tensor, "b row d"]:
        """This module's output at `rows` by its own kernel and stored weights in float64, the gate as cached; `writes` is not used."""
        x, gate, mask = _double(acts["input"]), _double(acts["hook_adjustment"]), acts.get("attention_mask")
        value = F.linear(x, _double(self.W_in).T, _double_or_none(self.b_in)) if self.by_vector else x
        value = value if mask is None else value.masked_fill(mask[..., None] == 0, 0)
        extraction = self.row_factor(x, mask) * causal_sum(value, _double(self.lag_weight))
        if self.by_vector:
            return F.linear(extraction * gate, _double(self.W_out).T, _double_or_none(self.b_out))[:, list(rows)]
        return ((extraction if self.b_ext is None else extraction + _double(self.b_ext)) * gate)[:, list(rows)]

    def _terms(self, x: Float64[Tensor, "b t d"], mask: Int[Tensor, "b t"] | None) -> list[Float64[Tensor, "b t d"]]:
        """The rows that the lags weigh, the sums of |terms| and of terms^2 they are made of; zero at padded rows."""
        if self.by_vector:
            W, b = _double(self.W_in), x.new_zeros(x.shape[-1]) if self.b_in is None else _double(self.b_in)
            parts = [x @ W, *(power(x) @ power(W) + power(b) for power in _POWERS[1:])]
        else:
            parts = [power(x) for power in _POWERS]
        return parts if mask is None else [part.masked_fill(mask[..., None] == 0, 0) for part in parts]


def _double(tensor: Tensor) -> Float64[Tensor, "..."]:
    return tensor.detach().double()


def _double_or_none(tensor: Tensor | None) -> Float64[Tensor, "..."] | None:
    return None if tensor is None else _double(tensor)


def _fold(lags: Float[Tensor, "n d d"] | Float[Tensor, "n d"], direction: Float[Tensor, "b d"]) -> Float[Tensor, "b n d"]:
    """The direction through the weight of each lag, ordered by source: source j of n is lag n - 1 - j."""
    if lags.ndim == 2:
        return (lags * direction[:, None]).flip(1)
    n, d, _ = lags.shape
    return (lags.reshape(n * d, d) @ direction.T).view(n, d, -1).permute(2, 0, 1).flip(1)

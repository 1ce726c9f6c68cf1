"""TransformerLens names read as a sum: which tensors are added to the residual stream, and how each splits further.

In here: one frozen view of a decoder (`DecoderView.of(model)`), built from weights and names alone, for our decoders and for
`TransformerBridge`; grouped queries, post-norms, multipliers and soft caps included. Not in here: numbers (ledger.py) and running a
model (capture.py). A view holds the weights in the form the ledger folds them (side B); the replay calls the model's own modules
through `own_projection` (side A), so that a fault in either shows as a gap between the two.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .protocols import is_additive_mixer

Slot = Literal["attn", "mlp", "mixer"]


@dataclass(frozen=True, kw_only=True)
class NormView:
    """LayerNorm (`centred`) or RMSNorm: `y = gain (r - mean)/sigma + bias`, `sigma^2 = mean((r - mean)^2) + eps`.

    `name` is its place among the hooks ("ln_final", "blocks.3.ln1_post"); `module` the model's own, read again by the replay.
    """

    name: str
    module: nn.Module
    centred: bool
    gain: Float[Tensor, " d"] | None
    bias: Float[Tensor, " d"] | None
    eps: float

    def scale(self, r: Float[Tensor, "r d"]) -> Float[Tensor, "r 1"]:
        """`sigma` of each row, recomputed from the row itself in its own precision (float64 where it matters)."""
        return (self.centre(r).square().mean(-1, keepdim=True) + self.eps).sqrt()

    def centre(self, r: Float[Tensor, "r d"]) -> Float[Tensor, "r d"]:
        return r - r.mean(-1, keepdim=True) if self.centred else r

    def weighted(self, g: Float[Tensor, "r d"]) -> Float[Tensor, "r d"]:
        """`gain * g`, the direction before the scale and the centring."""
        return g if self.gain is None else g * self.gain.to(g)

    def fold(self, g: Float[Tensor, "r d"], scale: Float[Tensor, "r 1"]) -> Float[Tensor, "r d"]:
        """The direction `u` with `y . g == r . u + bias . g` for the frozen `scale`: `u = P (gain * g) / sigma`."""
        return self.centre(self.weighted(g) / scale)

    def bias_along(self, g: Float[Tensor, "r d"]) -> Float[Tensor, "r d"] | None:
        return None if self.bias is None else g * self.bias.to(g)

    def replay(self, r: Float[Tensor, "r d"], scale: Float[Tensor, "r 1"]) -> Float[Tensor, "r d"]:
        """The norm applied to float64 rows with its scale frozen, gain and bias read from the model's own module now."""
        own = _norm_view(self.name, self.module)
        assert own is not None
        y = own.centre(r) / scale
        y = y if own.gain is None else y * own.gain.to(r)
        return y if own.bias is None else y + own.bias.to(r)


@dataclass(frozen=True, kw_only=True)
class Attention:
    """The heads of one layer: `out = sum_h z_h W_O[h] + b_O`, `z_h = sum_j pattern[h, i, j] v[kv_head[h], j]`."""

    W_O: Float[Tensor, "h e d"]
    b_O: Float[Tensor, " d"] | None
    kv_head: tuple[int, ...]
    v: str
    pattern: str
    z: str


@dataclass(frozen=True, kw_only=True)
class Neurons:
    """The FFN of one layer: `out = sum_n post_n W_out[n] + b_out`."""

    W_out: Float[Tensor, "n d"]
    b_out: Float[Tensor, " d"] | None
    post: str


@dataclass(frozen=True, kw_only=True)
class Mixer:
    """A mixer that says itself what it writes. `input_from` is the hook its input rows are read from, `norm` what follows it."""

    module: Any
    input_from: str
    norm: nn.Module | None
    prefix: str


@dataclass(frozen=True, kw_only=True)
class Sublayer:
    """One addition to the residual stream and the linear path from its parts to what is added.

    `out` the hook that holds what is added; `raw` the hook of the projection's own output (the same where nothing follows it);
    between the two `post_norm` and `multiplier`. `parts` is None for a sublayer that cannot be split: it is one component.
    """

    layer: int
    slot: Slot
    out: str
    raw: str
    module: nn.Module
    parts: Attention | Neurons | Mixer | None
    post_norm: NormView | None = None
    multiplier: float = 1.0
    why_whole: str = ""

    @property
    def label(self) -> str:
        return f"L{self.layer} {self.slot}"


@dataclass(frozen=True, kw_only=True)
class Block:
    """A layer: the hooks of the stream around its sublayers, in the order in which they add. `mid` is None when they add at once."""

    pre: str
    mid: str | None
    post: str
    sublayers: tuple[Sublayer, ...]


@dataclass(frozen=True, kw_only=True)
class Readout:
    """Final norm and unembedding: `logit = cap(multiplier * (norm(r) . W_U[:, token] + b_U[token]))`."""

    norm: NormView | None
    unembed: nn.Module
    W_U: Float[Tensor, "d v"]
    b_U: Float[Tensor, " v"] | None
    multiplier: float = 1.0
    soft_cap: float | None = None

    def own_column(self, token: int) -> tuple[Float[Tensor, " d"], Float[Tensor, ""] | None]:
        """Column and bias of one token as the model's own unembedding stores them."""
        module = getattr(self.unembed, "original_component", None)
        if module is None:
            b = getattr(self.unembed, "b_U", None)
            return self.unembed.W_U[:, token], None if b is None else b[token]  # type: ignore[index]
        return module.weight[token], None if module.bias is None else module.bias[token]


@dataclass(frozen=True, kw_only=True)
class DecoderView:
    """A decoder as a sum: embeddings, blocks, readout. `limits` names what cannot be split or trusted, and why."""

    model: Any
    name: str
    embeds: tuple[str, ...]
    blocks: tuple[Block, ...]
    readout: Readout
    d_model: int
    dtype: torch.dtype
    norm_dtype: torch.dtype
    limits: Mapping[str, str]

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        return tuple(s for b in self.blocks for s in b.sublayers)

    @property
    def hooks(self) -> list[str]:
        """Every hook a ledger can need, each once, in the order of the forward pass."""
        names = list(self.embeds)
        for block in self.blocks:
            names.append(block.pre)
            for s in block.sublayers:
                names += part_hooks(s)
                names += [n for n in (s.raw, s.out) if n not in names]
            names += [n for n in (block.mid, block.post) if n is not None]
        if self.readout.norm is not None:
            names += [n for n in ("ln_final.hook_in", "ln_final.hook_scale") if n in self.model.hook_dict]
        return list(dict.fromkeys(names))

    def limited(self, limits: Mapping[str, str]) -> "DecoderView":
        """This view with what a proof at load found: a sublayer whose parts do not rebuild it stays whole."""
        blocks = tuple(
            replace(b, sublayers=tuple(replace(s, parts=None, why_whole=limits[s.label]) if s.label in limits else s for s in b.sublayers))
            for b in self.blocks
        )
        return replace(self, blocks=blocks, limits={**self.limits, **limits})

    @staticmethod
    def of(model: Any, name: str = "") -> "DecoderView":
        """Read `model` by TransformerLens' names.

        Args:
            model: a decoder with `cfg`, `hook_dict`, `blocks`, `unembed` (ours, or a `TransformerBridge`).
            name: how results call it; the class name by default.

        Raises:
            TypeError: something an analysis needs is missing; the message names it.
        """
        missing = [a for a in ("cfg", "hook_dict", "blocks", "unembed", "W_U") if not hasattr(model, a)]
        if missing:
            raise TypeError(
                f"model: a decoder with TransformerLens' names is needed (cfg, hook_dict, blocks, unembed, W_U); "
                f"{type(model).__name__} has no {', '.join(missing)}"
            )
        limits: dict[str, str] = {}
        blocks = tuple(_block(model, i, limits) for i in range(model.cfg.n_layers))
        final = getattr(model, "ln_final", None)
        dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
        return DecoderView(
            model=model,
            name=name or type(model).__name__,
            embeds=tuple(n for n in ("hook_embed", "hook_pos_embed") if _fires(model, n)),
            blocks=blocks,
            readout=Readout(
                norm=None if final is None else _norm_view("ln_final", final),
                unembed=model.unembed,
                W_U=model.W_U,
                b_U=getattr(model, "b_U", None),
                multiplier=1.0 / float(getattr(model.cfg, "logits_scaling", None) or 1.0),
                soft_cap=_positive(getattr(model.cfg, "output_logits_soft_cap", None)),
            ),
            d_model=model.cfg.d_model,
            dtype=dtype,
            norm_dtype=torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype,
            limits=limits,
        )


def part_hooks(sublayer: Sublayer) -> list[str]:
    """The hooks that the parts of a sublayer are read from."""
    match sublayer.parts:
        case Attention(v=v, pattern=pattern, z=z):
            return [v, pattern, z]
        case Neurons(post=post):
            return [post]
        case Mixer(module=module, input_from=input_from, prefix=prefix):
            return [input_from, *(prefix + r for r in module.reads)]
        case _:
            return []


def own_projection(sublayer: Sublayer, x: Float[Tensor, "r *parts"]) -> Float[Tensor, "r d"]:
    """Side A: the module and the stored weight that the forward pass calls, evaluated in float64 on `x` ((r, h, e) or (r, n)).

    Our sublayers call `project` in their forward; a Bridge calls the Hugging Face module behind `attn.o` or `mlp.out`.
    """
    module = sublayer.module
    if hasattr(module, "project"):
        return _in_double(_Project(module), x.double().unsqueeze(0))[0]
    inner = getattr(module, "o" if sublayer.slot == "attn" else "out").original_component
    return _in_double(inner, x.double().flatten(1).unsqueeze(0))[0]


class _Project(nn.Module):
    """Gives a module's `project` the shape of a forward, so that its parameters can be replaced for one call."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner.project(x)  # type: ignore[operator]


def _in_double(module: nn.Module, x: Tensor) -> Tensor:
    """`module(x)` with every floating parameter upcast to float64 for this call alone."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    doubled = {k: t.detach().double() if t.is_floating_point() else t for k, t in tensors.items()}
    out: Tensor = torch.func.functional_call(module, doubled, (x,))
    return out


def _block(model: Any, i: int, limits: dict[str, str]) -> Block:
    block, at = model.blocks[i], f"blocks.{i}."
    multiplier = float(getattr(block, "residual_contribution_scale", 1.0))
    sublayers = []
    for slot in ("attn", "mlp"):
        out = f"{at}hook_{slot}_out"
        module = getattr(block, slot, None)
        if module is None or not _fires(model, out):
            continue
        parts, why = _attention_parts(model, block, i) if slot == "attn" else _neuron_parts(model, block, i)
        post = getattr(block, "ln1_post" if slot == "attn" else "ln2_post", None)
        raw = f"{at}{slot}.{'o' if slot == 'attn' else 'out'}.hook_out" if post is not None or multiplier != 1.0 else out
        if parts is None:
            limits[f"L{i} {slot}"] = why
        sublayers.append(
            Sublayer(
                layer=i,
                slot=slot,
                out=out,
                raw=raw,
                module=module,
                parts=parts,
                post_norm=None if post is None else _norm_view(f"{at}{'ln1' if slot == 'attn' else 'ln2'}_post", post),
                multiplier=multiplier,
                why_whole=why,
            )
        )
    if not sublayers and _fires(model, f"{at}hook_mixer_out"):
        why = f"{type(block.mixer).__name__} does not say what each source writes"
        limits[f"L{i} mixer"] = why
        out = f"{at}hook_mixer_out"
        sublayers.append(Sublayer(layer=i, slot="mixer", out=out, raw=out, module=block.mixer, parts=None, why_whole=why))
    if not sublayers:
        raise TypeError(
            f"model: layer {i} has none of the hooks blocks.{i}.hook_attn_out, hook_mlp_out, hook_mixer_out; its additions cannot be seen"
        )
    if getattr(block, "layout", "serial") == "swapped":
        sublayers.reverse()
    mid = f"{at}hook_resid_mid"
    return Block(
        pre=f"{at}hook_resid_pre",
        mid=mid if len(sublayers) == 2 and _fires(model, mid) else None,
        post=f"{at}hook_resid_post",
        sublayers=tuple(sublayers),
    )


def _attention_parts(model: Any, block: Any, i: int) -> tuple[Attention | Mixer | None, str]:
    attn, at = block.attn, f"blocks.{i}.attn."
    if is_additive_mixer(attn):
        norm = getattr(block, "ln1", None)
        has_hook = norm is not None and f"blocks.{i}.ln1.hook_normalized" in model.hook_dict
        source = f"blocks.{i}.ln1.hook_normalized" if has_hook else _input_stream(block, i)
        return Mixer(module=attn, input_from=source, norm=norm if has_hook else None, prefix=at), ""
    missing = [n for n in ("hook_v", "hook_pattern", "hook_z") if at + n not in model.hook_dict]
    if missing:
        return None, f"{type(attn).__name__} offers neither `writes` nor {', '.join(missing)}"
    if not hasattr(attn, "project") and getattr(attn, "o", None) is None:
        return None, f"{type(attn).__name__} has no output projection that can be called alone"
    W_O = attn.W_O
    if W_O is None or W_O.ndim != 3:
        return None, f"{type(attn).__name__}.W_O has no head axis"
    heads = W_O.shape[0]
    kv = getattr(model.cfg, "n_key_value_heads", None) or heads
    if heads % kv:
        return None, f"{heads} query heads cannot share {kv} key/value heads"
    return (
        Attention(
            W_O=W_O,
            b_O=getattr(attn, "b_O", None),
            kv_head=tuple(h * kv // heads for h in range(heads)),
            v=at + "hook_v",
            pattern=at + "hook_pattern",
            z=at + "hook_z",
        ),
        "",
    )


def _neuron_parts(model: Any, block: Any, i: int) -> tuple[Neurons | None, str]:
    mlp, post = block.mlp, f"blocks.{i}.mlp.hook_post"
    if post not in model.hook_dict:
        return None, f"{type(mlp).__name__} has no hook_post"
    if not hasattr(mlp, "project") and getattr(mlp, "out", None) is None:
        return None, f"{type(mlp).__name__} has no down projection that can be called alone"
    W_out = mlp.W_out
    if W_out is None or W_out.ndim != 2:
        return None, f"{type(mlp).__name__}.W_out is not one matrix"
    return Neurons(W_out=W_out, b_out=getattr(mlp, "b_out", None), post=post), ""


def _input_stream(block: Any, i: int) -> str:
    """The stream that feeds sublayer 1 where no norm stands between: `mid` once the FFN went first."""
    return f"blocks.{i}.hook_resid_mid" if getattr(block, "layout", "serial") == "swapped" else f"blocks.{i}.hook_resid_pre"


def _fires(model: Any, name: str) -> bool:
    """Whether the hook exists and belongs to what its name says: a Bridge maps `hook_pos_embed` to rotary tables where it has no other
    (in compatibility mode it renames the very point, so that only its place among the rotary hooks tells)."""
    points = model.hook_dict
    point = points.get(name)
    return point is not None and "rotary" not in (point.name or "") and not any(p is point for k, p in points.items() if "rotary" in k)


def _norm_view(name: str, module: nn.Module) -> NormView | None:
    own = getattr(module, "original_component", None)
    if own is not None:
        centred = not module.uses_rms_norm
        weight = getattr(own, "weight", None)
        gain = None if weight is None else (1.0 + weight if module.uses_weight_offset else weight)
        bias = getattr(own, "bias", None) if centred else None
        eps = getattr(own, "eps", None)
        eps = getattr(own, "variance_epsilon", None) if eps is None else eps
        eps = getattr(module.config, "eps", None) if eps is None else eps
        if eps is None:
            raise TypeError(f"model: the norm {name} ({type(own).__name__}) does not tell its eps")
        return NormView(name=name, module=module, centred=centred, gain=gain, bias=bias, eps=float(eps))
    if getattr(module, "w", None) is None:
        return None  # the absence of a norm
    bias = module.b
    return NormView(name=name, module=module, centred=bias is not None, gain=module.w, bias=bias, eps=module.eps)  # type: ignore[arg-type]


def _positive(value: Any) -> float | None:
    return float(value) if value is not None and value > 0 else None

"""Proof at load: is each hook what its name says, does each view rebuild what the model cached, does the readout give the logits?

In here: `limits(view, logits, cache)`, element by element on one short prompt, judged by proved bounds in the model's own precision.
What fails is named, and the analyses that depend on it refuse with that reason. (A ledger checks again on every prompt it explains.)
"""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from .certificate import Precision, gamma, unit
from .fold import mixer_acts
from .protocols import Cached
from .views import Attention, Block, DecoderView, Mixer, Neurons, NormView, Sublayer


@torch.no_grad()
def limits(view: DecoderView, logits: Float[Tensor, "b t v"], cache: Cached) -> Mapping[str, str]:
    """What of this model cannot be trusted, label -> reason; empty when every identity holds on this prompt.

    Labels: "stream" (the additions do not add up: no ledger), "readout" (norm, unembedding, multiplier and cap do not give the logits:
    no ledger of a logit), "L3 attn" (its parts do not rebuild it: that sublayer stays whole), "L3 attn sources" (pattern and values
    do not rebuild `z`: no split by source).
    """
    p = Precision.of(view.dtype, view.norm_dtype, logits.is_cuda and torch.backends.cuda.matmul.allow_tf32)
    found = dict(view.limits)
    for i, block in enumerate(view.blocks):
        if why := _stream(view, block, cache):
            found["stream"] = why
        if i and not torch.equal(cache[block.pre], cache[view.blocks[i - 1].post]):
            found["stream"] = f"{block.pre} is not {view.blocks[i - 1].post}"
    for s in view.sublayers:
        if s.parts is not None:
            found |= _parts(s, cache, p)
    if why := _readout(view, logits, cache, p):
        found["readout"] = why
    return found


def _stream(view: DecoderView, block: Block, cache: Cached) -> str:
    u = unit(view.dtype) + 2 * unit(torch.float64)
    pre, post = cache[block.pre].double(), cache[block.post].double()
    outs = [cache[s.out].double() for s in block.sublayers]
    if block.mid is None:
        total = pre + sum(outs)
        partial = torch.stack([pre.abs() + sum((o.abs() for o in outs), torch.zeros_like(pre))]).amax(0) if len(outs) > 1 else 0.0
        return _exceeds(
            post - total, u * (post.abs() + partial), f"{block.pre} + {' + '.join(s.out for s in block.sublayers)} == {block.post}"
        )
    mid = cache[block.mid].double()
    return _exceeds(mid - (pre + outs[0]), u * mid.abs(), f"{block.pre} + {block.sublayers[0].out} == {block.mid}") or _exceeds(
        post - (mid + outs[1]), u * post.abs(), f"{block.mid} + {block.sublayers[1].out} == {block.post}"
    )


def _parts(s: Sublayer, cache: Cached, p: Precision) -> dict[str, str]:
    raw = cache[s.raw].double()
    match s.parts:
        case Attention() as a:
            z, W = cache[a.z].double().flatten(2), a.W_O.detach().double().flatten(0, 1)
            rebuilt, modulus, n = z @ W, z.abs() @ W.abs(), z.shape[-1] + 1
            if a.b_O is not None:
                rebuilt, modulus = rebuilt + a.b_O.double(), modulus + a.b_O.double().abs()
            bound = _product_bound(n, modulus, raw, p) + _bias_rounding(a.b_O, raw, p)
            why = _exceeds(raw - rebuilt, bound, f"sum of heads == {s.raw}")
            out = {s.label: why} if why else _chain(s, cache, p)
            pattern, v = cache[a.pattern].double(), cache[a.v].double()[:, :, list(a.kv_head)]
            heads = torch.einsum("bhij,bjhe->bihe", pattern, v)
            bound = _product_bound(v.shape[1], torch.einsum("bhij,bjhe->bihe", pattern.abs(), v.abs()), heads, p)
            why = _exceeds(cache[a.z].double() - heads, bound, f"pattern times values == {a.z}")
            return out | ({f"{s.label} sources": why} if why else {})
        case Neurons() as f:
            post, W = cache[f.post].double(), f.W_out.detach().double()
            rebuilt, modulus = post @ W, post.abs() @ W.abs()
            if f.b_out is not None:
                rebuilt, modulus = rebuilt + f.b_out.double(), modulus + f.b_out.double().abs()
            bound = _product_bound(post.shape[-1] + 1, modulus, raw, p) + _bias_rounding(f.b_out, raw, p)
            why = _exceeds(raw - rebuilt, bound, f"sum of neurons == {s.raw}")
            return {s.label: why} if why else _chain(s, cache, p)
        case Mixer() as m:
            acts = mixer_acts(m, cache)
            rows = list(range(raw.shape[1]))
            u = torch.ones(raw.shape, dtype=torch.float64, device=raw.device)
            w = m.module.writes(acts, u, rows)
            constants = sum(m.module.constants(acts, u, rows).values(), torch.zeros_like(raw[..., 0]))
            native, rebuilt = raw.sum(-1), w.value.sum((1, 3)) + constants
            bound = _product_bound(
                w.terms * len(rows) + 2, w.magnitude.sum((1, 3)) + constants.abs(), raw.abs().sum(-1), p
            ) + p.storage * raw.abs().sum(-1)
            why = _exceeds(native - rebuilt, bound, f"sum of writes == {s.raw}")
            return {s.label: why} if why else _chain(s, cache, p)
    return {}


def _chain(s: Sublayer, cache: Cached, p: Precision) -> dict[str, str]:
    """From the projection's own output to what is added: post-norm, then multiplier."""
    if s.raw == s.out:
        return {}
    raw, out = cache[s.raw].double(), cache[s.out].double()
    y, bound = (raw, torch.zeros_like(raw)) if s.post_norm is None else _norm(s.post_norm, raw, p)
    why = _exceeds(
        out - y * s.multiplier, abs(s.multiplier) * bound + 2 * p.storage * out.abs(), f"post-norm and multiplier of {s.raw} == {s.out}"
    )
    return {s.label: why} if why else {}


def _norm(norm: NormView, r: Tensor, p: Precision) -> tuple[Tensor, Tensor]:
    flat = r.flatten(0, -2)
    scale = norm.scale(flat)
    centred = norm.centre(flat)
    gain = torch.ones_like(flat[0]) if norm.gain is None else norm.gain.detach().double()
    bias = torch.zeros_like(gain) if norm.bias is None else norm.bias.detach().double()
    y = centred / scale * gain + bias
    condition = 1 + 2 * (flat - centred).square().amax(-1, keepdim=True) / centred.square().mean(-1, keepdim=True).clamp(min=1e-300)
    relative = 0.5 * gamma(r.shape[-1] + 4, p.norm) * condition + 5 * p.norm + 2 * p.mid + p.out
    shift = gamma(r.shape[-1], p.norm) * flat.abs().mean(-1, keepdim=True) / scale * gain.abs()
    bound = relative * ((y - bias).abs() + bias.abs()) + shift
    return y.view_as(r), bound.view_as(r)


def _readout(view: DecoderView, logits: Tensor, cache: Cached, p: Precision) -> str:
    readout, last = view.readout, cache[view.blocks[-1].post].double()
    y, error = (last, torch.zeros_like(last)) if readout.norm is None else _norm(readout.norm, last, p)
    W = readout.W_U.detach().double()
    pre, modulus = y @ W, y.abs() @ W.abs()
    if readout.b_U is not None:
        pre, modulus = pre + readout.b_U.double(), modulus + readout.b_U.double().abs()
    bound = readout.multiplier * (_product_bound(W.shape[0] + 1, modulus, pre, p) + error @ W.abs())
    expected = readout.multiplier * pre
    if readout.soft_cap is not None:
        expected = readout.soft_cap * torch.tanh(expected / readout.soft_cap)
    bound = bound + 8 * p.storage * expected.abs()
    return _exceeds(logits.double() - expected, bound, "final norm, unembedding, multiplier and soft cap == logits")


def _product_bound(n: int, modulus: Tensor, out: Tensor, p: Precision) -> Tensor:
    return (gamma(n, p.accumulate) + 2 * p.inputs) * modulus + p.out * out.abs()


def _bias_rounding(bias: Tensor | None, out: Tensor, p: Precision) -> Tensor:
    """Some modules (Falcon's) round the product to storage before they add the bias."""
    return torch.zeros_like(out) if bias is None else p.out * (out.abs() + bias.double().abs())


def _exceeds(gap: Tensor, bound: Tensor, identity: str) -> str:
    """Empty when the identity holds everywhere, else a sentence with the worst gap and its bound."""
    gap = gap.abs()
    ratios = torch.where(gap == 0, torch.zeros_like(gap), gap / bound).nan_to_num(nan=math.inf)
    if bool((ratios <= 1).all()):
        return ""
    i = int(ratios.argmax())
    return f"{identity} fails: gap {float(gap.flatten()[i]):.2g}, bound {float(bound.expand_as(gap).flatten()[i]):.2g}"

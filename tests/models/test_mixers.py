"""Each sublayer against its equation written out, and the two paths of those that have two."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from models import DecoderConfig, HookedDecoder
from models.attention import visible
from models.norms import Norm

from_mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1] * 6])
EXTRACTORS = ["she", "ishe", "he", "ihe", "kshe", "khe"]


def inputs(b=3, t=6, d=8, seed=0):
    return torch.randn(b, t, d, generator=torch.Generator().manual_seed(seed))


def scale_of(ext, mixer, n):
    """s_i of a row that sees `n` real rows, written out."""
    if mixer in ("ishe", "ihe"):
        return 1 / math.sqrt(n)
    if mixer in ("kshe", "khe"):
        lags = [(ext.W_ext if mixer == "kshe" else ext.w_lag)[k].detach() for k in range(n)]
        drawn = 1 / 3 if mixer == "khe" else 1 / (3 * ext.W_adj.shape[0])
        return 1 / math.sqrt(sum((W * W).sum() / W.numel() for W in lags) / drawn)
    return 1.0


@pytest.mark.parametrize("mixer", EXTRACTORS)
@pytest.mark.parametrize("mask", [None, from_mask], ids=["whole", "padded"])
def test_extractor_is_the_equation(make, mixer, mask):
    """[C23b, Eq. 1], element by element; s_i and the sum run over real rows only."""
    ext = make(mixer).double().blocks[0].attn
    x = inputs().double()
    out = ext(x, mask)
    for b in range(3):
        for i in range(6):
            real = [j for j in range(i + 1) if mask is None or mask[b, j]]
            if mask is not None and not mask[b, i]:
                continue
            s = scale_of(ext, mixer, len(real))
            gate = x[b, i] @ ext.W_adj + ext.b_adj
            if mixer in ("she", "ishe", "kshe"):
                want = (s * sum(x[b, j] @ ext.W_ext[i - j] for j in real) + ext.b_ext) * gate
            else:
                want = (s * sum(ext.w_lag[i - j] * (x[b, j] @ ext.W_in + ext.b_in) for j in real) * gate) @ ext.W_out + ext.b_out
            torch.testing.assert_close(out[b, i], want, rtol=1e-12, atol=1e-12)


def test_attention_is_the_equation(make):
    attn = make("mha").double().blocks[0].attn
    x = inputs().double()
    total = torch.zeros_like(x) + attn.b_O
    for h in range(2):
        q, k, v = (x @ W[h] + b[h] for W, b in ((attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K), (attn.W_V, attn.b_V)))
        scores = (q @ k.transpose(1, 2) / 2).masked_fill(~torch.ones(6, 6).tril().bool(), -torch.inf)
        total = total + scores.softmax(-1) @ v @ attn.W_O[h]
    torch.testing.assert_close(attn(x), total, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("act_fn", ["gelu", "relu"])
def test_feed_forward_is_the_equation(make, act_fn):
    mlp = make("she", act_fn=act_fn).double().blocks[0].mlp
    x = inputs().double()
    want = {"gelu": F.gelu, "relu": F.relu}[act_fn](x @ mlp.W_in + mlp.b_in) @ mlp.W_out + mlp.b_out
    torch.testing.assert_close(mlp(x), want, rtol=1e-12, atol=1e-12)
    assert torch.equal(mlp(x)[:, [3, 1]], mlp(x[:, [3, 1]]))  # each row alone


@settings(deadline=None, max_examples=40)
@given(
    kind=st.sampled_from(["ln", "rms"]),
    seed=st.integers(0, 999),
    shift=st.sampled_from([0.0, 3.0]),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_norm_paths_agree_within_the_stated_bound(kind, seed, shift, scale, dtype):
    generator = torch.Generator().manual_seed(seed)
    d = 16
    norm = Norm(kind, d, 1e-5).to(dtype)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_(generator=generator)
        x = (torch.randn(2, 5, d, generator=generator) * scale + shift).to(dtype)
        fused = norm(x)
        norm.force_explicit = True
        u = torch.finfo(dtype).eps / 2
        divisor = ((x - x.mean(-1, keepdim=True) if kind == "ln" else x).square().mean(-1, keepdim=True) + 1e-5).sqrt()
        bound = 8 * (d + 8) * u * (1 + x.abs().amax(-1, keepdim=True) / divisor) * norm.w.abs()
        bound = bound + (0 if norm.b is None else 2 * u * norm.b.abs())
        assert ((norm(x) - fused).abs() <= bound).all()


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 999), scale=st.sampled_from([0.1, 1.0, 5.0]), padded=st.booleans())
def test_attention_paths_agree_within_the_stated_bound(seed, scale, padded):
    torch.manual_seed(seed)
    model = HookedDecoder(DecoderConfig(n_layers=1, d_model=8, n_ctx=6, d_vocab=5, n_heads=2, mixer="mha", mixer_bias=True))
    attn, mask, cached = model.blocks[0].attn, from_mask if padded else None, {}
    for name in ("q", "k", "v", "z"):  # none of these wants the explicit path
        getattr(attn, f"hook_{name}").add_hook(lambda tensor, hook, name=name: cached.__setitem__(name, tensor.detach().double()))
    x = inputs(seed=seed) * scale
    with torch.no_grad():
        attn(x, mask)
        fused = cached["z"]
        attn.force_explicit = True
        attn(x, mask)
    T, e, u = 6, 4, 2.0**-24

    def gamma(n):
        return n * u / (1 - n * u)

    q, k, v = (cached[name].transpose(1, 2) for name in "qkv")
    delta = gamma(e + 4) * (q.abs() @ k.abs().mT).amax(-1, keepdim=True) / math.sqrt(e)
    A = (q @ k.mT / math.sqrt(e)).masked_fill(~visible(x, mask), -torch.inf).softmax(-1)
    bound = (4 * delta + 2 * gamma(T + 8)) * (A @ v.abs())
    gap = (cached["z"] - fused).abs().transpose(1, 2)
    assert (gap <= bound * (1 + 1e-3) + 1e-30).all()


def test_padded_keys_get_no_weight(make):
    model = make("mha")
    _, cache = model.run_with_cache(torch.ones(3, 6, dtype=torch.long), attention_mask=from_mask, names_filter="blocks.0.attn.hook_pattern")
    pattern = cache["blocks.0.attn.hook_pattern"]  # (b,h,i,j)
    for b, j in (from_mask == 0).nonzero().tolist():
        others = [i for i in range(6) if i != j]
        assert (pattern[b, :, others, j] == 0).all()
    torch.testing.assert_close(pattern.sum(-1), torch.ones(3, 2, 6))


# ---- the Extractor's own ledger view ----


@pytest.mark.parametrize("mixer", EXTRACTORS)
@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no biases"])
@pytest.mark.parametrize("mask", [None, from_mask], ids=["whole", "padded"])
def test_writes_and_constants_add_up_to_the_replay_and_to_the_output(make, mixer, bias, mask):
    ext, x = make(mixer, mixer_bias=bias).blocks[0].attn, inputs()
    gate = {}
    ext.hook_adjustment.add_hook(lambda tensor, hook: gate.update(hook_adjustment=tensor.detach()))
    out = ext(x, mask)
    acts = {"input": x, **gate, **({} if mask is None else {"attention_mask": mask})}
    rows = [2, 5, 3]
    u = torch.randn(3, 3, 8, dtype=torch.float64)
    writes, constants = ext.writes(acts, u, rows), ext.constants(acts, u, rows)
    assert writes.value.shape == writes.magnitude.shape == writes.square.shape == (3, 1, 3, 6)
    assert {t.dtype for t in writes[:3]} == {torch.float64}
    assert set(constants) == (({"b_in", "b_out"} if mixer in ("he", "ihe", "khe") else {"b_ext"}) if bias else set())
    total = writes.value.sum((1, 3)) + sum(constants.values())
    size = writes.magnitude.sum((1, 3)) + sum(c.abs() for c in constants.values())
    replay = (ext.replay(acts, rows) * u).sum(-1)
    assert ((total - replay).abs() <= 1e-13 * size).all()
    native = (out[:, rows].double() * u).sum(-1)
    assert ((total - native).abs() <= 6 * writes.terms * 2**-24 * size).all()
    assert (writes.value.abs() <= writes.magnitude * (1 + 1e-12)).all()
    assert (writes.value[:, :, 0, 3:] == 0).all()  # nothing from later rows
    if mask is not None:
        assert (writes.value[0, ..., :2] == 0).all()


@pytest.mark.parametrize("mixer", EXTRACTORS)
def test_a_source_writes_what_leaving_it_out_removes(make, mixer):
    """Labels are not certified by sums; an intervention sees them: zero source j at the kernel's input, the predicted amount goes."""
    ext, x = make(mixer).double().blocks[0].attn, inputs(1).double()
    i, j = 4, 1
    gate = (x @ ext.W_adj + ext.b_adj).detach()
    u = torch.randn(1, 1, 8, dtype=torch.float64)
    value = ext.writes({"input": x, "hook_adjustment": gate}, u, [i]).value[0, 0, 0, j]
    ext.hook_adjustment.add_hook(lambda tensor, hook: gate)
    before = ext(x)[0, i]
    if mixer in ("he", "ihe", "khe"):

        def drop(tensor, hook):
            tensor = tensor.clone()
            tensor[:, j] = ext.b_in  # what a zero row gives: its share of b_in is no source's
            return tensor

        ext.hook_value.add_hook(drop)
        after = ext(x)[0, i]
    else:
        x[:, j] = 0
        after = ext(x)[0, i]
    torch.testing.assert_close((before - after) @ u[0, 0], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mixer", ["she", "he"])
def test_magnitude_and_square_are_sums_over_the_terms(make, mixer):
    ext, x = make(mixer).double().blocks[0].attn, inputs(1).double()
    gate, u, i, j = (x @ ext.W_adj).detach(), torch.randn(1, 1, 8, dtype=torch.float64), 3, 1
    writes = ext.writes({"input": x, "hook_adjustment": gate}, u, [i])
    if mixer == "she":
        terms = x[0, j][:, None] * ext.W_ext[i - j] * (gate[0, i] * u[0, 0])
    else:
        value = torch.cat([x[0, j][:, None] * ext.W_in, ext.b_in[None]])  # (d+1, d)
        terms = value[:, :, None] * (ext.w_lag[i - j] * gate[0, i])[None, :, None] * ext.W_out[None] * u[0, 0]
    # b_in is a constant of the mixer; the moduli count it all the same, so that they bound the whole sum.
    torch.testing.assert_close(writes.value[0, 0, 0, j], (terms if mixer == "she" else terms[:-1]).sum())
    torch.testing.assert_close(writes.magnitude[0, 0, 0, j], terms.abs().sum())
    torch.testing.assert_close(writes.square[0, 0, 0, j], terms.square().sum())


def test_parameter_counts():
    """iSHE as many as SHE; HE as many as attention when l = d [C23b]."""

    def count(mixer, n_ctx):
        model = HookedDecoder(DecoderConfig(n_layers=1, d_model=8, n_ctx=n_ctx, d_vocab=5, mixer=mixer))
        return sum(p.numel() for p in model.blocks[0].attn.parameters())

    assert count("she", 6) == count("ishe", 6) == count("kshe", 6) == 6 * 64 + 64
    assert count("he", 6) == count("ihe", 6) == count("khe", 6) == 3 * 64 + 6 * 8
    assert count("he", 8) == count("mha", 8) == 4 * 64


@pytest.mark.parametrize(("mixer", "slope"), [("she", 1.0), ("ishe", 0.0), ("he", 1.0), ("ihe", 0.0), ("kshe", 0.0), ("khe", 0.0)])
def test_variance_law_at_initialisation(mixer, slope):
    """Normalised rows, weights of variance 1/(3d): variance 1/3 at row 1 for SHE, growing like i without s_i, flat with it."""
    torch.manual_seed(0)
    d, t = 32, 32
    variance = torch.zeros(t)
    for _ in range(4):
        ext = HookedDecoder(DecoderConfig(n_layers=1, d_model=d, n_ctx=t, d_vocab=5, mixer=mixer)).blocks[0].attn
        ext.hook_extraction.add_hook(lambda tensor, hook: variance.add_(tensor.detach().square().mean((0, 2))))
        with torch.no_grad():
            ext(F.layer_norm(torch.randn(64, t, d), (d,)))
    i = torch.arange(1.0, t + 1).log()
    i = i - i.mean()
    assert abs((i @ variance.log()) / (i @ i) - slope) < 0.1
    if mixer in ("she", "ishe", "kshe"):
        assert abs(variance[0] / 4 - 1 / 3) < 0.03


@pytest.mark.parametrize("mixer", ["kshe", "khe"])
def test_the_kernel_scale_follows_the_kernel_and_passes_its_gradient(make, mixer):
    """Twice the kernel, half the scale: the extraction does not change, so the gradient is at right angles to the kernel."""
    ext, x = make(mixer, mixer_bias=False).double().blocks[0].attn, inputs().double()
    before = ext(x)
    before.square().sum().backward()
    weight = ext.lag_weight
    assert weight.grad.abs().max() > 1e-6
    assert abs((weight.grad * weight).sum()) < 1e-9 * weight.grad.norm() * weight.norm()
    with torch.no_grad():
        weight.mul_(2)
        torch.testing.assert_close(ext(x), before, rtol=1e-12, atol=1e-12)
        weight.zero_()
        assert ext.half()(x.half()).isfinite().all()

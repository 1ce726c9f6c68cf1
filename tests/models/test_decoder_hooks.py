"""Hook points: the table of names, each alive in both directions, strict and copying caches, the fused path only when nobody listens."""

import gc
import weakref
from contextlib import nullcontext
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformer_lens.hook_points import HookPoint

from models import DecoderConfig, HookedDecoder

MIXERS = ["mha", "she", "ishe", "he", "ihe", "kshe", "khe"]
LAYOUTS = ["serial", "swapped", "parallel", "mixer_only", "ffn_only"]
NORMS = ["ln", "rms", "none"]
TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


def expected_names(mixer, layout, norm):
    ln = ["hook_scale", "hook_normalized"] if norm != "none" else []
    inside = {"mha": "q k v attn_scores pattern z", "she": "extraction adjustment", "he": "value extraction adjustment"}
    names = ["hook_embed"] + (["hook_pos_embed"] if mixer == "mha" else []) + [f"ln_final.{n}" for n in ln]
    for i in range(2):
        block = ["hook_resid_pre", "hook_resid_post"] + (["hook_resid_mid"] if layout in ("serial", "swapped") else [])
        if layout != "ffn_only":
            block += ["hook_attn_out"] + [f"ln1.{n}" for n in ln] + [f"attn.hook_{n}" for n in inside[mixer.lstrip("ik")].split()]
        if layout != "mixer_only":
            block += ["hook_mlp_out", "mlp.hook_pre", "mlp.hook_post"] + [f"ln2.{n}" for n in ln]
        names += [f"blocks.{i}.{name}" for name in block]
    return set(names)


@pytest.mark.parametrize(("mixer", "layout", "norm"), list(product(MIXERS, LAYOUTS, NORMS)))
def test_every_hook_point_is_the_tables_and_alive_in_both_directions(make, mixer, layout, norm):
    """TL#1526: a hook point that ignores edits. Replacing the value changes the output, a gradient arrives."""
    model = make(mixer, layout=layout, norm=norm)
    assert set(model.hook_dict) == expected_names(mixer, layout, norm)
    for name in model.hook_dict:
        torch.manual_seed(1)
        with torch.no_grad():
            clean = model.run_with_hooks(TOKENS, fwd_hooks=[(name, lambda tensor, hook: tensor * 1.0)])
            edited = model.run_with_hooks(TOKENS, fwd_hooks=[(name, lambda tensor, hook: tensor * (1 + 0.3 * torch.rand_like(tensor)))])
        assert edited.isfinite().all(), name
        assert not torch.equal(clean, edited), name
        grads = []
        model.add_hook(name, lambda grad, hook, grads=grads: grads.append(grad.clone()) or None, "bwd")
        model(TOKENS, return_type="loss").backward()
        model.reset_hooks()
        assert len(grads) == 1, name
        assert grads[0].isfinite().all() and (grads[0] != 0).any(), name


@pytest.mark.parametrize(("mixer", "layout"), list(product(MIXERS, LAYOUTS)))
def test_the_residual_stream_adds_up(make, mixer, layout):
    """TL#1639, TL#1648: an out hook that holds something else than what is added. Bitwise, in the layout's order."""
    model = make(mixer, layout=layout)
    _, c = model.run_with_cache(TOKENS)
    stream = c["hook_embed"] + c["hook_pos_embed"] if mixer == "mha" else c["hook_embed"]
    for i in range(2):
        pre, post = c["resid_pre", i], c["resid_post", i]
        assert torch.equal(pre, stream)
        outs = [c[f"blocks.{i}.hook_{slot}_out"] for slot in ("attn", "mlp") if f"blocks.{i}.hook_{slot}_out" in c.cache_dict]
        if layout == "swapped":
            outs.reverse()
        stream = pre
        for n, out in enumerate(outs):
            stream = stream + out
            if n == 0 and layout in ("serial", "swapped"):
                assert torch.equal(stream, c["resid_mid", i])
        assert torch.equal(stream, post)


@pytest.mark.parametrize("norm", ["ln", "rms"])
def test_normalized_is_before_gain_and_bias_in_every_norm(make, norm):
    """TL#747: before the gain in one norm, after it in another."""
    model = make("ishe", norm=norm).double()
    _, c = model.run_with_cache(TOKENS)
    x = c["resid_post", 1]
    centred = x - x.mean(-1, keepdim=True) if norm == "ln" else x
    scale = (centred.square().mean(-1, keepdim=True) + model.config.norm_eps).sqrt()
    torch.testing.assert_close(c["ln_final.hook_scale"], scale)
    torch.testing.assert_close(c["ln_final.hook_normalized"], centred / scale)
    logits = model.unembed(model.ln_final.affine(c["ln_final.hook_normalized"]))
    torch.testing.assert_close(logits, model(TOKENS))


def test_only_a_listener_takes_the_explicit_path(make, monkeypatch):
    model, calls = make("mha"), []
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or fused(*a, **k))

    def fused_layers():
        calls.clear()
        model(TOKENS)
        return len(calls)

    assert fused_layers() == 2
    point: HookPoint = model.hook_dict["blocks.0.attn.hook_pattern"]
    for register in (point.register_forward_hook, point.register_forward_pre_hook, point.register_full_backward_hook):
        handle = register(lambda *args: None)
        assert fused_layers() == 1
        handle.remove()
    for direction in ("fwd", "bwd"):
        model.add_hook("blocks.1.attn.hook_attn_scores", lambda tensor, hook: None, direction)
        assert fused_layers() == 1
        model.reset_hooks()
    model.add_hook("blocks.1.attn.hook_z", lambda tensor, hook: None)
    assert fused_layers() == 2
    model.reset_hooks()
    with model.explicit(), model.explicit():
        assert fused_layers() == 0
    assert fused_layers() == 2
    with pytest.raises(KeyboardInterrupt), model.explicit():
        raise KeyboardInterrupt
    assert fused_layers() == 2


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_null_experiment_inside_explicit_is_bitwise_zero(make, mixer):
    model = make(mixer)
    with model.explicit(), torch.no_grad():
        base = model(TOKENS)
        for name in model.hook_dict:
            assert torch.equal(base, model.run_with_hooks(TOKENS, fwd_hooks=[(name, lambda tensor, hook: tensor.clone())])), name


@settings(deadline=None, max_examples=30)
@given(
    mixer=st.lists(st.sampled_from(MIXERS), min_size=2, max_size=2),
    layout=st.lists(st.sampled_from(LAYOUTS), min_size=2, max_size=2),
    norm=st.sampled_from(NORMS),
    act_fn=st.sampled_from(["gelu", "relu"]),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_fused_and_explicit_logits_agree_for_every_mixture(mixer, layout, norm, act_fn, bias, seed):
    config = DecoderConfig(
        n_layers=2,
        d_model=8,
        n_ctx=6,
        d_vocab=23,
        n_heads=2,
        mixer=mixer,
        layout=layout,
        norm=norm,
        act_fn=act_fn,
        mixer_bias=bias,
        mlp_bias=bias,
    )
    torch.manual_seed(seed)
    model = HookedDecoder(config).double()
    with torch.no_grad():
        fused = model(TOKENS)
        with model.explicit():
            torch.testing.assert_close(model(TOKENS), fused, rtol=1e-10, atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(
    mixer=st.lists(st.sampled_from(MIXERS), min_size=2, max_size=2),
    layout=st.sampled_from(LAYOUTS),
    norm=st.sampled_from(NORMS),
    explicit=st.booleans(),
    seed=st.integers(0, 99),
)
def test_causal_bitwise_at_a_fixed_shape(mixer, layout, norm, explicit, seed):
    torch.manual_seed(seed)
    model = HookedDecoder(DecoderConfig(n_layers=2, d_model=8, n_ctx=9, d_vocab=23, n_heads=2, mixer=mixer, layout=layout, norm=norm))
    for module in model.modules():
        if hasattr(module, "force_explicit"):
            module.force_explicit = explicit
    tokens = torch.randint(23, (2, 9))
    with torch.no_grad():
        before = model(tokens)
        for i in range(1, 9):
            later = tokens.clone()
            later[:, i:] = (later[:, i:] + 1 + torch.randint(21, (2, 9 - i))) % 23
            assert torch.equal(model(later)[:, :i], before[:, :i])


# ---- the cache ----


def test_a_mistyped_name_raises_with_the_nearest(make):
    model = make("ishe")
    with pytest.raises(ValueError, match=r"no hook point 'blocks.0.hook_resid_poste': did you mean .*'blocks.0.hook_resid_post'"):
        model.run_with_cache(TOKENS, names_filter="blocks.0.hook_resid_poste")
    with pytest.raises(ValueError, match="no hook point 'hook_embd'"):
        model.run_with_cache(TOKENS, names_filter=["hook_embed", "hook_embd"])
    with pytest.raises(ValueError, match="matches no hook point"):
        model.run_with_cache(TOKENS, names_filter=lambda name: "pattern" in name)
    with pytest.raises(ValueError, match="no hook point 'hook_embd'"):
        model.run_with_hooks(TOKENS, fwd_hooks=[("hook_embd", lambda tensor, hook: None)])
    with pytest.raises(ValueError, match="no hook point"):
        model.add_caching_hooks("hook_embd")
    assert not model.list_hooks()


@pytest.mark.parametrize("mixer", ["mha", "she"])
def test_cached_tensors_never_change_after_the_run(make, mixer):
    """TL 4.3 caches aliases, so an in-place edit by a later hook rewrites the cache; and W_pos was one of them."""
    model = make(mixer, norm="none")
    W_pos = model.W_pos.clone() if mixer == "mha" else None
    with torch.no_grad(), model.explicit():
        _, clean = model.run_with_cache(TOKENS)
        for name in model.hook_dict:
            cache, hooks, _ = model.get_caching_hooks(name)

            def scramble(tensor, hook):
                tensor += 7.0

            model.run_with_hooks(TOKENS, fwd_hooks=[*hooks, (name, scramble)])
            assert torch.equal(cache[name], clean[name]), name
    pointers = [tensor.data_ptr() for tensor in clean.values()]
    assert len(set(pointers)) == len(pointers)
    if W_pos is not None:
        assert torch.equal(model.W_pos, W_pos)


def test_cached_values_are_those_of_the_run_that_made_them(make):
    model = make("mha")
    logits, cache = model.run_with_cache(TOKENS)
    assert torch.equal(logits, model.unembed(model.ln_final.affine(cache["ln_final.hook_normalized"])))


def test_positions_are_sliced_along_each_hooks_own_axis(make):
    """TL 4.3 knows the axis by a list of spellings; here a user's head-split hook outside it."""

    class Odd(torch.nn.Module):
        def __init__(self, config, layer):
            super().__init__()
            self.hook_split, self.hook_channels = HookPoint(), HookPoint()
            self.hook_channels.pos_dim = 2

        def forward(self, x, attention_mask=None):
            heads = self.hook_split(x.unflatten(-1, (2, 4)))  # (b,t,h,e): the position axis is 1
            return self.hook_channels(heads.flatten(2).transpose(1, 2)).transpose(1, 2)  # (b,d,t): it is 2

    for model in (make("mha"), make("odd", mixers={"odd": Odd})):
        _, whole = model.run_with_cache(TOKENS)
        _, cut = model.run_with_cache(TOKENS, pos_slice=[1, 3])
        for name, hook in model.hook_dict.items():
            axis = 1 if hook.pos_dim is None else hook.pos_dim
            assert torch.equal(cut[name], whole[name].index_select(axis, torch.tensor([1, 3]))), name


def test_transformerlens_keywords(make):
    model = make("ishe")
    loss, cache = model.run_with_cache(TOKENS[:1], return_type="loss", incl_bwd=True, remove_batch_dim=True, device="cpu")
    assert loss.ndim == 0 and not cache.has_batch_dim
    assert cache["blocks.0.hook_resid_pre"].shape == cache["blocks.0.hook_resid_pre_grad"].shape == (5, 8)
    with pytest.raises(TypeError, match="nope"):
        model.run_with_cache(TOKENS, nope=1)
    cache = model.add_caching_hooks("hook_embed")
    model(TOKENS)
    assert list(cache) == ["hook_embed"]


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("ending", ["normal", RuntimeError, KeyboardInterrupt])
def test_hook_census_is_unchanged_whatever_happens(make, direction, ending):
    """TL#1636, TL#1323, captum#370."""
    model = make("mha")
    model.add_hook("hook_embed", lambda tensor, hook: None, direction)
    model.add_perma_hook("blocks.0.hook_resid_post", lambda tensor, hook: None, direction)
    model.hook_dict["ln_final.hook_scale"].register_forward_hook(lambda *args: None)

    def census():
        return {
            name: [
                list(hooks) for hooks in (point._forward_hooks, point._forward_pre_hooks, point._backward_hooks, point._backward_pre_hooks)
            ]
            for name, point in model.hook_dict.items()
        }

    def fail(tensor, hook):
        raise ending("stop")

    before = census()
    own = [] if ending == "normal" else [("blocks.1.hook_resid_pre", fail)]
    with model.hooks(fwd_hooks=[("blocks.1.hook_resid_post", lambda tensor, hook: None)]):  # nested
        inside = census()
        with nullcontext() if ending == "normal" else pytest.raises(ending), model.hooks(fwd_hooks=own):
            model.run_with_cache(TOKENS, return_type="loss", incl_bwd=direction == "bwd")
        assert census() == inside
    assert census() == before


def test_a_dropped_cache_is_freed(make):
    """nnsight#538: cycles that keep activations alive."""
    model = make("mha")
    logits, cache = model.run_with_cache(TOKENS)
    refs = [weakref.ref(cache["hook_embed"]), weakref.ref(logits)]
    gc.disable()
    try:
        del cache, logits
        assert [ref() for ref in refs] == [None, None]
    finally:
        gc.enable()


# ---- modes, devices, types ----


def test_dropout_only_in_training_and_only_between_sublayer_and_stream(make):
    """TL#1787: active dropout gives non-zero effects for identical inputs."""
    model = make("ishe", dropout=0.5)
    assert torch.equal(model(TOKENS), model(TOKENS))
    model.train()
    assert not torch.equal(model(TOKENS), model(TOKENS))
    _, c = model.run_with_cache(TOKENS)
    assert (c["blocks.0.hook_attn_out"] == 0).float().mean() > 0.2
    assert torch.equal(c["resid_pre", 0] + c["attn_out", 0], c["resid_mid", 0])
    with pytest.raises(ValueError, match=r"call model.eval\(\) first"):
        model.generate(TOKENS[:1], 2)


@pytest.mark.parametrize("mixer", MIXERS)
def test_no_implicit_device(mixer):
    """TL#1508: green on CPU, broken elsewhere."""
    with torch.device("meta"):
        model = HookedDecoder(DecoderConfig(n_layers=2, d_model=8, n_ctx=9, d_vocab=23, mixer=mixer, norm="rms"))
    tokens, mask = torch.zeros(2, 5, dtype=torch.long, device="meta"), torch.ones(2, 5, dtype=torch.long, device="meta")
    for explicit in (False, True):
        for module in model.modules():
            module.force_explicit = explicit
        logits, loss = model(tokens, return_type="both", attention_mask=mask)
        assert logits.is_meta and logits.shape == (2, 5, 23) and loss.is_meta
        _, cache = model.run_with_cache(tokens)
        assert all(tensor.is_meta for tensor in cache.values())
    assert model.cfg.device == "meta"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mixer", MIXERS)
def test_16_bit_decoders_run_and_stay_near_float32(make, mixer, dtype):
    reference = make(mixer)(TOKENS)
    model = make(mixer).to(dtype)
    logits, cache = model.run_with_cache(TOKENS)
    assert logits.dtype == cache["blocks.0.hook_resid_post"].dtype == dtype
    assert cache["ln_final.hook_scale"].dtype == torch.float32  # norm statistics are taken in float32
    assert model(TOKENS, return_type="loss").dtype == torch.float32
    for ours in (logits, model(TOKENS)):
        assert (ours.float() - reference).abs().max() < (0.3 if dtype == torch.bfloat16 else 0.04) * reference.abs().max()
    model(TOKENS, return_type="loss").backward()
    assert all(p.grad.dtype == dtype for p in model.parameters() if p.grad is not None)


def test_an_unknown_mixer_raises_with_the_nearest():
    with pytest.raises(ValueError, match=r"unknown mixer 'ishee' \(did you mean 'ishe'"):
        HookedDecoder(DecoderConfig(n_layers=1, d_model=8, n_ctx=9, d_vocab=23, mixer="ishee"))

"""TransformerLens' own tools, called as its users call them, on attention and on an Extractor."""

import pytest
import torch
from torch.utils.data import Dataset
from transformer_lens import patching
from transformer_lens.model_protocol import TrainableTransformerLensModel, TransformerLensModelWithWeights
from transformer_lens.tools.analysis import direct_logit_attribution, logit_lens
from transformer_lens.tools.training import TrainConfig, train

MIXERS = ["mha", "ishe", "he"]
NORMS = ["ln", "rms", "none"]
CLEAN, CORRUPTED = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]), torch.tensor([[3, 7, 4, 1, 5], [9, 2, 8, 5, 3]])


@pytest.fixture
def run(make):
    def run(mixer, norm="ln", **fields):
        model = make(mixer, norm=norm, **fields)
        with torch.no_grad():
            return model, *model.run_with_cache(CLEAN)

    return run


def last(logits):
    return logits[:, -1].pow(3).sum()


@pytest.mark.parametrize("mixer", MIXERS)
def test_runtime_protocols_accept_our_decoders(make, mixer):
    model = make(mixer)
    assert isinstance(model, TransformerLensModelWithWeights)
    assert isinstance(model, TrainableTransformerLensModel)


def test_cfg_carries_the_field_names(make):
    cfg = make("mha", norm="rms", layout="mixer_only").cfg
    assert (cfg.n_layers, cfg.n_heads, cfg.d_head, cfg.d_model, cfg.d_mlp, cfg.d_vocab, cfg.n_ctx) == (2, 2, 4, 8, 32, 23, 10)
    assert (cfg.normalization_type, cfg.attn_only, cfg.positional_embedding_type, cfg.device) == ("RMS", True, "standard", "cpu")
    assert make("she", norm="none").cfg.normalization_type is None
    assert make("she", layout=("mixer_only", "serial")).cfg.attn_only is False
    assert make("she").half().cfg.dtype == torch.float16


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("norm", NORMS)
def test_direct_logit_attribution_sums_to_the_logit(run, mixer, norm):
    """Less the parts no component produces, b_U and b_norm . W_U. The directions carry the final gain, or it would be 5.80 for 4.75."""
    model, logits, cache = run(mixer, norm)
    constant = model.b_U + (model.ln_final.b @ model.W_U if norm == "ln" else 0)
    want = logits[:, -1] - constant
    for answer, target in ((7, want[:, 7]), (torch.tensor([4, 2]), want[[0, 1], [4, 2]])):
        dla = direct_logit_attribution(model, CLEAN, answer_tokens=answer)
        torch.testing.assert_close(dla.attribution.sum(0), target, rtol=1e-4, atol=1e-4)
        assert dla.labels == ["embed", *(["pos_embed"] if mixer == "mha" else []), "0_attn_out", "0_mlp_out", "1_attn_out", "1_mlp_out"]
    stack = cache.decompose_resid(apply_ln=False, pos_slice=-1)
    difference = cache.logit_attrs(stack, 7, incorrect_tokens=3, pos_slice=-1)
    torch.testing.assert_close(difference.sum(0), want[:, 7] - want[:, 3], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["swapped", "parallel", "mixer_only"])
def test_direct_logit_attribution_in_the_other_layouts(run, layout):
    model, logits, _ = run("ishe", layout=layout)
    dla = direct_logit_attribution(model, CLEAN, answer_tokens=7)
    want = (logits[:, -1] - model.b_U - model.ln_final.b @ model.W_U)[:, 7]
    torch.testing.assert_close(dla.attribution.sum(0), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("norm", NORMS)
def test_decompose_and_accumulate(run, mixer, norm):
    _, _, cache = run(mixer, norm)
    stack, labels = cache.decompose_resid(return_labels=True)
    assert len(stack) == len(labels)
    torch.testing.assert_close(stack.sum(0), cache["resid_post", -1])
    accumulated, labels = cache.accumulated_resid(incl_mid=True, return_labels=True)
    assert labels == ["0_pre", "0_mid", "1_pre", "1_mid", "final_post"]
    assert torch.equal(accumulated[1], cache["resid_mid", 0])
    for layer in (0, 1):
        scaled = cache.decompose_resid(layer, mlp_input=True, apply_ln=True)
        if norm != "none":
            torch.testing.assert_close(scaled.sum(0), cache[f"blocks.{layer}.ln2.hook_normalized"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("norm", NORMS)
def test_logit_lens_ends_in_the_models_logits(run, mixer, norm):
    model, logits, cache = run(mixer, norm)
    for result in (logit_lens(model, CLEAN), cache.logit_lens()):
        torch.testing.assert_close(result.values[-1], logits[:, -1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        logit_lens(model, CLEAN, incl_mid=True, positions=None).values[1],
        model.unembed(normed(model, cache["resid_mid", 0])),
        rtol=1e-4,
        atol=1e-4,
    )


def normed(model, x):
    return x if model.ln_final is None else model.ln_final(x)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("name", ["resid_pre", "resid_mid", "attn_out", "mlp_out"])
def test_patching_by_position(run, mixer, name):
    model, logits, cache = run(mixer)
    with torch.no_grad():
        weights = {key: value.clone() for key, value in model.state_dict().items()}
        result = getattr(patching, f"get_act_patch_{name}")(model, CORRUPTED, cache, last)
        assert result.shape == (2, 5) and result.unique().numel() > 2
        if name == "resid_pre":  # row 0 differs at position 1, row 1 at position 2; both restored brings the clean answer back
            both = model.run_with_hooks(CORRUPTED, fwd_hooks=[("blocks.0.hook_resid_pre", lambda tensor, hook: cache[hook.name])])
            torch.testing.assert_close(both, logits)
        assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("mixer", MIXERS)
def test_patching_every_block(run, mixer):
    model, _, cache = run(mixer)
    with torch.no_grad():
        assert patching.get_act_patch_block_every(model, CORRUPTED, cache, last).shape == (3, 2, 5)


head_tools = {
    "attn_head_out_by_pos": (2, 5, 2),
    "attn_head_q_all_pos": (2, 2),
    "attn_head_pattern_all_pos": (2, 2),
    "attn_head_all_pos_every": (5, 2, 2),
}


@pytest.mark.parametrize("tool", head_tools)
def test_tools_that_need_heads(run, tool):
    model, _, cache = run("mha")
    call = getattr(patching, f"get_act_patch_{tool}")
    with torch.no_grad():
        assert call(model, CORRUPTED, cache, last).shape == head_tools[tool]
        model, _, cache = run("ishe")
        with pytest.raises(KeyError, match=r"blocks.0.attn.hook_(z|q|pattern)"):  # TransformerLens' own error
            call(model, CORRUPTED, cache, last)


@pytest.mark.parametrize("layer", [1, None])
def test_head_results_and_the_full_decomposition(run, layer):
    """TL#523, llm-transparency-tool#35: stacks that do not add up on raw weights, biases counted twice."""
    model, _, cache = run("mha")
    stream = cache["resid_pre", 1] if layer == 1 else cache["resid_post", 1]
    stack, labels = cache.get_full_resid_decomposition(layer, return_labels=True)
    torch.testing.assert_close(stack.sum(0), stream, rtol=1e-4, atol=1e-4)
    heads, labels = cache.stack_head_results(return_labels=True)
    assert labels == ["L0H0", "L0H1", "L1H0", "L1H1"]
    torch.testing.assert_close(heads[:2].sum(0) + model.blocks[0].attn.b_O, cache["attn_out", 0], rtol=1e-4, atol=1e-4)
    model, _, cache = run("ishe")
    with pytest.raises(KeyError, match="hook_z"):
        cache.stack_head_results()
    assert torch.equal(run("he")[0].accumulated_bias(1), sum(run("he")[0].get_parameter(f"blocks.0.{n}.b_out") for n in ("attn", "mlp")))


class Repeats(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        return {"tokens": torch.arange(i, i + 8) % 23}


@pytest.mark.parametrize("mixer", ["mha", "she", "ishe", "he", "ihe"])
def test_transformerlens_training_loop(make, mixer):
    model = make(mixer)
    tokens = torch.stack([Repeats()[i]["tokens"] for i in range(32)])
    before = model(tokens, return_type="loss").item()
    train(model, TrainConfig(num_epochs=8, batch_size=8, lr=1e-2, device="cpu", print_every=None), Repeats())
    assert model.eval()(tokens, return_type="loss").item() < before - 1

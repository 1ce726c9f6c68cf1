"""A ledger from a padded batch is the ledger of the prompt alone, on either side; grouped queries equal their expanded twin."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import interp
from interp.huggingface import as_bridge, quiet
from models import DecoderConfig, HookedDecoder

SLOW_START = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


@SLOW_START
@given(
    mixer=st.sampled_from(["mha", "she", "ishe", "he", "ihe", "kshe", "khe"]),
    side=st.sampled_from(["left", "right"]),
    length=st.integers(1, 7),
    extra=st.integers(1, 4),
    by=st.sampled_from(["component", "head", "source", "head+source", "lag", "neuron"]),
    seed=st.integers(0, 100),
)
def test_a_ledger_out_of_a_padded_batch_is_the_ledger_alone(mixer: str, side: Any, length: int, extra: int, by: Any, seed: int) -> None:
    torch.manual_seed(seed)
    config = DecoderConfig(n_layers=2, d_model=12, n_ctx=12, d_vocab=17, mixer=mixer, n_heads=3, mixer_bias=True, unembed_bias=True)
    model = HookedDecoder(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    short, long = torch.randint(0, 17, (length,)), torch.randint(0, 17, (length + extra,))
    alone = interp.ledger(model, short, answer=3, against=5, by=by)
    with model.explicit():
        logits, cache = interp.run_with_cache(model, [long.tolist(), short.tolist()], padding_side=side)
    real = cache.attention_mask[1].bool()
    batched = interp.ledger(model, (logits[1:, real], cache.prompt(1)), answer=3, against=5, by=by)
    assert batched.labels == alone.labels
    assert np.allclose(batched.values[:-1], alone.values[:-1], rtol=0, atol=2 * alone.certificate["native"].proved + 1e-5)
    assert batched.holds


def llama(kv_heads: int, heads: int, seed: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=17,
        hidden_size=4 * heads,
        intermediate_size=10,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=16,
        attention_bias=True,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    return model


def bridged(model: LlamaForCausalLM) -> Any:
    model.config._attn_implementation = "eager"
    words = Tokenizer(WordLevel({f"t{i}": i for i in range(17)}, unk_token="t0"))
    with quiet():
        return as_bridge(model, PreTrainedTokenizerFast(tokenizer_object=words, unk_token="t0", pad_token="t0"), "llama")


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 1), (4, 2), (4, 4), (6, 2), (6, 3)])
def test_grouped_queries_equal_a_twin_whose_key_value_heads_are_expanded(heads: int, kv_heads: int) -> None:
    """The wrong key/value head for a query head would show: the twin has one of its own for each."""
    grouped, twin = llama(kv_heads, heads, 3), llama(heads, heads, 4)
    state = grouped.state_dict()
    for name in list(state):
        if "k_proj" in name or "v_proj" in name:
            per_head = state[name].unflatten(0, (kv_heads, 4))
            state[name] = per_head.repeat_interleave(heads // kv_heads, 0).flatten(0, 1)
    twin.load_state_dict(state)
    ids = torch.tensor([3, 9, 2, 14, 5])
    models = [bridged(grouped), bridged(twin)]
    for by in ("head", "head+source"):
        one, other = (interp.ledger(m, ids, answer=3, against=5, by=by) for m in models)
        assert one.holds
        assert other.holds
        assert one.labels == other.labels
        assert np.allclose(one.values[:-1], other.values[:-1], rtol=0, atol=1e-5)

"""A prompt's result alone equals its result inside any padded batch, left or right (TL#1609, nnsight#672)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models import DecoderConfig, HookedDecoder

MIXERS = ["mha", "she", "ishe", "he", "ihe", "kshe", "khe"]
LAYOUTS = ["serial", "swapped", "parallel", "mixer_only", "ffn_only"]


def perturbed(config, seed=0):
    torch.manual_seed(seed)
    model = HookedDecoder(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


@settings(deadline=None, max_examples=60)
@given(
    mixer=st.lists(st.sampled_from(MIXERS), min_size=2, max_size=2),
    layout=st.sampled_from(LAYOUTS),
    norm=st.sampled_from(["ln", "rms", "none"]),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    left=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    positions=st.sampled_from(["learned", "none"]),
    explicit=st.booleans(),
    seed=st.integers(0, 99),
)
def test_padding_equals_alone(mixer, layout, norm, lengths, left, positions, explicit, seed):
    config = DecoderConfig(
        n_layers=2, d_model=8, n_ctx=10, d_vocab=23, n_heads=2, mixer=mixer, layout=layout, norm=norm, positions=positions, mixer_bias=True
    )
    model = perturbed(config, seed)
    for module in model.modules():
        if hasattr(module, "force_explicit"):
            module.force_explicit = explicit
    width = max(n + pad for n, pad in zip(lengths, left, strict=False))
    tokens, mask = torch.randint(23, (len(lengths), width)), torch.zeros(len(lengths), width, dtype=torch.long)
    for row, (n, pad) in enumerate(zip(lengths, left, strict=False)):
        mask[row, pad : pad + n] = 1
    with torch.no_grad():
        batch = model(tokens, attention_mask=mask)
        assert batch.isfinite().all()
        for row, (n, pad) in enumerate(zip(lengths, left, strict=False)):
            alone = model(tokens[row, pad : pad + n])
            torch.testing.assert_close(batch[row, pad : pad + n], alone[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("mixer", MIXERS)
def test_what_stands_in_the_padding_changes_nothing_bitwise(make, mixer):
    model, mask = make(mixer), torch.tensor([[0, 0, 1, 1, 1, 0]])
    tokens, other = torch.tensor([[1, 2, 3, 4, 5, 6]]), torch.tensor([[9, 8, 3, 4, 5, 7]])
    assert torch.equal(model(tokens, attention_mask=mask)[:, 2:5], model(other, attention_mask=mask)[:, 2:5])
    assert not torch.equal(model(tokens)[:, 2:5], model(other)[:, 2:5])


def test_loss_counts_pairs_of_real_tokens_only(make):
    model = make("ishe").double()
    tokens, mask = torch.randint(23, (2, 7)), torch.tensor([[0, 0, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0, 0]])
    a, b = model(tokens[0, 2:6], return_type="loss"), model(tokens[1, :3], return_type="loss")
    torch.testing.assert_close(model(tokens, return_type="loss", attention_mask=mask), (3 * a + 2 * b) / 5)
    logits, loss = model(tokens[0, 2:6], return_type="both")
    torch.testing.assert_close(loss, -logits.log_softmax(-1)[0, [0, 1, 2], tokens[0, 3:6]].mean())


def test_a_mask_of_ones_is_no_mask(make):
    model, tokens = make("mha"), torch.randint(23, (2, 7))
    assert torch.equal(model(tokens), model(tokens, attention_mask=torch.ones(2, 7)))


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_batch_of_one_equals_its_row_in_a_batch_of_many(make, mixer):
    """circuit-tracer#88: a bare squeeze that drops the batch axis."""
    model, tokens = make(mixer).double(), torch.randint(23, (4, 1))
    many = model(tokens)
    assert many.shape == (4, 1, 23)
    torch.testing.assert_close(model(tokens[:1]), many[:1])


@pytest.mark.parametrize(
    ("tokens", "mask", "message"),
    [
        (torch.zeros(1, 11, dtype=torch.long), None, "11 tokens, this decoder takes 10: cut the input to 10 tokens"),
        (torch.zeros(1, 0, dtype=torch.long), None, "empty input: a decoder needs at least one token"),
        (torch.full((1, 3), 23), None, r"token ids must be in \[0, 23\), got 23..23"),
        (torch.full((1, 3), -1), None, r"token ids must be in \[0, 23\), got -1..-1"),
        (torch.zeros(1, 3), None, "tokens must be integer ids"),
        (torch.zeros(1, 1, 3, dtype=torch.long), None, "tokens must be integer ids"),
        (torch.zeros(1, 3, dtype=torch.long), torch.ones(1, 2), r"attention_mask must have the tokens' shape \(1, 3\), got \(1, 2\)"),
        (torch.zeros(1, 3, dtype=torch.long), torch.tensor([[1, 0, 1]]), "one contiguous run of 1"),
        (torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 3), "one contiguous run of 1"),
        (torch.zeros(1, 3, dtype=torch.long), torch.tensor([[0, 2, 1]]), "must be 0 or 1"),
    ],
)
def test_bad_input_is_named(make, tokens, mask, message):
    with pytest.raises(ValueError, match=message):
        make("ishe")(tokens, attention_mask=mask)


def test_bad_return_type_and_too_few_tokens_for_a_loss(make):
    with pytest.raises(ValueError, match="return_type must be one of 'logits', 'loss', 'both', got 'los'"):
        make("ishe")(torch.zeros(1, 3, dtype=torch.long), return_type="los")
    with pytest.raises(ValueError, match="at least two tokens"):
        make("ishe")(torch.zeros(1, 1, dtype=torch.long), return_type="loss")

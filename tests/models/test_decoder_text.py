"""Tokens in, tokens out: text, single tokens, generation."""

import pytest
import torch


@pytest.fixture
def reader(make, tokenizer):
    return make("ishe", d_vocab=tokenizer.get_vocab_size(), tokenizer=tokenizer, n_ctx=16)


def test_text_and_its_tokens_are_one(reader):
    tokens = reader.to_tokens("a cat sat")
    assert tokens.shape[0] == 1 and reader.to_string(tokens) == ["a cat sat"]
    assert reader.to_string(tokens[0]) == "a cat sat" == "".join(reader.to_str_tokens("a cat sat"))
    assert reader.to_str_tokens(tokens) == reader.to_str_tokens("a cat sat")
    assert torch.equal(reader("a cat sat"), reader(tokens))
    assert reader.to_single_token(" cat") in tokens[0].tolist()


def test_texts_of_different_lengths_are_padded_and_masked(reader):
    texts = ["a cat", "a cat sat on a mat"]
    batch = reader(texts)
    for row, text in enumerate(texts):
        alone = reader(text)
        torch.testing.assert_close(batch[row : row + 1, : alone.shape[1]], alone)
    with pytest.raises(ValueError, match="different numbers of tokens"):
        reader.to_tokens(texts)
    assert reader.to_tokens(["a cat", "a mat"]).shape[0] == 2


def test_bad_text_is_named(reader):
    with pytest.raises(ValueError, match="text '' has no token"):
        reader("")
    with pytest.raises(ValueError, match="' cat sat' is 2 tokens"):
        reader.to_single_token(" cat sat")
    with pytest.raises(ValueError, match="this decoder takes 16: cut the input to 16 tokens"):
        reader("a cat sat on a mat, " * 9)
    with pytest.raises(ValueError, match="prepend_bos"):
        reader.to_tokens("a cat", prepend_bos=True)
    with pytest.raises(ValueError, match="attention_mask goes with token ids"):
        reader("a cat", attention_mask=torch.ones(1, 2))


def test_greedy_takes_the_likeliest_token_each_time(make):
    model, tokens = make("mha"), torch.tensor([[3, 1], [4, 5]])
    out = model.generate(tokens, 6, temperature=0)
    assert out.shape == (2, 8) and torch.equal(out[:, :2], tokens)
    for n in range(2, 8):
        assert torch.equal(model(out[:, :n])[:, -1].argmax(-1), out[:, n])
    assert torch.equal(out, model.generate(tokens, 6, top_k=1, seed=3))


def test_sampling_follows_seed_temperature_and_top_k(make):
    model, tokens = make("ishe"), torch.tensor([[3, 1]]).expand(400, 2)
    draws = model.generate(tokens, 1, seed=1)[:, -1]
    assert torch.equal(draws, model.generate(tokens, 1, seed=1)[:, -1])
    assert not torch.equal(draws, model.generate(tokens, 1, seed=2)[:, -1])
    logits = model(tokens[:1])[0, -1]
    assert set(model.generate(tokens, 1, top_k=3, seed=1)[:, -1].tolist()) == set(logits.topk(3).indices.tolist())
    counts = torch.bincount(draws, minlength=23) / 400
    assert (counts - logits.softmax(-1)).abs().max() < 0.1
    assert len(set(model.generate(tokens, 1, temperature=0.05, seed=1)[:, -1].tolist())) < len(set(draws.tolist()))


def test_text_generates_text(reader):
    state = torch.get_rng_state()
    out = reader.generate("a cat", 4, seed=0)
    assert isinstance(out, str) and out.startswith("a cat") and torch.equal(torch.get_rng_state(), state)
    assert reader.generate("a cat", 0) == "a cat"


def test_prompt_and_new_tokens_must_fit(make):
    with pytest.raises(ValueError, match=r"4 prompt \+ 8 new tokens = 12, this decoder takes 10: ask for 6, or cut the prompt to 2"):
        make("ishe").generate(torch.tensor([[1, 2, 3, 4]]), 8)
    for wrong in ({"temperature": -1.0}, {"top_k": 0}, {"max_new_tokens": -1}):
        with pytest.raises(ValueError, match="must not be negative, top_k at least 1"):
            make("ishe").generate(torch.tensor([[1]]), **wrong)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"input": ["one", "two"]}, ValueError, "one at a time"),
        ({"max_new_tokens": True}, TypeError, "max_new_tokens: a whole number"),
        ({"temperature": float("nan")}, ValueError, "temperature: 0, or a finite"),
        ({"temperature": float("inf")}, ValueError, "temperature: 0, or a finite"),
        ({"temperature": 1e-45}, ValueError, "temperature: 0, or a finite"),
    ],
)
def test_generate_checks_its_numbers_at_the_door(make, change, error, message):
    with pytest.raises(error, match=message):
        make("ishe").generate(**{"input": torch.tensor([[1, 2]]), "max_new_tokens": 1} | change)

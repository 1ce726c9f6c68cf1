"""A past that is kept: what a decoder says after each token equals a forward pass over everything read."""

import pytest
import torch

from models import causal_sum, generation

MIXERS = ["mha", "she", "ishe", "kshe", "he", "ihe", "khe", ("mha", "ishe"), ("he", "mha")]
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5], [2, 7, 1, 8, 2, 8, 1, 8, 2]])


def kept(model, capacity=10):
    read = model.reader(capacity)
    assert read.__qualname__.startswith("_keep")
    return read


@pytest.mark.parametrize("norm", ["ln", "rms", "none"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_reading_on_equals_recomputing(make, mixer, norm):
    model = make(mixer, norm=norm)
    whole = model(TOKENS).detach()
    read, first = kept(model), read_in_pieces(model, [3, 1, 1, 2, 1, 1])
    for piece, row in zip(first, [2, 3, 4, 6, 7, 8], strict=True):
        torch.testing.assert_close(piece, whole[:, row], rtol=1e-4, atol=1e-5 * float(whole.abs().max()))
    torch.testing.assert_close(read(TOKENS), whole[:, -1], rtol=1e-4, atol=1e-5 * float(whole.abs().max()))


def read_in_pieces(model, lengths):
    read, start, out = kept(model), 0, []
    for n in lengths:
        out.append(read(TOKENS[:, start : start + n]))
        start += n
    return out


@pytest.mark.parametrize("layout", ["swapped", "parallel", "mixer_only", ("serial", "ffn_only")])
def test_every_layout_reads_on(make, layout):
    model = make("ishe", layout=layout)
    whole = model(TOKENS)
    for row, piece in enumerate(read_in_pieces(model, [1] * 9)):
        torch.testing.assert_close(piece, whole[:, row], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_row_that_is_read_is_within_the_bound_of_the_sum(vector, dtype):
    x = torch.randn(3, 20, 8, dtype=torch.float64).to(dtype)
    W = torch.randn((21, 8) if vector else (21, 8, 8), dtype=torch.float64).to(dtype)
    kernel = causal_sum.PER_LAG
    row = causal_sum.last_row(x.flip(1), W)
    assert row.dtype == dtype
    gap = (row.double() - causal_sum.LITERAL.sum(x.double(), W.double())[:, -1]).abs()
    assert (gap <= kernel.bound(x, W)[:, -1] * (1 + 1e-9)).all()


@pytest.mark.parametrize("mixer", ["mha", "she", "he"])
def test_a_new_token_reads_one_row(make, mixer, monkeypatch):
    """O(i d^2) or O(i d) a token: after the prompt nothing ever sees more than one row, and no lag is summed twice."""
    model, rows = make(mixer), []
    for block in model.blocks:
        feed = block.mlp.forward
        monkeypatch.setattr(block.mlp, "forward", lambda x, feed=feed: rows.append(x.shape[1]) or feed(x))
    model.generate(TOKENS[:1, :3], 4, temperature=0)
    assert rows == [3, 3] + [1, 1] * 3


@pytest.mark.parametrize("mixer", ["mha", "ishe", "he"])
def test_generation_is_that_of_recomputation(make, mixer):
    model = make(mixer)
    ours = model.generate(TOKENS[:, :2], 8, temperature=0)
    read, tokens, new = generation.recompute(model), TOKENS[:, :2], TOKENS[:, :2]
    for _ in range(8):
        new = read(new).argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, new], 1)
    assert torch.equal(ours, tokens)


def test_a_listener_sees_whole_sequences(make):
    """A hook that edits a position by its number must meet the same numbers whether or not a past could be kept."""
    model, seen = make("ishe"), []
    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_post", lambda x, hook: seen.append(x.shape[1]))]):
        model.generate(TOKENS[:1, :3], 3, temperature=0)
    assert seen == [3, 4, 5]
    with model.explicit():
        assert model.reader(10).__qualname__.startswith("recompute")


def test_a_mixer_without_a_past_is_recomputed(make):
    class Own(torch.nn.Module):
        def __init__(self, config, layer):
            super().__init__()
            self.inner = torch.nn.Linear(config.d_model, config.d_model)

        def forward(self, x, attention_mask=None):
            return self.inner(x).cumsum(1)

    model = make("own", mixers={"own": Own})
    assert model.reader(10).__qualname__.startswith("recompute")
    out = model.generate(TOKENS[:1, :2], 3, temperature=0)
    assert torch.equal(model(out[:, :4])[:, -1].argmax(-1), out[:, 4])

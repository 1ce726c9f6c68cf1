"""`interp.variance_profile`: text to windows, fresh copies of a configuration, what is refused."""

from collections.abc import Iterator

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import interp
from interp.claims import default_text, fresh, prompts, windows
from models.config import DecoderConfig
from models.decoder import HookedDecoder

WORDS = [f"w{i}" for i in range(30)]


def decoder(mixer: str = "ishe", **changes) -> HookedDecoder:
    torch.manual_seed(0)
    tokenizer = Tokenizer(WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    settings = {"n_layers": 2, "d_model": 16, "n_ctx": 8, "d_vocab": 30, "mixer_bias": True} | changes
    return HookedDecoder(DecoderConfig(mixer=mixer, **settings), tokenizer=tokenizer).eval()


def text(words: int) -> str:
    order = torch.randint(0, 30, (words,), generator=torch.Generator().manual_seed(1))
    return " ".join(WORDS[i] for i in order)


def test_a_text_is_cut_into_windows_and_its_second_half_predicts_the_first() -> None:
    model = decoder()
    assert windows(model, text(43)).shape == (5, 8)
    result = interp.variance_profile(model, text(8 * 41 + 3))
    assert (result.sequences, result.predicted_from) == (21, 20)
    assert all(r.predicted is not None for r in result.rows if r.site == "attn.hook_extraction")
    assert interp.variance_profile(model, text(800), sequences=16).sequences == 16
    with pytest.raises(ValueError, match="fewer than two windows of 8"):
        interp.variance_profile(model, text(15))


def test_prompts_ids_and_a_stream_of_batches_are_measured() -> None:
    model = decoder()
    assert interp.variance_profile(model, [text(3), text(8), text(5)]).sequences == 3
    assert interp.variance_profile(model, torch.zeros(4, 8, dtype=torch.long), sites="hook_attn_out").sequences == 4

    def stream() -> Iterator[torch.Tensor]:
        for seed in range(5):
            yield torch.randint(0, 30, (10, 8), generator=torch.Generator().manual_seed(seed))

    result = interp.variance_profile(model, stream(), other=text(400))
    assert (result.sequences, result.predicted_from) == (50, 50)
    with pytest.raises(TypeError, match="batches of ids"):
        interp.variance_profile(model, 3)  # type: ignore[arg-type]


def test_at_initialisation_fresh_copies_are_drawn_and_the_callers_generator_is_not_touched() -> None:
    model = decoder("ihe")
    state = torch.get_rng_state()
    result = interp.variance_profile(model, text(200), init=True, sites="attn.hook_extraction")
    assert torch.equal(torch.get_rng_state(), state)
    assert (result.init, result.seeds) == (True, 12)
    assert interp.variance_profile(decoder(), text(200), init=True, sites="hook_attn_out").seeds == 6
    make = fresh(model)
    assert torch.equal(make(3).embed.W_E, make(3).embed.W_E)
    assert not torch.equal(make(3).embed.W_E, make(4).embed.W_E)
    with pytest.raises(ValueError, match="init=True"):
        interp.variance_profile(model, text(200), seeds=3)


def test_a_foreign_model_has_no_initialisation() -> None:
    class Foreign(torch.nn.Module):
        cfg = type("cfg", (), {"model_name": "somebody's", "n_ctx": 8})

    with pytest.raises(ValueError, match="somebody's is no decoder of this package"):
        fresh(Foreign())


def test_a_users_own_mixer_is_drawn_anew_too() -> None:
    class Last(torch.nn.Module):
        def __init__(self, config: DecoderConfig, layer: int) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(config.d_model))

        def forward(self, x: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
            return x * self.w

    config = DecoderConfig(n_layers=1, d_model=16, n_ctx=8, d_vocab=30, mixer="last")
    drawn = fresh(HookedDecoder(config, mixers={"last": Last}))(0)
    assert isinstance(drawn.blocks[0].attn, Last)


def test_verify_cuts_prompts_from_a_text_and_leaves_nothing_out() -> None:
    from analyses.claims import SENTENCES

    model = decoder("ihe", n_ctx=12, mixer_bias=False)
    state = torch.get_rng_state()
    result = interp.verify(model, text(900))
    assert torch.equal(torch.get_rng_state(), state)
    assert list(dict.fromkeys(r.id for r in result.rows)) == list(SENTENCES)
    assert [r.id for r in result.rows if r.verdict == "fails" and r.id not in ("drive", "variance")] == []
    with pytest.raises(TypeError, match="string is needed"):
        interp.verify(model, torch.zeros(3))
    with pytest.raises(ValueError, match="fewer than two windows"):
        interp.verify(model, text(20))


def test_every_shipped_decoder_has_a_text_it_can_read() -> None:
    for name in interp.list_models():
        model = interp.load_model(name)
        assert len(prompts(model, default_text(model))) == 16


@pytest.mark.smollm2
def test_variance_and_claims_on_a_pretrained_model(smollm2) -> None:
    sites = ["blocks.0.attn.hook_z", "blocks.29.hook_attn_out", "hook_resid_post"]
    result = interp.variance_profile(smollm2, sites=sites, sequences=9)
    assert (result.sequences, len(result.rows)) == (9, 32)
    for row in result.rows:
        assert row.interval[0] < row.slope < row.interval[1]
        assert (row.variance > 0).all()
        assert row.identity is None
    assert result.at("attn.hook_z", 0).theory_slope == -1.0
    with pytest.raises(ValueError, match="no decoder of this package"):
        interp.variance_profile(smollm2, init=True)
    short = default_text(smollm2)[:3000]  # a few windows; the prompts of the claims are as many as ever
    rows = {r.id: r for r in interp.verify(smollm2, short).rows}
    held = {i for i, r in rows.items() if r.verdict == "holds"}
    assert held == {"additive", "project-sum", "reduce", "row-wise", "causal", "static-dynamic"}
    # The stream's way to its last row is gone by the last FFN: further in the middle than a random walk of the same steps.
    assert rows["drive"].verdict == "fails"

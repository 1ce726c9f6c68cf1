"""Every claim holds where it should, is n/a where its conditions are not met, and a planted violation of each is caught."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from analyses import claims
from analyses.claims import SENTENCES, Siblings, Subject, judge_slopes, verdicts, verify
from analyses.variance import SiteProfile, VarianceProfile
from models import decoder as decoders
from models import extractor
from models.attention import MultiHeadAttention
from models.config import DecoderConfig
from models.decoder import Block, HookedDecoder
from models.extractor import Extractor
from models.feedforward import FeedForward

T, D, V = 16, 16, 40
MIXERS = ("mha", "she", "ishe", "he", "ihe", "kshe", "khe")
EXTRACTORS = MIXERS[1:]


def decoder(mixer: str | tuple[str, ...], seed: int = 0, **changes) -> HookedDecoder:
    """Random non-zero values in every parameter that the configuration has."""
    torch.manual_seed(seed)
    settings = {"n_layers": 2, "d_model": D, "n_ctx": T, "d_vocab": V, "mixer_bias": True, "unembed_bias": True} | changes
    model = HookedDecoder(DecoderConfig(mixer=mixer, **settings)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if ".b" in name or ".ln" in name or name.startswith(("ln_final", "embed")):
                p.add_(0.3 * torch.randn_like(p))
    return model


def bare(mixer: str | tuple[str, ...], **changes) -> HookedDecoder:
    """Nothing that turns a zero row into another one: no norm bias, no biases."""
    return decoder(mixer, **{"norm": "rms", "mlp_bias": False, "mixer_bias": False, "unembed_bias": False} | changes)


def prompts(n: int = 6, t: int = 12) -> list[Tensor]:
    return list(torch.randint(0, V, (n, t), generator=torch.Generator().manual_seed(1)).split(1))


def subject(model: nn.Module) -> Subject:
    return Subject(model, tuple(prompts()))


def siblings(model: HookedDecoder) -> Siblings:
    plain = replace(model.config, norm="none", mlp_bias=False, mixer_bias=False, unembed_bias=False)

    def draw(config: DecoderConfig, seed: int) -> HookedDecoder:
        torch.manual_seed(seed)
        return HookedDecoder(config).eval()

    def mixer(kind: str, n_ctx: int) -> nn.Module:
        return draw(replace(plain, n_layers=1, mixer=kind, layout="mixer_only", n_ctx=n_ctx, positions="none"), 0).blocks[0].attn

    return Siblings(fresh=lambda seed: draw(model.config, seed), plain=lambda: draw(plain, 0), mixer=mixer)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


# ---- everything together ----


@pytest.mark.parametrize("mixer", [*MIXERS, ("mha", "ishe")])
def test_no_claim_about_structure_fails_on_an_honest_decoder(mixer: str | tuple[str, ...]) -> None:
    model = decoder(mixer)
    batches = torch.randint(0, V, (48, T), generator=torch.Generator().manual_seed(2)).split(24)
    result = verify(model, prompts(), siblings=siblings(model), batches=batches, seeds=2)
    assert list(dict.fromkeys(r.id for r in result.rows)) == list(SENTENCES)
    judged = [r for r in result.rows if r.id not in ("drive", "variance")]
    assert [r.id for r in judged if r.verdict not in ("holds", "n/a")] == []
    held = {r.id for r in judged if r.verdict == "holds"}
    assert held >= {"additive", "reduce", "row-wise", "causal", "static-dynamic", "parameters", "no-norm"}
    assert ("position-free" in held) == (mixer != "mha")
    assert ("project-sum" in held) == ("mha" in mixer)
    assert result["variance"].state == "init"
    assert [r.verdict for r in result.rows if (r.id, r.state) == ("variance", "trained")] == ["n/a"]
    assert all(r.claim == SENTENCES[r.id] and r.note and r.bound for r in result.rows)
    assert len(result.to_dataframe()) == len(result.summary()) == len(result.rows)
    assert sum(verdicts(result.rows).values()) == len(result.rows)
    with pytest.raises(ValueError, match="no claim 'additivity'"):
        result["additivity"]


@pytest.mark.parametrize("layout", ["swapped", "parallel", "mixer_only"])
@pytest.mark.parametrize("mixer", ["mha", "ihe"])
def test_other_layouts_are_judged_too(mixer: str, layout: str) -> None:
    rows = {r.id: r for r in claims.structure(subject(decoder(mixer, layout=layout)))}
    assert not [r.id for r in rows.values() if r.verdict == "fails"]
    assert rows["additive"].verdict == "holds"
    assert (rows["row-wise"].verdict == "n/a") == (layout == "mixer_only")


def test_without_siblings_or_text_rows_are_not_applicable_and_nothing_is_left_out() -> None:
    result = verify(decoder("ishe"), prompts())
    assert {r.id for r in result.rows} == set(SENTENCES)
    assert {r.id for r in result.rows if r.verdict == "n/a"} >= {"variance", "parameters", "no-norm"}


def test_bad_input_is_named() -> None:
    model = decoder("ishe")
    with pytest.raises(ValueError, match=r"prompts: at least two .* got lengths \[12\]"):
        verify(model, prompts(1))
    with pytest.raises(ValueError, match="one length"):
        verify(model, [*prompts(2), *prompts(1, t=5)])
    with pytest.raises(ValueError, match="training mode"):
        verify(decoder("ishe", dropout=0.1).train(), prompts())


def test_hooks_and_weights_are_left_as_they_were() -> None:
    model = decoder(("mha", "ishe"))
    before = model.fingerprint(), [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    verify(model, prompts(), siblings=siblings(model))
    assert before == (model.fingerprint(), [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()])


# ---- a planted violation of each ----


@pytest.mark.parametrize("mixer", ["mha", "ishe"])
def test_additive_catches_a_stream_that_is_more_than_the_sum(mixer: str) -> None:
    model = decoder(mixer)
    model.blocks[1].hook_resid_mid.register_forward_hook(lambda module, args, out: out * 1.001)
    row = claims.additive(subject(model))
    assert (row.verdict, row.measured > 1000) == ("fails", True)


def test_project_sum_catches_two_heads_exchanged_in_the_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = MultiHeadAttention.project
    monkeypatch.setattr(MultiHeadAttention, "project", lambda self, z: honest(self, z[..., [1, 0, 2, 3], :]))
    row = claims.project_sum(subject(decoder("mha")))
    assert (row.verdict, row.measured > 1000) == ("fails", True)
    assert float(row.note.split("convolution at ")[1]) > 1000


@pytest.mark.parametrize("mixer", EXTRACTORS)
def test_reduce_catches_two_lags_exchanged_in_the_kernel(mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = extractor.causal_sum
    order = torch.tensor([1, 0, *range(2, T)])
    monkeypatch.setattr(extractor, "causal_sum", lambda x, W, *how: honest(x, W[order], *how))
    row = claims.reduce(subject(decoder(mixer)))
    assert (row.verdict, row.measured > 1000) == ("fails", True)


def test_reduce_catches_a_constant_that_no_source_wrote_in_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = MultiHeadAttention.project
    monkeypatch.setattr(MultiHeadAttention, "project", lambda self, z: honest(self, z) + 0.01)
    assert claims.reduce(subject(decoder("mha"))).verdict == "fails"


def test_row_wise_catches_an_ffn_that_reads_the_row_before(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FeedForward.forward
    monkeypatch.setattr(FeedForward, "forward", lambda self, x: honest(self, x) + 1e-6 * x.roll(1, 1))
    assert claims.row_wise(subject(decoder("ishe"))).verdict == "fails"


@pytest.mark.parametrize(("mixer", "cls"), [("ishe", Extractor), ("mha", MultiHeadAttention)])
def test_causal_catches_a_mixer_that_sees_the_mean_of_all_rows(mixer: str, cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = cls.forward
    monkeypatch.setattr(cls, "forward", lambda self, x, mask=None: honest(self, x, mask) + 1e-4 * x.mean(1, keepdim=True))
    assert claims.causal(subject(decoder(mixer))).verdict == "fails"


@pytest.mark.parametrize("mixer", EXTRACTORS)
def test_padding_changes_nothing_under_the_sources_conditions(mixer: str) -> None:
    row = claims.padding(subject(bare(mixer)))
    assert (row.verdict, "rows counted by the mask" in row.note) == ("holds", mixer in ("ishe", "ihe", "kshe", "khe"))


@pytest.mark.parametrize("mixer", ["mha", *EXTRACTORS])
def test_padding_is_not_applicable_outside_them_and_the_effect_is_shown(mixer: str) -> None:
    row = claims.padding(subject(decoder(mixer) if mixer != "mha" else bare("mha")))
    assert row.verdict == "n/a"
    assert row.measured > 1e-6
    full = Subject(bare("she"), tuple(prompts(t=T)))
    assert claims.padding(full).verdict == "n/a"
    assert claims.padding(full).measured is None


@pytest.mark.parametrize("mixer", ["she", "ishe"])
def test_padding_catches_an_extractor_that_counts_the_zero_rows(mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Extractor.forward

    def counts(self: Extractor, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return honest(self, x, mask) / torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]

    monkeypatch.setattr(Extractor, "forward", counts)
    assert claims.padding(subject(bare(mixer))).verdict == "fails"


@pytest.mark.parametrize("mixer", EXTRACTORS)
def test_position_free_catches_an_extractor_whose_lags_are_all_alike(mixer: str) -> None:
    model = decoder(mixer)
    for block in model.blocks:
        weight = block.attn.lag_weight
        weight.copy_(weight[:1].expand_as(weight))
    assert claims.position_free(subject(decoder(mixer))).verdict == "holds"
    assert claims.position_free(subject(model)).verdict == "fails"


def test_position_free_shows_that_attention_alone_does_not_tell_order() -> None:
    row = claims.position_free(subject(decoder("mha")))
    assert row.verdict == "n/a"
    alone = float(row.note.split("alone changes its last row by ")[1].split(";")[0])
    assert alone <= claims.PRACTICAL


def test_static_dynamic_catches_an_extractor_whose_weights_depend_on_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = extractor.causal_sum
    monkeypatch.setattr(extractor, "causal_sum", lambda x, W, *how: honest(x, W, *how) * (1 + 1e-6 * x.square().mean()))
    assert claims.static_dynamic(subject(decoder("she"))).verdict == "fails"


def test_static_dynamic_catches_attention_whose_pattern_does_not_depend_on_the_input() -> None:
    model = decoder("mha")
    uniform = torch.ones(T, T).tril()
    uniform /= uniform.sum(-1, keepdim=True)

    def flat(module: nn.Module, args: object, out: Tensor) -> Tensor:
        t = out.shape[-1]
        return uniform[:t, :t].expand_as(out)

    model.blocks[0].attn.hook_pattern.register_forward_hook(flat)
    assert claims.static_dynamic(subject(model)).verdict == "fails"


def test_drive_fails_on_a_decoder_whose_second_half_undoes_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder("ishe", n_layers=4)
    wrote: dict[int, Tensor] = {}
    honest = Block.forward
    layers = {id(b): i for i, b in enumerate(model.blocks)}

    def forward(self: Block, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if (i := layers[id(self)]) >= 2:
            self.hook_attn_out.register_forward_hook(lambda m, a, out: -0.95 * wrote[3 - i])
        return honest(self, x, mask)

    for i in (0, 1):
        model.blocks[i].hook_attn_out.register_forward_hook(lambda m, a, out, i=i: wrote.__setitem__(i, 30 * out.detach()) or 30 * out)
    monkeypatch.setattr(Block, "forward", forward)
    assert claims.drive(subject(model)).verdict == "fails"


def test_variance_catches_a_missing_inverse_root(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder("ishe")
    batches = [torch.randint(0, V, (32, T), generator=torch.Generator().manual_seed(3))]
    monkeypatch.setattr(Extractor, "row_factor", lambda self, x, attention_mask=None: x.new_ones(1, x.shape[1], 1))
    row = claims.variance(subject(model), siblings(model), batches, seeds=3)[0]
    assert (row.state, row.verdict) == ("init", "fails")
    assert row.measured > 0.5


def profile_with(slope: float, half: float, theory: float | None = 0.0) -> VarianceProfile:
    ones = np.ones(3)
    site = SiteProfile(
        site="attn.hook_extraction",
        layer=0,
        positions=np.arange(1, 4),
        variance=ones,
        second_moment=ones,
        predicted=None,
        predicted_diagonal=None,
        theory=None,
        slope=slope,
        interval=(slope - half, slope + half),
        spread=half,
        slopes=(slope,) * 6,
        slope_one_draw=slope,
        theory_slope=theory,
        r2=0.0,
        power_law=True,
        identity=None,
        native=None,
        note="",
    )
    return VarianceProfile(model="m", init=True, sequences=8, seeds=6, predicted_from=0, rows=(site,))


@pytest.mark.parametrize(
    ("slope", "half", "verdict"), [(0.015, 0.5, "holds"), (0.03, 0.02, "undecided"), (0.05, 0.02, "fails"), (-0.9, 0.1, "fails")]
)
def test_slopes_are_judged_by_the_tolerance_and_the_interval(slope: float, half: float, verdict: str) -> None:
    assert judge_slopes(profile_with(slope, half), "bound").verdict == verdict
    assert judge_slopes(profile_with(slope, half), "bound", normed=False).verdict == "n/a"
    assert judge_slopes(profile_with(slope, half, theory=-1.0), "bound").verdict == "n/a"


def test_parameters_catches_one_more_weight() -> None:
    model = decoder("ishe")
    honest = siblings(model)

    def heavier(kind: str, n_ctx: int) -> nn.Module:
        module = honest.mixer(kind, n_ctx)
        if kind == "he":
            module.extra = nn.Parameter(torch.zeros(1))
        return module

    assert claims.parameters(subject(model), honest).verdict == "holds"
    row = claims.parameters(subject(model), replace(honest, mixer=heavier))
    assert (row.verdict, row.measured) == ("fails", 1.0)


def test_no_norm_catches_a_claim_that_rests_on_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder("ishe")
    assert claims.no_norm(subject(model), siblings(model)).verdict == "holds"
    monkeypatch.setattr(decoders, "normed", lambda norm, x: x + 0.1 * x.mean(1, keepdim=True) if norm is None else norm(x))
    row = claims.no_norm(subject(model), siblings(model))
    assert row.verdict == "fails"
    assert "fails: " in row.note
    assert "causal" in row.note.split("fails: ")[1]


# ---- whatever the model ----


def test_a_pretrained_model_of_any_family_gets_a_complete_table(tiny, family: str) -> None:
    model = tiny(family)
    vocabulary = int(model.cfg.d_vocab)
    ids = torch.randint(1, vocabulary, (4, 10), generator=torch.Generator().manual_seed(4))
    result = verify(model, list(ids.split(1)), batches=[ids])
    assert {r.id for r in result.rows} == set(SENTENCES)
    structural = {r.id: r for r in result.rows if r.id not in ("drive", "variance")}
    assert [(r.id, r.note) for r in structural.values() if r.verdict == "fails"] == []
    assert structural["causal"].verdict == "holds"


@pytest.mark.parametrize("changes", [{"layout": "ffn_only"}, {"n_layers": 1, "layout": "mixer_only"}])
def test_decoders_with_one_kind_of_sublayer_get_a_complete_table(changes: dict) -> None:
    model = decoder("ishe", **changes)
    result = verify(model, prompts(), siblings=siblings(model), batches=[torch.cat(prompts())])
    assert {r.id for r in result.rows} == set(SENTENCES)
    assert [(r.id, r.note) for r in result.rows if r.verdict == "fails" and r.id != "drive"] == []


def test_a_mixer_of_ones_own_that_cannot_be_split_is_still_judged() -> None:
    class Shift(nn.Module):
        def __init__(self, config: DecoderConfig, layer: int) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(config.d_model))

        def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            return self.w * (x.cumsum(1) if attention_mask is None else (x * attention_mask[..., None]).cumsum(1))

    torch.manual_seed(0)
    config = DecoderConfig(n_layers=2, d_model=D, n_ctx=T, d_vocab=V, mixer="shift")
    rows = {r.id: r for r in verify(HookedDecoder(config, mixers={"shift": Shift}).eval(), prompts()).rows}
    assert rows["causal"].verdict == rows["row-wise"].verdict == "holds"
    assert rows["reduce"].verdict == rows["project-sum"].verdict == rows["static-dynamic"].verdict == "n/a"

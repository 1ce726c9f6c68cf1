"""The variance law: measured against naive sums, its identity against the models, planted faults caught, theory met at initialisation."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from analyses import variance
from analyses.second_moment import InputMoments, LagKernel
from analyses.variance import profile, profile_at_init, resolve_sites
from models.config import DecoderConfig
from models.decoder import HookedDecoder

T, D, V = 12, 16, 40
EXTRACTORS = ("she", "ishe", "he", "ihe", "kshe", "khe")


def decoder(mixer: str | tuple[str, ...], seed: int = 0, **changes) -> HookedDecoder:
    """Random non-zero values in every parameter, biases and norms included."""
    torch.manual_seed(seed)
    settings = {"n_layers": 2, "d_model": D, "n_ctx": T, "d_vocab": V, "mixer_bias": True, "unembed_bias": True} | changes
    model = HookedDecoder(DecoderConfig(mixer=mixer, **settings)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if ".b" in name or ".ln" in name or name.startswith("ln_final"):
                p.add_(0.3 * torch.randn_like(p))
    return model


def fresh(mixer: str, seed: int, **changes) -> HookedDecoder:
    torch.manual_seed(seed)
    settings = {"n_layers": 2, "d_model": 32, "n_ctx": 48, "d_vocab": 200} | changes
    return HookedDecoder(DecoderConfig(mixer=mixer, **settings)).eval()


def ids(n: int, seed: int = 0, t: int = T, v: int = V) -> Tensor:
    return torch.randint(0, v, (n, t), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("mixer", ["mha", *EXTRACTORS])
def test_measured_variance_is_the_definition(mixer: str) -> None:
    model, tokens = decoder(mixer), ids(50)
    result = profile(model, tokens.split(16))
    assert result.sequences == 50
    _, cache = model.run_with_cache(tokens)
    for row in result.rows:
        x = cache[f"blocks.{row.layer}.{row.site}"].detach().double().flatten(2).numpy()
        np.testing.assert_allclose(row.variance, ((x - x.mean(0)) ** 2).mean((0, 2)), rtol=1e-4)
        np.testing.assert_allclose(row.second_moment, (x**2).mean((0, 2)), rtol=1e-4)
    assert {r.site for r in result.rows} == {
        "attn.hook_z" if mixer == "mha" else "attn.hook_extraction",
        "hook_attn_out",
        "hook_resid_post",
    }


@pytest.mark.parametrize("mixer", EXTRACTORS)
def test_the_second_moment_identity_holds_in_float64_and_natively(mixer: str) -> None:
    for row in profile(decoder(mixer), [ids(20)], sites="attn.hook_extraction").rows:
        assert row.identity is not None
        assert row.native is not None
        assert row.identity.holds, row.identity
        assert row.native.holds, row.native
        assert row.identity.bound < 1e-6 * row.second_moment.max()  # sharp: a lag off by 1e-6 of its weight would show


@pytest.mark.parametrize("mixer", ["ishe", "ihe", "kshe", "khe"])
def test_a_wrong_row_factor_in_the_model_breaks_the_identity(mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder(mixer)
    for block in model.blocks:
        monkeypatch.setattr(block.attn, "row_factor", lambda x, attention_mask=None: x.new_ones(1, x.shape[1], 1))
    result = profile(model, [ids(20)], sites="attn.hook_extraction")
    assert not result.holds
    assert all(r.identity.ratio > 1000 for r in result.rows)


@pytest.mark.parametrize("mixer", EXTRACTORS)
def test_two_lags_exchanged_in_the_view_break_the_identity(mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = LagKernel.of

    def exchanged(module: object) -> LagKernel | None:
        kernel = honest(module)
        if kernel is None:
            return None
        order = torch.arange(len(kernel.lag))
        order[[0, 1]] = order[[1, 0]]
        return dataclasses.replace(kernel, lag=kernel.lag[order])

    monkeypatch.setattr(LagKernel, "of", staticmethod(exchanged))
    result = profile(decoder(mixer), [ids(20)], sites="attn.hook_extraction")
    assert all(r.identity.ratio > 1000 for r in result.rows)


def test_a_mixer_that_scales_one_lag_by_a_ten_thousandth_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder("she")
    from models import extractor

    honest = extractor.causal_sum

    def off(x: Tensor, W: Tensor, *how: object) -> Tensor:
        W = W.clone()
        W[3] *= 1.0001
        return honest(x, W, *how)

    monkeypatch.setattr(extractor, "causal_sum", off)
    assert not profile(model, [ids(20)], sites="attn.hook_extraction").holds


@pytest.mark.parametrize("mixer", EXTRACTORS)
def test_the_formula_on_the_measured_text_is_the_measured_variance_and_the_diagonal_is_not(mixer: str) -> None:
    model, tokens = decoder(mixer), ids(40)
    result = profile(model, [tokens], other=[tokens[:13], tokens[13:]], sites="attn.hook_extraction")
    assert result.predicted_from == 40
    for row in result.rows:
        np.testing.assert_allclose(row.predicted, row.variance, rtol=1e-4)
        assert row.prediction_error < 1e-4
        assert row.predicted_diagonal is not None
        assert abs(row.predicted_diagonal[0] / row.variance[0] - 1) < 1e-4  # row 1 has one lag and no cross terms
        assert row.cross_terms > 1e-3


def test_above_the_byte_budget_the_diagonal_alone_is_kept_and_said_so() -> None:
    model, tokens = decoder("she"), ids(40)
    rows = profile(model, [tokens], other=[tokens], sites="attn.hook_extraction", byte_budget=1000).rows
    full = profile(model, [tokens], other=[tokens], sites="attn.hook_extraction").rows
    for row, reference in zip(rows, full, strict=True):
        assert row.predicted is None
        assert row.cross_terms is None
        assert "byte budget" in row.note
        np.testing.assert_allclose(row.predicted_diagonal, reference.predicted_diagonal)
    kernel = LagKernel.of(model.blocks[0].attn)
    assert kernel is not None
    moments = InputMoments(kernel, full=True)
    moments.add(torch.randn(3, T, D))
    assert sum(block.numel() * 8 for block in moments.second) == InputMoments.bytes(kernel, T)


@pytest.mark.parametrize("mixer", ["mha", "ishe"])
@pytest.mark.parametrize("left", [False, True])
def test_padding_changes_nothing(mixer: str, left: bool) -> None:
    model = decoder(mixer)
    lengths = [3, 7, 5, 6]
    padded, mask = torch.zeros(4, 8, dtype=torch.long), torch.zeros(4, 8, dtype=torch.long)
    alone = []
    for i, n in enumerate(lengths):
        row = ids(1, seed=i, t=n)
        alone.append(row)
        at = slice(8 - n, 8) if left else slice(0, n)
        padded[i, at], mask[i, at] = row[0], 1
    together = profile(model, [(padded, mask)])
    apart = profile(model, alone)
    assert together.sequences == apart.sequences == 4
    for a, b in zip(together.rows, apart.rows, strict=True):
        np.testing.assert_allclose(a.variance[: max(lengths)], b.variance, rtol=1e-3, atol=1e-9)


def test_sites_are_strict_and_may_be_any_hook_with_a_row_per_position() -> None:
    model = decoder(("mha", "ishe"))
    assert resolve_sites(model, ["hook_embed", "blocks.1.attn.hook_adjustment"]) == ["hook_embed", "blocks.1.attn.hook_adjustment"]
    assert resolve_sites(model, "hook_resid_post") == ["blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
    assert resolve_sites(model, "attn.hook_extraction") == ["blocks.1.attn.hook_extraction"]
    with pytest.raises(ValueError, match=r"hook_resid_pots.*nearest"):
        resolve_sites(model, "blocks.0.hook_resid_pots")
    with pytest.raises(ValueError, match="no row per position"):
        resolve_sites(model, "attn.hook_pattern")
    with pytest.raises(ValueError, match="no site"):
        resolve_sites(model, [])
    row = profile(model, [ids(8)], sites="hook_embed").rows[0]
    assert (row.layer, row.theory, row.identity) == (None, None, None)


def test_bad_input_is_named() -> None:
    model = decoder("ishe")
    with pytest.raises(ValueError, match="no sequences"):
        profile(model, [])
    with pytest.raises(TypeError, match="token ids"):
        profile(model, [torch.zeros(2, 3)])
    with pytest.raises(ValueError, match="without padding"):
        profile(model, [ids(4)], other=[(ids(2), torch.tensor([[1] * T, [0] + [1] * (T - 1)]))])
    with pytest.raises(ValueError, match="as in batches"):
        profile(model, [ids(4)], other=[ids(4)[:, :5]])
    with pytest.raises(ValueError, match="at least 2 draws"):
        profile_at_init(lambda seed: model, [ids(4)], seeds=1)
    with pytest.raises(ValueError, match="training mode"):
        profile(decoder("she", dropout=0.1).train(), [ids(4)])
    with pytest.raises(ValueError, match="no profile of"):
        profile(model, [ids(4)]).at("hook_resid_post", 7)


def test_hooks_are_left_as_they_were() -> None:
    model = decoder("ishe")

    def census() -> list[int]:
        return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]

    before = census()
    profile(model, [ids(4)], other=[ids(4)])
    assert census() == before
    with pytest.raises(ValueError, match="token ids must be"):
        profile(model, [ids(4) + V])
    assert census() == before


@pytest.mark.parametrize(("mixer", "expected"), [("she", 1.0), ("ishe", 0.0)])
def test_at_initialisation_she_grows_and_ishe_is_flat(mixer: str, expected: float) -> None:
    batches = ids(128, t=48, v=200).split(64)
    result = profile_at_init(lambda s: fresh(mixer, s), batches, seeds=6, sites=["attn.hook_extraction", "hook_attn_out"])
    assert (result.init, result.seeds, len(result.rows)) == (True, 6, 4)
    for row in result.rows:
        assert row.theory_slope == expected
        assert len(row.slopes) == 6
        assert abs(row.slope - expected) <= 0.02, (row.label, row.slope, row.spread)
        assert row.spread > 0
        assert row.power_law


@pytest.mark.slow
@pytest.mark.parametrize(("mixer", "expected"), [("he", 1.0), ("ihe", 0.0)])
def test_at_initialisation_he_grows_and_ihe_is_flat(mixer: str, expected: float) -> None:
    # One vector a lag instead of a matrix: a draw's slope spreads four times as much, so that the mean of six is not enough.
    batches = ids(64, t=48, v=200).split(64)
    for row in profile_at_init(lambda s: fresh(mixer, s), batches, seeds=48, sites=["attn.hook_extraction", "hook_attn_out"]).rows:
        assert abs(row.slope - expected) <= 0.02, (row.label, row.slope, row.spread)


def test_uniform_attention_falls_in_the_first_layer_at_initialisation() -> None:
    rows = profile_at_init(lambda s: fresh("mha", s), ids(128, t=48, v=200).split(64), seeds=6, sites=["attn.hook_z"]).rows
    assert rows[0].theory_slope == -1.0
    assert rows[0].slope < -0.8
    assert rows[1].slope > rows[0].slope  # its inputs are already correlated


def test_a_missing_inverse_root_is_seen_at_initialisation(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(seed: int) -> HookedDecoder:
        model = fresh("ishe", seed)
        for block in model.blocks:
            monkeypatch.setattr(block.attn, "row_factor", lambda x, attention_mask=None: x.new_ones(1, x.shape[1], 1))
        return model

    rows = profile_at_init(make, ids(64, t=48, v=200).split(64), seeds=3, sites="attn.hook_extraction").rows
    assert all(abs(r.slope) > 0.5 for r in rows)


def test_at_initialisation_the_mean_over_draws_is_subtracted_with_bessel() -> None:
    from analyses.statistics import moments

    draws = [torch.randn(9, 3, 2, generator=torch.Generator().manual_seed(s), dtype=torch.float64) + s for s in range(4)]
    curves = variance._ensemble_variance([moments(x) for x in draws])
    centre = torch.stack(draws).mean((0, 1))
    for curve, x in zip(curves, draws, strict=True):
        within = (x - x.mean(0)).square().mean((0, 2))
        between = (x.mean(0) - centre).square().mean(1) * 4 / 3
        np.testing.assert_allclose(curve, within + between)


def test_a_trained_profile_carries_an_interval_and_says_when_it_is_no_power_law() -> None:
    model = decoder("ishe")
    result = profile(model, [ids(64)])
    for row in result.rows:
        low, high = row.interval
        assert low < row.slope < high
        assert ("no power law" in row.note) == (not row.power_law)
    few = profile(model, [ids(3)], sites="hook_attn_out").rows[0]
    assert math.isnan(few.interval[0])
    frame = result.to_dataframe()
    assert len(frame) == T * len(result.rows)
    assert frame["low"].notna().all()
    assert len(result.summary()) == len(result.rows)


def test_a_mixer_of_ones_own_is_measured_without_a_prediction() -> None:
    class Last(torch.nn.Module):
        def __init__(self, config: DecoderConfig, layer: int) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(config.d_model))

        def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            return x * self.w

    config = DecoderConfig(n_layers=1, d_model=D, n_ctx=T, d_vocab=V, mixer="last")
    model = HookedDecoder(config, mixers={"last": Last}).eval()
    rows = profile(model, [ids(10)], other=[ids(10)]).rows
    assert [r.site for r in rows] == ["hook_attn_out", "hook_resid_post"]
    assert all(r.identity is None and r.predicted_diagonal is None and r.theory is None for r in rows)

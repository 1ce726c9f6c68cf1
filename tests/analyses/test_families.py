"""Fourteen families of pretrained models are exact by every split, against their print and a true float64 run; Mamba is whole."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import support
import torch
from builders import FAMILIES, WHOLE
from support import AGAINST, ANSWER, IDS, PAGE

from analyses.fold import Reading, output_direction
from analyses.ledger import SPLITS
from analyses.views import DecoderView
from interp import analysis

U32 = 2.0**-24


@pytest.fixture(scope="session")
def measured(tiny: Any) -> Any:
    return cache(lambda family: support.measure(family, tiny(family)))


def ledger(model: Any, **options: Any) -> Any:
    return analysis.ledger(model, IDS, ANSWER, AGAINST, prepend_bos=False, **options)


def test_every_split_is_exact(family: str, measured: Any) -> None:
    for row in measured(family):
        assert not row.refused
        assert row.holds, row
        assert 0 <= row.algebra <= 1
        assert 0 <= row.native <= 1
        assert 0 <= row.exact <= 1
        # A run that was not really float64 would be off by float32's roundoff.
        assert row.exact_gap < 1e-3 * U32, row


def test_every_split_explains_the_same_number(family: str, measured: Any) -> None:
    assert len({row.total for row in measured(family)}) == 1


def test_nothing_is_limited_at_load(family: str, tiny: Any) -> None:
    assert analysis.prove(tiny(family)) == {}
    assert tiny(family).limits == {}


def test_heads_rebuild_the_projection(family: str, tiny: Any) -> None:
    found = analysis.equivalence(tiny(family), IDS, prepend_bos=False)
    assert [r.layer for r in found.rows] == [0, 1, 2]
    assert found.holds and not found.skipped
    # A bound so wide that everything passes would be no check: it must lie near float64's own rounding.
    assert all(0 < r.bound < 1e-10 for r in found.rows)


def test_bfloat16_holds_by_its_own_larger_bound(family: str, tiny: Any) -> None:
    if family == "olmo2":
        with pytest.raises(RuntimeError, match="dtype"):  # TransformerLens' own norm: a float32 row meets a bfloat16 gain
            tiny(family, "bfloat16")
        return
    found = ledger(tiny(family, "bfloat16"), by="head+source")
    assert found.holds
    native = found.certificate["native"]
    wide = ledger(tiny(family), by="head+source").certificate["native"]
    assert 1e3 * wide.bound < native.bound < 1e6 * wide.bound


def test_the_soft_cap_and_the_multipliers_are_really_there(tiny: Any) -> None:
    """Families whose special part was configured away would be exact for nothing."""
    capped = ledger(tiny("gemma2"), by="component")
    row = capped.entries.index(next(e for e in capped.entries if e.kind == "softcap"))
    assert abs(capped.values[row, 0]) > 1e-3
    view = DecoderView.of(tiny("granite"))
    assert {s.multiplier for s in view.sublayers} == {0.5}
    assert view.readout.multiplier == pytest.approx(1 / 3)
    assert all(s.post_norm is not None for f in ("gemma2", "olmo2") for s in DecoderView.of(tiny(f)).sublayers)
    assert all(b.mid is None for f in ("gpt-j", "gpt-neox", "phi", "falcon") for b in DecoderView.of(tiny(f)).blocks)
    kv = {f: DecoderView.of(tiny(f)).blocks[0].sublayers[0].parts.kv_head for f in ("llama", "falcon", "gpt2")}
    assert kv == {"llama": (0, 0, 1, 1), "falcon": (0, 0, 0, 0), "gpt2": (0, 1, 2, 3)}


def test_no_bias_or_gain_is_trivial(family: str, tiny: Any) -> None:
    for name, p in tiny(family).named_parameters():
        if p.ndim == 1:
            assert not torch.isin(p, torch.tensor([0.0, 1.0])).any(), name


def test_mamba_has_components_and_the_rest_is_refused_by_name(tiny: Any) -> None:
    (family,) = WHOLE
    rows = {row.by: row for row in support.measure(family, tiny(family))}
    assert rows.pop("component").holds
    assert all(not row.entries for row in rows.values())
    for by in ("head", "source", "head+source", "lag"):
        assert re.search(rf"'{re.escape(by)}' is not possible for L0 mixer .*; use by='component'", rows[by].refused)
    assert "has no FFN" in rows["neuron"].refused
    with pytest.raises(ValueError, match="no sublayer that mixes positions and can be split"):
        analysis.equivalence(tiny(family), IDS, prepend_bos=False)


def test_the_support_page_lists_what_was_measured() -> None:
    lines = [line.split("|")[1:4] for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    listed = {(family.strip(), by.strip()): entries.strip() for family, by, entries in lines}
    assert set(listed) == {(family, by) for family in FAMILIES | WHOLE for by in SPLITS}
    assert {k for k, v in listed.items() if v == "refused by name"} == {("mamba", by) for by in SPLITS if by != "component"}
    assert "FAILS" not in PAGE.read_text()


def test_the_support_page_has_the_number_of_entries_of_today(measured: Any) -> None:
    assert all(support.line(row).split("|")[:4] == _listed(row) for row in measured("llama"))


def _listed(row: Any) -> list[str]:
    return next(line.split("|")[:4] for line in PAGE.read_text().splitlines() if line.startswith(f"| {row.family} | {row.by} |"))


# ---- beside TransformerLens, where it is right ----


def theirs(model: Any) -> tuple[torch.Tensor, Any]:
    with torch.no_grad():
        return model.run_with_cache(torch.tensor([IDS]), prepend_bos=False)


def direction(model: Any, cache: Any) -> torch.Tensor:
    """Our `u` at the last row."""
    view = DecoderView.of(model)
    last = cache[view.blocks[-1].post][0, [-1]].double()
    return output_direction(view, Reading(answers=((ANSWER,),), against=((AGAINST,),)), last)[2][0].detach()


def sums(found: Any, **what: Any) -> float:
    """The sum of the entries that have all of these fields."""
    return float(sum(v for e, v in zip(found.entries, found.values[:, 0], strict=True) if all(getattr(e, k) in x for k, x in what.items())))


# A sublayer's own output bias is an entry of ours and part of TransformerLens' component.
SERIAL = ["gpt2", "llama", "mistral", "qwen2", "qwen3", "bloom", "opt", "gemma2", "olmo2", "granite"]


@pytest.mark.parametrize("name", SERIAL)
def test_components_agree_with_decompose_resid(name: str, tiny: Any) -> None:
    model = tiny(name)
    _, cache = theirs(model)
    stack, labels = cache.decompose_resid(layer=-1, mode="all", return_labels=True)
    u = direction(model, cache)
    along = {k: float(x) for k, x in zip(labels, stack[:, 0, -1].detach().double() @ u, strict=True)}
    found = ledger(model, by="component")
    bound = found.certificate["native"].proved
    ours = {"embed": sums(found, kind=("embed",)), "pos_embed": sums(found, kind=("pos_embed",))}
    for layer in range(3):
        attn = ("attn",)
        mlp_bias = [e.label for e in found.entries if e.layer == layer and e.kind == "bias" and ("b_out" in e.label or "mlp" in e.label)]
        attn_bias = [e.label for e in found.entries if e.layer == layer and e.kind == "bias" and e.label not in mlp_bias]
        ours[f"{layer}_attn_out"] = sums(found, layer=(layer,), kind=attn) + sums(found, label=attn_bias)
        ours[f"{layer}_mlp_out"] = sums(found, layer=(layer,), kind=("mlp",)) + sums(found, label=mlp_bias)
    for label, value in along.items():
        assert abs(value - ours[label]) <= bound, label
    assert len(along) >= 7


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt-neox", "bloom"])
def test_heads_agree_with_stack_head_results(name: str, tiny: Any) -> None:
    model = tiny(name)
    _, cache = theirs(model)
    stack, labels = cache.stack_head_results(layer=-1, return_labels=True)
    along = stack[:, 0, -1].detach().double() @ direction(model, cache)
    found = ledger(model, by="head")
    bound = found.certificate["native"].proved
    ours = dict(zip(found.labels, found.values[:, 0], strict=True))
    heads = [label for label in labels if re.fullmatch(r"L\d+H\d+", label)]
    assert len(heads) == 12
    for label, value in zip(labels, along, strict=True):
        if label in heads:
            assert abs(float(value) - ours[label]) <= bound, label


def test_neurons_and_heads_agree_with_get_full_resid_decomposition(tiny: Any) -> None:
    model = tiny("gpt2")
    _, cache = theirs(model)
    stack, labels = cache.get_full_resid_decomposition(layer=-1, expand_neurons=True, return_labels=True)
    along = dict(zip(labels, (stack[:, 0, -1].detach().double() @ direction(model, cache)).tolist(), strict=True))
    heads, neurons = ledger(model, by="head"), ledger(model, by="neuron")
    bound = neurons.certificate["native"].proved
    ours = dict(zip(heads.labels, heads.values[:, 0], strict=True)) | dict(zip(neurons.labels, neurons.values[:, 0], strict=True))
    shared = {label for label in along if label in ours and re.fullmatch(r"L\d+[HN]\d+", label)}
    assert len(shared) == 12 + 3 * 128
    assert max(abs(along[k] - ours[k]) for k in shared) <= bound


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_compatibility_mode_bridge_is_exact_and_agrees_with_logit_attrs(name: str, hf_folder: Any) -> None:
    import interp

    model = interp.load_model(Path(hf_folder(name)))
    model.enable_compatibility_mode()
    logits, cache = theirs(model)
    stack, labels = cache.decompose_resid(layer=-1, mode="all", return_labels=True)
    attrs = cache.logit_attrs(stack, tokens=ANSWER, incorrect_tokens=AGAINST)[:, 0, -1]
    found = ledger(model, by="component")
    assert found.holds
    assert float(logits[0, -1, ANSWER] - logits[0, -1, AGAINST]) == pytest.approx(float(found.total[0]), abs=1e-4)
    bound = found.certificate["native"].proved
    at = dict(zip(labels, attrs.detach().tolist(), strict=True))
    for layer in range(3):
        ours = sums(found, layer=(layer,), kind=("attn",)) + sums(found, label=(f"L{layer} b_O",))
        assert abs(at[f"{layer}_attn_out"] - ours) <= bound
    assert abs(at["embed"] - sums(found, kind=("embed",))) <= bound


def test_an_existing_cache_of_a_bridge_takes_the_place_of_text(tiny: Any) -> None:
    model = tiny("llama")
    logits, cache = theirs(model)
    for by in SPLITS:
        before, now = analysis.ledger(model, (logits, cache), ANSWER, AGAINST, by=by), ledger(model, by=by)
        assert before.labels == now.labels
        assert before.token_ids == tuple(IDS)
        np.testing.assert_allclose(before.values[:-1], now.values[:-1], rtol=0, atol=now.certificate["native"].proved)
        assert before.certificate["native"].gap <= before.certificate["native"].bound

"""A ledger's labels are tested by what removing them does: the model's own number moves by the entry, for every split and mixer."""

from typing import Any

import pytest
import torch
from builders import decoder, prompt

from interp import analysis

MIXERS = ("mha", "she", "ishe", "he", "ihe", "kshe", "khe")
SHAPES = [("serial", "ln"), ("swapped", "rms"), ("parallel", "none")]
IDS = prompt(7)[0].tolist()


def targets(mixer: str) -> dict[str, Any]:
    found = {"sources": [1, (1, 3)], "lags": [0, 2], "neurons": [(1, 5), (0, 7), (1, 6)]}
    return found | ({"heads": [(0, 1), (1, 3)]} if mixer == "mha" else {})


def entries(model: Any, kind: str, wanted: Any, by: Any) -> float:
    """The sum of the ledger's entries for what is removed."""
    found = analysis.ledger(model, IDS, 7, 9, by=by)
    pairs = {p for t in wanted for p in ([t] if isinstance(t, tuple) else [(0, t), (1, t)])}
    field = kind[:-1]
    return float(sum(v for e, v in zip(found.entries, found.values[:, 0], strict=True) if (e.layer, getattr(e, field)) in pairs))


@pytest.mark.parametrize(("layout", "norm"), SHAPES)
@pytest.mark.parametrize("mixer", MIXERS)
def test_removing_an_entry_moves_the_number_by_that_entry(mixer: str, layout: str, norm: str) -> None:
    model = decoder(mixer, layout=layout, norm=norm)
    by = {"heads": "head", "sources": "head+source", "lags": "lag", "neurons": "neuron"}
    for kind, wanted in targets(mixer).items():
        shown = analysis.ablate(model, IDS, 7, 9, **{kind: wanted})
        assert shown.holds, shown
        assert shown.predicted == pytest.approx(entries(model, kind, wanted, by[kind]), rel=1e-5, abs=1e-6)
        assert abs(shown.direct - shown.predicted) <= shown.check.bound < 1e-2 * max(abs(shown.predicted), 1e-3)
        # What it does downstream as well is another number, and both are reported.
        assert shown.total == shown.baseline - shown.after
        assert shown.total != shown.direct
        assert (shown.kind, shown.how) == (kind, "zero")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mixer", ["he", "ihe"])
def test_what_is_predicted_for_a_source_is_the_ledgers_entry(mixer: str, bias: bool) -> None:
    """A source that is set to zero still lets the mixer add `b_in`: that share is a row of its own, not the source's."""
    model = decoder(mixer, mixer_bias=bias)
    for kind, by in (("sources", "head+source"), ("lags", "lag")):
        wanted = targets(mixer)[kind]
        shown = analysis.ablate(model, IDS, 7, 9, **{kind: wanted})
        assert shown.holds
        assert shown.predicted == pytest.approx(entries(model, kind, wanted, by), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_mean_takes_the_place_of_what_is_removed(mixer: str) -> None:
    model = decoder(mixer)
    for kind, wanted in targets(mixer).items():
        if kind == "lags":
            with pytest.raises(ValueError, match="a lag has no mean of its own"):
                analysis.ablate(model, IDS, 7, 9, lags=wanted, how="mean")
            continue
        shown, zero = (analysis.ablate(model, IDS, 7, 9, **{kind: wanted}, how=how) for how in ("mean", "zero"))
        assert shown.holds, shown
        assert abs(shown.predicted - zero.predicted) > 100 * shown.check.bound
        assert shown.how == "mean"


@pytest.mark.parametrize("mixer", MIXERS)
def test_exchanged_labels_are_caught_by_the_intervention_and_by_nothing_else(mixer: str) -> None:
    """A permutation of labels leaves every sum as it is; removing what one label names does not move the number by the other's entry."""
    model = decoder(mixer)
    for kind, wanted, other in (("sources", 1, 3), ("lags", 0, 2), ("neurons", (1, 5), (1, 6)), ("heads", (1, 0), (1, 2))):
        if kind == "heads" and mixer != "mha":
            continue
        one, two = (analysis.ablate(model, IDS, 7, 9, **{kind: [t]}) for t in (wanted, other))
        assert abs(one.direct - two.predicted) > 10 * one.check.bound, kind


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_null_ablation_is_exactly_nothing(mixer: str) -> None:
    """Sources and lags that the row cannot see: bitwise no effect, predicted, direct and total."""
    model = decoder(mixer)
    for what in ({"sources": [5, 6]}, {"lags": [5, 6]}):
        shown = analysis.ablate(model, IDS, 7, 9, position=3, **what)
        assert (shown.predicted, shown.direct, shown.total) == (0.0, 0.0, 0.0)
        assert shown.check.gap == 0


@pytest.mark.parametrize("name", ["gpt2", "gpt-neox", "llama", "gemma2", "olmo2", "granite", "falcon", "bloom"])
def test_pretrained_families_move_by_their_entries(name: str, tiny: Any) -> None:
    model = tiny(name)
    for what in ({"heads": [(0, 1), (2, 3)]}, {"sources": [1, (2, 3)]}, {"lags": [0, 2]}, {"neurons": [(1, 5), (1, 7)]}):
        shown = analysis.ablate(model, [3, 9, 20, 41, 5], 7, 12, prepend_bos=False, **what)
        assert shown.holds, shown
        assert shown.check.bound < 0.1 * abs(shown.predicted)
        assert shown.total != 0


def test_lags_of_a_model_that_ignores_edits_of_its_pattern_are_refused(tiny: Any) -> None:
    with pytest.raises(ValueError, match="ignores edits of its attention pattern, so its lags cannot be ablated; use sources= or heads="):
        analysis.ablate(tiny("opt"), [3, 9, 20, 41, 5], 7, 12, lags=[0])
    assert analysis.ablate(tiny("opt"), [3, 9, 20, 41, 5], 7, 12, sources=[1], prepend_bos=False).holds


def census(model: Any) -> list[tuple[str, int, int]]:
    return [
        (name, len(p._forward_hooks) + len(p._forward_pre_hooks), len(p._backward_hooks) + len(p._backward_pre_hooks))
        for name, p in model.hook_dict.items()
    ]


@pytest.mark.parametrize("mixer", ["mha", "ihe"])
def test_hooks_and_weights_are_as_before(mixer: str) -> None:
    model = decoder(mixer)
    kept = model.blocks[0].hook_resid_pre
    kept.register_forward_hook(lambda *_: None)
    before, weights = census(model), {k: v.clone() for k, v in model.state_dict().items()}
    analysis.ablate(model, IDS, 7, 9, sources=[1])
    with pytest.raises(ValueError, match="does not exist"):
        analysis.ablate(model, IDS, 7, 9, neurons=[(0, 10**6)])

    def broken(x: torch.Tensor, hook: Any) -> None:
        raise RuntimeError("a hook of the user's own")

    with model.hooks(fwd_hooks=[("blocks.1.hook_resid_post", broken)]), pytest.raises(RuntimeError, match="of the user's own"):
        analysis.ablate(model, IDS, 7, 9, sources=[1])
    assert census(model) == before
    assert sum(forward for _, forward, _ in before) == 1
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())


def test_the_results_of_an_ablation_keep_nothing_alive() -> None:
    import gc
    import weakref

    model = decoder("mha")
    shown = analysis.ablate(model, IDS, 7, 9, heads=[(0, 1)])
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert shown.labels == ("L0H1",)


@pytest.mark.parametrize(
    ("what", "error", "match"),
    [
        ({}, ValueError, "exactly one of heads, lags, sources, neurons is needed, got none"),
        ({"heads": [(0, 1)], "lags": [1]}, ValueError, "exactly one of .* got heads, lags"),
        ({"heads": [(0, 9)]}, ValueError, r"heads: 9 does not exist in layer 0; use 0..3"),
        ({"heads": [(5, 0)]}, ValueError, r"heads: layer 5 does not exist; .* has layers 0..1"),
        ({"heads": [(0, 1), (0, 1)]}, ValueError, "an index is named twice in layer 0"),
        ({"heads": []}, ValueError, "nothing to ablate; name at least one"),
        ({"sources": [7]}, ValueError, "sources: position 7 is outside the prompt of 7 tokens"),
        ({"lags": [-1]}, ValueError, "lags: -1 does not exist"),
    ],
)
def test_targets_that_do_not_exist_are_named(what: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        analysis.ablate(decoder("mha"), IDS, 7, 9, **what)


def test_an_extractor_has_no_heads_to_ablate() -> None:
    with pytest.raises(ValueError, match="has no heads; use sources= or lags="):
        analysis.ablate(decoder("she"), IDS, 7, 9, heads=[(0, 0)])

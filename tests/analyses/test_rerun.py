"""The ledger of an ablated run: complete at every zoom, its total the ablated number, and nothing left of what was removed."""

import pytest

import interp

TEXT = "She was not at all surprised to see him; but she had never"
REMOVED = {
    "heads": [(1, 1), (0, 2)],
    "lags": [0, (1, 2)],
    "sources": [3, (2, 5)],
    "neurons": [(1, 5), (2, 7)],
}


MODELS = ("mha-austen", "she-austen", "ihe-austen")


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return interp.load_model(request.param)


# An Extractor has no heads.
CASES = [(name, kind) for name in MODELS for kind in REMOVED if kind != "heads" or name == "mha-austen"]


def removable(kind):
    targets = REMOVED[kind]
    # a lag or a source without a layer is removed from all of them, so one layer must not be named twice
    return [t for t in targets if not isinstance(t, tuple)] or targets


@pytest.mark.parametrize(("model", "kind"), CASES, indirect=["model"])
@pytest.mark.parametrize("by", ["component", "head", "source", "head+source", "lag", "neuron"])
def test_the_ledger_without_adds_up_to_what_ablation_leaves(model, kind, by):
    removed = {kind: removable(kind)}
    after = interp.ledger_without(model, TEXT, by=by, **removed)
    gone = interp.ablate(model, TEXT, **removed)
    assert after.holds and abs(after.values.sum() - after.total[0]) < 1e-9
    assert after.total[0] == pytest.approx(gone.after, abs=1e-4)
    assert abs(gone.total) > 1e-3, "this removal moves nothing, so the test could not fail"


def test_rows_that_were_removed_are_zero_and_the_others_are_not(model):
    sources = interp.ledger_without(model, TEXT, by="head+source", sources=[3])
    of = {e.label: (e, v) for e, v in zip(sources.entries, sources.values[:, 0], strict=True)}
    assert all(v == 0 for e, v in of.values() if e.source == 3)
    assert any(abs(v) > 1e-3 for e, v in of.values() if e.source == 4)


def test_answer_is_the_intact_models_top_token(model):
    sources = list(range(len(interp.encode(model, TEXT).ids[0])))
    before = interp.ledger(model, TEXT)
    after = interp.ledger_without(model, TEXT, sources=sources)
    assert after.answer == before.answer


def test_logits_before_and_after_are_those_of_both_runs(model):
    gone = interp.ablate(model, TEXT, sources=[3])
    answer = interp.resolve_answer(model, gone.answer)
    assert gone.logits.shape == (2, model.cfg.d_vocab)
    assert float(gone.logits[0, answer]) == pytest.approx(gone.baseline, abs=1e-6)
    assert float(gone.logits[1, answer]) == pytest.approx(gone.after, abs=1e-6)


def test_a_mean_is_not_defined_for_lags(model):
    with pytest.raises(ValueError, match="a lag has no mean of its own"):
        interp.ledger_without(model, TEXT, lags=[1], how="mean")
    with pytest.raises(ValueError, match="exactly one of heads, lags, sources, neurons"):
        interp.ledger_without(model, TEXT)

"""The ledger of our own decoders: every mixer, layout, norm and split adds up, at any stream, along any direction, or is refused."""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from builders import captured, decoder, prompt
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from analyses.certificate import IncompleteLedger
from analyses.fold import Reading
from analyses.ledger import BY_SOURCE, SPLITS, Ledger, build
from analyses.views import DecoderView
from interp import analysis

MIXERS = ("mha", "she", "ishe", "he", "ihe", "kshe", "khe")
LOGIT = Reading(answers=((7,),) * 20, against=((9,),) * 20)


def splits(model: Any) -> tuple[Any, ...]:
    has_ffn, mixes = (any(hasattr(b, slot) for b in model.blocks) for slot in ("mlp", "attn"))
    return tuple(by for by in SPLITS if (by != "neuron" or has_ffn) and (by in ("component", "neuron") or mixes))


def all_splits(model: Any, rows: Sequence[int], t: int, reading: Reading = LOGIT, **options: Any) -> dict[str, Ledger]:
    view = DecoderView.of(model, "tiny")
    logits, cache = captured(view, prompt(t))
    return {by: build(view, cache, logits, reading, list(rows), by=by, **options) for by in splits(model)}


def assert_adds_up(ledgers: dict[str, Ledger]) -> None:
    """Each split adds up to what was printed; splits read from the same activations agree to float64, the others to the native bound."""
    first = next(iter(ledgers.values()))
    for found in ledgers.values():
        assert found.holds, found.certificate
        assert found.entries[-1].kind == "rounding"
        modulus = np.abs(found.values).sum(0)
        np.testing.assert_array_less(np.abs(found.values.sum(0) - found.total), 1e-13 * modulus + 1e-300)
        np.testing.assert_array_equal(found.total, first.total)
        for column, certificate in enumerate(found.certificates):
            assert certificate.rounding == found.values[-1, column]
            other = first.certificates[column]
            same_source = (found.by in BY_SOURCE) == (first.by in BY_SOURCE)
            kind = "algebra" if same_source else "native"
            assert abs(certificate.explained - other.explained) <= certificate[kind].bound + other[kind].bound


@settings(max_examples=40, deadline=None)
@given(
    mixer=st.one_of(st.sampled_from(MIXERS), st.tuples(st.sampled_from(MIXERS), st.sampled_from(MIXERS))),
    layout=st.one_of(
        st.sampled_from(["serial", "swapped", "parallel", "mixer_only", "ffn_only"]),
        st.just(("parallel", "swapped")),
        st.just(("ffn_only", "serial")),
    ),
    norm=st.sampled_from(["ln", "rms", "none"]),
    act_fn=st.sampled_from(["gelu", "relu"]),
    positions=st.sampled_from(["learned", "none"]),
    biases=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    sizes=st.tuples(st.integers(1, 9), st.sampled_from([(4, 1), (12, 3), (18, 2), (16, 4)]), st.integers(1, 13)),
    seed=st.integers(0, 1000),
)
def test_every_mixer_layout_norm_and_bias_adds_up_by_every_split(
    mixer: Any, layout: Any, norm: str, act_fn: str, positions: str, biases: tuple[bool, bool, bool], sizes: Any, seed: int
) -> None:
    t, (d, h), d_mlp = sizes
    model = decoder(
        mixer,
        seed=seed,
        layout=layout,
        norm=norm,
        act_fn=act_fn,
        positions=positions,
        mixer_bias=biases[0],
        mlp_bias=biases[1],
        unembed_bias=biases[2],
        d_model=d,
        n_heads=h,
        d_mlp=d_mlp,
    )
    assert_adds_up(all_splits(model, sorted({0, t // 2, t - 1}), t))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mixer", MIXERS)
def test_other_types_hold_by_their_own_bound(mixer: str, dtype: torch.dtype) -> None:
    found = all_splits(decoder(mixer, dtype=dtype, norm="rms"), [3, 6], 7)
    assert_adds_up(found)
    assert found["head"].certificate.dtype == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("mixer", MIXERS)
def test_the_bound_follows_the_type(mixer: str) -> None:
    bounds = []
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        view = DecoderView.of(decoder(mixer, dtype=dtype))
        logits, cache = captured(view, prompt(7))
        bounds.append(build(view, cache, logits, LOGIT, [6], by="head").certificate["native"].bound)
    assert bounds == sorted(bounds)
    assert bounds[1] == pytest.approx(bounds[0] * 2**29, rel=0.2)
    assert bounds[-1] > 1e3 * bounds[1]


@pytest.mark.parametrize("layout", ["serial", "swapped", "parallel", "mixer_only", ("ffn_only", "serial")], ids=str)
@pytest.mark.parametrize("mixer", ["mha", "ihe"])
def test_every_stream_is_a_stopping_point(mixer: str, layout: Any) -> None:
    model = decoder(mixer, layout=layout)
    probe = torch.randn(16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    view = DecoderView.of(model)
    logits, cache = captured(view, prompt(6))
    for stream in (n for b in view.blocks for n in (b.pre, b.mid, b.post) if n is not None):
        ledgers = {by: build(view, cache, None, Reading(probe=probe), [1, 5], by=by, at=stream) for by in splits(model)}
        assert_adds_up(ledgers)
        expected = cache[stream][0, [1, 5]].double() @ probe
        np.testing.assert_allclose(ledgers["component"].total, expected.numpy(), rtol=1e-14)
    # A logit at a stream inside is read with the final scale frozen; at the last stream that is the printed logit, its constants aside.
    inside = build(view, cache, logits, LOGIT, [5], at=view.blocks[-1].pre)
    last = build(view, cache, logits, LOGIT, [5])
    shared = [i for i, e in enumerate(last.entries) if e.label in inside.labels and e.kind != "rounding"]
    assert len(shared) == len(inside.entries) - 1
    for i in shared:
        assert last.values[i, 0] == inside.values[inside.labels.index(last.labels[i]), 0]


def test_one_position_reads_what_several_read() -> None:
    for mixer in ("mha", "she"):
        model = decoder(mixer)
        several = all_splits(model, [1, 4, 6], 7)
        for by, found in all_splits(model, [4], 7).items():
            at = dict(zip(several[by].labels, several[by].values[:, 1], strict=True))
            for label, value in zip(found.labels, found.values[:, 0], strict=True):
                assert value == pytest.approx(at[label], rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_later_source_writes_nothing(mixer: str) -> None:
    found = all_splits(decoder(mixer), [0, 3, 6], 7)
    for i, e in enumerate(found["head+source"].entries):
        if e.source is not None:
            later = [c for c, p in enumerate((0, 3, 6)) if p < e.source]
            assert not found["head+source"].values[i, later].any()
            assert found["head+source"].values[i, 2] != 0
    for i, e in enumerate(found["lag"].entries):
        if e.lag is not None:
            assert not found["lag"].values[i, [c for c, p in enumerate((0, 3, 6)) if p < e.lag]].any()


@pytest.mark.parametrize("mixer", MIXERS)
def test_the_splits_are_sums_of_the_finest_one(mixer: str) -> None:
    found = all_splits(decoder(mixer), [6], 7)
    fine = [(e, v) for e, v in zip(found["head+source"].entries, found["head+source"].values[:, 0], strict=True) if e.source is not None]
    for e, v in zip(found["head"].entries, found["head"].values[:, 0], strict=True):
        if e.kind in ("head", "extractor"):
            assert v == pytest.approx(sum(x for f, x in fine if (f.layer, f.head) == (e.layer, e.head)), rel=1e-5, abs=1e-5)
    for e, v in zip(found["source"].entries, found["source"].values[:, 0], strict=True):
        if e.kind == "source":
            assert v == pytest.approx(sum(x for f, x in fine if f.source == e.source), rel=1e-12)
    for e, v in zip(found["lag"].entries, found["lag"].values[:, 0], strict=True):
        if e.kind == "lag":
            assert v == pytest.approx(sum(x for f, x in fine if f.layer == e.layer and f.source == 6 - e.lag), rel=1e-12)


def test_labels_say_what_an_entry_is() -> None:
    found = all_splits(decoder("mha", n_layers=1, n_heads=2, norm="ln"), [2], 3, tokens=("a", "b", "c"))
    assert found["component"].labels == (
        "embed", "pos_embed", "L0 attn", "L0 b_O", "L0 mlp", "L0 b_out", "ln_final bias", "b_U", "rounding"
    )  # fmt: skip
    assert found["head"].labels[2:4] == ("L0H0", "L0H1")
    assert found["head+source"].labels[2:8] == tuple(f"L0H{h} <- {j} {t!r}" for h in (0, 1) for j, t in enumerate("abc"))
    assert {"from 0 'a'", "from 1 'b'", "from 2 'c'"} <= set(found["source"].labels)
    assert found["lag"].labels[2:5] == ("L0 lag 0", "L0 lag 1", "L0 lag 2")
    assert sum(e.kind == "neuron" for e in found["neuron"].entries) == 64
    for ledger in found.values():
        assert len(set(ledger.labels)) == len(ledger.labels) == len(ledger.values)
    for mixer in MIXERS:  # HE's output bias and the FFN's had one label, and an average over prompts lost one of them
        for ledger in all_splits(decoder(mixer), [2], 3).values():
            assert len(set(ledger.labels)) == len(ledger.labels)
    extractor = all_splits(decoder("she", n_layers=1, norm="none"), [2], 3)
    assert extractor["head"].labels == ("embed", "L0", "L0 attn b_ext", "L0 mlp", "L0 b_out", "b_U", "rounding")


def test_top_is_sorted_and_wants_one_position() -> None:
    found = all_splits(decoder("mha"), [2, 5], 6)["head"]
    top = found.top(4, position=5)
    values = dict(zip(found.labels, found.values[:, 1], strict=True))
    assert [abs(v) for _, v in top] == sorted((abs(v) for v in values.values()), reverse=True)[:4]
    assert all(values[label] == v for label, v in top)
    with pytest.raises(ValueError, match=r"this ledger has 2 positions; name one of \[2, 5\]"):
        found.top(3)
    with pytest.raises(ValueError, match="position: 4 is not in this ledger"):
        found.top(3, position=4)
    with pytest.raises(ValueError, match="k: a whole number >= 1"):
        found.top(0, position=5)


def test_the_frame_has_one_line_an_entry_and_position() -> None:
    found = all_splits(decoder("mha"), [2, 5], 6)["head+source"]
    frame = found.to_dataframe()
    assert list(frame.columns) == ["label", "kind", "layer", "head", "source", "lag", "neuron", "position", "value"]
    assert len(frame) == 2 * len(found.entries)
    np.testing.assert_allclose(frame.groupby("position")["value"].sum(), found.total, rtol=1e-12)


# ---- what is read ----


def test_answer_sets_are_means_and_differences() -> None:
    model, ids = decoder("ihe"), prompt(6)[0].tolist()
    one = {k: analysis.ledger(model, ids, k, by="source") for k in (3, 4, 8)}
    both = analysis.ledger(model, ids, [3, 4], 8, by="source")
    expected = (one[3].values + one[4].values) / 2 - one[8].values
    np.testing.assert_allclose(both.values[:-1], expected[:-1], atol=1e-12)
    assert both.total[0] == pytest.approx(float(one[3].total[0] + one[4].total[0]) / 2 - float(one[8].total[0]), abs=1e-12)
    top = analysis.ledger(model, ids, by="component", position=[1, 5])
    with torch.no_grad():
        printed = model(torch.tensor([ids]))[0, [1, 5]].max(-1).values
    np.testing.assert_allclose(top.total, printed.double().numpy(), atol=1e-5)
    assert top.answer == "the top token of each position"


def test_a_probe_reads_the_stream_itself() -> None:
    model, ids = decoder("mha"), prompt(6)[0].tolist()
    probe = torch.randn(16, generator=torch.Generator().manual_seed(3))
    found = analysis.ledger(model, ids, direction=probe, by="head+source")
    assert found.holds
    assert not {e.kind for e in found.entries} & {"norm_bias", "unembed_bias", "softcap"}
    view = DecoderView.of(model)
    _, cache = captured(view, torch.tensor([ids]))
    assert found.total[0] == pytest.approx(float(cache["blocks.1.hook_resid_post"][0, -1].double() @ probe.double()), rel=1e-14)


def test_exact_explains_a_float64_run_and_leaves_the_model_as_it_was() -> None:
    model, ids = decoder("mha"), prompt(7)[0].tolist()
    before = {k: (v.data_ptr(), v.clone()) for k, v in model.state_dict().items()}
    found = analysis.ledger(model, ids, 7, 9, by="head+source", exact=True)
    assert found.certificate.dtype == "float64"
    assert found.certificate["native"].gap <= found.certificate["native"].bound < 1e-12
    assert found.notes[0] == "explains a float64 run"
    for k, v in model.state_dict().items():
        assert v.dtype == torch.float32 and v.data_ptr() == before[k][0] and torch.equal(v, before[k][1])
    assert torch.get_default_dtype() == torch.float32


# ---- refusals and gaps ----

unchecked = inspect.unwrap  # a public function without the type checks of the tests, as a user calls it


def test_refusals_name_the_argument_and_the_fix() -> None:
    model, ids = decoder("mha", layout="mixer_only"), prompt(5)[0].tolist()
    ask = lambda **options: analysis.ledger(model, ids, 7, 9, **options)  # noqa: E731
    with pytest.raises(ValueError, match="has no FFN; use by='component'"):
        ask(by="neuron")
    with pytest.raises(ValueError, match="by: one of component, head, source, head\\+source, lag, neuron is needed, got 'heads'"):
        unchecked(build)(DecoderView.of(model), {}, None, LOGIT, [0], by="heads")
    with pytest.raises(ValueError, match=r"at: 'blocks.7.hook_resid_pre' is no residual stream of this model"):
        ask(at="blocks.7.hook_resid_pre")
    with pytest.raises(ValueError, match=r"position: 5 is outside the prompt of 5 tokens; use -5..4"):
        ask(position=5)
    with pytest.raises(TypeError, match="position: a whole number or a sequence of them"):
        ask(position=True)
    with pytest.raises(ValueError, match="on_gap: 'raise' or 'report'"):
        unchecked(analysis.ledger)(model, ids, 7, 9, on_gap="ignore")
    with pytest.raises(ValueError, match=r"against: .* is the answer itself"):
        analysis.ledger(model, ids, 7, 7)
    with pytest.raises(ValueError, match=r"direction: a floating tensor of shape \(16,\) is needed, got \(15,\)"):
        analysis.ledger(model, ids, direction=torch.ones(15))
    with pytest.raises(ValueError, match="direction: it holds NaN"):
        analysis.ledger(model, ids, direction=torch.full((16,), torch.nan))
    with pytest.raises(ValueError, match="a probe vector replaces answer and against"):
        analysis.ledger(model, ids, 7, direction=torch.ones(16))
    with pytest.raises(ValueError, match=r"no sublayer that mixes positions"):
        analysis.ledger(decoder("mha", layout="ffn_only"), ids, 7, 9, by="head")
    with pytest.raises(ValueError, match="training mode"):
        analysis.ledger(decoder("mha").train(), ids, 7, 9)


def test_bytes_are_estimated_before_anything_is_computed() -> None:
    model = decoder("mha")
    with pytest.raises(ValueError, match=r"by='head\+source' at 5 positions takes .* GiB \(.* entries\).*at most \d+ positions at a time"):
        analysis.ledger(model, prompt(5)[0].tolist(), 7, 9, position=range(5), by="head+source", max_bytes=1000)


def test_a_gap_raises_or_is_reported() -> None:
    model = decoder("mha")
    view = DecoderView.of(model)
    logits, cache = captured(view, prompt(6))
    with pytest.raises(IncompleteLedger, match=r"native FAILS: gap 1\b") as caught:
        build(view, cache, logits + (torch.arange(29) == 7), LOGIT, [5])
    assert not caught.value.certificate.holds
    found = build(view, cache, logits + (torch.arange(29) == 7), LOGIT, [5], on_gap="report")
    assert not found.holds
    assert found.certificate.failed[0].name == "native"
    assert found.values.sum() == pytest.approx(float(found.total[0])), "the rounding row takes the gap, and the certificate says so"


def test_a_nan_in_the_run_is_an_incomplete_ledger() -> None:
    model = decoder("mha")
    view = DecoderView.of(model)
    logits, cache = captured(view, prompt(6))
    cache.cache_dict["blocks.1.hook_attn_out"] = cache["blocks.1.hook_attn_out"].clone()
    cache.cache_dict["blocks.1.hook_attn_out"][0, 5, 3] = torch.nan
    with pytest.raises(IncompleteLedger):
        build(view, cache, logits, LOGIT, [5])
    assert build(view, cache, logits, LOGIT, [4]).holds, "the row before it is as it was"


def test_a_limited_view_refuses_with_its_reason() -> None:
    model = decoder("mha")
    view = DecoderView.of(model, "tiny").limited({"L1 attn": "heads do not rebuild it"})
    logits, cache = captured(view, prompt(6))
    with pytest.raises(ValueError, match="'head' is not possible for L1 attn of tiny: heads do not rebuild it; use by='component'"):
        build(view, cache, logits, LOGIT, [5], by="head")
    assert build(view, cache, logits, LOGIT, [5], by="component").holds
    blind = replace(view, limits={"stream": "additions do not add up"})
    with pytest.raises(ValueError, match="no such ledger, because at load additions do not add up"):
        build(blind, cache, logits, LOGIT, [5])


def test_a_missing_activation_is_named() -> None:
    model = decoder("mha")
    view = DecoderView.of(model)
    logits, cache = captured(view, prompt(6))
    del cache.cache_dict["blocks.1.attn.hook_z"]
    with pytest.raises(ValueError, match=r"the ledger needs 'blocks.1.attn.hook_z', which was not cached"):
        build(view, cache, logits, LOGIT, [5])


# ---- cost ----


class Largest(TorchDispatchMode):
    """The largest tensor that any operator returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, list | tuple) else [out]:
            if isinstance(x, torch.Tensor):
                self.numel = max(self.numel, x.numel())
        return out


@pytest.mark.parametrize(("mixer", "by"), [("mha", "head"), ("mha", "head+source"), ("mha", "neuron"), ("ihe", "lag"), ("she", "source")])
def test_nothing_of_size_components_by_positions_by_width_is_built(mixer: str, by: Any) -> None:
    t, d, h, n_layers = 48, 64, 16, 6
    model = decoder(mixer, n_layers=n_layers, d_model=d, n_heads=h, n_ctx=t, d_mlp=96, d_vocab=29)
    view = DecoderView.of(model)
    logits, cache = captured(view, prompt(t))
    parts = n_layers * {"head": h, "head+source": h * t, "neuron": 96, "lag": t, "source": t}[by]
    stored = max(p.numel() for p in model.parameters())
    with Largest() as seen:
        found = build(view, cache, logits, Reading(answers=((7,),) * t), list(range(t)), by=by)
    assert found.holds
    assert seen.numel < parts * t * d
    # The largest thing is one layer's: its stored weights, the entries themselves, or its heads by rows and width or by rows and sources.
    assert seen.numel <= max(stored, found.values.size, h * t * max(d, t), t * 96)


def test_the_watch_on_allocations_can_fail() -> None:
    with Largest() as seen:
        torch.einsum("bthe,hed->bthd", torch.ones(1, 5, 3, 2), torch.ones(3, 2, 7))
    assert seen.numel >= 5 * 3 * 7

"""Faults planted one at a time, in the model after the view was built, in its cache, or in the view: which check catches each."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import captured, decoder, prompt
from torch import Tensor, nn

from analyses.equivalence import equivalence
from analyses.fold import Reading
from analyses.ledger import build
from analyses.views import Attention, DecoderView, Mixer, Neurons

LOGIT = Reading(answers=((7,),) * 8, against=((9,),) * 8)
EXTRACTORS = ("she", "ishe", "he", "ihe", "kshe", "khe")
IDS = prompt(8)


class Scene:
    """A model, the view that was built before any fault, and one run's cache."""

    def __init__(self, model: Any) -> None:
        self.model, self.view = model, DecoderView.of(model)

    def run(self) -> None:
        self.logits, self.cache = captured(self.view, IDS)

    def put(self, name: str, change: Callable[[Tensor], Tensor]) -> None:
        self.cache.cache_dict[name] = change(self.cache[name].clone())

    def edit(self, kind: type, layer: int, **fields: Callable[[Any], Any]) -> None:
        """The view with some fields of one sublayer's parts replaced."""

        def parts(s: Any) -> Any:
            if not isinstance(s.parts, kind) or s.layer != layer:
                return s
            return replace(s, parts=replace(s.parts, **{k: f(getattr(s.parts, k)) for k, f in fields.items()}))

        self.view = replace(self.view, blocks=tuple(replace(b, sublayers=tuple(parts(s) for s in b.sublayers)) for b in self.view.blocks))

    def norm(self, **fields: Any) -> None:
        norm = self.view.readout.norm
        assert norm is not None
        self.view = replace(self.view, readout=replace(self.view.readout, norm=replace(norm, **fields)))

    def failed(self, by: Any) -> dict[str, float]:
        """The ratio of every check that fails at the last row."""
        found = build(self.view, self.cache, self.logits, LOGIT, [7], by=by, on_gap="report")
        return {c.name: c.ratio for c in found.certificate.failed}


@pytest.fixture
def scene(hf_folder: Any) -> Callable[[str], Scene]:
    import interp

    return lambda name: Scene(interp.load_model(hf_folder(name)) if name == "llama" else decoder(name, norm="ln"))


@torch.no_grad()
def set_out(scene: Scene, change: Callable[[Tensor], Tensor]) -> None:
    """Another stored output projection in layer 1."""
    attn = scene.model.blocks[1].attn
    W = change(attn.W_O.detach().clone())
    if hasattr(attn, "project"):
        attn.W_O = nn.Parameter(W)
    else:
        attn.o.original_component.weight = nn.Parameter(W.flatten(0, 1).T.contiguous())


@torch.no_grad()
def set_bias(scene: Scene, slot: str, factor: float) -> None:
    module = getattr(scene.model.blocks[1], slot)
    if slot == "attn":
        module, name = (module, "b_O") if hasattr(module, "project") else (module.o.original_component, "bias")
    else:
        module, name = (module, "b_out") if hasattr(module, "project") else (module.out.original_component, "bias")
    setattr(module, name, nn.Parameter(getattr(module, name) * factor))


def swap(x: Any) -> Any:
    return x[[1, 0, *range(2, len(x))]]


def scaled(W: Tensor) -> Tensor:
    factor = torch.ones(len(W), 1, 1)
    factor[1] = 1.0001
    return W.detach() * factor


ATTENTION = ("mha", "llama")
ALL = ("mha", *EXTRACTORS, "llama")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("by", ["head", "head+source", "neuron"])
def test_without_a_fault_everything_holds(name: str, by: Any, scene: Any) -> None:
    s = scene(name)
    s.run()
    assert s.failed(by) == {}
    assert equivalence(s.view, s.cache).holds


# ---- in the model, after the view was built ----

IN_MODEL: dict[str, tuple[tuple[str, ...], Callable[[Scene], None], str]] = {
    "two heads swapped": (ATTENTION, lambda s: set_out(s, swap), "algebra"),
    "a head times 1.0001": (ATTENTION, lambda s: set_out(s, scaled), "algebra"),
    "b_O doubled": (ATTENTION, lambda s: set_bias(s, "attn", 2.0), "algebra"),
    "b_O dropped": (ATTENTION, lambda s: set_bias(s, "attn", 0.0), "algebra"),
    "b_out doubled": (ALL, lambda s: set_bias(s, "mlp", 2.0), "algebra"),
    "b_out dropped": (ALL, lambda s: set_bias(s, "mlp", 0.0), "algebra"),
}


@pytest.mark.parametrize(("fault", "name"), [(f, n) for f, (names, _, _) in IN_MODEL.items() for n in names])
def test_a_fault_in_the_model_after_the_view_was_built(fault: str, name: str, scene: Any) -> None:
    _, plant, check = IN_MODEL[fault]
    s = scene(name)
    plant(s)
    s.run()
    failed = s.failed("head")
    assert failed[check] > 1e6, failed
    assert failed["rows"] > 1, "the sublayer that is wrong is named"


@pytest.mark.parametrize("name", ALL)
def test_the_final_gain_dropped_in_the_model(name: str, scene: Any) -> None:
    s = scene(name)
    inner = getattr(s.model.ln_final, "original_component", None)
    module, gain = (s.model.ln_final, "w") if inner is None else (inner, "weight")
    setattr(module, gain, nn.Parameter(torch.ones_like(getattr(module, gain))))
    s.run()
    assert s.failed("component")["algebra"] > 1e6


@pytest.mark.parametrize("name", ["mha", *EXTRACTORS])
def test_an_mlp_that_is_computed_and_not_added(name: str, scene: Any) -> None:
    s = scene(name)
    own = s.model.blocks[1]._feed
    s.model.blocks[1]._feed = lambda x: 0 * own(x)
    s.run()
    assert s.failed("component")["continuity"] > 1e6


@pytest.mark.parametrize("name", EXTRACTORS)
def test_sources_shifted_inside_the_forward(name: str, scene: Any) -> None:
    s = scene(name)
    mixer, own = s.model.blocks[1].attn, s.model.blocks[1].attn.forward

    def shifted(x: Tensor, attention_mask: Any = None) -> Tensor:
        value = type(mixer)._value
        object.__setattr__(mixer, "_value", lambda x, mask: value(mixer, x, mask).roll(1, 1))
        try:
            return own(x, attention_mask)
        finally:
            object.__delattr__(mixer, "_value")

    mixer.forward = shifted
    s.run()
    assert s.failed("lag")["rows"] > 1000
    worst = max(equivalence(s.view, s.cache).rows, key=lambda r: r.native_ratio)
    assert worst.layer == 1 and worst.native_ratio > 1000 and not worst.holds


@pytest.mark.parametrize("name", EXTRACTORS)
def test_two_lags_swapped_in_the_models_kernel(name: str, scene: Any) -> None:
    """Side A alone: the kernel of the model weighs lags 0 and 1 by each other's weight, the view's slices stay right."""
    s = scene(name)
    s.run()
    mixer = s.model.blocks[1].attn
    own, weight = mixer.replay, mixer.lag_weight

    def swapped(*args: Any) -> Tensor:
        right = weight.data
        weight.data = swap(right)
        try:
            return own(*args)
        finally:
            weight.data = right

    mixer.replay = swapped
    found = equivalence(s.view, s.cache)
    assert [r.ratio > 1000 for r in found.rows] == [False, True]
    assert not found.holds


@pytest.mark.parametrize("name", ATTENTION)
def test_heads_swapped_break_the_equivalence_in_the_model(name: str, scene: Any) -> None:
    s = scene(name)
    set_out(s, swap)
    s.run()
    found = equivalence(s.view, s.cache)
    assert [r.ratio > 1000 for r in found.rows] == [r.layer == 1 for r in found.rows]
    assert not found.holds


# ---- in the view ----


class Wrong:
    """A mixer's own view but for one fault."""

    def __init__(self, inner: Any, **change: Callable[[Tensor], Tensor]) -> None:
        self.inner, self.change = inner, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def writes(self, acts: Any, u: Tensor, rows: Any) -> Any:
        return self.inner.writes({k: self.change.get(k, torch.positive)(x) for k, x in acts.items()}, u, rows)


@pytest.mark.parametrize("name", ATTENTION)
def test_heads_swapped_in_the_view(name: str, scene: Any) -> None:
    s = scene(name)
    s.edit(Attention, 1, W_O=lambda W: swap(W.detach()))
    s.run()
    found = equivalence(s.view, s.cache)
    assert [r.ratio > 1000 for r in found.rows] == [r.layer == 1 for r in found.rows]
    assert s.failed("head")["algebra"] > 1e6


@pytest.mark.parametrize("name", EXTRACTORS)
@pytest.mark.parametrize("what", ["input", "hook_adjustment"])
def test_lags_or_gates_of_the_wrong_row_in_the_view(name: str, what: str, scene: Any) -> None:
    s = scene(name)
    s.edit(Mixer, 1, module=lambda m: Wrong(m, **{what: lambda x: x.roll(1, 1)}))
    s.run()
    found = equivalence(s.view, s.cache)
    assert [r.ratio > 1000 for r in found.rows] == [False, True]
    assert s.failed("lag")["algebra"] > 1e6


IN_VIEW: dict[str, tuple[tuple[str, ...], Callable[[Scene], None], str]] = {
    "a head times 1.0001": (ATTENTION, lambda s: s.edit(Attention, 1, W_O=scaled), "head"),
    "b_O doubled": (ATTENTION, lambda s: s.edit(Attention, 1, b_O=lambda b: 2 * b.detach()), "head"),
    "b_O dropped": (ATTENTION, lambda s: s.edit(Attention, 1, b_O=lambda b: None), "head"),
    "wrong KV head": (("llama",), lambda s: s.edit(Attention, 1, kv_head=lambda kv: (0, 1, 0, 1)), "head+source"),
    "b_out doubled": (ALL, lambda s: s.edit(Neurons, 1, b_out=lambda b: 2 * b.detach()), "neuron"),
    "one neuron dropped": (ALL, lambda s: s.edit(Neurons, 1, W_out=lambda W: W.detach() * (torch.arange(len(W)) != 3)[:, None]), "neuron"),
    "gain dropped": (ALL, lambda s: s.norm(gain=None), "component"),
    "LayerNorm for RMSNorm or RMSNorm for LayerNorm": (ALL, lambda s: s.norm(centred=not s.view.readout.norm.centred), "component"),
    "norm bias dropped": (("mha", *EXTRACTORS), lambda s: s.norm(bias=None), "component"),
    "another b_U": (
        ("mha", *EXTRACTORS),
        lambda s: setattr(s, "view", replace(s.view, readout=replace(s.view.readout, b_U=s.view.readout.b_U.detach() * 1.0001))),
        "component",
    ),
}


@pytest.mark.parametrize(("fault", "name"), [(f, n) for f, (names, _, _) in IN_VIEW.items() for n in names])
def test_a_fault_in_the_view(fault: str, name: str, scene: Any) -> None:
    _, plant, by = IN_VIEW[fault]
    s = scene(name)
    plant(s)
    s.run()
    failed = s.failed(by)
    assert failed["algebra"] > 1e4, failed


@pytest.mark.parametrize("name", ALL)
def test_another_eps_in_the_view(name: str, scene: Any) -> None:
    """Both accounts freeze the scale that the view computes: they agree on a wrong one, and the scale the model cached does not."""
    s = scene(name)
    s.norm(eps=s.view.readout.norm.eps + 0.01)
    s.run()
    failed = s.failed("component")
    assert failed["scale"] > 10 and "algebra" not in failed


@pytest.mark.parametrize("name", ALL)
def test_a_sublayer_missing_from_the_view(name: str, scene: Any) -> None:
    s = scene(name)
    first, *rest = s.view.blocks
    s.view = replace(s.view, blocks=(replace(first, mid=None, sublayers=first.sublayers[:1]), *rest))
    s.run()
    failed = s.failed("component")
    assert failed["continuity"] > 1e6 and failed["native"] > 1


# ---- in the cache ----

IN_CACHE: dict[str, tuple[tuple[str, ...], Callable[[Scene], None], str, str]] = {
    "sources shifted by one": (ATTENTION, lambda s: s.put("blocks.1.attn.hook_pattern", lambda x: x.roll(1, -1)), "head+source", "rows"),
    "KV heads exchanged": (("llama",), lambda s: s.put("blocks.1.attn.hook_v", lambda x: x.flip(2)), "head+source", "rows"),
    "rows of z shifted": (ATTENTION, lambda s: s.put("blocks.1.attn.hook_z", lambda x: x.roll(1, 1)), "head", "rows"),
    "gate of the wrong row": (EXTRACTORS, lambda s: s.put("blocks.1.attn.hook_adjustment", lambda x: x.roll(1, 1)), "lag", "rows"),
    "rows of post shifted": (ALL, lambda s: s.put("blocks.1.mlp.hook_post", lambda x: x.roll(1, 1)), "neuron", "rows"),
    "the stream under the name of an output": (
        ALL,
        lambda s: s.put("blocks.0.hook_attn_out", lambda x: s.cache["blocks.0.hook_resid_mid"]),
        "component",
        "continuity",
    ),
    "an output changed by one part in a hundred thousand": (
        ("mha", *EXTRACTORS),
        lambda s: s.put("blocks.0.hook_mlp_out", lambda x: x * (1 + 1e-5)),
        "component",
        "continuity",
    ),
    "another final scale": (ALL, lambda s: s.put("ln_final.hook_scale", lambda x: x * 1.0001), "component", "scale"),
}


@pytest.mark.parametrize(("fault", "name"), [(f, n) for f, (names, _, _, _) in IN_CACHE.items() for n in names])
def test_a_fault_in_the_cache(fault: str, name: str, scene: Any) -> None:
    _, plant, by, check = IN_CACHE[fault]
    s = scene(name)
    s.run()
    plant(s)
    failed = s.failed(by)
    assert failed[check] > 1, failed


def test_other_logits_than_the_models_are_seen_by_the_native_check_alone(scene: Any) -> None:
    s = scene("mha")
    s.run()
    s.logits = s.logits + 1e-3 * (torch.arange(29) == 7)
    assert set(s.failed("head")) == {"native"}

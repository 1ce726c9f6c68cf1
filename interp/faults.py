"""Faults planted on purpose: does a check catch each of them, and by what factor?

A tool whose checks have never failed has not been tested. `selftest` builds a small model of every mixer and a Llama-style one with
grouped queries, plants one fault at a time (in the model after the view was built, in its cache, or in the view), and reports which
check caught it. The unfaulted control must hold. What no sum can see (labels exchanged consistently) is caught by an intervention.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from analyses import ledger as _ledger
from analyses.ablation import ablate
from analyses.capture import explicit, run_with_cache
from analyses.certificate import Check, check
from analyses.progress import OnStep, Steps
from analyses.views import Attention, DecoderView, Mixer, Neurons, NormView, Sublayer

from ._models import wing

MIXERS = ("mha", "she", "ishe", "he", "ihe")
ANSWER, AGAINST = 3, 5


@dataclass(frozen=True, kw_only=True)
class FaultRow:
    """One fault in one model: where it was planted, which check caught it, and the gap over its bound (1 or less is uncaught)."""

    model: str
    fault: str
    planted: str
    caught_by: str
    factor: float
    caught: bool


@dataclass(frozen=True, kw_only=True)
class SelfTest:
    """Every planted fault and every control; `holds` when all faults were caught and no control failed."""

    rows: tuple[FaultRow, ...]
    controls: tuple[FaultRow, ...]

    @property
    def holds(self) -> bool:
        return all(r.caught for r in self.rows) and not any(c.caught for c in self.controls)

    @property
    def missed(self) -> tuple[FaultRow, ...]:
        return tuple(r for r in self.rows if not r.caught)

    def to_dataframe(self) -> Any:
        """A pandas frame with one line a fault, the controls first."""
        import pandas as pd

        return pd.DataFrame([r.__dict__ for r in (*self.controls, *self.rows)])


@dataclass
class _Scene:
    """A model, its view (built before any fault), the fed ids and row; a fault edits one of these before the run or after it."""

    name: str
    model: Any
    view: DecoderView
    ids: Tensor
    mask: Tensor | None = None

    def run(self) -> tuple[Tensor, Any]:
        with torch.no_grad(), explicit(self.model):
            logits, cache = run_with_cache(self.model, self.ids, attention_mask=self.mask, names_filter=self.view.hooks)
        return (logits, cache) if self.mask is None else (logits[:, self.mask[0].bool()], cache.prompt(0))


Plant = Callable[[_Scene], "tuple[DecoderView, Tensor, Any]"]


def selftest(*, seed: int = 0, on_step: OnStep | None = None) -> SelfTest:
    """Plant every fault in every model it applies to.

    Args:
        seed: of weights and tokens.
        on_step: called as each model and each fault begins, with the steps done, the steps in all and what is done now.

    Returns:
        `.holds`, `.rows`, `.controls`, `.missed`, `.to_dataframe()`.

    >>> import interp
    >>> interp.selftest().holds
    True
    """
    rows, controls = [], []
    scenes = [*(lambda m=m: _decoder(m, seed) for m in MIXERS), lambda: _llama(seed)]
    steps = Steps(sum(2 + sum(1 for _ in _faults(build())) for build in scenes), on_step)
    for build in scenes:
        scene = build()
        steps(f"{scene.name}: no fault")
        controls.append(_judge(scene, "none (control)", "", lambda s: (s.view, *s.run())))
        for fault, planted, plant in _faults(scene):
            steps(f"{scene.name}: {fault}")
            rows.append(_judge(build(), fault, planted, plant))
        steps(f"{scene.name}: labels exchanged")
        rows.append(_permuted_labels(build()))
    return SelfTest(rows=tuple(rows), controls=tuple(controls))


def _judge(scene: _Scene, fault: str, planted: str, plant: Plant) -> FaultRow:
    """Ledgers by every split that shows the fault; the check that exceeds its bound by most, over all of them."""
    view, logits, cache = plant(scene)
    found: list[Check] = []
    for by in ("head", "head+source", "neuron"):
        reading = _ledger.Reading(answers=((ANSWER,),), against=((AGAINST,),))
        result = _ledger.build(view, cache, logits, reading, [logits.shape[1] - 1], by=by, on_gap="report")
        found += result.certificate.failed
    if not found:
        return FaultRow(model=scene.name, fault=fault, planted=planted, caught_by="nothing", factor=0.0, caught=False)
    worst = max(found, key=lambda c: c.ratio if c.ratio == c.ratio else float("inf"))
    names = ", ".join(dict.fromkeys(c.name for c in sorted(found, key=lambda c: -c.ratio)))
    return FaultRow(model=scene.name, fault=fault, planted=planted, caught_by=names, factor=worst.ratio, caught=True)


def _permuted_labels(scene: _Scene) -> FaultRow:
    """Two labels exchanged leave every sum as it is; removing what one of them names shows it."""
    view, ids = scene.view, scene.ids
    logits, cache = scene.run()
    row = logits.shape[1] - 1
    reading = _ledger.Reading(answers=((ANSWER,),), against=((AGAINST,),))
    build = _ledger.build(view, cache, logits, reading, [row], by="head+source")
    one, other = (next(i for i, e in enumerate(build.entries) if e.layer == 0 and e.head in (None, 0) and e.source == j) for j in (0, 2))
    kind = "sources"
    swapped = float(build.values[other, 0])  # what a ledger with the two labels exchanged would say of source 0
    # Sources are removed from every head of the layer: the other heads' entries for source 0 keep their labels.
    rest = sum(float(build.values[i, 0]) for i, e in enumerate(build.entries) if e.layer == 0 and e.source == 0 and i != one)
    bound = build.certificate["native"].bound
    shown = ablate(view, ids, reading, row, kind, [(0, 0)], "zero", bound)  # type: ignore[arg-type]
    c = check("intervention", abs(shown.direct - (swapped + rest)), shown.check.bound, kind="practical")
    return FaultRow(
        model=scene.name,
        fault="labels of two sources exchanged",
        planted="result",
        caught_by="intervention",
        factor=c.ratio,
        caught=not c.holds,
    )


# ---- the models ----


def _decoder(mixer: str, seed: int) -> _Scene:
    models = wing()
    config = models.DecoderConfig(
        n_layers=2, d_model=16, n_ctx=12, d_vocab=29, mixer=mixer, n_heads=4, mixer_bias=True, unembed_bias=True, norm="ln"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = models.HookedDecoder(config).eval()
        _randomise(model)
        ids = torch.randint(0, config.d_vocab, (1, 8))
    return _Scene(mixer, model, DecoderView.of(model, mixer), ids)


def _llama(seed: int) -> _Scene:
    """A Llama with four query heads on two key/value heads, with biases, through TransformerBridge."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from .huggingface import as_bridge, quiet

    config = LlamaConfig(
        vocab_size=29,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=12,
        attention_bias=True,
        mlp_bias=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inner = LlamaForCausalLM(config).eval()
        _randomise(inner)
        ids = torch.randint(0, config.vocab_size, (1, 8))
    inner.config._attn_implementation = "eager"
    words = Tokenizer(WordLevel({f"t{i}": i for i in range(config.vocab_size)}, unk_token="t0"))
    with quiet():
        model = as_bridge(inner, PreTrainedTokenizerFast(tokenizer_object=words, unk_token="t0", pad_token="t0"), "llama")
    return _Scene("llama", model, DecoderView.of(model, "llama"), ids)


@torch.no_grad()
def _randomise(model: nn.Module) -> None:
    for p in model.parameters():
        p.add_(torch.randn_like(p) * 0.2)


# ---- the faults ----


def _faults(scene: _Scene) -> Iterator[tuple[str, str, Plant]]:
    """Every fault that applies to the scene's model: (what, planted where, how)."""
    attention = isinstance(scene.view.sublayers[0].parts, Attention)
    if attention:
        yield "two heads exchanged", "model", _in_model(lambda m: _edit_out(m, lambda W: W[[1, 0, *range(2, len(W))]]))
        yield "two heads exchanged", "view", _in_view(lambda s: _attention(s, W_O=lambda W: W[[1, 0, *range(2, len(W))]]))
        yield "one head scaled by 1.0001", "model", _in_model(lambda m: _edit_out(m, lambda W: _scaled(W, 1)))
        yield "one head scaled by 1.0001", "view", _in_view(lambda s: _attention(s, W_O=lambda W: _scaled(W, 1)))
        yield "output bias doubled", "model", _in_model(lambda m: _edit_bias(m, 2.0))
        yield "output bias doubled", "view", _in_view(lambda s: _attention(s, b_O=lambda b: 2 * b))
        yield "output bias dropped", "model", _in_model(lambda m: _edit_bias(m, 0.0))
        yield "output bias dropped", "view", _in_view(lambda s: _attention(s, b_O=lambda b: None))
        yield "sources shifted by one", "cache", _in_cache("attn.hook_pattern", lambda x: x.roll(1, -1))
        if scene.name == "llama":
            yield "wrong KV head", "view", _in_view(_wrong_kv)
            yield "wrong KV head", "cache", _in_cache("attn.hook_v", lambda x: x.flip(2))
    else:
        yield "a lag off by one", "model", _in_model(_lag_off_by_one)
        yield "a lag off by one", "view", _in_view(lambda s: _mixer(s, _LagOffByOne))
        yield "gate of the wrong row", "model", _in_model(_wrong_gate)
        yield "gate of the wrong row", "cache", _in_cache("attn.hook_adjustment", lambda x: x.roll(1, 1))
        yield "gate of the wrong row", "view", _in_view(lambda s: _mixer(s, _WrongGate))
        yield "extraction bias dropped", "view", _in_view(lambda s: _mixer(s, _NoConstants))
        yield "extraction bias doubled", "view", _in_view(lambda s: _mixer(s, _DoubleConstants))
        if scene.name in ("ishe", "ihe"):
            yield "1/sqrt(i) off by one", "model", _in_model(_root_off_by_one)
            yield "1/sqrt(i) off by one", "view", _in_view(lambda s: _mixer(s, _RootOffByOne))
    yield "one neuron dropped", "view", _in_view(_neuron_dropped)
    yield "final gain dropped", "model", _in_model(_gain_dropped)
    yield "final gain dropped", "view", _norm_in_view(lambda n: replace(n, gain=None))
    yield "wrong kind of norm", "view", _norm_in_view(lambda n: replace(n, centred=not n.centred))
    yield "eps off", "view", _norm_in_view(lambda n: replace(n, eps=n.eps + 0.1))
    yield "an aliased cache entry", "cache", _aliased
    yield "positions shifted by one under left padding", "cache", _shifted_padding


def _in_model(edit: Callable[[Any], None]) -> Plant:
    def plant(scene: _Scene) -> tuple[DecoderView, Tensor, Any]:
        edit(scene.model)
        return (scene.view, *scene.run())

    return plant


def _in_view(edit: Callable[[Sublayer], Sublayer]) -> Plant:
    """The fault in every sublayer that `edit` changes."""

    def plant(scene: _Scene) -> tuple[DecoderView, Tensor, Any]:
        blocks = tuple(replace(b, sublayers=tuple(edit(s) for s in b.sublayers)) for b in scene.view.blocks)
        return (replace(scene.view, blocks=blocks), *scene.run())

    return plant


def _in_cache(hook: str, edit: Callable[[Tensor], Tensor]) -> Plant:
    def plant(scene: _Scene) -> tuple[DecoderView, Tensor, Any]:
        logits, cache = scene.run()
        name = f"blocks.1.{hook}"
        cache.cache_dict[name] = edit(cache[name])
        return scene.view, logits, cache

    return plant


def _norm_in_view(edit: Callable[[NormView], NormView]) -> Plant:
    def plant(scene: _Scene) -> tuple[DecoderView, Tensor, Any]:
        norm = scene.view.readout.norm
        assert norm is not None
        return (replace(scene.view, readout=replace(scene.view.readout, norm=edit(norm))), *scene.run())

    return plant


def _attention(s: Sublayer, **edits: Callable[[Any], Any]) -> Sublayer:
    if not isinstance(s.parts, Attention):
        return s
    return replace(s, parts=replace(s.parts, **{k: edit(getattr(s.parts, k)) for k, edit in edits.items()}))


def _wrong_kv(s: Sublayer) -> Sublayer:
    return _attention(s, kv_head=lambda kv: tuple(reversed(kv)))


def _scaled(W: Tensor, head: int) -> Tensor:
    factor = torch.ones(len(W), 1, 1)
    factor[head] = 1.0001
    return W.detach() * factor


def _neuron_dropped(s: Sublayer) -> Sublayer:
    if not isinstance(s.parts, Neurons) or s.layer != 1:
        return s
    W = s.parts.W_out.detach().clone()
    W[2] = 0.0
    return replace(s, parts=replace(s.parts, W_out=W))


@torch.no_grad()
def _edit_out(model: Any, edit: Callable[[Tensor], Tensor]) -> None:
    """Replace the stored output projection of layer 1 by new parameters; the view keeps the tensors it was built from."""
    attn = model.blocks[1].attn
    W = edit(attn.W_O.detach().clone())
    if hasattr(attn, "project"):
        attn.W_O = nn.Parameter(W)
    else:
        attn.o.original_component.weight = nn.Parameter(W.flatten(0, 1).T.contiguous())


@torch.no_grad()
def _edit_bias(model: Any, factor: float) -> None:
    attn = model.blocks[1].attn
    module, name = (attn, "b_O") if hasattr(attn, "project") else (attn.o.original_component, "bias")
    setattr(module, name, nn.Parameter(getattr(module, name) * factor))


@torch.no_grad()
def _gain_dropped(model: Any) -> None:
    inner = getattr(model.ln_final, "original_component", None)
    module, name = (model.ln_final, "w") if inner is None else (inner, "weight")
    setattr(module, name, nn.Parameter(torch.ones_like(getattr(module, name))))


def _patched(mixer: Any, name: str, change: Callable[..., Any]) -> None:
    """Give one mixer's forward another method for the length of the forward, as a faulty kernel would; its replay keeps its own."""
    forward, own = mixer.forward, getattr(mixer, name)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        object.__setattr__(mixer, name, lambda *a, **k: change(own(*a, **k)))
        try:
            return forward(*args, **kwargs)
        finally:
            object.__delattr__(mixer, name)

    mixer.forward = wrong


def _lag_off_by_one(model: Any) -> None:
    _patched(model.blocks[1].attn, "_value", lambda x: x.roll(1, 1))


def _root_off_by_one(model: Any) -> None:
    _patched(model.blocks[1].attn, "row_factor", lambda s: (s.pow(-2) + 1).rsqrt())


class _RollAfter(nn.Module):
    """What the cache sees is right; what the forward goes on with is the row before."""

    def __init__(self, point: nn.Module) -> None:
        super().__init__()
        self.point = point

    def forward(self, x: Tensor) -> Tensor:
        rolled: Tensor = self.point(x).roll(1, 1)
        return rolled


def _wrong_gate(model: Any) -> None:
    mixer = model.blocks[1].attn
    mixer.hook_adjustment = _RollAfter(mixer.hook_adjustment)


class _Wrong:
    """A mixer's view with one fault; everything else is the mixer's own."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _LagOffByOne(_Wrong):
    def writes(self, acts: Mapping[str, Tensor], u: Tensor, rows: Any) -> Any:
        return self.inner.writes({**acts, "input": acts["input"].roll(1, 1)}, u, rows)


class _WrongGate(_Wrong):
    def writes(self, acts: Mapping[str, Tensor], u: Tensor, rows: Any) -> Any:
        return self.inner.writes({**acts, "hook_adjustment": acts["hook_adjustment"].roll(1, 1)}, u, rows)


class _RootOffByOne(_Wrong):
    def writes(self, acts: Mapping[str, Tensor], u: Tensor, rows: Any) -> Any:
        w = self.inner.writes(acts, u, rows)
        i = torch.tensor([r + 1.0 for r in rows], dtype=torch.float64)
        return w._replace(value=w.value * (i / (i + 1)).sqrt()[:, None])


class _NoConstants(_Wrong):
    def constants(self, acts: Any, u: Tensor, rows: Any) -> Any:
        return {}


class _DoubleConstants(_Wrong):
    def constants(self, acts: Any, u: Tensor, rows: Any) -> Any:
        return {k: 2 * v for k, v in self.inner.constants(acts, u, rows).items()}


def _mixer(s: Sublayer, fault: type[_Wrong]) -> Sublayer:
    return replace(s, parts=replace(s.parts, module=fault(s.parts.module))) if isinstance(s.parts, Mixer) else s


def _aliased(scene: _Scene) -> tuple[DecoderView, Tensor, Any]:
    """A cached sublayer output that aliases the stream it was added to, so that an in-place addition rewrote it."""
    logits, cache = scene.run()
    cache.cache_dict["blocks.0.hook_mlp_out"] = cache["blocks.0.hook_resid_post"]
    return scene.view, logits, cache


def _shifted_padding(scene: _Scene) -> tuple[DecoderView, Tensor, Any]:
    """A prompt padded on the left by two and cut out of the batch one position too early, while its logits are cut right."""
    pad = torch.zeros(1, 2, dtype=scene.ids.dtype)
    mask = torch.cat([torch.zeros_like(pad), torch.ones_like(scene.ids)], 1)
    with torch.no_grad(), explicit(scene.model):
        logits, cache = run_with_cache(scene.model, torch.cat([pad, scene.ids], 1), attention_mask=mask, names_filter=scene.view.hooks)
    right = mask[0].bool()
    cache.attention_mask = mask.roll(-1, 1)
    return scene.view, logits[:, right], cache.prompt(0)

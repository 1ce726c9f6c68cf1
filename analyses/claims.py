"""The claims of the sources, each a measurement that can fail: what holds for this model, what does not, and what does not apply.

In here: one function a claim, from a model and a few prompts to a `ClaimRow`, and `verify`, which runs them all. Not in here: text,
how fresh decoders are made (the caller hands functions), and the two analyses that carry the hardest part: ledger.py (additivity) and
equivalence.py (project-then-sum). Sources: [C23b] arXiv:2311.12678 for all but where a row says otherwise.

How a row is judged: exactly (bitwise), by a proved bound, by a bound that is said to be practical, or by an interval. A float64 check
of a whole chain of operations has no bound that is both proved and sharp; there an effect must exceed, or stay below, `PRACTICAL`
times the size of what is compared, a million roundings of float64.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from . import drive as _drive
from . import ledger as _ledger
from .capture import Cache, explicit, hooked, model_name, refuse_training, run_with_cache
from .certificate import Precision, gamma, unit
from .equivalence import Equivalence, equivalence
from .progress import OnStep, Steps
from .second_moment import LagKernel
from .statistics import Estimate, mean_interval
from .variance import EXTRACTION, SUBLAYER, Batch, VarianceProfile, in_double, profile, profile_at_init
from .views import Attention, DecoderView, Sublayer, own_projection

State = Literal["init", "trained"]
Verdict = Literal["holds", "fails", "undecided", "n/a"]

PRACTICAL = 1e6 * 2.0**-53
"""Relative size below which a float64 difference is taken for rounding, and above which for an effect."""

SLOPE_TOLERANCE = 0.02
LEDGER_PROMPTS = 3

SENTENCES = {
    "additive": "The core only ever adds to the embedding: a logit is the embedding's part plus what every sublayer wrote.",
    "project-sum": "Concatenating the heads and projecting equals projecting each head and summing.",
    "reduce": "Sublayer 1 maps the rows up to i to one row: a sum over source rows through one matrix a source.",
    "row-wise": "Sublayer 2 maps each row alone: permuting the rows permutes its outputs.",
    "causal": "Row i depends on rows up to i only.",
    "padding": "Zero rows in front change nothing.",
    "position-free": "Extractors need no positional embedding: exchanging earlier rows changes what they write.",
    "static-dynamic": "Attention's mixing weights depend on the input; an Extractor's are static up to the gate.",
    "drive": "The core drives each row towards its output row, layer by layer.",
    "variance": "At the extraction and the sublayer's output SHE's variance grows with i and iSHE's does not.",
    "parameters": "iSHE has as many parameters as SHE, and HE as many as attention when the context equals the width.",
    "no-norm": "The claims do not rest on a normalisation.",
}


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """One claim, measured.

    Attributes:
        id: of the claim; the keys of `SENTENCES`.
        claim: one plain sentence.
        state: "trained" for the model's own weights, "init" for fresh ones.
        verdict: "holds", "fails", "undecided" (the interval allows both), or "n/a": the sources' own conditions are not met, or the
            claim does not speak of this model. The effect is measured even then, where there is one.
        measured: the number; None where there is nothing to measure.
        bound: what it is judged by, in words with its number.
        note: how it was measured, and why a row is n/a.
    """

    id: str
    claim: str
    state: State
    verdict: Verdict
    measured: float | None
    bound: str
    note: str


@dataclass(frozen=True, kw_only=True)
class Verification:
    """All claims for one model."""

    model: str
    rows: tuple[ClaimRow, ...]

    @property
    def holds(self) -> bool:
        """Whether no claim whose conditions are met fails."""
        return all(r.verdict != "fails" for r in self.rows)

    def __getitem__(self, claim: str) -> ClaimRow:
        """The first row of a claim.

        Raises:
            ValueError: no such claim; the message lists them.
        """
        for row in self.rows:
            if row.id == claim:
                return row
        raise ValueError(f"no claim {claim!r}; there are {', '.join(dict.fromkeys(r.id for r in self.rows))}")

    def to_dataframe(self) -> pd.DataFrame:
        """One line a row: id, claim, state, verdict, measured, bound, note."""
        return pd.DataFrame([{**r.__dict__} for r in self.rows])

    def summary(self) -> list[str]:
        """A line a row, for a terminal."""
        return [f"{r.id:>15} {r.state:8} {r.verdict:10} {_number(r.measured):>9}  {r.bound}; {r.note}" for r in self.rows]


@dataclass(frozen=True, kw_only=True)
class Siblings:
    """Fresh decoders and mixers of the same family, which only whoever knows how weights are drawn can make.

    Attributes:
        fresh: `fresh(seed)`: the same configuration, weights drawn anew.
        plain: a decoder of the same mixers without normalisation and without biases.
        mixer: `mixer(kind, n_ctx)`: one mixer of the same width and no biases; kinds "mha", "she", "ishe", "he".
    """

    fresh: Callable[[int], Any]
    plain: Callable[[], Any]
    mixer: Callable[[str, int], nn.Module]


def verify(
    model: Any,
    prompts: Sequence[Int[Tensor, "1 t"]],
    *,
    siblings: Siblings | None = None,
    batches: Sequence[Batch] = (),
    seeds: int = 6,
    on_step: OnStep | None = None,
) -> Verification:
    """Measure every claim on one model.

    Args:
        model: a decoder in evaluation mode with TransformerLens' names.
        prompts: ids (1, t), at least two, all of one length t >= 4 that leaves room for padding (t < n_ctx); the interval of "drive"
            is over them.
        siblings: see `Siblings`; None for a model whose initialisation is not known (its rows at initialisation are n/a).
        batches: token ids for the variance; none leaves that claim out of what is measured.
        seeds: draws of the weights at initialisation.
        on_step: told of every claim, and of the parts of the long ones, as they begin.

    Raises:
        ValueError: training mode, or prompts that are too few, too short or of several lengths.
    """
    refuse_training(model)
    lengths = {p.shape[1] for p in prompts}
    if len(prompts) < 2 or len(lengths) != 1 or min(lengths) < 4:
        got = [p.shape[1] for p in prompts]
        raise ValueError(f"prompts: at least two of one length of at least 4 tokens are needed, got lengths {got}")
    with torch.no_grad():
        subject = Subject(model, tuple(prompts))
        draws = 1 if siblings is None else seeds + 1
        steps = Steps(len(SENTENCES) - 1 + len(subject.prompts) + draws * len(batches) + 2 * len(subject.mixers), on_step)
        rows = [
            *structure(subject, steps=steps),
            drive(subject, steps=steps),
            *variance(subject, siblings, batches, seeds, steps=steps),
        ]
        steps("parameters")
        rows.append(parameters(subject, siblings))
        steps("no-norm")
        rows.append(no_norm(subject, siblings))
    order = list(SENTENCES)
    rows.sort(key=lambda r: order.index(r.id))
    return Verification(model=model_name(model), rows=tuple(rows))


def structure(subject: "Subject", state: State = "trained", *, steps: Steps | None = None) -> list[ClaimRow]:
    """The claims about what a decoder computes, whatever its weights."""
    claims = (additive, project_sum, reduce, row_wise, causal, padding, position_free, static_dynamic)
    steps = steps or Steps(0, None)
    rows = []
    for claim in claims:
        steps(claim.__name__.replace("_", "-"))
        rows.append(claim(subject, state))
    return rows


# -------------------------------------------------------------------------------------------------------- what is looked at


@dataclass(frozen=True)
class Call:
    """One call of a submodule in a run: what it was given and what it returned (its first tensor)."""

    module: nn.Module
    rows: Float[Tensor, "b t d"]
    out: Float[Tensor, "b t d"]
    alone: bool  # whether the rows are all it was given, so that it can be called by itself


@dataclass(frozen=True)
class Subject:
    """A model with the prompts it is judged on, and what several claims read from one run."""

    model: Any
    prompts: tuple[Int[Tensor, "1 t"], ...]

    @cached_property
    def view(self) -> DecoderView:
        return DecoderView.of(self.model, model_name(self.model))

    @cached_property
    def runs(self) -> list[tuple[Tensor, Cache]]:
        """Logits and activations of the first prompts, on the explicit path."""
        with explicit(self.model):
            return [run_with_cache(self.model, p, names_filter=self.view.hooks) for p in self.prompts[:LEDGER_PROMPTS]]

    @cached_property
    def calls(self) -> list[dict[tuple[int, str], Call]]:
        """For the first two prompts: how each `attn` and `mlp` was called."""
        return [_recorded(self.model, p) for p in self.prompts[:2]]

    @cached_property
    def equivalence(self) -> Equivalence | str:
        """The identity in every layer, or why there is none."""
        try:
            return equivalence(self.view, self.runs[0][1])
        except ValueError as why:
            return str(why)

    @property
    def mixers(self) -> list[Sublayer]:
        return [s for s in self.view.sublayers if s.slot == "attn"]

    @cached_property
    def extractors(self) -> dict[int, LagKernel]:
        """Layer -> kernel, for the layers that an Extractor mixes."""
        kernels = {s.layer: LagKernel.of(s.module) for s in self.mixers}
        return {layer: k for layer, k in kernels.items() if k is not None}

    @property
    def attention(self) -> list[Sublayer]:
        return [s for s in self.mixers if isinstance(s.parts, Attention)]


def _recorded(model: Any, ids: Int[Tensor, "1 t"]) -> dict[tuple[int, str], Call]:
    calls: dict[tuple[int, str], Call] = {}

    def keep(key: tuple[int, str]) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            given = args[0] if args else kwargs.get("hidden_states")
            first = out[0] if isinstance(out, tuple) else out
            if isinstance(given, Tensor) and isinstance(first, Tensor):
                alone = not kwargs and all(a is None for a in args[1:])
                calls[key] = Call(module, given.detach().clone(), first.detach().clone(), alone)

        return hook

    handles = []
    try:
        for i, block in enumerate(model.blocks):
            for slot in ("attn", "mlp"):
                module = getattr(block, slot, None)
                if module is not None:
                    handles.append(module.register_forward_hook(keep((i, slot)), with_kwargs=True))
        with explicit(model):
            model(ids)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _row(claim: str, state: State, verdict: Verdict, measured: float | None, bound: str, note: str) -> ClaimRow:
    return ClaimRow(id=claim, claim=SENTENCES[claim], state=state, verdict=verdict, measured=measured, bound=bound, note=note)


def _judged(claim: str, state: State, holds: bool, measured: float, bound: str, note: str) -> ClaimRow:
    return _row(claim, state, "holds" if holds else "fails", measured, bound, note)


def _number(x: float | None) -> str:
    return "-" if x is None else f"{x:.3g}"


def _relative(difference: Tensor, size: Tensor) -> float:
    """Largest difference over largest size; 0/0 is 0, a NaN infinite."""
    gap, scale = float(difference.abs().max()), float(size.abs().max())
    if math.isnan(gap) or math.isnan(scale):
        return math.inf
    return 0.0 if gap == 0 else math.inf if scale == 0 else gap / scale


def _worst(ratios: Sequence[float]) -> float:
    return max(math.inf if math.isnan(r) else r for r in ratios)


# ---------------------------------------------------------------------------------------------------------------- structure


def additive(subject: Subject, state: State = "trained") -> ClaimRow:
    """Continuity at every sublayer, and algebra and native at the end, of the component ledger of the top logit."""
    ratios: dict[str, float] = {}
    for logits, cache in subject.runs:
        last = logits.shape[1] - 1
        reading = _ledger.Reading(answers=((int(logits[0, last].argmax()),),))
        try:
            result = _ledger.build(subject.view, cache, logits, reading, [last], by="component", on_gap="report")
        except ValueError as why:
            return _row("additive", state, "n/a", None, "worst gap <= 1 of its bound", f"no ledger of this model: {why}")
        for name in ("continuity", "algebra", "native"):
            ratios[name] = _worst([ratios.get(name, 0.0), result.certificate[name].ratio])
    note = ", ".join(f"{name} at {r:.2g} of its bound" for name, r in ratios.items())
    worst = _worst(list(ratios.values()))
    return _judged("additive", state, worst <= 1, worst, "worst gap <= 1 of its bound", f"{note}; {len(subject.runs)} prompts, last row")


def project_sum(subject: Subject, state: State = "trained") -> ClaimRow:
    """`concat_h(z^h) W_O == sum_h z^h W_O^h`, the model's own projection against the per-head view ([E21], [C23b]); and a third
    evaluation of the sum, as a grouped 1x1 convolution over heads summed over its groups."""
    otherwise = "no layer with heads: for an Extractor the same identity runs over lags (reduce)"
    row = _identity(subject, state, "project-sum", "heads", otherwise)
    if row.measured is None or not subject.attention:
        return row
    third = _worst([_grouped_convolution(subject, s) for s in subject.attention])
    worst = _worst([row.measured, third])
    note = f"{row.note}; as a grouped 1x1 convolution at {third:.2g}"
    return _judged("project-sum", state, worst <= 1, worst, row.bound, note)


def _grouped_convolution(subject: Subject, s: Sublayer) -> float:
    """Worst ratio of the model's own projection to `sum_groups conv1x1(z)` in float64; both within `gamma_n S` of the exact sum."""
    a = s.parts
    assert isinstance(a, Attention)
    z = subject.runs[0][1][a.z][0].double()  # (t, h, e)
    W = a.W_O.detach().double()  # (h, e, d)
    h, e, d = W.shape
    bias = torch.zeros(d, dtype=W.dtype, device=W.device) if a.b_O is None else a.b_O.detach().double()
    groups = nn.functional.conv1d(z.flatten(1).T[None], W.transpose(1, 2).reshape(h * d, e, 1), groups=h)  # (1, h*d, t)
    summed = groups.view(h, d, -1).sum(0).T + bias
    bound = 2 * gamma(h * e + 1, unit(torch.float64)) * (z.flatten(1).abs() @ W.flatten(0, 1).abs() + bias.abs())
    gap = (own_projection(s, z) - summed).abs()
    return float(torch.where(gap == 0, 0.0, gap / bound).nan_to_num(nan=math.inf).max())


def _identity(subject: Subject, state: State, claim: str, axis: str, otherwise: str) -> ClaimRow:
    bound = "worst gap <= 1 of its bound (proved)"
    eq = subject.equivalence
    rows = [] if isinstance(eq, str) else [r for r in eq.rows if r.axis == axis]
    if not rows:
        return _row(claim, state, "n/a", None, bound, eq if isinstance(eq, str) else otherwise)
    worst = _worst([x for r in rows for x in (r.ratio, r.native_ratio)])
    algebra, native = _worst([r.ratio for r in rows]), _worst([r.native_ratio for r in rows])
    note = f"{len(rows)} layers over {axis}: float64 at {algebra:.2g}, native at {native:.2g} of their bounds"
    return _judged(claim, state, worst <= 1, worst, bound, note)


def reduce(subject: Subject, state: State = "trained") -> ClaimRow:
    """Lags for an Extractor (section "one identity"); for attention its effective weights `sum_h A_ij^h W_V^h W_O^h`."""
    parts = []
    lags = _identity(subject, state, "reduce", "lags", "")
    if lags.verdict != "n/a":
        parts.append(lags)
    if subject.attention:
        ratios = [_effective_weights(subject, s) for s in subject.attention]
        note = f"{len(ratios)} layers through effective weights A_ij W_V W_O, native: at {_worst(ratios):.2g} of its bound"
        parts.append(_judged("reduce", state, _worst(ratios) <= 1, _worst(ratios), lags.bound, note))
    if not parts:
        return lags
    worst = _worst([p.measured for p in parts if p.measured is not None])
    return _judged("reduce", state, worst <= 1, worst, lags.bound, "; ".join(p.note for p in parts))


def _effective_weights(subject: Subject, s: Sublayer) -> float:
    """Worst ratio of `sum_j x_j (sum_h A_ij^h W_V^h W_O^h) + constants` in float64 against what the layer wrote.

    Each term passes `v` (d products), `W_O` (h e), the sum over sources (t) and a few roundings to storage on the model's side, and
    as many on ours, so that the gap is at most `gamma_n(u) T + 4 u_s T`, T the same sum over moduli ([H02], ch. 3).
    """
    a, call, cache = s.parts, subject.calls[0][s.layer, "attn"], subject.runs[0][1]
    assert isinstance(a, Attention)
    x = call.rows[0].double()
    kv = list(a.kv_head)
    W_V = s.module.W_V.detach().double()[kv]  # type: ignore[operator]
    b_V = getattr(s.module, "b_V", None)
    W_O = a.W_O.detach().double()
    pattern = cache[a.pattern][0].double()
    out, modulus = torch.zeros_like(cache[s.raw][0], dtype=torch.float64), torch.zeros_like(cache[s.raw][0], dtype=torch.float64)
    for h in range(len(kv)):
        out += pattern[h] @ (x @ (W_V[h] @ W_O[h]))
        modulus += pattern[h].abs() @ ((x.abs() @ W_V[h].abs()) @ W_O[h].abs())
        if b_V is not None:
            bias = b_V.detach().double().view(-1, W_V.shape[2])[kv[h]]
            out += pattern[h].sum(1, keepdim=True) * (bias @ W_O[h])
            modulus += pattern[h].abs().sum(1, keepdim=True) * (bias.abs() @ W_O[h].abs())
    if a.b_O is not None:
        out, modulus = out + a.b_O.detach().double(), modulus + a.b_O.detach().double().abs()
    p = Precision.of(subject.view.dtype)
    n = x.shape[1] + len(kv) * W_V.shape[2] + x.shape[0] + 4
    bound = (gamma(n, p.accumulate) + 4 * p.out) * modulus
    gap = (cache[s.raw][0].double() - out).abs()
    return float(torch.where(gap == 0, 0.0, gap / bound).nan_to_num(nan=math.inf).max())


def row_wise(subject: Subject, state: State = "trained") -> ClaimRow:
    """The FFN in float64 on permuted rows against its permuted outputs."""
    bound = f"relative difference <= {PRACTICAL:.0e} (float64, practical)"
    found = {layer: c for (layer, slot), c in subject.calls[0].items() if slot == "mlp"}
    calls = {layer: c for layer, c in found.items() if c.alone}
    if not calls:
        why = "sublayer 2 is given more than its rows here and cannot be called alone" if found else "no layer has a sublayer 2"
        return _row("row-wise", state, "n/a", None, bound, why)
    order = torch.randperm(len(subject.prompts[0][0]), generator=torch.Generator().manual_seed(0))
    worst = 0.0
    for call in calls.values():
        module = getattr(call.module, "original_component", call.module)
        straight, permuted = _first(in_double(module, call.rows)), _first(in_double(module, call.rows[:, order]))
        worst = _worst([worst, _relative(straight[:, order] - permuted, straight)])
    return _judged("row-wise", state, worst <= PRACTICAL, worst, bound, f"{len(calls)} layers, rows in random order")


def causal(subject: Subject, state: State = "trained") -> ClaimRow:
    """Later tokens replaced at a fixed length; every earlier row of the logits must stay as it is, bit by bit."""
    ids = subject.prompts[0]
    others = subject.prompts[1]
    t = ids.shape[1]
    worst, cuts = 0.0, sorted({1, t // 2, t - 1})
    with explicit(subject.model):
        base = subject.model(ids)
        for cut in cuts:
            changed = ids.clone()
            changed[:, cut:] = torch.where(others[:, cut:] == ids[:, cut:], (ids[:, cut:] + 1) % base.shape[-1], others[:, cut:])
            gap = (subject.model(changed)[:, :cut] - base[:, :cut]).abs()
            worst = _worst([worst, float(gap.max())])
    note = f"tokens from position {', '.join(map(str, cuts))} on replaced, length kept"
    return _judged("causal", state, worst == 0, worst, "0, bitwise", note)


def padding(subject: Subject, state: State = "trained") -> ClaimRow:
    """Zero rows in front, set by hooks at the embeddings; float64.

    The sources' conditions: every mixer an Extractor, a zero row stays zero in every layer (no norm or FFN bias), and where `s_i`
    counts rows it counts real ones only (a mask says which those are).
    """
    bound = f"relative change of the logits <= {PRACTICAL:.0e} (float64, practical)"
    model, t = subject.model, subject.prompts[0].shape[1]
    p = min(3, int(model.cfg.n_ctx) - t)
    if p < 1:
        return _row("padding", state, "n/a", None, bound, f"no room: {t} tokens fill the context of {model.cfg.n_ctx}")
    ours = len(subject.extractors) + len(subject.attention) > 0 and all(c.alone for c in subject.calls[0].values())
    if ours:
        model = copy.deepcopy(model).double()
    unmasked, stays = _padded(model, subject.prompts[0], p, masked=False)
    foreign = len(subject.extractors) < len(subject.mixers)
    counts = any(k.row_factor != "one" for k in subject.extractors.values())
    masked = _padded(model, subject.prompts[0], p, masked=True)[0] if ours else math.nan
    effect = f"{p} zero rows in front change the logits by {unmasked:.1e}" + (f", with a mask by {masked:.1e}" if ours else "")
    if foreign:
        why = "a mixer that is no Extractor needs its mask (a zero key still gets weight)"
        return _row("padding", state, "n/a", unmasked, bound, f"{why}; {effect}")
    if not stays:
        return _row("padding", state, "n/a", unmasked, bound, f"a zero row does not stay zero here (biases of norm or FFN); {effect}")
    judged = masked if counts else unmasked
    how = "rows counted by the mask" if counts else "no mask"
    return _judged("padding", state, judged <= PRACTICAL, judged, bound, f"zero rows stay zero, {how}; {effect}")


def _padded(model: Any, ids: Int[Tensor, "1 t"], p: int, *, masked: bool) -> tuple[float, bool]:
    """Relative change of the real rows' logits, and whether the zero rows stayed zero in every layer."""
    wide = torch.cat([ids[:, :1].expand(1, p), ids], 1)
    mask = torch.cat([torch.zeros(1, p, dtype=torch.long, device=ids.device), torch.ones_like(ids)], 1)
    alive: list[bool] = []
    positions: dict[str, Tensor] = {}

    def zero(x: Tensor, hook: Any) -> Tensor:
        x = x.clone()
        x[:, :p] = 0
        return x

    def remember(x: Tensor, hook: Any) -> None:
        positions["own"] = x.detach().clone()

    def place(x: Tensor, hook: Any) -> Tensor:
        return torch.cat([torch.zeros_like(x[:, :p]), positions["own"]], 1)

    learned = [n for n in ("hook_pos_embed",) if n in model.hook_dict and "rotary" not in (model.hook_dict[n].name or "")]
    with explicit(model):
        with hooked(model, [(n, remember) for n in learned]):
            base = model(ids)
        watch = [("blocks.*.hook_resid_post", lambda x, hook: alive.append(bool((x[:, :p] != 0).any())))]
        with hooked(model, [("hook_embed", zero), *((n, place) for n in learned), *watch]):
            padded = model(wide, attention_mask=mask) if masked else model(wide)
    return _relative(padded[:, p:] - base, base), not any(alive)


def position_free(subject: Subject, state: State = "trained") -> ClaimRow:
    """Two earlier rows exchanged at one sublayer's input: attention's last row must stay, an Extractor's must change (float64)."""
    bound = f"least change of an Extractor's last row > {PRACTICAL:.0e} (float64, practical)"
    t = subject.prompts[0].shape[1]
    order = torch.arange(t)
    order[[0, t // 2]] = order[[t // 2, 0]]
    changes: dict[str, list[float]] = {"Extractor": [], "attention": []}
    attention = {s.layer for s in subject.attention}
    for (layer, slot), call in subject.calls[0].items():
        kind = "Extractor" if layer in subject.extractors else "attention" if layer in attention else ""
        if slot != "attn" or not call.alone or not kind:
            continue
        straight, exchanged = _first(in_double(call.module, call.rows)), _first(in_double(call.module, call.rows[:, order]))
        changes[kind].append(_relative(exchanged[:, -1] - straight[:, -1], straight[:, -1]))
    with explicit(subject.model):
        base = subject.model(subject.prompts[0])
        with hooked(subject.model, [("hook_embed", lambda x, hook: x[:, order.to(x.device)])]):
            whole = _relative(subject.model(subject.prompts[0])[:, -1] - base[:, -1], base[:, -1])
    note = f"rows 1 and {t // 2 + 1} exchanged"
    if changes["attention"]:
        note += f"; one attention sublayer alone changes its last row by {_worst(changes['attention']):.1e}"
    note += f"; token embeddings exchanged, positions kept, the whole decoder's last logits change by {whole:.1e}"
    if not changes["Extractor"]:
        return _row("position-free", state, "n/a", whole, bound, f"no Extractor; {note}")
    least = min(changes["Extractor"])
    return _judged("position-free", state, least > PRACTICAL, least, bound, note)


def static_dynamic(subject: Subject, state: State = "trained") -> ClaimRow:
    """How far effective mixing weights differ between two prompts.

    Extractor: the response of the extraction to one and the same change of its rows, which depends on the effective weights alone
    (float64). Attention: total variation between the two prompts' patterns, rows after the first.
    """
    first, second = subject.calls
    spreads, patterns = [], []
    for layer in subject.extractors:
        a, b = first[layer, "attn"], second[layer, "attn"]
        change = torch.randn(a.rows.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(a.rows.device)
        one, two = (_extracted(subject, layer, c, change) for c in (a, b))
        spreads.append(_relative(one - two, one))
    for s in subject.attention:
        assert isinstance(s.parts, Attention)
        one, two = (cache[s.parts.pattern].double() for _, cache in subject.runs[:2])
        patterns.append(float(0.5 * (one - two).abs().sum(-1)[..., 1:].mean()))
    if not spreads and not patterns:
        return _row("static-dynamic", state, "n/a", None, "-", "neither attention nor an Extractor")
    rounding = 64 * subject.prompts[0].shape[1] * unit(subject.view.dtype)
    bounds, notes = [], []
    if spreads:
        bounds.append(f"an Extractor's weights differ by <= {PRACTICAL:.0e} (float64, practical)")
        notes.append(f"Extractor: at most {_worst(spreads):.1e}")
    if patterns:
        bounds.append(f"attention's patterns by > {rounding:.0e} (rounding)")
        notes.append(f"attention: total variation {min(patterns):.2f} in the layer where it is least")
    holds = all(s <= PRACTICAL for s in spreads) and all(p > rounding for p in patterns)
    measured = _worst(spreads) if spreads else min(patterns)
    return _judged("static-dynamic", state, holds, measured, ", ".join(bounds), f"two prompts; {'; '.join(notes)}")


def _extracted(subject: Subject, layer: int, call: Call, change: Float64[Tensor, "1 t d"]) -> Float64[Tensor, "1 t d"]:
    """How the extraction responds to a change of the rows, in float64."""
    held: list[Tensor] = []
    with hooked(subject.model, [(f"blocks.{layer}.{EXTRACTION}", lambda x, hook: held.append(x.detach()))]):
        in_double(call.module, call.rows.double() + change)
        in_double(call.module, call.rows)
    return held[-2] - held[-1]


def _first(out: Any) -> Tensor:
    first: Tensor = out[0] if isinstance(out, tuple) else out
    return first


# -------------------------------------------------------------------------------------------------------------------- drive


def drive(subject: Subject, state: State = "trained", *, steps: Steps | None = None) -> ClaimRow:
    """Distance and cosine to the final row against the null, with Student's t interval over prompts; both must be above 0."""
    bound = "95 % intervals of both above 0 (nearer than the null)"
    view = subject.view
    if len(_drive.steps(view)) < 2:
        return _row("drive", state, "n/a", None, bound, "a single sublayer has no order")
    steps = steps or Steps(0, None)
    names = _drive.hooks(view)
    gains: list[_drive.Gain] = []
    with explicit(subject.model):
        for number, ids in enumerate(steps.over(subject.prompts, "drive")):
            _, cache = run_with_cache(subject.model, ids, names_filter=names)
            gains.append(_drive.drive(view, cache, seed=number).gain)
    distance, cosine = mean_interval([g.distance for g in gains]), mean_interval([g.cosine for g in gains])
    note = f"distance {_span(distance)}, cosine {_span(cosine)} better than the same writes in random order and sign; {len(gains)} prompts"
    return _row("drive", state, _above_zero([distance, cosine]), distance.value, bound, note)


def _above_zero(estimates: Sequence[Estimate]) -> Verdict:
    if all(e.low > 0 for e in estimates):
        return "holds"
    return "fails" if any(e.high < 0 for e in estimates) else "undecided"


def _span(e: Estimate) -> str:
    return f"{e.value:+.3f} [{e.low:+.3f}, {e.high:+.3f}]"


# ----------------------------------------------------------------------------------------------------------------- variance


def variance(
    subject: Subject, siblings: Siblings | None, batches: Sequence[Batch], seeds: int, *, steps: Steps | None = None
) -> list[ClaimRow]:
    """At initialisation: mean slope within 0.02 over the seeds, at extraction and sublayer output; trained: the slope, n/a."""
    steps = steps or Steps(0, None)
    rows = []
    bound = f"every mean slope within {SLOPE_TOLERANCE} of 1 (she, he) or 0 (ishe, ihe, kshe, khe)"
    sites = [f"blocks.{s.layer}.{n}" for n in (EXTRACTION, SUBLAYER) for s in subject.mixers]
    hooks = subject.model.hook_dict
    sites = [n for n in sites if n in hooks]
    if not batches or not sites:
        why = "no layer mixes positions" if batches else "no text was given to measure it on"
        return [_row("variance", "init", "n/a", None, bound, why)]
    if siblings is None:
        rows.append(_row("variance", "init", "n/a", None, bound, "how this model's weights were drawn is not known"))
    else:
        at_init = profile_at_init(siblings.fresh, batches, seeds=seeds, sites=sites, on_step=lambda _, __, what: steps(f"variance: {what}"))
        rows.append(judge_slopes(at_init, bound, normed=subject.view.readout.norm is not None))
    trained = profile(subject.model, batches, sites=sites, on_step=lambda _, __, what: steps(f"variance: {what}"))
    theory = [r for r in trained.rows if r.theory_slope is not None]
    slopes = [r.slope for r in theory] or [r.slope for r in trained.rows]
    laws = sum(r.power_law for r in trained.rows)
    note = f"trained weights obey no slope: {min(slopes):+.2f}..{max(slopes):+.2f} measured"
    note += f", a power law at {laws} of {len(trained.rows)} sites"
    rows.append(_row("variance", "trained", "n/a", float(np.mean(slopes)), bound, note))
    return rows


def judge_slopes(result: VarianceProfile, bound: str, *, normed: bool = True) -> ClaimRow:
    """The verdict on a profile at initialisation: holds when every mean slope is within the tolerance, fails when at some site the
    interval over seeds, widened by the tolerance, excludes what theory says, undecided between."""
    law = [r for r in result.rows if r.theory_slope in (0.0, 1.0)]
    spread = ", ".join(f"{r.label} {r.slope:+.3f} (sd {r.spread:.3f})" for r in result.rows)
    how = f"{result.seeds} seeds, {result.sequences} sequences: {spread}"
    alone = [r.slope_one_draw for r in result.rows if r.slope_one_draw is not None]
    how += f"; variance over sequences and draws of the weights, over sequences alone {min(alone):+.3f}..{max(alone):+.3f}" if alone else ""
    if not law:
        return _row("variance", "init", "n/a", None, bound, f"no Extractor; {how}")
    off = [abs(r.slope - float(r.theory_slope or 0.0)) for r in law]
    measured = _worst(off)
    if not normed:
        return _row("variance", "init", "n/a", measured, bound, f"the derivation used |x|^2 = d, and this decoder has no norm; {how}")
    if measured <= SLOPE_TOLERANCE:
        return _row("variance", "init", "holds", measured, bound, how)
    outside = [not _allows(r.interval, float(r.theory_slope or 0.0)) for r in law]
    return _row("variance", "init", "fails" if any(outside) else "undecided", measured, bound, how)


def _allows(interval: tuple[float, float], expected: float) -> bool:
    return interval[0] - SLOPE_TOLERANCE <= expected <= interval[1] + SLOPE_TOLERANCE


# --------------------------------------------------------------------------------------------------------- counts and norms


def parameters(subject: Subject, siblings: Siblings | None) -> ClaimRow:
    """Counts of weights at this model's width: iSHE against SHE at its context, HE against attention at l = d; its own mixers too."""
    bound = "differences of 0"
    if siblings is None:
        why = "a claim about SHE, iSHE and HE; how mixers of this family are built is not known"
        return _row("parameters", "trained", "n/a", None, bound, why)
    d, lags = int(subject.model.cfg.d_model), int(subject.model.cfg.n_ctx)
    ishe, she = _count(siblings.mixer("ishe", lags)), _count(siblings.mixer("she", lags))
    he, mha = _count(siblings.mixer("he", d)), _count(siblings.mixer("mha", d))
    formula = [she - (lags * d * d + d * d), he - (3 * d * d + d * d), mha - 4 * d * d]
    worst = max(abs(ishe - she), abs(he - mha), *map(abs, formula))
    note = f"l = {lags}: iSHE {ishe:,}, SHE {she:,}; l = d = {d}: HE {he:,}, attention {mha:,}"
    return _judged("parameters", "trained", worst == 0, float(worst), bound, note)


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def no_norm(subject: Subject, siblings: Siblings | None) -> ClaimRow:
    """The other claims on a decoder of the same mixers without normalisation. The variance is left out (its derivation used
    |x|^2 = d), and so is the drive, which is about trained weights."""
    bound = "no claim fails there"
    if siblings is None:
        return _row("no-norm", "init", "n/a", None, bound, "how a decoder of this family is built without its norm is not known")
    rows = structure(Subject(siblings.plain(), subject.prompts), "init")
    failed = [r.id for r in rows if r.verdict == "fails"]
    held = [r.id for r in rows if r.verdict == "holds"]
    idle = [r.id for r in rows if r.verdict == "n/a"]
    note = f"fresh weights without norm and biases; holds: {', '.join(held) or 'none'}"
    note += f"; fails: {', '.join(failed)}" if failed else ""
    note += f"; n/a: {', '.join(idle)}" if idle else ""
    return _judged("no-norm", "init", not failed, float(len(failed)), bound, note)


def verdicts(rows: Sequence[ClaimRow]) -> dict[str, int]:
    """How many rows have which verdict.

    >>> verdicts([])
    {'holds': 0, 'fails': 0, 'undecided': 0, 'n/a': 0}
    """
    kinds: tuple[Verdict, ...] = ("holds", "fails", "undecided", "n/a")
    return {k: sum(r.verdict == k for r in rows) for k in kinds}

"""Interventions that test an explanation: remove what an entry says was written, and see the logit move by that entry.

In here: the *direct* effect, measured on the model (the write is taken out of the last residual, the final scale frozen, and the model's
own readout runs), beside the ledger's prediction; and the *total* effect of ablating for real, everything downstream recomputed.
Additivity is certified by sums, labels are not: a permutation of labels leaves every sum as it is. Only an intervention sees it.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from .capture import Cache, explicit, hooked, run_with_cache
from .certificate import Check, check
from .fold import Reading, fold_sublayer, head_source_values, head_values, mixer_acts, neuron_values, output_direction
from .protocols import Acts, Cached
from .views import Attention, DecoderView, Mixer, Neurons, Sublayer

Kind = Literal["heads", "lags", "sources", "neurons"]
How = Literal["zero", "mean"]
Target = tuple[int, int]
"""(layer, index): a head, a lag, an absolute source position or a neuron of one layer."""


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """What removing some entries does to the number read at one position.

    Attributes:
        baseline: the number as printed (before the soft cap, where the model has one).
        predicted: the sum of the removed entries, as the ledger has them.
        direct: how far the model's own number moved when those writes alone were taken from the last residual, final scale frozen.
        total: how far it moved when they were ablated for real (baseline minus `after`).
        check: `direct` against `predicted`, judged by rounding of the printed numbers.
        logits: (2, v), every logit at the position, before and after they were ablated for real, as printed.
    """

    model: str
    tokens: tuple[str, ...]
    position: int
    answer: str
    against: str | None
    kind: Kind
    how: How
    labels: tuple[str, ...]
    baseline: float
    predicted: float
    direct: float
    after: float
    total: float
    check: Check
    logits: Float[Tensor, "2 v"] = field(repr=False, compare=False)

    @property
    def holds(self) -> bool:
        return self.check.holds

    def __str__(self) -> str:
        return (
            f"{', '.join(self.labels)} set to {self.how}: the ledger says {self.predicted:+.4f}, taken out of the last residual "
            f"{self.direct:+.4f} ({self.check}); ablated for real {self.total:+.4f}"
        )


@torch.no_grad()
def ablate(
    view: DecoderView,
    ids: Tensor,
    reading: Reading,
    row: int,
    kind: Kind,
    targets: Sequence[Target],
    how: How,
    native_bound: float,
    tokens: Sequence[str] = (),
) -> Ablation:
    """Ablate `targets` of one prompt and compare prediction, direct and total effect at `row`.

    Args:
        view: the decoder read as a sum.
        ids: (1, t).
        reading: the logits read, for this one row.
        row: absolute position.
        kind, targets: what is removed: (layer, index) pairs; `sources` and `lags` are removed from every head of their layer.
        how: "zero", or "mean": replaced by its mean over the prompt's positions (of `z`, `post`, or of the source's value or row).
        native_bound: what rounding allows on one printed number (the ledger's native check).
        tokens: the prompt as fed.

    Raises:
        ValueError: a target that does not exist, or a mean that is not defined (lags).
    """
    _refuse_mean_of_lags(kind, how)
    by_layer = _by_layer(view, kind, targets, ids.shape[1])
    final = view.blocks[-1].post
    with explicit(view.model), warnings.catch_warnings():
        # A Bridge warns that an edited norm takes another path; the frozen scale is such an edit, and is meant.
        warnings.simplefilter("ignore")
        logits, cache = run_with_cache(view.model, ids, names_filter=view.hooks)
        last = cache[final][0, [row]].double()
        _, _, u = output_direction(view, reading, last)
        predicted, removed = torch.zeros((), dtype=torch.float64), torch.zeros_like(cache[final], dtype=torch.float64)
        for s, indices in by_layer:
            predicted = predicted + _predicted(s, cache, u, row, kind, indices, how)
            removed[0, row] += _removed(view, ids, s, cache, row, kind, indices, how)
        frozen = [] if view.readout.norm is None else [("ln_final.hook_scale", lambda x, hook: cache["ln_final.hook_scale"])]
        with hooked(view.model, [(final, lambda x, hook: (x.double() - removed).to(x.dtype)), *frozen]), torch.no_grad():
            without = view.model(ids)
        with hooked(view.model, [edit for s, indices in by_layer for edit in _edits(s, kind, indices, how)]), torch.no_grad():
            ablated = view.model(ids)
    cap = view.readout.soft_cap
    baseline, direct, after = (_read(x, reading, row, cap) for x in (logits, without, ablated))
    bent = max(_bend(x, reading, row, cap) for x in (logits, without))
    return Ablation(
        model=view.name,
        tokens=tuple(tokens),
        position=row,
        answer=reading.answer_text,
        against=reading.against_text,
        kind=kind,
        how=how,
        labels=tuple(_label(s, kind, i) for s, indices in by_layer for i in indices),
        baseline=baseline,
        predicted=float(predicted),
        direct=baseline - direct,
        after=after,
        total=baseline - after,
        # Two printed numbers, each within its native bound of the float64 account.
        check=check(
            "intervention", abs(baseline - direct - float(predicted)), 2 * native_bound * bent, kind="practical", where=f"row {row}"
        ),
        logits=torch.stack([logits[0, row], ablated[0, row]]),
    )


@torch.no_grad()
def rerun(
    view: DecoderView, ids: Tensor, kind: Kind, targets: Sequence[Target], how: How
) -> tuple[Float[Tensor, "1 t v"], Cache, DecoderView]:
    """One prompt run with `targets` ablated, everything downstream recomputed: logits, activations, and the view that reads them.

    What a head, a neuron or a source of attention wrote is gone from the activations themselves (a head set to zero attends to
    nothing; one set to its mean reads no source, so such a run has no ledger by source). A mixer that says itself what it writes
    keeps its input, so the view returned holds its kernel without what was taken from it.

    Args:
        view, ids, kind, targets, how: as in `ablate`.

    Raises:
        ValueError: as `ablate`.
    """
    _refuse_mean_of_lags(kind, how)
    by_layer = _by_layer(view, kind, targets, ids.shape[1])
    with explicit(view.model), hooked(view.model, [edit for s, indices in by_layer for edit in _edits(s, kind, indices, how)]):
        logits, cache = run_with_cache(view.model, ids, names_filter=view.hooks)
    if kind == "heads":
        for s, indices in by_layer:
            cache[s.parts.pattern][:, indices] = 0.0  # type: ignore[union-attr]  # the copy of this run; heads were found in attention
    without = {
        s.raw: replace(s, parts=replace(s.parts, module=_Without(s.parts.module, kind, indices, how)))
        for s, indices in by_layer
        if isinstance(s.parts, Mixer)
    }
    blocks = tuple(replace(b, sublayers=tuple(without.get(s.raw, s) for s in b.sublayers)) for b in view.blocks)
    return logits, cache, replace(view, blocks=blocks)


@dataclass(frozen=True)
class _Written:
    """What `AdditiveMixer.writes` returns."""

    value: Float[Tensor, "b channel row source"]
    magnitude: Float[Tensor, "b channel row source"]
    square: Float[Tensor, "b channel row source"]
    terms: int


@dataclass(frozen=True)
class _Without:
    """An additive mixer without some of its sources or lags: an `AdditiveMixer` like the one it stands for."""

    module: Any
    kind: Kind
    indices: list[int]
    how: How

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def writes(self, acts: Acts, u: Float[Tensor, "b row d"], rows: Sequence[int]) -> _Written:
        value = torch.cat([self.module.writes(self._less(acts, i), u[:, [r]], [i]).value for r, i in enumerate(rows)], dim=2)
        # The model added everything, stored it, and took the removed part away again: its rounding is that of the whole.
        whole, stored = self.module.writes(acts, u, rows), self.module.replay(acts, rows) * u
        magnitude, square = whole.magnitude.clone(), whole.square.clone()
        magnitude[:, 0, :, 0] += stored.abs().sum(-1)
        square[:, 0, :, 0] += stored.square().sum(-1)
        return _Written(value=value, magnitude=magnitude, square=square, terms=whole.terms)

    def replay(self, acts: Acts, rows: Sequence[int]) -> Float[Tensor, "b row d"]:
        return torch.cat([self.module.replay(self._less(acts, i), [i]) for i in rows], dim=1)

    def _less(self, acts: Acts, row: int) -> dict[str, Tensor]:
        return _replace_sources(dict(acts), _sources(self.kind, self.indices, row), self.how)


def _refuse_mean_of_lags(kind: Kind, how: How) -> None:
    if how == "mean" and kind == "lags":
        raise ValueError("how: a lag has no mean of its own (it is another source at each row); use how='zero'")


def _by_layer(view: DecoderView, kind: Kind, targets: Sequence[Target], length: int) -> list[tuple[Sublayer, list[int]]]:
    wanted: dict[int, list[int]] = {}
    for layer, index in targets:
        wanted.setdefault(layer, []).append(index)
    out = []
    for layer, indices in sorted(wanted.items()):
        if not 0 <= layer < len(view.blocks):
            raise ValueError(f"{kind}: layer {layer} does not exist; {view.name} has layers 0..{len(view.blocks) - 1}")
        slot = [s for s in view.blocks[layer].sublayers if (s.slot == "mlp") == (kind == "neurons")]
        if not slot or slot[0].parts is None:
            why = slot[0].why_whole if slot else "it has no such sublayer"
            raise ValueError(f"{kind}: layer {layer} of {view.name} cannot be split: {why}")
        s = slot[0]
        if kind == "heads" and not isinstance(s.parts, Attention):
            raise ValueError(f"heads: layer {layer} of {view.name} has no heads; use sources= or lags=")
        match s.parts:
            case Attention(kv_head=heads) if kind == "heads":
                count = len(heads)
            case Neurons(W_out=W):
                count = W.shape[0]
            case _:
                count = length
        for i in indices:
            if not 0 <= i < count:
                raise ValueError(f"{kind}: {i} does not exist in layer {layer}; use 0..{count - 1}")
        if len(set(indices)) < len(indices):
            raise ValueError(f"{kind}: an index is named twice in layer {layer}: {indices}")
        out.append((s, indices))
    if not out:
        raise ValueError(f"{kind}: nothing to ablate; name at least one")
    return out


def _label(s: Sublayer, kind: Kind, i: int) -> str:
    return {"heads": f"L{s.layer}H{i}", "neurons": f"L{s.layer}N{i}", "lags": f"L{s.layer} lag {i}", "sources": f"L{s.layer} <- {i}"}[kind]


def _predicted(s: Sublayer, cache: Cached, u: Tensor, row: int, kind: Kind, indices: list[int], how: How) -> Tensor:
    """The ledger's entries for what is removed: the write as it is, less the write of what replaces it."""
    v = fold_sublayer(s, cache[s.raw][0, [row]].double(), u)
    match s.parts:
        case Attention() as a if kind == "heads":
            z = cache[a.z].double()
            change = z[0, [row]] - (z.mean(1) if how == "mean" else torch.zeros_like(z[:, 0]))
            return head_values(a, change, v)[0, indices].sum()
        case Attention() as a:
            values = cache[a.v].double()
            change = values[0] - (values.mean(1) if how == "mean" else torch.zeros_like(values[:, 0]))
            pattern = cache[a.pattern][0, :, [row]].double().transpose(0, 1)
            return head_source_values(a, pattern, change, v)[0][:, _sources(kind, indices, row)].sum()
        case Neurons() as n:
            post = cache[n.post].double()
            change = post[0, [row]] - (post.mean(1) if how == "mean" else torch.zeros_like(post[:, 0]))
            return neuron_values(n, change, v)[0, indices].sum()
        case Mixer() as m:
            acts, sources = mixer_acts(m, cache), _sources(kind, indices, row)
            value = m.module.writes(acts, v[None], [row]).value[0, :, 0]
            instead = m.module.writes(_replace_sources(acts, sources, how), v[None], [row]).value[0, :, 0]
            return (value - instead)[:, sources].sum()
    raise AssertionError("a sublayer without parts was refused before")


def _sources(kind: Kind, indices: list[int], row: int) -> list[int]:
    return [j for j in indices if j <= row] if kind == "sources" else [row - k for k in indices if k <= row]


def _removed(
    view: DecoderView, ids: Tensor, s: Sublayer, cache: Cached, row: int, kind: Kind, indices: list[int], how: How
) -> Float[Tensor, " d"]:
    """What the model itself stops adding at `row` when this sublayer's targets are ablated and everything before it is left alone."""
    if isinstance(s.parts, Mixer):
        acts, sources = mixer_acts(s.parts, cache), _sources(kind, indices, row)
        change = (s.parts.module.replay(acts, [row]) - s.parts.module.replay(_replace_sources(acts, sources, how), [row]))[0]
    else:
        with hooked(view.model, _edits(s, kind, indices, how)):
            _, edited = run_with_cache(view.model, ids, names_filter=[s.raw])
        change = cache[s.raw][0, [row]].double() - edited[s.raw][0, [row]].double()
        if kind == "lags" and torch.equal(cache[s.raw], edited[s.raw]):
            raise ValueError(
                f"lags: {view.name} ignores edits of its attention pattern, so its lags cannot be ablated; use sources= or heads="
            )
    if s.post_norm is not None:
        norm = s.post_norm
        change = norm.weighted(norm.centre(change) / norm.scale(cache[s.raw][0, [row]].double()))
    return change[0] * s.multiplier


def _edits(s: Sublayer, kind: Kind, indices: list[int], how: How) -> Iterable[tuple[str, Callable[..., Tensor]]]:
    """Hooks that ablate one sublayer's targets in a live run."""

    def set_to(axis: int) -> Callable[..., Tensor]:
        def edit(x: Tensor, hook: Any) -> Tensor:
            x = x.clone()
            where = (slice(None),) * axis + (indices,)
            x[where] = x.mean(1, keepdim=True).expand_as(x)[where] if how == "mean" else 0.0
            return x

        return edit

    def cut_lags(x: Tensor, hook: Any) -> Tensor:
        x = x.clone()
        for k in indices:
            i = torch.arange(k, x.shape[-1], device=x.device)
            x[..., i, i - k] = 0.0
        return x

    match s.parts:
        case Attention() as a if kind == "heads":
            return [(a.z, set_to(2))]
        case Attention() as a:
            # A source's value set to zero is its write removed from every row and head, and unlike a pattern it is live on every model.
            return [(a.v, set_to(1))] if kind == "sources" else [(a.pattern, cut_lags)]
        case Neurons() as n:
            return [(n.post, set_to(2))]
        case Mixer() as m:
            return _mixer_edits(s, m, kind, indices, how)
    raise AssertionError("a sublayer without parts was refused before")


def _mixer_edits(s: Sublayer, m: Mixer, kind: Kind, indices: list[int], how: How) -> list[tuple[str, Callable[..., Any]]]:
    """Any additive mixer: note what it reads in this very run, and take from its output what its own kernel adds for the sources."""
    seen: dict[str, Tensor] = {}

    def note(x: Tensor, hook: Any) -> None:
        seen[hook.name] = x

    def subtract(x: Tensor, hook: Any) -> Tensor:
        acts = mixer_acts(m, seen)
        rows = list(range(x.shape[1]))
        if kind == "sources":
            change = m.module.replay(acts, rows) - m.module.replay(_replace_sources(acts, indices, how), rows)
        else:
            change = torch.zeros_like(x, dtype=torch.float64)
            for i in rows:
                without = _replace_sources(acts, _sources(kind, indices, i), how)
                change[:, i] = (m.module.replay(acts, [i]) - m.module.replay(without, [i]))[:, 0]
        return (x.double() - change).to(x.dtype)

    return [*((name, note) for name in (m.input_from, *(m.prefix + r for r in m.module.reads))), (s.raw, subtract)]


def _replace_sources(acts: dict[str, Tensor], sources: list[int], how: How) -> dict[str, Tensor]:
    x = acts["input"].clone()
    x[:, sources] = acts["input"].mean(1, keepdim=True).expand_as(x)[:, sources] if how == "mean" else 0.0
    return acts | {"input": x}


def _read(logits: Tensor, reading: Reading, row: int, cap: float | None) -> float:
    """The number read, before the soft cap: a ledger's entries add up to that, and the printed logits are bent back."""
    x = logits[0, row].double()
    x = x if cap is None else cap * torch.atanh(x / cap)
    return float(sum(w * x[k] for k, w in reading.signed(0)))


def _bend(logits: Tensor, reading: Reading, row: int, cap: float | None) -> float:
    """By how much bending back magnifies a printed logit's rounding: `1 / (1 - (x/cap)^2)`."""
    if cap is None:
        return 1.0
    return max(float(1 / (1 - (logits[0, row, k].double() / cap).square())) for k, _ in reading.signed(0))

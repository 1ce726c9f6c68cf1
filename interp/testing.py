"""The conformance kit: the tests that our own mixers pass, run on a mixer that someone else wrote.

    from interp.testing import check_mixer
    print(check_mixer(GatedMovingAverage))      # GatedMovingAverage(config, layer), forward(x, attention_mask=None)

A mixer that passes has, in any `HookedDecoder(config, mixers={"gma": GatedMovingAverage})`, a ledger of every split with its
certificate, equivalence over lags, ablation and pictures; no analysis needs a change.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from analyses import ledger as _ledger
from analyses.certificate import DOUBLE, Check, IncompleteLedger, Precision, check, gamma, unit
from analyses.equivalence import equivalence
from analyses.fold import mixer_acts
from analyses.views import DecoderView, Mixer

from . import analysis
from ._models import wing

SURFACE = ("n_channels", "channel_kind", "reads", "writes", "constants", "replay")
NAME = "mixer_under_test"


@dataclass(frozen=True, kw_only=True)
class Conformance:
    """What a mixer was asked and what came of it; `skipped` says what could not be asked."""

    mixer: str
    checks: tuple[Check, ...]
    skipped: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return all(c.holds for c in self.checks)

    def __str__(self) -> str:
        head = f"{self.mixer}: {sum(c.holds for c in self.checks)} of {len(self.checks)} checks hold"
        return "\n".join([head, *(f"  {c}" for c in self.checks), *(f"  not asked: {s}" for s in self.skipped)])


def check_mixer(
    mixer: Callable[..., nn.Module], *, d_model: int = 12, n_ctx: int = 9, n_heads: int = 2, seed: int = 0, on_failure: str = "raise"
) -> Conformance:
    """Put `mixer` into a two-layer decoder with random weights and biases and ask it everything an analysis relies on.

    The checks: `surface` (the names of `AdditiveMixer`, hooks that fire), `writes` (they sum to the module's own float64 replay),
    `native` (the replay is what the forward printed, within its own rounding), `causal` (bitwise at a fixed shape; no write from a later
    source), `live` (an edit at each hook it reads moves the output, a gradient arrives), `padding` (alone equals in a padded batch),
    `equivalence`, a ledger of every split, `intervention` (a removed source moves the logit by its entry), and `can fail` (with the
    lags of `writes` shifted by one the ledger no longer holds: these checks are able to fail on this very mixer).

    Args:
        mixer: a class (or factory) called `mixer(config, layer)`.
        d_model, n_ctx, n_heads: of the decoder that is built around it.
        seed: of weights and tokens.
        on_failure: "raise" a ValueError with the whole report, or "report" it in the result.

    Raises:
        TypeError: `mixer` is not callable, or what it makes lacks part of the surface (the message names it).
        ValueError: a check fails and `on_failure="raise"`.
    """
    if on_failure not in ("raise", "report"):
        raise ValueError(f"on_failure: 'raise' or 'report' is needed, got {on_failure!r}")
    if not callable(mixer):
        raise TypeError(f"mixer: a class or factory called mixer(config, layer) is needed, got {type(mixer).__name__}")
    models = wing()
    config = models.DecoderConfig(n_layers=2, d_model=d_model, n_ctx=n_ctx, d_vocab=23, mixer=NAME, n_heads=n_heads, unembed_bias=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = models.HookedDecoder(config, mixers={NAME: mixer}).eval()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p) * 0.2)
        ids = torch.randint(0, 23, (1, n_ctx - 2))
    first = model.blocks[0].attn
    missing = [a for a in SURFACE if not hasattr(first, a)]
    if missing:
        raise TypeError(f"mixer: {type(first).__name__} lacks {', '.join(missing)}; see analyses.protocols.AdditiveMixer")
    view = DecoderView.of(model, type(first).__name__)
    with torch.no_grad(), model.explicit():
        logits, cache = analysis._captured(view, ids)
    m = view.blocks[0].sublayers[0].parts
    assert isinstance(m, Mixer)
    acts = mixer_acts(m, cache)
    checks = [
        _surface(first, cache),
        *_sums(m, acts, cache["blocks.0.hook_attn_out"]),
        _causal(model, ids),
        _no_future(m, acts),
        *_live(model, ids, first.reads),
        _padding(model, ids),
        _equivalence(view, cache),
        *_ledgers(model, ids),
        *_interventions(model, ids),
        _can_fail(view, logits, cache, m),
    ]
    result = Conformance(mixer=type(first).__name__, checks=tuple(checks))
    if on_failure == "raise" and not result.holds:
        raise ValueError(f"mixer: not every check holds\n{result}")
    return result


def _surface(mixer: Any, cache: Any) -> Check:
    absent = [r for r in mixer.reads if f"blocks.0.attn.{r}" not in cache]
    return check("surface", float(len(absent)), 0.0, kind="exact", where=", ".join(absent) or "every hook that it reads fires")


@torch.no_grad()
def _sums(m: Mixer, acts: Mapping[str, Tensor], out: Tensor) -> list[Check]:
    rows = list(range(out.shape[1]))
    u = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    w = m.module.writes(acts, u, rows)
    constants = sum(m.module.constants(acts, u, rows).values(), torch.zeros_like(u[..., 0]))
    ours, replay = w.value.sum((1, 3)) + constants, m.module.replay(acts, rows)
    modulus = w.magnitude.sum((1, 3)) + constants.abs()
    n, p = w.terms * len(rows) + 2, Precision.of(out.dtype)
    bound = 2 * gamma(n, DOUBLE.accumulate) * modulus
    native = gamma(n, p.accumulate) * modulus + 2 * p.storage * (out.double().abs() * u.abs()).sum(-1)
    return [
        _worst("writes", (ours - (replay * u).sum(-1)).abs(), bound, "sum of writes == replay, along a random direction"),
        _worst("native", ((out.double() - replay) * u).sum(-1).abs(), native, "replay == what the forward pass printed"),
    ]


def _worst(name: str, gap: Tensor, bound: Tensor, where: str) -> Check:
    i = int(torch.where(gap == 0, 0.0, gap / bound).nan_to_num(nan=float("inf")).argmax())
    return check(name, float(gap.flatten()[i]), float(bound.flatten()[i]), kind="proved", where=where)


@torch.no_grad()
def _causal(model: Any, ids: Tensor) -> Check:
    half = ids.shape[1] // 2
    later = ids.clone()
    later[:, half:] = (later[:, half:] + 1) % model.cfg.d_vocab
    gap = float((model(ids)[:, :half] - model(later)[:, :half]).abs().max())
    return check("causal", gap, 0.0, kind="exact", where="later tokens changed, earlier logits compared bitwise")


@torch.no_grad()
def _no_future(m: Mixer, acts: Mapping[str, Tensor]) -> Check:
    u = torch.ones_like(acts["input"], dtype=torch.float64)
    w = m.module.writes(acts, u, list(range(u.shape[1])))
    return check("causal", float(w.value.triu(1).abs().max()), 0.0, kind="exact", where="writes from later sources")


def _live(model: Any, ids: Tensor, reads: Sequence[str]) -> list[Check]:
    out = []
    for r in reads:
        point = model.hook_dict[f"blocks.0.attn.{r}"]
        seen: dict[str, Tensor] = {}
        with torch.no_grad():
            base = model(ids)
            edited = model.run_with_hooks(ids, fwd_hooks=[(point.name, lambda x, hook: x * 1.5 + 0.1)])

        def keep(grad: Tensor, hook: Any, seen: dict[str, Tensor] = seen) -> None:
            seen["grad"] = grad

        with model.hooks(bwd_hooks=[(point.name, keep)]):
            model(ids).square().sum().backward()
        model.zero_grad()
        dead = float(torch.equal(base, edited)) + float("grad" not in seen or not bool(seen["grad"].abs().sum() > 0))
        out.append(check("live", dead, 0.0, kind="exact", where=f"{r}: an edit moves the logits, a gradient arrives"))
    return out


@torch.no_grad()
def _padding(model: Any, ids: Tensor) -> Check:
    worst, t = 0.0, ids.shape[1]
    alone = model(ids)
    for side in ("left", "right"):
        pad = torch.zeros(1, 2, dtype=ids.dtype)
        real, none = torch.ones_like(ids), torch.zeros_like(pad)
        padded, mask = (torch.cat(x if side == "left" else x[::-1], 1) for x in ((pad, ids), (none, real)))
        found = model(padded, attention_mask=mask)
        found = found[:, 2:] if side == "left" else found[:, :t]
        worst = max(worst, float((found - alone).abs().max()))
    # The same sums in another shape: a few thousand roundings of the largest logit at most.
    bound = 4096 * unit(alone.dtype) * float(alone.abs().max())
    return check("padding", worst, bound, kind="practical", where="alone against padded on the left and on the right")


def _equivalence(view: DecoderView, cache: Any) -> Check:
    e = equivalence(view, cache)
    worst = max(e.rows, key=lambda r: r.ratio)
    return check("equivalence", worst.gap, worst.bound, kind="proved", where=f"layer {worst.layer}, over lags")


def _ledgers(model: Any, ids: Tensor) -> list[Check]:
    out = []
    for by in ("component", "head", "source", "head+source", "lag"):
        c = analysis.ledger(model, ids, answer=3, against=5, by=by, on_gap="report").certificate.worst
        out.append(check("ledger", c.gap, c.bound, kind=c.kind, proved=c.proved, where=f"by {by}: its worst check, {c.name}"))
    return out


def _interventions(model: Any, ids: Tensor) -> list[Check]:
    out = []
    for what, removed in (("source 1", {"sources": [1]}), ("lag 1", {"lags": [1]}), ("source 1, mean", {"sources": [1], "how": "mean"})):
        try:
            c = analysis.ablate(model, ids, 3, 5, **removed).check
        except IncompleteLedger as broken:  # no prediction can be had from a ledger that does not hold
            c = broken.certificate.worst
        out.append(check("intervention", c.gap, c.bound, kind="practical", where=f"{what} removed"))
    return out


class _ShiftedLags:
    """The mixer's own view with every write credited to the source one earlier: what must not pass."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def parameters(self) -> Any:
        return self.inner.parameters()

    def writes(self, acts: Mapping[str, Tensor], u: Tensor, rows: Sequence[int]) -> Any:
        return self.inner.writes({**acts, "input": acts["input"].roll(1, dims=1)}, u, rows)


def _can_fail(view: DecoderView, logits: Tensor, cache: Any, m: Mixer) -> Check:
    """1 when the ledger of the shifted view holds, which it must not."""
    from dataclasses import replace

    block = view.blocks[0]
    wrong = replace(block.sublayers[0], parts=replace(m, module=_ShiftedLags(m.module)))
    faulty = replace(view, blocks=(replace(block, sublayers=(wrong, *block.sublayers[1:])), *view.blocks[1:]))
    reading = _ledger.Reading(answers=((3,),), against=((5,),))
    held = _ledger.build(faulty, cache, logits, reading, [logits.shape[1] - 1], by="lag", on_gap="report").holds
    return check("can fail", float(held), 0.0, kind="exact", where="a view shifted by one row is caught")

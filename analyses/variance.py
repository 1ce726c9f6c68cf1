"""How activations vary along the sequence: measured, checked by an identity, predicted from other text, and beside the theory.

    Var(i) = mean over sequences and width of the square, after subtracting each element's mean over sequences

In here: the measurement at any site of any model with a `hook_dict` (`profile`, `profile_at_init`), and the two uses of the second-moment
formula. Not in here: that formula (second_moment.py), tokenizers and how a fresh model is made (the caller hands tokens and a function).

Why trained weights give the variance they give is the formula of second_moment.py: an identity on one batch, a prediction from other text.

At initialisation the weights are random too, and the law is about both: `Var(ext_i) = s_i^2 sigma_w^2 sum_j |x_j|^2` averages over the
weights. So there each element's mean over sequences *and draws of the weights* is subtracted, and the slope is 1 (she, he) or 0
(ishe, ihe). The variance of one draw over sequences alone (`slope_one_draw`) is smaller where rows share a constant part, at depth
mostly in the first positions, and its slope is then a little above the law's.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from .capture import explicit, hooked, model_name, position_axis, refuse_training, resolve
from .certificate import Check, check, gamma, unit
from .progress import OnStep, Steps, size
from .second_moment import InputMoments, LagKernel
from .statistics import Array, Moments, MomentStream, fit_power_law, mean_interval, slope_interval

Batch = Tensor | tuple[Tensor, Tensor]
"""Token ids (b, t), or a pair of ids and attention mask, each (b, t)."""

BYTE_BUDGET = 3 * 2**29
"""1.5 GiB: what the input moments `M` of all layers together may take before only their diagonal is kept."""

BLOCK_BYTES = 2**30
"""What the blocks of the bootstrap may take over all sites together."""

IDENTITY_SEQUENCES = 32
"""The identity is exact on any batch, so that a few sequences are enough for it."""

EXTRACTION, HEADS, SUBLAYER, RESIDUAL = "attn.hook_extraction", "attn.hook_z", "hook_attn_out", "hook_resid_post"


# ---------------------------------------------------------------------------------------------------------------- results


@dataclass(frozen=True, kw_only=True)
class SiteProfile:
    """One site's variance along the sequence.

    Attributes:
        site: hook name without its layer ("attn.hook_extraction"); `layer` None for a hook outside the blocks.
        positions: (t,) from 1.
        variance: (t,) `Var(i)`; at initialisation over sequences and draws of the weights.
        second_moment: (t,) raw, nothing subtracted.
        predicted, predicted_diagonal: (t,) the variance that other text predicts, with all pairs of lags and with j = j' alone.
            None where there is no such formula; `predicted` None also where the pairs did not fit the byte budget.
        theory: (t,) a line of the slope that theory gives, at the level of the measured curve; None where theory gives none.
        slope: log-log; trained: of the curve; at initialisation: mean over seeds.
        interval: trained: block bootstrap over sequences (BCa); at initialisation: Student's t over seeds. 95 %.
        spread: standard deviation of the slope (bootstrap draws, or seeds).
        slopes: at initialisation, one slope a seed; empty for a trained model.
        slope_one_draw: at initialisation, mean over seeds of the slope of each draw's own variance over sequences; else None.
        theory_slope: 1, 0, -1 or None.
        r2, power_law: of the line; see `analyses.statistics.PowerLaw` for the rule.
        identity: the second-moment formula against the model's own mixer, both in float64, on one batch; worst position.
        native: the same formula against the extraction the model computed in its own precision; worst position.
        note: the verdict in words.
    """

    site: str
    layer: int | None
    positions: np.ndarray
    variance: np.ndarray
    second_moment: np.ndarray
    predicted: np.ndarray | None
    predicted_diagonal: np.ndarray | None
    theory: np.ndarray | None
    slope: float
    interval: tuple[float, float]
    spread: float
    slopes: tuple[float, ...]
    slope_one_draw: float | None
    theory_slope: float | None
    r2: float
    power_law: bool
    identity: Check | None
    native: Check | None
    note: str

    @property
    def label(self) -> str:
        return self.site if self.layer is None else f"L{self.layer} {self.site}"

    @property
    def prediction_error(self) -> float | None:
        """Median over positions of the relative error of the prediction in its fullest form; None without one."""
        best = self.predicted if self.predicted is not None else self.predicted_diagonal
        return None if best is None else float(np.median(np.abs(best / self.variance - 1)))

    @property
    def cross_terms(self) -> float | None:
        """Median over positions of the share of the predicted variance that pairs of different lags carry; None without both forms."""
        if self.predicted is None or self.predicted_diagonal is None:
            return None
        return float(np.median(np.abs(1 - self.predicted_diagonal / self.predicted)))


@dataclass(frozen=True, kw_only=True)
class VarianceProfile:
    """Variance along the sequence at every site asked for.

    Attributes:
        model: its name.
        init: whether fresh weights were measured (over `seeds` draws) instead of the model's own.
        sequences: how many sequences each slope rests on.
        seeds: draws of the weights; 0 for a trained model.
        predicted_from: sequences of other text behind `predicted`; 0 where nothing is predicted.
        rows: one `SiteProfile` a site and layer.
    """

    model: str
    init: bool
    sequences: int
    seeds: int
    predicted_from: int
    rows: tuple[SiteProfile, ...]

    @property
    def holds(self) -> bool:
        """Whether every identity held (True where there is none to check). Slopes are measurements and do not enter."""
        return all(c.holds for r in self.rows for c in (r.identity, r.native) if c is not None)

    def at(self, site: str, layer: int | None = None) -> SiteProfile:
        """The row of one site and layer.

        Raises:
            ValueError: there is none; the message lists the sites.
        """
        for row in self.rows:
            if (row.site, row.layer) == (site, layer):
                return row
        raise ValueError(f"no profile of {site!r} in layer {layer}; there are {', '.join(r.label for r in self.rows)}")

    def to_dataframe(self) -> pd.DataFrame:
        """One line a site, layer and position: variance, second moment, prediction, theory, and the row's slope with its interval."""
        frames = []
        for r in self.rows:
            nothing = np.full(len(r.positions), np.nan)
            columns = {
                "site": r.site,
                "layer": r.layer,
                "position": r.positions,
                "variance": r.variance,
                "second_moment": r.second_moment,
                "predicted": nothing if r.predicted is None else r.predicted,
                "predicted_diagonal": nothing if r.predicted_diagonal is None else r.predicted_diagonal,
                "theory": nothing if r.theory is None else r.theory,
                "slope": r.slope,
                "low": r.interval[0],
                "high": r.interval[1],
                "r2": r.r2,
                "power_law": r.power_law,
            }
            frames.append(pd.DataFrame(columns).astype({"layer": "Int64"}))
        return pd.concat(frames, ignore_index=True)

    def summary(self) -> list[str]:
        """A line a row, for a terminal."""
        return [
            f"{r.label}: slope {r.slope:+.3f} [{r.interval[0]:+.3f}, {r.interval[1]:+.3f}], sd {r.spread:.3f}, R^2 {r.r2:.2f}; {r.note}"
            for r in self.rows
        ]


# ------------------------------------------------------------------------------------------------------------ measurement


def default_sites(model: Any) -> list[str]:
    """Where the claims speak of variance: the extraction or the heads, the sublayer's output, the stream after the layer."""
    hooks = model.hook_dict
    layers = range(model.cfg.n_layers)
    return [f"blocks.{i}.{s}" for s in (EXTRACTION, HEADS, SUBLAYER, RESIDUAL) for i in layers if f"blocks.{i}.{s}" in hooks]


def resolve_sites(model: Any, sites: str | Sequence[str] | None) -> list[str]:
    """Hook names for `sites`.

    Args:
        model: anything with a `hook_dict`.
        sites: None (see `default_sites`), or names and globs; a name without its block ("hook_resid_post") means every layer.

    Raises:
        ValueError: a name matches nothing, or its tensor has no row a position (patterns, scores).
    """
    wanted = default_sites(model) if sites is None else [sites] if isinstance(sites, str) else list(sites)
    if not wanted:
        raise ValueError("sites: no site to measure; name at least one hook")
    names: list[str] = []
    hooks = model.hook_dict  # once: a TransformerBridge builds it anew each time it is asked
    for site in wanted:
        layered = site not in hooks and any(n.startswith("blocks.") and n.endswith("." + site) for n in hooks)
        names += resolve(model, f"blocks.*.{site}" if layered else site)
    for name in names:
        if position_axis(hooks[name], name) != 1:
            raise ValueError(f"sites: {name} has no row per position to take a variance of; use hook_z or hook_attn_out")
    return list(dict.fromkeys(names))


def profile(
    model: Any,
    batches: Iterable[Batch],
    *,
    other: Iterable[Batch] | None = None,
    sites: str | Sequence[str] | None = None,
    byte_budget: int = BYTE_BUDGET,
    seed: int = 0,
    on_step: OnStep | None = None,
) -> VarianceProfile:
    """Variance along the sequence of one model with its own weights.

    One pass over `batches`, in memory that does not depend on how many there are. Trained weights obey no slope: what is
    reported is the measured one, an interval from a block bootstrap over sequences, and whether the curve is a power law at all.

    Args:
        model: a decoder in evaluation mode with `cfg`, `hook_dict`, `blocks`.
        batches: token ids (b, t), or pairs with an attention mask; padded rows are left out.
        other: text disjoint from `batches`, unpadded, all of one length, from which the variance of the extractions is predicted.
        sites: see `resolve_sites`.
        byte_budget: bytes that the input moments of all layers may take; above it only their lag-diagonal is kept.
        seed: of the bootstrap.
        on_step: told of every batch and every site as it begins.

    Raises:
        ValueError: training mode, no sequences, unknown sites, `other` padded or of several lengths.
        TypeError: a batch that is no tensor of ids.
    """
    refuse_training(model)
    names = resolve_sites(model, sites)
    steps = Steps(size(batches) + (size(other) if other is not None else 0) + len(names), on_step)
    measured = _measure(model, steps.over(batches, "measuring"), names)
    laws = _input_moments(model, steps.over(other, "predicting"), names, byte_budget) if other is not None else {}
    rows = []
    for name in steps.over(names, "slopes and identities"):
        stream = measured.streams[name]
        total = stream.total
        variance, second = total.variance.numpy(), total.second_moment.numpy()
        estimate = slope_interval(stream.blocks, seed=seed)
        law = laws.get(name)
        full, diagonal = law.predictions(len(variance)) if law is not None else (None, None)
        identity, native = _identity(model, measured.samples.get(name))
        rows.append(
            _row(
                model,
                name,
                variance,
                second,
                slope=estimate.value,
                interval=estimate.interval,
                spread=estimate.spread,
                predicted=full,
                predicted_diagonal=diagonal,
                identity=identity,
                native=native,
            )
        )
    return VarianceProfile(
        model=model_name(model),
        init=False,
        sequences=measured.sequences,
        seeds=0,
        predicted_from=max((law.sequences for law in laws.values()), default=0),
        rows=tuple(rows),
    )


def profile_at_init(
    make: Callable[[int], Any],
    batches: Sequence[Batch],
    *,
    seeds: int = 6,
    sites: str | Sequence[str] | None = None,
    name: str = "",
    on_step: OnStep | None = None,
) -> VarianceProfile:
    """Variance along the sequence at initialisation, over draws of the weights.

    The mean over sequences and draws is subtracted (the seeds' share of it with Bessel's correction); each draw's slope is that of
    its own squares about that mean, and the slope reported is their mean, with Student's t interval over seeds.

    Args:
        make: `make(seed)` returns a fresh model; nothing but the weights may differ between two of them.
        batches: token ids (b, t), the same for every seed.
        seeds: how many draws, at least 2.
        sites: see `resolve_sites`.
        name: what the result calls the model; its own name by default.
        on_step: told of every batch of every draw as it begins.

    Raises:
        ValueError: fewer than two seeds, no sequences, unknown sites.
        TypeError: a batch that is no tensor of ids.
    """
    if seeds < 2:
        raise ValueError(f"seeds: a spread needs at least 2 draws of the weights, got {seeds}")
    draws: dict[str, list[Moments]] = {}
    checks: dict[str, tuple[Check | None, Check | None]] = {}
    sequences = 0
    model: Any = None
    steps = Steps(seeds * len(batches), on_step)
    for seed in range(seeds):
        model = make(seed)
        refuse_training(model)
        names = resolve_sites(model, sites)
        measured = _measure(model, steps.over(batches, f"draw {seed + 1} of {seeds}"), names)
        sequences = measured.sequences
        for site in names:
            draws.setdefault(site, []).append(measured.streams[site].total)
            if seed == 0:
                checks[site] = _identity(model, measured.samples.get(site))
    rows = []
    for site, totals in draws.items():
        curves = _ensemble_variance(totals)  # (seeds, t)
        positions = np.arange(1, curves.shape[1] + 1)
        slopes = [fit_power_law(positions, c).slope for c in curves]
        alone = [fit_power_law(positions, t.variance.numpy()).slope for t in totals]
        finite = bool(np.isfinite(slopes).all())
        estimate = mean_interval(slopes) if finite else None
        rows.append(
            _row(
                model,
                site,
                curves.mean(0),
                np.mean([t.second_moment.numpy() for t in totals], axis=0),
                slope=estimate.value if estimate else math.nan,
                interval=estimate.interval if estimate else (math.nan, math.nan),
                spread=estimate.spread if estimate else math.nan,
                slopes=tuple(slopes),
                slope_one_draw=float(np.mean(alone)),
                identity=checks[site][0],
                native=checks[site][1],
            )
        )
    return VarianceProfile(model=name or model_name(model), init=True, sequences=sequences, seeds=seeds, predicted_from=0, rows=tuple(rows))


def _ensemble_variance(totals: Sequence[Moments]) -> Array:
    """(seeds, t): each draw's mean square about the mean over all draws, the draws' own share times S/(S-1)."""
    centre = torch.stack([t.mean for t in totals]).mean(0)
    bessel = len(totals) / (len(totals) - 1)
    curves = [t.variance + bessel * (t.mean - centre).square().mean(1) for t in totals]
    return torch.stack(curves).numpy()


def theory_slope(model: Any, name: str) -> float | None:
    """What theory says of a site's slope at initialisation: 1 (she, he), 0 (ishe, ihe; about 0: kshe, khe), -1 (uniform attention over
    independent rows: the heads and their sum), None elsewhere."""
    site, layer = _split(name)
    if layer is None or site not in (EXTRACTION, HEADS, SUBLAYER):
        return None
    mixer = getattr(model.blocks[layer], "attn", None)
    if (kernel := LagKernel.of(mixer)) is not None:
        return 1.0 if kernel.row_factor == "one" else 0.0
    return -1.0 if f"blocks.{layer}.{HEADS}" in model.hook_dict else None


def _row(
    model: Any,
    name: str,
    variance: Array,
    second_moment: Array,
    *,
    slope: float,
    interval: tuple[float, float],
    spread: float,
    slopes: tuple[float, ...] = (),
    slope_one_draw: float | None = None,
    predicted: Array | None = None,
    predicted_diagonal: Array | None = None,
    identity: Check | None,
    native: Check | None,
) -> SiteProfile:
    site, layer = _split(name)
    positions = np.arange(1, len(variance) + 1)
    law = fit_power_law(positions, variance)
    expected = theory_slope(model, name)
    line = None
    if expected is not None and math.isfinite(law.slope):
        positive = variance > 0
        level = np.mean(np.log(variance[positive]) - expected * np.log(positions[positive]))
        line = np.exp(level) * positions.astype(np.float64) ** expected
    notes = [law.statement]
    if slopes:
        notes.append(f"sd {spread:.3f} over {len(slopes)} seeds; one draw's variance over sequences alone: slope {slope_one_draw:+.3f}")
    if law.left_out:
        notes.append(f"{law.left_out} position(s) without variance left out of the fit")
    if predicted_diagonal is not None and predicted is None:
        notes.append("predicted from the lag-diagonal alone: the full input moments exceed the byte budget")
    return SiteProfile(
        site=site,
        layer=layer,
        positions=positions,
        variance=variance,
        second_moment=second_moment,
        predicted=predicted,
        predicted_diagonal=predicted_diagonal,
        theory=line,
        slope=slope,
        interval=interval,
        spread=spread,
        slopes=slopes,
        slope_one_draw=slope_one_draw,
        theory_slope=expected,
        r2=law.r2,
        power_law=law.holds,
        identity=identity,
        native=native,
        note="; ".join(notes),
    )


def _split(name: str) -> tuple[str, int | None]:
    """`blocks.3.attn.hook_z` -> ("attn.hook_z", 3); a name outside the blocks keeps its name and has no layer."""
    parts = name.split(".", 2)
    return (parts[2], int(parts[1])) if parts[0] == "blocks" and len(parts) == 3 and parts[1].isdigit() else (name, None)


@dataclass
class _Measured:
    streams: dict[str, MomentStream]
    samples: dict[str, "_Sample"]
    sequences: int = 0


@dataclass(frozen=True)
class _Sample:
    """What a mixer read and extracted on a few unpadded sequences; `name` is the hook of the extraction."""

    name: str
    rows: Float[Tensor, "b t d"]
    extraction: Float[Tensor, "b t d"]


@torch.no_grad()
def _measure(model: Any, batches: Iterable[Batch], names: Sequence[str]) -> _Measured:
    streams: dict[str, MomentStream] = {}
    out = _Measured(streams, {})
    mask: Tensor | None = None

    def collect(name: str) -> Callable[..., None]:
        def take(x: Tensor, hook: Any) -> None:
            if name not in streams:
                streams[name] = MomentStream(blocks=_blocks_for(len(names), x))
            streams[name].add(x, mask)

        return take

    extractors = [n for n in names if _split(n)[0] == EXTRACTION and _kernel_at(model, n) is not None]
    with explicit(model):
        for batch in batches:
            tokens, mask = _checked(batch)
            if not out.sequences and mask is None and extractors:
                out.samples.update(_samples(model, tokens[:IDENTITY_SEQUENCES], extractors))
            with hooked(model, [(name, collect(name)) for name in names]):
                _run(model, tokens, mask)
            out.sequences += tokens.shape[0]
    if not out.sequences:
        raise ValueError("batches: no sequences to measure; give at least one batch of token ids (b, t)")
    if silent := [n for n in names if n not in streams]:
        raise ValueError(f"sites: hook {silent[0]!r} of {model_name(model)} carried no tensor in this run; leave it out")
    return out


def _blocks_for(sites: int, x: Tensor) -> int:
    """64 blocks, fewer where all sites together would outgrow `BLOCK_BYTES`, never fewer than 16."""
    one = sites * x[0].numel() * 8
    return int(min(64, max(16, BLOCK_BYTES // one // 2 * 2)))


def _run(model: Any, tokens: Tensor, mask: Tensor | None) -> None:
    model(tokens) if mask is None else model(tokens, attention_mask=mask)


def _checked(batch: Batch) -> tuple[Int[Tensor, "b t"], Int[Tensor, "b t"] | None]:
    """Ids and mask of a batch; a mask of ones is no mask."""
    tokens, mask = batch if isinstance(batch, tuple) else (batch, None)
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.is_floating_point():
        got = f"{tokens.dtype} {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
        raise TypeError(f"batches: each must be token ids (b, t), or a pair of ids and mask; got {got}")
    if mask is not None and mask.shape != tokens.shape:
        raise ValueError(f"batches: the mask {tuple(mask.shape)} must have the shape of the ids {tuple(tokens.shape)}")
    return tokens, None if mask is None or bool(mask.all()) else mask.long()


def _samples(model: Any, tokens: Int[Tensor, "b t"], names: Sequence[str]) -> dict[str, _Sample]:
    """Input rows and extraction of the Extractors behind `names`, from one run."""
    rows, extraction = _read(model, tokens, None, names)
    return {n: _Sample(n, rows[n], extraction[n]) for n in names}


def _read(model: Any, tokens: Tensor, mask: Tensor | None, names: Sequence[str]) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    """What each mixer was called with (after the norm's gain and bias, which no hook point holds) and what its hook holds."""
    rows: dict[str, Tensor] = {}
    held: dict[str, Tensor] = {}
    handles = []

    def keep(into: dict[str, Tensor], name: str) -> Callable[..., None]:
        return lambda tensor, hook: into.__setitem__(name, tensor.detach().clone())

    def input_of(name: str) -> Callable[..., None]:
        return lambda module, args: rows.__setitem__(name, args[0].detach().clone())

    try:
        for name in names:
            handles.append(_mixer_at(model, name).register_forward_pre_hook(input_of(name)))
        with hooked(model, [(name, keep(held, name)) for name in names]):
            _run(model, tokens, mask)
    finally:
        for handle in handles:
            handle.remove()
    return rows, held


def _mixer_at(model: Any, name: str) -> Any:
    layer = _split(name)[1]
    return getattr(model.blocks[layer], "attn", None)


def _kernel_at(model: Any, name: str) -> LagKernel | None:
    return LagKernel.of(_mixer_at(model, name))


# -------------------------------------------------------------------------------------------------- second-moment formula


@torch.no_grad()
def _input_moments(model: Any, other: Iterable[Batch], names: Sequence[str], byte_budget: int) -> dict[str, InputMoments]:
    extractors = {n: k for n in names if _split(n)[0] == EXTRACTION and (k := _kernel_at(model, n)) is not None}
    laws: dict[str, InputMoments] = {}
    if not extractors:
        return laws
    with explicit(model):
        for batch in other:
            tokens, mask = _checked(batch)
            if mask is not None:
                raise ValueError("other: the prediction needs sequences without padding; cut the text into full windows")
            if not laws:
                full = sum(InputMoments.bytes(k, tokens.shape[1]) for k in extractors.values()) <= byte_budget
                laws = {n: InputMoments(k, full) for n, k in extractors.items()}
            rows, _ = _read(model, tokens, None, list(extractors))
            for name, law in laws.items():
                law.add(rows[name])
    return laws


@torch.no_grad()
def _identity(model: Any, sample: _Sample | None) -> tuple[Check | None, Check | None]:
    """The formula against the mixer, on the batch its moments came from: (float64 against float64, float64 against native).

    Side A is the model's own mixer: its forward, its stored weights, upcast to float64 and applied to the rows it read. Side B is the
    formula through `LagKernel`. Each term `x W x W` of the second moment takes at most `n` roundings on a side, so both lie within
    `gamma_n T_i` of the exact value, `T_i = E[(sum |terms|)^2] / d` ([H02], ch. 3). The native row carries the worst-case rounding
    `e = gamma_{id+3}(u) sum |terms|` of the extraction into its square: `E[2 |ext| e + e^2] / d`.
    """
    if sample is None or _too_large(model, sample):
        return None, None
    kernel = _kernel_at(model, sample.name)
    assert kernel is not None
    law = InputMoments(kernel, full=True)
    law.add(sample.rows)
    formula = law.second_moment(centred=False, cross=True)
    own = _own_extraction(model, sample)
    moduli = kernel.moduli(sample.rows)
    b, t, d = own.shape
    u = unit(torch.float64)
    i = torch.arange(1, t + 1, dtype=torch.float64)
    inner = (i * d if kernel.lag.ndim == 3 else i) + (d + 1 if kernel.value is not None else 0) + 4
    side_a = torch.tensor([gamma(float(n), u) for n in 2 * inner + b * d + 4])
    side_b = gamma(b + 3 * d + d * d + 2 * t + 16, u)
    size = moduli.square().mean((0, 2))
    identity = _worst("identity", (own.square().mean((0, 2)) - formula).abs(), (side_a + side_b) * size)
    rounding = torch.tensor([gamma(float(n), _accumulator(sample.extraction.dtype)) for n in inner])[:, None] * moduli
    if sample.extraction.dtype in (torch.float16, torch.bfloat16):
        rounding = rounding + 2 * unit(sample.extraction.dtype) * moduli
    allowed = (2 * own.abs() * rounding + rounding.square()).mean((0, 2)) + (side_a + side_b) * size
    native = _worst("native", (sample.extraction.double().square().mean((0, 2)) - formula).abs(), allowed)
    return identity, native


def _accumulator(dtype: torch.dtype) -> float:
    return unit(torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype)


def _worst(name: str, gap: Float64[Tensor, " t"], bound: Float64[Tensor, " t"]) -> Check:
    pairs = enumerate(zip(gap.tolist(), bound.tolist(), strict=True), 1)
    checks = [check(name, g, b, kind="proved", where=f"position {i}") for i, (g, b) in pairs]
    return max(checks, key=lambda c: math.inf if math.isnan(c.ratio) else c.ratio)


def _too_large(model: Any, sample: _Sample) -> bool:
    kernel = _kernel_at(model, sample.name)
    return kernel is None or InputMoments.bytes(kernel, sample.rows.shape[1]) > BYTE_BUDGET


def _own_extraction(model: Any, sample: _Sample) -> Float64[Tensor, "b t d"]:
    """Side A: the mixer's own forward in float64, read at its own hook."""
    held: list[Tensor] = []
    with hooked(model, [(sample.name, lambda x, hook: held.append(x.detach().double().cpu()))]):
        in_double(_mixer_at(model, sample.name), sample.rows)
    return held[-1]


def in_double(module: nn.Module, x: Float[Tensor, "b t d"]) -> Any:
    """`module(x)` in float64: its own forward, every floating parameter and the input upcast for this call alone."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    doubled = {k: nn.Parameter(v.detach().double(), requires_grad=False) if v.is_floating_point() else v for k, v in tensors.items()}
    return torch.func.functional_call(module, doubled, (x.double(),))

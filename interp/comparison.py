"""`compare`: train several mixers under equal conditions, then ask the trained decoders the same questions; one result, one page.

In here: the questions (loss, by position, by number of lags kept, variance slopes, cost), the paired differences with their intervals,
and the statements they support or not. Not in here: how the runs are trained (models/comparison.py) and drawn (figures/comparison.py).
"""

import json
import math
import os
import platform
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from analyses.statistics import mean_interval
from analyses.variance import profile, profile_at_init

from ._models import wing

Verdict = Literal["supported", "refuted", "undecided"]

MARGIN = 0.02
"""Nats per token: a mixer "matches" another when its loss is, with 95 % confidence, less than this above the other's."""

ROWS = 32
"""Sequences in one forward pass of an evaluation: bounds memory, not the result."""

SLOPE_SEQUENCES = 128
"""Held-out windows behind every variance slope."""

RESULT_FILE, TABLE_FILE, PAGE_FILE = "comparison.json", "comparison.csv", "comparison.html"


@dataclass(frozen=True, kw_only=True)
class Slopes:
    """Log-log slopes of the variance along the sequence at one site of one layer, one a seed.

    Attributes:
        site: "attn.hook_extraction" (attention: "attn.hook_z") or "hook_attn_out".
        before: with the weights each run began with, each draw's squares taken about the mean over sequences and draws (about its own
            with one seed).
        after: trained.
    """

    site: str
    layer: int
    before: tuple[float, ...]
    after: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class MixerResult:
    """What was measured of one mixer; tuples over seeds unless said otherwise.

    Attributes:
        lr: the learning rate picked; `tried` the loss of each after the probe's steps (on windows that are not reported).
        parameters, mixer_parameters: of the decoder, of one sublayer 1.
        multiply_adds, mixer_multiply_adds: per token at the full context, counted during a run and of one sublayer 1 by formula.
        losses: nats per token on the reported held-out windows, of the decoder as stored (float16 weights).
        tokens_per_cpu_second: in training.
        curve: (step, training loss, validation loss) by seed.
        by_position: loss at each position by seed.
        by_lags: loss by number of lags kept and seed; empty for attention.
        slopes: see `Slopes`.
    """

    mixer: str
    lr: float
    tried: tuple[tuple[float, float], ...]
    parameters: int
    mixer_parameters: int
    multiply_adds: float
    mixer_multiply_adds: float
    losses: tuple[float, ...]
    tokens_per_cpu_second: tuple[float, ...]
    curve: tuple[tuple[tuple[int, float, float], ...], ...]
    by_position: tuple[tuple[float, ...], ...]
    by_lags: tuple[tuple[int, tuple[float, ...]], ...]
    slopes: tuple[Slopes, ...]

    @property
    def loss(self) -> float:
        return math.fsum(self.losses) / len(self.losses)

    @property
    def spread(self) -> float:
        """Standard deviation of the loss over seeds; NaN with one."""
        return statistics.stdev(self.losses) if len(self.losses) > 1 else math.nan

    @property
    def lr_at_edge(self) -> bool:
        """The learning rate picked is the lowest or highest of several: a wider grid might have served this mixer better."""
        rates = [lr for lr, _ in self.tried]
        return len(rates) > 1 and self.lr in (min(rates), max(rates))


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One statement, and the paired differences that decide it.

    Attributes:
        id, text: the statement; `source` says whose it is.
        differences: by seed, nats per token; negative speaks for the statement.
        mean, interval: with Student's t over seeds, 95 %; the interval is NaN with one seed.
        limit: the statement is supported when the whole interval is below this, refuted when it is above.
        verdict: undecided where the interval holds the limit, or there is none.
    """

    id: str
    text: str
    source: str
    differences: tuple[float, ...]
    mean: float
    interval: tuple[float, float]
    limit: float
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several mixers trained under equal conditions, and what follows.

    Attributes:
        plan: what the runs have in common, as in plan.json.
        seeds, steps, tokens_per_step: of every run.
        vocabulary, training_tokens, reported_windows: sizes of the text as the runs saw it.
        results: one a mixer; `statements` what they were judged by.
        environment: versions and machine.
    """

    plan: dict[str, Any]
    seeds: int
    steps: int
    tokens_per_step: int
    vocabulary: int
    training_tokens: int
    reported_windows: int
    results: tuple[MixerResult, ...]
    statements: tuple[Statement, ...]
    environment: dict[str, str]

    def __getitem__(self, mixer: str) -> MixerResult:
        """The result of one mixer.

        Raises:
            KeyError: it was not compared.
        """
        return {result.mixer: result for result in self.results}[mixer]

    @property
    def notes(self) -> tuple[str, ...]:
        """What keeps these numbers from saying much, where there is something: read them before the verdicts."""
        said = []
        if self.steps * self.tokens_per_step < self.training_tokens:
            share = self.steps * self.tokens_per_step / self.training_tokens
            said.append(
                f"Each run saw {share:.1%} of the text once: these verdicts are about the first steps of training, not about the mixers."
            )
        if self.seeds < 3:
            said.append(f"{'One seed has' if self.seeds == 1 else 'Two seeds have'} no spread to speak of: take three or more.")
        edges = [r.mixer for r in self.results if r.lr_at_edge]
        if edges:
            said.append(f"The learning rate of {', '.join(edges)} lies at the edge of the grid: a wider one might serve better.")
        if len(self.statements) > 1:
            said.append(f"{len(self.statements)} statements at 95 % each, uncorrected: one in twenty intervals misses by chance.")
        return tuple(said)

    def to_dataframe(self) -> pd.DataFrame:
        """One row a mixer."""
        return pd.DataFrame(
            {
                "mixer": r.mixer,
                "lr": r.lr,
                "parameters": r.parameters,
                "mixer_parameters": r.mixer_parameters,
                "multiply_adds_per_token": r.multiply_adds,
                "mixer_multiply_adds_per_token": r.mixer_multiply_adds,
                "validation_loss": r.loss,
                "sd_over_seeds": r.spread,
                "lowest": min(r.losses),
                "highest": max(r.losses),
                "tokens_per_cpu_second": statistics.median(r.tokens_per_cpu_second),
            }
            for r in self.results
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a number that is not finite becomes null."""
        return json.loads(json.dumps(asdict(self)), parse_constant=lambda _: None)

    @staticmethod
    def from_dict(told: dict[str, Any]) -> "Comparison":
        """The inverse of `to_dict`.

        Raises:
            ValueError: not what `to_dict` writes.
        """
        try:
            results = [
                MixerResult(
                    **r
                    | {
                        "tried": tuple(map(tuple, r["tried"])),
                        "losses": tuple(r["losses"]),
                        "tokens_per_cpu_second": tuple(r["tokens_per_cpu_second"]),
                        "curve": tuple(tuple(map(tuple, run)) for run in r["curve"]),
                        "by_position": tuple(map(tuple, r["by_position"])),
                        "by_lags": tuple((n, tuple(losses)) for n, losses in r["by_lags"]),
                        "slopes": tuple(Slopes(**s | {"before": tuple(s["before"]), "after": tuple(s["after"])}) for s in r["slopes"]),
                    }
                )
                for r in told["results"]
            ]
            statements = [
                Statement(
                    **s
                    | {
                        "differences": tuple(s["differences"]),
                        "interval": tuple(math.nan if end is None else end for end in s["interval"]),
                    }
                )
                for s in told["statements"]
            ]
            return Comparison(**told | {"results": tuple(results), "statements": tuple(statements)})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"comparison: no comparison in this JSON ({error!r}); give a {RESULT_FILE} that interp compare wrote"
            ) from error


def read_comparison(path: str | os.PathLike[str]) -> Comparison:
    """A comparison from the folder or the JSON file that `compare` wrote.

    Raises:
        ValueError: there is none.
    """
    file = Path(path) / RESULT_FILE if Path(path).is_dir() else Path(path)
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"comparison: cannot read {str(file)!r} ({error}); give the folder of a finished interp compare") from error
    if not isinstance(told, dict):
        raise ValueError(f"comparison: {str(file)!r} holds no comparison; give the folder of a finished interp compare")
    return Comparison.from_dict(told)


def compare(
    text: str,
    folder: str | os.PathLike[str],
    *,
    plan: Any = None,
    on_progress: Callable[[Any], None] | None = None,
    on_question: Callable[[str], None] | None = None,
) -> Comparison:
    """Train the plan's mixers on `text` and compare them: result, table and page in `folder`, the decoders beside them.

    Interrupted, it goes on from the last checkpoint when it is called again with the same plan, text and folder; mixers and seeds may be
    added to a folder that is finished.

    Args:
        text: one or several works (three newlines between two), in paragraphs (two newlines).
        folder: new, empty, or that of the same comparison.
        plan: a `models.comparison.ComparisonPlan`; by default the papers' five mixers, three seeds.
        on_progress: called after every optimisation step with a `models.comparison.Progress`.
        on_question: called with the name of each run as it is evaluated.

    Raises:
        TypeError: `text` is no string, or `plan` no plan.
        ValueError: the text is too short, or the folder holds something else.
    """
    comparison = wing("comparison")
    plan = comparison.ComparisonPlan() if plan is None else plan
    if not isinstance(plan, comparison.ComparisonPlan):
        raise TypeError(f"plan: a models.comparison.ComparisonPlan is needed, got {type(plan).__name__}")
    folder = Path(folder)
    _refuse_to_shrink(folder, plan)
    finished = comparison.train_all(plan, text, folder, on_progress)
    result = evaluate(plan, text, folder, finished, on_question)
    from .figures.comparison import page
    from .figures.writing import write_atomic

    write_atomic(folder / TABLE_FILE, result.to_dataframe().to_csv(index=False).encode())
    write_atomic(folder / PAGE_FILE, page(result).encode())
    write_atomic(folder / RESULT_FILE, (json.dumps(result.to_dict(), indent=1) + "\n").encode())
    return result


def _refuse_to_shrink(folder: Path, plan: Any) -> None:
    """A result that is there is replaced only by one that holds all of it."""
    if not (folder / RESULT_FILE).is_file():
        return
    there = read_comparison(folder)
    mixers = [r.mixer for r in there.results]
    if not set(mixers) <= set(plan.mixers) or there.seeds > plan.seeds:
        raise ValueError(
            f"folder: {str(folder)!r} holds the result of {', '.join(mixers)} with {there.seeds} seeds, which this would replace by less; "
            "name all of them, with as many seeds or more, or choose another folder"
        )


def evaluate(
    plan: Any, text: str, folder: Path, finished: dict[str, Sequence[Any]], on_question: Callable[[str], None] | None = None
) -> Comparison:
    """Ask every finished run's decoder the same questions, on the reported windows."""
    comparison = wing("comparison")
    data = comparison.prepare(plan, text)
    windows = torch.from_numpy(data.reported)
    tried = comparison.probes_of(plan, folder)
    results = []
    for mixer, runs in finished.items():
        models = []
        for run in runs:
            if on_question is not None:
                on_question(run.run.name)
            models.append(_Asked.of(comparison.read_model(folder, run.run).eval(), windows))
        results.append(_result(plan, data, mixer, runs, models, windows, tuple(tried[mixer].items())))
    return Comparison(
        plan=json.loads((folder / comparison.PLAN_FILE).read_text(encoding="utf-8")),
        seeds=plan.seeds,
        steps=plan.steps,
        tokens_per_step=plan.batch * plan.n_ctx,
        vocabulary=data.tokenizer.get_vocab_size(),
        training_tokens=len(data.tokens),
        reported_windows=len(windows),
        results=tuple(results),
        statements=statements(results, lags=plan.n_ctx),
        environment={
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}",
        },
    )


# ---- the questions to one decoder


@dataclass(frozen=True, kw_only=True)
class _Asked:
    model: Any
    by_position: tuple[float, ...]
    by_lags: dict[int, float]

    @staticmethod
    def of(model: Any, windows: Tensor) -> "_Asked":
        by_lags = {}
        if any(hasattr(getattr(block, "attn", None), "truncated") for block in model.blocks):
            for kept in lags_kept(model.cfg.n_ctx):
                with far_lags_off(model, kept):
                    by_lags[kept] = float(position_losses(model, windows).mean())
        return _Asked(model=model, by_position=tuple(position_losses(model, windows).tolist()), by_lags=by_lags)


def lags_kept(n_ctx: int) -> list[int]:
    """The numbers of lags a trained Extractor is tried with: all, then half as many, down to a thirty-second.

    >>> lags_kept(64)
    [64, 32, 16, 8, 4, 2]
    """
    return [n_ctx // 2**k for k in range(6) if n_ctx // 2**k]


@torch.no_grad()
def position_losses(model: Any, windows: Tensor) -> Tensor:
    """Mean loss (nats) at each position, (t,) float64, over windows (w, t + 1)."""
    total = torch.zeros(windows.shape[1] - 1, dtype=torch.float64)
    for rows in windows.split(ROWS):
        logits = model(rows[:, :-1])
        losses = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
        total += losses.view(len(rows), -1).double().sum(0)
    return total / len(windows)


@contextmanager
def far_lags_off(model: Any, kept: int) -> Iterator[None]:
    """Hooks on every Extractor that leave out the writes of all but the first `kept` lags; nothing else changes, the row factor neither."""
    with ExitStack() as stack:
        hooks = []
        for layer, block in enumerate(model.blocks):
            mixer = getattr(block, "attn", None)
            if mixer is None or not hasattr(mixer, "truncated"):
                continue
            read: dict[str, Tensor] = {}
            handle = mixer.register_forward_pre_hook(lambda module, args, read=read: read.update(x=args[0]))
            stack.callback(handle.remove)
            hooks.append(
                (
                    f"blocks.{layer}.attn.hook_extraction",
                    lambda extraction, hook, mixer=mixer, read=read: mixer.truncated(read["x"], kept),
                )
            )
        stack.enter_context(model.hooks(fwd_hooks=hooks))
        yield


def _result(
    plan: Any, data: Any, mixer: str, runs: Sequence[Any], asked: Sequence[_Asked], windows: Tensor, tried: tuple[tuple[float, float], ...]
) -> MixerResult:
    cost = wing("cost")
    model = asked[0].model
    return MixerResult(
        mixer=mixer,
        lr=runs[0].run.lr,
        tried=tried,
        parameters=sum(p.numel() for p in model.parameters()),
        mixer_parameters=sum(p.numel() for p in model.blocks[0].attn.parameters()),
        multiply_adds=cost.counted_multiply_adds(model, plan.n_ctx),
        mixer_multiply_adds=cost.mixer_multiply_adds(model.config, 0, plan.n_ctx),
        losses=tuple(float(np.mean(a.by_position)) for a in asked),
        tokens_per_cpu_second=tuple(run.tokens_per_cpu_second for run in runs),
        curve=tuple(tuple((p.step, p.training_loss, p.validation_loss) for p in run.curve) for run in runs),
        by_position=tuple(a.by_position for a in asked),
        by_lags=tuple((n, tuple(a.by_lags[n] for a in asked)) for n in asked[0].by_lags),
        slopes=_slopes(plan, data, runs, [a.model for a in asked], windows[:SLOPE_SEQUENCES, :-1]),
    )


def _slopes(plan: Any, data: Any, runs: Sequence[Any], models: Sequence[Any], tokens: Tensor) -> tuple[Slopes, ...]:
    comparison = wing("comparison")
    first = "attn.hook_z" if "blocks.0.attn.hook_z" in models[0].hook_dict else "attn.hook_extraction"
    sites = [first, "hook_attn_out"]
    batches = list(tokens.split(ROWS))
    after = [profile(model, batches, sites=sites) for model in models]
    fresh = [comparison.fresh_model(plan, data, run.run) for run in runs]
    if len(fresh) > 1:
        before = [row.slopes for row in profile_at_init(lambda n: fresh[n], batches, seeds=len(fresh), sites=sites).rows]
    else:
        before = [(row.slope,) for row in profile(fresh[0], batches, sites=sites).rows]
    return tuple(
        Slopes(site=row.site, layer=int(row.layer or 0), before=tuple(before[n]), after=tuple(p.rows[n].slope for p in after))
        for n, row in enumerate(after[0].rows)
    )


# ---- statements


def statements(results: Sequence[MixerResult], *, lags: int) -> tuple[Statement, ...]:
    """Every statement that the compared mixers can decide."""
    by_name = {r.mixer: r for r in results}

    def differ(first: str, second: str) -> tuple[float, ...]:
        return tuple(a - b for a, b in zip(by_name[first].losses, by_name[second].losses, strict=True))

    said = []
    for first, second, text, source in (
        ("she", "mha", "SHE reaches a lower loss than attention", "[C23b]"),
        ("ishe", "she", "iSHE reaches a lower loss than SHE", "[C23b]"),
        ("ihe", "he", "iHE reaches a lower loss than HE", "ours"),
        ("kshe", "ishe", "a row factor that follows the kernel lowers iSHE's loss", "ours"),
        ("khe", "ihe", "a row factor that follows the kernel lowers iHE's loss", "ours"),
    ):
        if first in by_name and second in by_name:
            said.append(_stated(f"{first}-{second}", text, source, differ(first, second)))
    if "he" in by_name and "mha" in by_name:
        said.append(_matched(by_name["he"], by_name["mha"], differ("he", "mha")))
    kept = max(lags // 4, 1)
    for mixer, kept_losses in ((r.mixer, dict(r.by_lags)) for r in results):
        if kept in kept_losses and lags in kept_losses and kept < lags:
            gain = tuple(a - b for a, b in zip(kept_losses[kept], kept_losses[lags], strict=True))
            text = f"deleting the far three quarters of the lags of a trained {mixer} ({lags} to {kept}) lowers its loss"
            said.append(_stated(f"{mixer}-lags", text, "ours", gain))
    return tuple(said)


def _matched(he: MixerResult, mha: MixerResult, differences: tuple[float, ...]) -> Statement:
    """HE against attention: as good within the margin, and cheaper; where it is not cheaper there is nothing to support."""
    text = f"HE matches attention (less than {MARGIN:g} above its loss) with fewer multiply-adds and no more parameters"
    stated = _stated("he-mha", text, "[C23b]", differences, MARGIN)
    cheaper = he.mixer_multiply_adds < mha.mixer_multiply_adds and he.mixer_parameters <= mha.mixer_parameters
    return stated if cheaper else replace(stated, verdict="refuted")


def _stated(id: str, text: str, source: str, differences: tuple[float, ...], limit: float = 0.0) -> Statement:
    estimate = mean_interval(differences)
    low, high = estimate.interval
    verdict: Verdict = "supported" if high < limit else "refuted" if low > limit else "undecided"
    return Statement(
        id=id, text=text, source=source, differences=differences, mean=estimate.value, interval=(low, high), limit=limit, verdict=verdict
    )

"""Train several mixers under equal conditions: the same text, tokenizer, data order, seeds and steps; a learning rate picked for each.

Here are the plan (`ComparisonPlan`), the runs it is made of, and a training run that can be stopped anywhere. A run is a function of its
name alone (mixer, learning rate, seed, steps), so that the work left is what has no file yet: started again after Ctrl-C or a kill, it
goes on from the last checkpoint and ends bit for bit where it would have ended. What the trained decoders are then asked is not here.

    folder/plan.json                 what the runs have in common; a folder holds one comparison
    folder/tokenizer.json            learnt from the training part
    folder/runs/NAME.json            a finished run: its loss curve and times
    folder/runs/NAME.safetensors     an unfinished one: weights, AdamW's moments, the curve so far
    folder/models/NAME/              the decoder of a finished run, as `HookedDecoder.from_pretrained` reads it
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from jaxtyping import Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer

from .config import EXTRACTORS, MIXERS, DecoderConfig, near_misses
from .corpus import batch_of_step, encode, split_heldout, train_tokenizer
from .decoder import HookedDecoder
from .training import (
    STORAGE,
    Optimisation,
    TrainingConfig,
    check_int,
    check_number,
    learning_rate,
    make_optimizer,
    mean_loss,
    new_folder,
    next_tokens,
    optimisation_step,
    seeded,
    validation_windows,
    write_text,
)

PAPERS = ("mha", *(kind for kind in EXTRACTORS if not kind.startswith("k")))
PROBE_SEED = 1000
SAVE_EVERY = 100
PLAN_FILE = "plan.json"


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """What is trained, and how; everything but the text.

    Attributes:
        mixers: Names of built-in mixers, each once.
        seeds: Runs a mixer, with the seeds 0, 1, ..; a seed sets the initial weights and the data order.
        lrs: The grid from which every mixer gets its learning rate: the one with the lowest loss after `probe_steps` steps of the same
            recipe, with a seed that is not compared and on held-out windows that are not reported.
        steps, probe_steps, batch: Optimisation steps of a run and of a probe; windows per step.
        validate_every: Steps between two points of the loss curve.
        n_layers, d_model, n_heads, n_ctx, d_vocab: The decoder's shape, as in `TrainingConfig`.
    """

    mixers: tuple[str, ...] = PAPERS
    seeds: int = 3
    lrs: tuple[float, ...] = (3e-3, 6e-3, 1.2e-2, 2.4e-2)
    steps: int = 1500
    probe_steps: int = 300
    batch: int = 32
    validate_every: int = 150
    n_layers: int = 4
    d_model: int = 64
    n_heads: int = 4
    n_ctx: int = 64
    d_vocab: int = 2000

    def __post_init__(self) -> None:
        if not self.mixers or not isinstance(self.mixers, tuple):
            raise ValueError(f"mixers: at least one name is needed, got {self.mixers!r}")
        for name in self.mixers:
            if name not in MIXERS:
                raise ValueError(f"mixers: unknown {name!r}: {near_misses(str(name), MIXERS)}")
        if len(set(self.mixers)) < len(self.mixers):
            raise ValueError(f"mixers: each once, got {', '.join(self.mixers)}")
        for name in ("seeds", "steps", "probe_steps", "batch", "validate_every"):
            check_int(name, getattr(self, name), 1)
        if self.seeds > PROBE_SEED:
            raise ValueError(f"seeds: at most {PROBE_SEED}, got {self.seeds}")
        if not self.lrs:
            raise ValueError("lrs: at least one learning rate is needed")
        for lr in self.lrs:
            check_number("lrs", lr, may_be_zero=False)
        for mixer in self.mixers:
            self.recipe(Run(mixer, self.lrs[0], 0, self.steps))  # refuses a wrong shape here, before any work

    def recipe(self, run: "Run") -> TrainingConfig:
        """`TrainingConfig`'s recipe with this plan's sizes; a short run warms up for a fifth of its steps."""
        return TrainingConfig(
            mixer=run.mixer,
            lr=run.lr,
            seed=run.seed,
            steps=run.steps,
            warmup=min(Optimisation.warmup, run.steps // 5),
            validate_every=self.validate_every,
            batch=self.batch,
            **{name: getattr(self, name) for name in ("n_layers", "d_model", "n_heads", "n_ctx", "d_vocab")},
        )

    def shared(self) -> dict[str, Any]:
        """What all runs in a folder have in common. Mixers and seeds may be added to a folder later; these may not change."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("mixers", "seeds")}

    def probes(self, mixer: str) -> list["Run"]:
        """The runs from which `mixer` gets its learning rate; none if there is nothing to pick."""
        return [Run(mixer, lr, PROBE_SEED, self.probe_steps) for lr in self.lrs] if len(self.lrs) > 1 else []


@dataclass(frozen=True)
class Run:
    """One training run; a `probe` is one that only picks a learning rate."""

    mixer: str
    lr: float
    seed: int
    steps: int

    @property
    def name(self) -> str:
        return f"{self.mixer}-lr{self.lr:g}-seed{self.seed}-steps{self.steps}"


@dataclass(frozen=True)
class Point:
    """A point of a loss curve: mean training loss since the point before, and loss on the reported held-out windows (nats per token)."""

    step: int
    training_loss: float
    validation_loss: float


@dataclass(frozen=True)
class Finished:
    """What a finished run says of itself.

    Attributes:
        run: which.
        curve: its loss curve; the last point is the end.
        seconds: wall time of the optimisation, validations left out.
        cpu_seconds: CPU time of the same, all threads.
        tokens_per_step: windows times their length.
    """

    run: Run
    curve: tuple[Point, ...]
    seconds: float
    cpu_seconds: float
    tokens_per_step: int

    @property
    def loss(self) -> float:
        return self.curve[-1].validation_loss

    @property
    def tokens_per_cpu_second(self) -> float:
        return self.run.steps * self.tokens_per_step / self.cpu_seconds


@dataclass(frozen=True)
class Progress:
    """Where the whole comparison stands: `done` of `total` optimisation steps; the run at work and its last training loss."""

    run: Run
    done: int
    total: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class Data:
    """The text as all runs see it. Every second held-out window picks the learning rates, the others are reported."""

    tokenizer: Tokenizer
    tokens: Int[np.ndarray, "n"]
    picking: Int[np.ndarray, "w l1"]
    reported: Int[np.ndarray, "w2 l1"]


def prepare(plan: ComparisonPlan, text: str) -> Data:
    """Split and tokenise `text`.

    Raises:
        ValueError: it is too short for windows of this length.
    """
    corpus = split_heldout(text)
    tokenizer = train_tokenizer(corpus.training, plan.d_vocab)
    tokens = encode(tokenizer, corpus.training)
    windows = validation_windows(encode(tokenizer, corpus.heldout), plan.n_ctx)
    if len(tokens) < 2 * plan.n_ctx or len(windows) < 2:
        raise ValueError(
            f"text: too short: {len(tokens)} tokens to train on and {len(windows)} held-out windows of {plan.n_ctx} tokens; "
            f"{2 * plan.n_ctx} and 2 are needed: give a longer text or a smaller n_ctx"
        )
    return Data(tokenizer=tokenizer, tokens=tokens, picking=windows[::2], reported=windows[1::2])


def train_all(
    plan: ComparisonPlan, text: str, folder: str | Path, on_progress: Callable[[Progress], None] | None = None
) -> dict[str, list[Finished]]:
    """Every run of the plan that is not there yet; seed by seed, so that a comparison cut short has whole seeds.

    Args:
        plan: What to train.
        text: One or several works, as `train` reads them.
        folder: A new or empty folder, or that of the same comparison, which is then finished or extended.
        on_progress: Called after every step; an exception in it stops the run, after a checkpoint was written.

    Returns:
        By mixer, one finished run a seed.

    Raises:
        ValueError: The folder holds something else, another process works in it, or a loss stopped being finite.
    """
    folder = Path(folder)
    digest = hashlib.sha256(text.encode()).hexdigest()
    data = prepare(plan, text)
    _claim(folder, plan.shared() | {"text_sha256": digest})
    try:
        with FileLock(folder / ".lock", timeout=0):
            (folder / "runs").mkdir(exist_ok=True)
            write_text(folder / "tokenizer.json", data.tokenizer.to_str())
            return _train_all(plan, data, folder, on_progress)
    except Timeout:
        raise ValueError(f"folder: another comparison is at work in {str(folder)!r}; wait for it, or choose another folder") from None


def _train_all(plan: ComparisonPlan, data: Data, folder: Path, on_progress: Callable[[Progress], None] | None) -> dict[str, list[Finished]]:
    total = sum(run.steps for mixer in plan.mixers for run in plan.probes(mixer)) + len(plan.mixers) * plan.seeds * plan.steps
    before = 0

    def one(run: Run, windows: Int[np.ndarray, "w l1"]) -> Finished:
        nonlocal before
        report = None if on_progress is None else lambda step, loss: on_progress(Progress(run, before + step, total, loss))
        finished = train_resumably(run, plan.recipe(run), data, windows, folder, report)
        before += run.steps
        return finished

    picked = {}
    for mixer in plan.mixers:
        probes = [one(run, data.picking) for run in plan.probes(mixer)]
        picked[mixer] = min(probes, key=lambda probe: probe.loss).run.lr if probes else plan.lrs[0]
    runs: dict[str, list[Finished]] = {mixer: [] for mixer in plan.mixers}
    for seed in range(plan.seeds):
        for mixer in plan.mixers:
            runs[mixer].append(one(Run(mixer, picked[mixer], seed, plan.steps), data.reported))
    return runs


def probes_of(plan: ComparisonPlan, folder: Path) -> dict[str, dict[float, float]]:
    """The loss of every learning rate tried, by mixer; on the windows that pick, none of which is reported."""
    return {mixer: {run.lr: read_finished(folder, run).loss for run in plan.probes(mixer)} for mixer in plan.mixers}


def train_resumably(
    run: Run,
    config: TrainingConfig,
    data: Data,
    windows: Int[np.ndarray, "w l1"],
    folder: Path,
    on_step: Callable[[int, float], None] | None,
) -> Finished:
    """Train one run to its end, from its checkpoint if there is one; nothing is done if it is finished already.

    Whatever stops it (an exception, Ctrl-C), a checkpoint is written first; after a kill it goes on from the last, at most `SAVE_EVERY`
    steps back.
    """
    if (folder / "runs" / f"{run.name}.json").is_file():
        return read_finished(folder, run)
    with seeded(config.seed):
        model = HookedDecoder(config.decoder_config(data.tokenizer.get_vocab_size()), tokenizer=data.tokenizer)
    optimizer = make_optimizer(model, config)
    checkpoint = folder / "runs" / f"{run.name}.safetensors"
    state = _load(checkpoint, model, optimizer) if checkpoint.is_file() else _State()
    try:
        while state.step < config.steps:
            batch = batch_of_step(data.tokens, n_ctx=config.n_ctx, batch=config.batch, seed=config.seed, step=state.step)
            wall, cpu = time.perf_counter(), time.process_time()
            loss = optimisation_step(model, optimizer, next_tokens(batch), lr=learning_rate(config, state.step), clip=config.clip)
            if not math.isfinite(loss):
                raise ValueError(f"lrs: the loss is {loss} at step {state.step + 1} of {run.name}; leave {config.lr:g} out")
            done = state.step + 1
            due = done % config.validate_every == 0 or done == config.steps
            seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
            state = state.after(loss, seconds, cpu_seconds, mean_loss(model, next_tokens(windows)) if due else None)
            if on_step is not None:
                on_step(state.step, loss)
            if state.step % SAVE_EVERY == 0:
                _save(checkpoint, model, optimizer, state)
    except BaseException:
        # Between two steps weights, moments and curve belong together; inside one they may not, and then the last checkpoint stands.
        if state.step == _steps_taken(optimizer):
            _save(checkpoint, model, optimizer, state)
        raise
    finished = Finished(run, state.curve, state.seconds, state.cpu_seconds, config.batch * config.n_ctx)
    target = folder / "models" / run.name
    if not target.is_dir():
        with new_folder(target) as partial:
            model.save_pretrained(partial, dtype=STORAGE)
    write_text(folder / "runs" / f"{run.name}.json", json.dumps(asdict(finished), indent=1) + "\n")
    checkpoint.unlink(missing_ok=True)
    return finished


def read_finished(folder: Path, run: Run) -> Finished:
    """What a finished run wrote; ValueError names a file that is damaged."""
    file = folder / "runs" / f"{run.name}.json"
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        points = tuple(Point(**point) for point in told["curve"])
        return Finished(Run(**told["run"]), points, told["seconds"], told["cpu_seconds"], told["tokens_per_step"])
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"folder: {str(file)!r} cannot be read ({error}); remove it, and its run is trained again") from error


def read_model(folder: Path, run: Run) -> HookedDecoder:
    """The decoder of a finished run."""
    return HookedDecoder.from_pretrained(folder / "models" / run.name)


def fresh_model(plan: ComparisonPlan, data: Data, run: Run) -> HookedDecoder:
    """The decoder that a run begins with."""
    config: DecoderConfig = plan.recipe(run).decoder_config(data.tokenizer.get_vocab_size())
    with seeded(run.seed):
        return HookedDecoder(config, tokenizer=data.tokenizer).eval()


# ---- checkpoints: safetensors (nothing is ever unpickled), written under another name, then renamed


@dataclass(frozen=True)
class _State:
    """Where a run stands between two steps, beside its weights and AdamW's moments."""

    step: int = 0
    curve: tuple[Point, ...] = ()
    losses: tuple[float, ...] = ()  # since the last point of the curve
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def after(self, loss: float, seconds: float, cpu_seconds: float, validation_loss: float | None) -> "_State":
        losses = (*self.losses, loss)
        curve = self.curve
        if validation_loss is not None:
            curve, losses = (*curve, Point(self.step + 1, math.fsum(losses) / len(losses), validation_loss)), ()
        return _State(self.step + 1, curve, losses, self.seconds + seconds, self.cpu_seconds + cpu_seconds)


def _steps_taken(optimizer: torch.optim.Optimizer) -> int:
    taken = {int(state["step"]) for state in optimizer.state.values()}
    return 0 if not taken else taken.pop() if len(taken) == 1 else -1


def _save(path: Path, model: HookedDecoder, optimizer: torch.optim.Optimizer, state: _State) -> None:
    tensors = {f"weight.{name}": tensor.detach() for name, tensor in model.state_dict().items()}
    for index, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"moment.{index}.{name}": tensor for name, tensor in moments.items()}
    partial = path.with_name(f".{path.name}.partial")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial, metadata={"state": json.dumps(asdict(state))})
    os.replace(partial, path)


def _load(path: Path, model: HookedDecoder, optimizer: torch.optim.Optimizer) -> _State:
    try:
        with safe_open(path, "pt") as file:
            told = json.loads(file.metadata()["state"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - a file handle, no dict
        model.load_state_dict({name.removeprefix("weight."): t for name, t in tensors.items() if name.startswith("weight.")})
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("moment."):
                _, index, what = name.split(".")
                moments.setdefault(int(index), {})[what] = tensor
        optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})
    except (SafetensorError, KeyError, TypeError, RuntimeError, ValueError, OSError) as error:
        raise ValueError(f"folder: the checkpoint {str(path)!r} cannot be read ({error}); remove it, and its run begins anew") from error
    return _State(**told | {"curve": tuple(Point(**point) for point in told["curve"]), "losses": tuple(told["losses"])})


def _claim(folder: Path, shared: dict[str, Any]) -> None:
    """Make `folder` this comparison's, or make sure that it is."""
    shared = json.loads(json.dumps(shared))
    plan = folder / PLAN_FILE
    try:
        if plan.is_file():
            before = json.loads(plan.read_text(encoding="utf-8"))
            for name in sorted(shared.keys() | before.keys()):
                if before.get(name) != shared.get(name):
                    raise ValueError(
                        f"folder: {str(folder)!r} holds a comparison with {name}={before.get(name)!r}, this one has "
                        f"{shared.get(name)!r}; choose another folder"
                    )
            return
        if folder.exists() and not (folder.is_dir() and not _visible(list(folder.iterdir()))):
            raise ValueError(f"folder: {str(folder)!r} exists and holds no comparison; choose another name, or remove it")
        folder.mkdir(parents=True, exist_ok=True)
        write_text(plan, json.dumps(shared, indent=2) + "\n")
    except OSError as error:
        raise ValueError(f"folder: cannot write {str(folder)!r}: {error.strerror or error}; choose a folder you may write to") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"folder: {str(plan)!r} is not JSON ({error}); choose another folder") from error


def _visible(paths: Sequence[Path]) -> list[Path]:
    return [path for path in paths if not path.name.startswith(".")]

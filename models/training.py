"""Train a small decoder on a text: corpus -> tokenizer -> model -> a folder that `HookedDecoder.from_pretrained` reads.

Here are the recipe (`TrainingConfig`), the optimisation steps and the folder that comes out. How a text is split, tokenised and cut into
batches is in ``corpus.py``. The loop is made of parts that know nothing of each other's past (a step's batch and learning rate are
functions of the step's number), so a run that was saved with its optimizer's state can go on anywhere.
"""

import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from .config import MIXERS, DecoderConfig, near_misses
from .corpus import HELDOUT_SHARE, batch_of_step, consecutive_windows, encode, split_heldout, train_tokenizer
from .decoder import HookedDecoder

LOG_FILE = "log.jsonl"
RECIPE_FILE = "recipe.json"
STORAGE = torch.float16
UNSCORED = -100  # a target that no loss counts
EVALUATION_TOKENS = 4096  # per forward pass of an evaluation: bounds memory, not the result
MAX_VALIDATION_WINDOWS = 2048  # a longer held-out part is sampled evenly, so that a validation does not cost more than the training


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """How weights are changed; nothing about what they are trained on.

    Attributes:
        steps: Optimisation steps.
        lr: The highest learning rate, reached after `warmup` steps; from there half a cosine falls to a tenth of it.
        weight_decay: On everything with two or more axes (embeddings, unembedding and lag weights included) that is no bias.
        warmup: Steps of the straight line up to `lr`.
        clip: The gradient's norm is cut to this.
        validate_every: Steps between two validation losses in the log; the last step always has one.
        batch: Windows per step.
        seed: Of the initial weights and of the data order.
    """

    steps: int = 1500
    lr: float = 6e-3
    weight_decay: float = 0.1
    warmup: int = 100
    clip: float = 1.0
    validate_every: int = 250
    batch: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("warmup", 0), ("validate_every", 1), ("batch", 1), ("seed", 0)):
            check_int(name, getattr(self, name), least)
        for name in ("lr", "weight_decay", "clip"):
            check_number(name, getattr(self, name), may_be_zero=name == "weight_decay")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Optimisation):
    """One training run on a text: with the same text and number of threads it gives the same model, bit for bit, on the CPU.

    Attributes:
        mixer: "mha", "she", "ishe", "kshe", "he", "ihe" or "khe", in every layer.
        n_layers, d_model, n_heads, n_ctx: The decoder's shape; `n_heads` matters to attention only. Layout serial, LayerNorm before each
            sublayer, FFN of width 4 d_model with GELU and biases, mixer without biases, unembedding not tied to the embedding.
        d_vocab: The tokenizer's size (byte-level BPE); a short text may give fewer tokens.
    """

    mixer: str
    n_layers: int = 4
    d_model: int = 64
    n_heads: int = 4
    n_ctx: int = 128
    d_vocab: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mixer not in MIXERS:
            raise ValueError(f"mixer: unknown {self.mixer!r}: {near_misses(str(self.mixer), MIXERS)}")
        for name, least in (("n_layers", 1), ("d_model", 1), ("n_heads", 1), ("n_ctx", 2), ("d_vocab", 256)):
            check_int(name, getattr(self, name), least)
        self.decoder_config(self.d_vocab)  # heads that do not divide the width are refused here, before any work

    def decoder_config(self, d_vocab: int) -> DecoderConfig:
        """The decoder this run trains, with the vocabulary the tokenizer came out with."""
        return DecoderConfig(
            n_layers=self.n_layers, d_model=self.d_model, n_ctx=self.n_ctx, d_vocab=d_vocab, mixer=self.mixer, n_heads=self.n_heads
        )


def check_int(name: str, value: Any, least: int) -> None:
    """Refuse what is no int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: expected an int, got {value!r}")
    if value < least:
        raise ValueError(f"{name}: must be at least {least}, got {value}")


def check_number(name: str, value: Any, *, may_be_zero: bool) -> None:
    """Refuse what is no finite number above 0 (or at least 0)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    if not math.isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
        raise ValueError(f"{name}: must be finite and {'at least' if may_be_zero else 'above'} 0, got {value}")


@dataclass(frozen=True)
class Step:
    """What is known after an optimisation step.

    Attributes:
        step: how many steps are done, from 1.
        steps: how many there will be.
        loss: this step's training loss, nats per token, before the step changed the weights.
        lr: the learning rate of this step.
        validation_loss: nats per token over the held-out windows, after this step; None where it was not measured.
        seconds: since the first step began.
    """

    step: int
    steps: int
    loss: float
    lr: float
    validation_loss: float | None
    seconds: float

    @property
    def eta(self) -> float:
        """Seconds until the last step at the mean speed so far."""
        return self.seconds / self.step * (self.steps - self.step)


@dataclass(frozen=True)
class TrainingResult:
    """A finished run.

    Attributes:
        folder: What was written: config, weights (float16), tokenizer, recipe.json, log.jsonl.
        steps: Optimisation steps done.
        loss: Validation loss (nats per token) of the model as it stands in the folder, its weights rounded to float16.
        training_tokens: What it was fed, a token counted each time.
        n_parameters: Of the decoder.
        seconds: The time the optimisation took, validations included.
        fingerprint: Of config and weights in the folder.
    """

    folder: Path
    steps: int
    loss: float
    training_tokens: int
    n_parameters: int
    seconds: float
    fingerprint: str


class Batch(NamedTuple):
    """What to feed and what to predict at every position; a target of `UNSCORED` is not counted."""

    inputs: Int[Tensor, "b t"]
    targets: Int[Tensor, "b t"]


def next_tokens(windows: Int[np.ndarray, "b l1"]) -> Batch:
    """Windows of ``l + 1`` tokens as `l` inputs and, for each, the token after it."""
    tokens = torch.from_numpy(windows)
    return Batch(tokens[:, :-1], tokens[:, 1:])


def train(config: TrainingConfig, text: str, folder: str | Path, on_step: Callable[[Step], None] | None = None) -> TrainingResult:
    """Train a decoder on `text` and write it, with its tokenizer, recipe and log, to `folder`.

    The last 8 % of every work in `text` are held out (see `corpus.split_heldout`). The folder is filled under another name and renamed at
    the end: whatever interrupts the run, `folder` is there complete or not at all. The caller's random state is left as it was.

    Args:
        config: The recipe.
        text: One or several works (three newlines between two), in paragraphs (two newlines).
        folder: Where to; must not exist yet, or be empty.
        on_step: Called after every step, for a progress bar; an exception in it ends the run.

    Raises:
        TypeError: `text` is not a string.
        ValueError: The text is empty or too short, the folder is taken or cannot be written, or the loss stopped being finite.
    """
    folder = free_folder(folder)
    corpus = split_heldout(text)
    tokenizer = train_tokenizer(corpus.training, config.d_vocab)
    tokens, heldout = encode(tokenizer, corpus.training), encode(tokenizer, corpus.heldout)
    for part, ids, needed in (("training part", tokens, 2 * config.n_ctx), (f"held-out {HELDOUT_SHARE:.0%}", heldout, config.n_ctx + 1)):
        if len(ids) < needed:
            raise ValueError(
                f"text: too short: its {part} has {len(ids)} tokens, and {needed} are needed at n_ctx={config.n_ctx}; "
                "give a longer text or a smaller n_ctx"
            )
    windows = validation_windows(heldout, config.n_ctx)
    with seeded(config.seed):
        model = HookedDecoder(config.decoder_config(tokenizer.get_vocab_size()), tokenizer=tokenizer)

    def batch(step: int) -> Batch:
        return next_tokens(batch_of_step(tokens, n_ctx=config.n_ctx, batch=config.batch, seed=config.seed, step=step))

    def validation(stored: HookedDecoder) -> dict[str, Any]:
        return {
            "loss": mean_loss(stored, next_tokens(windows)),
            "loss_every_tenth_window": mean_loss(stored, next_tokens(windows[::10])),
            "windows": len(windows),
            "tokens_predicted": windows[:, 1:].size,
        }

    log = run(model, config, batch, validate=lambda: mean_loss(model, next_tokens(windows)), on_step=on_step)
    sizes = {
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "characters": len(text),
        "heldout_share": HELDOUT_SHARE,
        "training_tokens": len(tokens),
        "heldout_tokens": len(heldout),
    }
    return write_run(model, folder, config=config, log=log, validation=validation, text=sizes)


def run(
    model: HookedDecoder,
    config: Optimisation,
    batch_of: Callable[[int], Batch],
    *,
    validate: Callable[[], float],
    on_step: Callable[[Step], None] | None,
) -> list[Step]:
    """All the steps, each reported to `on_step`; those with a validation loss come back, the last step among them."""
    log = []
    for step in optimise(model, config, batch_of, validate):
        if step.validation_loss is not None:
            log.append(step)
        if on_step is not None:
            on_step(step)
    return log


def optimise(model: HookedDecoder, config: Optimisation, batch_of: Callable[[int], Batch], validate: Callable[[], float]) -> Iterator[Step]:
    """Train `model` in place, one step an iteration, on ``batch_of(0), batch_of(1), ..``.

    Raises:
        ValueError: The loss is no longer finite.
    """
    optimizer = make_optimizer(model, config)
    started = time.perf_counter()
    for index in range(config.steps):
        lr = learning_rate(config, index)
        loss = optimisation_step(model, optimizer, batch_of(index), lr=lr, clip=config.clip)
        if not math.isfinite(loss):
            raise ValueError(f"lr: the loss is {loss} at step {index + 1}; the learning rate {config.lr} is too high, lower it")
        due = (index + 1) % config.validate_every == 0 or index + 1 == config.steps
        validation_loss = validate() if due else None
        yield Step(index + 1, config.steps, loss, lr, validation_loss, time.perf_counter() - started)


def optimisation_step(model: HookedDecoder, optimizer: torch.optim.Optimizer, batch: Batch, *, lr: float, clip: float) -> float:
    """One step; the loss (nats per scored token) is that of the weights before it."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    loss = _loss(model, batch, reduction="mean")
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return loss.item()


def make_optimizer(model: HookedDecoder, config: Optimisation) -> torch.optim.AdamW:
    """AdamW (0.9, 0.95). Decayed is what has two or more axes and is no bias: matrices, embeddings, lag weights."""
    decayed: list[Tensor] = []
    kept: list[Tensor] = []
    for name, parameter in model.named_parameters():
        is_bias = name.rpartition(".")[2].startswith("b_")  # attention's (h, e) biases have two axes as well
        (decayed if parameter.ndim >= 2 and not is_bias else kept).append(parameter)
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95))


def learning_rate(config: Optimisation, step: int) -> float:
    """The rate of step `step` (from 0): a straight line up over `warmup` steps, then half a cosine down to a tenth at the end.

    >>> config = Optimisation(steps=301, warmup=100, lr=1.0)
    >>> [round(learning_rate(config, step), 3) for step in (0, 99, 100, 200, 300)]
    [0.01, 1.0, 1.0, 0.55, 0.1]
    """
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    done = (step - config.warmup) / max(config.steps - 1 - config.warmup, 1)
    return config.lr * (0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2)


@torch.no_grad()
def mean_loss(model: HookedDecoder, batch: Batch) -> float:
    """Cross-entropy in nats per scored target, summed in float64 over forward passes of a few thousand tokens each."""
    rows = max(EVALUATION_TOKENS // batch.inputs.shape[1], 1)
    parts = zip(batch.inputs.split(rows), batch.targets.split(rows), strict=True)
    total = sum(_loss(model, Batch(inputs, targets), reduction="sum").double().item() for inputs, targets in parts)
    return total / int((batch.targets != UNSCORED).sum())


def validation_windows(heldout: Int[np.ndarray, "n"], n_ctx: int) -> Int[np.ndarray, "w l1"]:
    """The windows a validation loss is the mean of: all of the held-out part, or 2,048 spread evenly over it if it has more."""
    windows = consecutive_windows(heldout, n_ctx)
    return windows[np.linspace(0, len(windows) - 1, min(len(windows), MAX_VALIDATION_WINDOWS)).round().astype(int)]


def _loss(model: HookedDecoder, batch: Batch, reduction: str) -> Float[Tensor, ""]:
    logits = model(batch.inputs).flatten(0, 1)  # (b*t, v)
    return F.cross_entropy(logits, batch.targets.flatten(), reduction=reduction, ignore_index=UNSCORED)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's random state set from `seed` inside, the caller's own outside."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


# ---- the folder ----


def free_folder(folder: str | Path) -> Path:
    """The folder a run may write to, as a path; found out before the work, not after it.

    Raises:
        ValueError: Something is there already, or nothing can be written there.
    """
    folder = Path(folder)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ValueError(f"folder: {str(folder)!r} exists and is not an empty folder; choose another name, or remove it")
    ancestor = next(parent for parent in folder.absolute().parents if parent.exists())
    try:
        with tempfile.TemporaryDirectory(dir=ancestor, prefix=f".{folder.name}-"):
            pass
    except OSError as error:
        raise ValueError(f"folder: cannot write {str(folder)!r}: {error.strerror or error}; choose a folder you may write to") from error
    return folder


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes the name `folder` when the block ends well and is gone when it does not."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
            partial = Path(temporary) / folder.name
            partial.mkdir()
            yield partial
            os.rename(partial, folder)
    except OSError as error:
        raise ValueError(f"folder: cannot write {str(folder)!r}: {error.strerror or error}; choose a folder you may write to") from error


def write_run(
    model: HookedDecoder,
    folder: Path,
    *,
    config: Optimisation,
    log: list[Step],
    validation: Callable[[HookedDecoder], dict[str, Any]],
    **facts: Any,
) -> TrainingResult:
    """Save a trained `model` with float16 weights, its recipe (which is enough to repeat the run, given the text) and its log.

    `validation` is asked about the model as a reader of the folder gets it; its "loss" becomes the result's.
    """
    with new_folder(folder) as partial:
        model.save_pretrained(partial, dtype=STORAGE)
        stored = HookedDecoder.from_pretrained(partial)
        measured = validation(stored)
        recipe = {
            "training": asdict(config),
            "optimizer": "AdamW, betas (0.9, 0.95); weight decay on everything with two or more axes but biases",
            "schedule": "linear warm-up, then half a cosine to a tenth",
            "storage": str(STORAGE).removeprefix("torch."),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            **facts,
            "validation": measured | {"loss_before_rounding_to_storage": log[-1].validation_loss},
        }
        write_text(partial / RECIPE_FILE, json.dumps(recipe, indent=2) + "\n")
        lines = (json.dumps({key: value for key, value in asdict(step).items() if key != "steps"}) for step in log)
        write_text(partial / LOG_FILE, "".join(line + "\n" for line in lines))
    return TrainingResult(
        folder=folder,
        steps=config.steps,
        loss=measured["loss"],
        training_tokens=config.steps * config.batch * model.config.n_ctx,
        n_parameters=sum(parameter.numel() for parameter in model.parameters()),
        seconds=log[-1].seconds,
        fingerprint=stored.fingerprint(),
    )


def write_text(path: Path, text: str) -> None:
    """Write a file under a temporary name, then rename it; newlines as they are, on every system."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8", newline="\n")
    os.replace(partial, path)

"""A task with a known answer: a random block of symbols, repeated. What follows a symbol is what followed it last time.

Here are the symbols, their tokenizer, the batches, and the training of a two-layer attention decoder on them: the smallest decoder that
is known to need two layers working together (one head looks at the token before, a later one uses that to find the place after an earlier
occurrence: an induction head [E21]). The optimisation steps are those of ``training.py``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from .config import DecoderConfig
from .decoder import HookedDecoder
from .training import UNSCORED, Batch, Optimisation, Step, TrainingResult, check_int, free_folder, mean_loss, run, seeded, write_run

SYMBOLS = tuple(f"{letter}{digit}" for letter in "abcdefghijklmnop" for digit in range(8))  # 128 of them: a0 .. p7
CHANCE = math.log(len(SYMBOLS))  # nats: what knowing nothing of the sequence costs
SHORTEST_BLOCK = 8
VALIDATION_ROWS = 256


@dataclass(frozen=True, kw_only=True)
class InductionConfig(Optimisation):
    """The run that makes `mha-induction`: two layers of attention only, learned positions, LayerNorm, no FFN, no biases.

    Attributes:
        d_model, n_heads: The decoder's width and its heads a layer.
        n_ctx: Symbols a row; blocks are of 8 to ``n_ctx / 2`` symbols, so that each is seen at least twice.
    """

    steps: int = 1000
    lr: float = 3e-3
    weight_decay: float = 0.01
    validate_every: int = 100
    batch: int = 32
    d_model: int = 64
    n_heads: int = 4
    n_ctx: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("n_ctx", self.n_ctx, 2 * SHORTEST_BLOCK)
        self.decoder_config()

    def decoder_config(self) -> DecoderConfig:
        """The decoder this run trains."""
        return DecoderConfig(
            n_layers=2,
            d_model=self.d_model,
            n_ctx=self.n_ctx,
            d_vocab=len(SYMBOLS),
            mixer="mha",
            layout="mixer_only",
            n_heads=self.n_heads,
        )


def symbol_tokenizer() -> Tokenizer:
    """Symbols separated by white space; another word is an error, since there is no token for the unknown.

    >>> symbol_tokenizer().encode("a0 b3  p7").ids
    [0, 11, 127]
    """
    tokenizer = Tokenizer(WordLevel({symbol: index for index, symbol in enumerate(SYMBOLS)}))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return tokenizer


def repeated_blocks(*, rows: int, n_ctx: int, seed: tuple[int, ...]) -> Batch:
    """Rows that repeat a random block of 8 to ``n_ctx / 2`` symbols until `n_ctx` inputs are full; a function of `seed`.

    The first pass through a block is noise that nobody can predict, so it is not scored, nor is the first symbol of the
    second pass, since nothing before it says that the block has ended.

    >>> batch = repeated_blocks(rows=1, n_ctx=16, seed=(0, 0))
    >>> (batch.inputs[0, :8] == batch.inputs[0, 8:]).all().item(), batch.targets[0, 8].item() == batch.inputs[0, 1].item()
    (True, True)
    """
    rng = np.random.default_rng(seed)
    sequences = np.empty((rows, n_ctx + 1), dtype=np.int64)
    targets = np.full((rows, n_ctx), UNSCORED)
    for row in range(rows):
        length = int(rng.integers(SHORTEST_BLOCK, n_ctx // 2 + 1))
        sequences[row] = np.resize(rng.integers(len(SYMBOLS), size=length), n_ctx + 1)
        targets[row, length:] = sequences[row, length + 1 :]
    return Batch(torch.from_numpy(sequences[:, :-1]), torch.from_numpy(targets))


def validation_blocks(n_ctx: int, seed: int) -> Batch:
    """256 rows that no training step draws."""
    return repeated_blocks(rows=VALIDATION_ROWS, n_ctx=n_ctx, seed=(seed, 1, 0))


def train_induction(config: InductionConfig, folder: str | Path, on_step: Callable[[Step], None] | None = None) -> TrainingResult:
    """Train the two-layer decoder on repeated blocks and write it to `folder`, complete or not at all, as `training.train` does.

    The loss is that of the repeats alone; beside it stands `CHANCE`, ln 128 = 4.85.

    Raises:
        ValueError: The folder is taken or cannot be written, or the loss stopped being finite.
    """
    folder = free_folder(folder)
    with seeded(config.seed):
        model = HookedDecoder(config.decoder_config(), tokenizer=symbol_tokenizer())
    heldout = validation_blocks(config.n_ctx, config.seed)

    def batch(step: int) -> Batch:
        return repeated_blocks(rows=config.batch, n_ctx=config.n_ctx, seed=(config.seed, 0, step))

    def validation(stored: HookedDecoder) -> dict[str, Any]:
        scored = int((heldout.targets != UNSCORED).sum())
        return {"loss": mean_loss(stored, heldout), "chance": CHANCE, "rows": VALIDATION_ROWS, "tokens_predicted": scored}

    log = run(model, config, batch, validate=lambda: mean_loss(model, heldout), on_step=on_step)
    return write_run(model, folder, config=config, log=log, validation=validation)

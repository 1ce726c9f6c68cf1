"""From a text to tokens: the split into training and held-out part, the tokenizer, the windows and their order.

Here is what happens to a text before a model sees it. The training loop itself is in ``training.py``.

A text is one or several *works* (three newlines between two of them), each made of paragraphs (a blank line between two of them). The
end of every work is held out, so that the held-out part resembles the training part and yet no sentence of it was ever trained on.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

WORK_BREAK = "\n\n\n"
PARAGRAPH_BREAK = "\n\n"
HELDOUT_SHARE = 0.08


@dataclass(frozen=True)
class Corpus:
    """A text in its two parts: what the tokenizer and the model are trained on, and what neither ever sees."""

    training: str
    heldout: str


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file, newlines of any system read as ``\\n``.

    Raises:
        ValueError: there is no such file, it cannot be read, it is not UTF-8, or there is nothing in it.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(
            f"text: no file {str(path)!r}" + (" (it is a folder)" if path.is_dir() else "") + "; give the path of a UTF-8 text file"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"text: {str(path)!r} is not UTF-8 (byte {error.start}); convert it first") from error
    except OSError as error:
        raise ValueError(f"text: cannot read {str(path)!r}: {error.strerror or error}") from error
    if not text.strip():
        raise ValueError(f"text: {str(path)!r} is empty; give a text to train on")
    return text


def split_heldout(text: str) -> Corpus:
    """Hold out the last 8 % of every work, cut at the paragraph that begins nearest to that point.

    Works are separated by three newlines, paragraphs by two. A work of a single paragraph is trained on as a whole. The parts of the
    works are joined again by three newlines, so both parts of the result are texts of the same form.

    >>> corpus = split_heldout("\\n\\n".join(f"Paragraph {i}." for i in range(10)))
    >>> corpus.heldout
    'Paragraph 9.'

    Raises:
        TypeError: `text` is not a string.
        ValueError: `text` is empty, or no work in it has two paragraphs, so that nothing can be held out.
    """
    if not isinstance(text, str):
        raise TypeError(f"text: expected a string, got {type(text).__name__}")
    if not text.strip():
        raise ValueError("text: it is empty; give a text to train on")
    training, heldout = [], []
    for work in (piece.strip("\n") for piece in text.split(WORK_BREAK)):
        start = _heldout_start(work)
        training.append(work[:start].rstrip("\n"))
        heldout.append(work[start:])
    corpus = Corpus(WORK_BREAK.join(filter(None, training)), WORK_BREAK.join(filter(None, heldout)))
    if not corpus.heldout:
        raise ValueError(
            "text: it has no two paragraphs separated by a blank line, so no part can be held out; put blank lines between paragraphs"
        )
    return corpus


def _heldout_start(work: str) -> int:
    """Where the held-out part of one work begins: the paragraph start nearest to 92 % of it; its length if it has one paragraph only."""
    wanted = round(len(work) * (1 - HELDOUT_SHARE))
    # The break that ends at or after `wanted`, and the one before it: one of these two is the nearest.
    after = work.find(PARAGRAPH_BREAK, max(wanted - len(PARAGRAPH_BREAK), 0))
    before = work.rfind(PARAGRAPH_BREAK, 0, wanted)
    starts = [found + len(PARAGRAPH_BREAK) for found in (before, after) if found > 0]
    return min(starts, key=lambda start: abs(start - wanted), default=len(work))


def train_tokenizer(text: str, d_vocab: int) -> Tokenizer:
    """A byte-level BPE of at most `d_vocab` tokens, learnt from `text` (the training part only).

    All 256 bytes are tokens, so every text can be written in it and nothing is ever unknown; there are no special tokens. A short text
    runs out of pairs to merge and gives fewer tokens than asked for.

    >>> tokenizer = train_tokenizer("to be or not to be " * 20, 300)
    >>> tokenizer.decode(tokenizer.encode("to bee, naïve").ids)
    'to bee, naïve'

    Raises:
        ValueError: `d_vocab` is below 256.
    """
    if d_vocab < 256:
        raise ValueError(f"d_vocab: a byte-level tokenizer needs at least 256 tokens, got {d_vocab}")
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(vocab_size=d_vocab, initial_alphabet=sorted(ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> Int[np.ndarray, "n"]:
    """The ids of `text` as one row (n,), nothing added and nothing cut."""
    return np.asarray(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)


def consecutive_windows(tokens: Int[np.ndarray, "n"], n_ctx: int) -> Int[np.ndarray, "w l1"]:
    """All windows of `n_ctx + 1` tokens, each starting on the last token of the one before: every token but the first is predicted once.

    The tail that fills no window is left out.

    >>> consecutive_windows(np.arange(8), 3)
    array([[0, 1, 2, 3],
           [3, 4, 5, 6]])
    """
    n_windows = max(len(tokens) - 1, 0) // n_ctx
    return tokens[np.arange(n_windows)[:, None] * n_ctx + np.arange(n_ctx + 1)]


def batch_of_step(tokens: Int[np.ndarray, "n"], *, n_ctx: int, batch: int, seed: int, step: int) -> Int[np.ndarray, "b l1"]:
    """The windows that step `step` (from 0) trains on: `batch` rows of `n_ctx + 1` tokens.

    An epoch cuts the tokens into consecutive windows, from an offset of its own, and visits each once in random order; a batch may end
    one epoch and begin the next. Everything is a function of the arguments, of nothing that happened before: any step's batch can be had
    without going through the earlier ones, which is what resuming a run needs, and no mixer has any influence on it.
    """
    per_epoch = (len(tokens) - n_ctx) // n_ctx  # as many as fit whatever the offset, which is below n_ctx
    if per_epoch < 1:
        raise ValueError(f"tokens: an epoch needs at least {2 * n_ctx} tokens, got {len(tokens)}; give a longer text or a smaller n_ctx")
    visits = np.arange(step * batch, (step + 1) * batch)
    starts = np.empty(batch, dtype=np.int64)
    for epoch in np.unique(visits // per_epoch):
        rng = np.random.default_rng([seed, int(epoch)])
        offset = rng.integers(n_ctx)
        order = rng.permutation(per_epoch)
        here = visits // per_epoch == epoch
        starts[here] = offset + order[visits[here] % per_epoch] * n_ctx
    return tokens[starts[:, None] + np.arange(n_ctx + 1)]

"""Make the shipped decoders: ``python -m models.zoo.build --text FILE [-o FOLDER]``.

FILE holds the five novels the way docs/training.md describes it. Decoders that are in FOLDER already are not trained again; their samples
and cards are written anew, so an interrupted build goes on where it stopped and no number in a card is typed by hand.
"""

import argparse
import json
import random
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int
from tokenizers import Tokenizer

from ..corpus import Corpus, consecutive_windows, encode, read_text, split_heldout
from ..decoder import HookedDecoder
from ..induction import InductionConfig, repeated_blocks, train_induction
from ..training import LOG_FILE, RECIPE_FILE, UNSCORED, Step, TrainingConfig, next_tokens, train, write_text
from . import FOLDER, HELDOUT_FILE
from .cards import austen_card, induction_card

# Attention learns slower at this context (after 1,000 of 1,500 steps its validation loss was 4.14, HE's 3.99), so it gets twice the steps.
AUSTEN = {mixer: TrainingConfig(mixer=mixer) for mixer in ("she", "ishe", "he", "ihe")} | {"mha": TrainingConfig(mixer="mha", steps=3000)}
INDUCTION = "mha-induction"
SAMPLES_FILE, CARD_FILE = "samples.txt", "README.md"
SAMPLE_BREAK = "\n\n----\n\n"
N_SAMPLES, TEMPERATURE, TOP_K, SAMPLE_SEED = 32, 0.9, 50, 0
POSITION_BANDS = ((1, 8), (9, 32), (33, 64), (65, 128))  # from 1, ends included
N_SHUFFLES = 20


# ---- measurements ----


def words(text: str) -> list[str]:
    """The words of a text in lower case, punctuation dropped.

    >>> words("It's Mr. Knightley--he!")
    ["it's", 'mr', 'knightley', 'he']
    """
    return re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)*", text.lower())


def trigrams(row: list[str]) -> list[tuple[str, str, str]]:
    """All runs of three words."""
    return list(zip(row, row[1:], row[2:], strict=False))


def trigram_share(rows: Iterable[list[str]], reference: list[str]) -> float:
    """The share of the rows' word trigrams, each occurrence counted, that occur in `reference` as well; none crosses two rows.

    >>> trigram_share([["a", "b", "c", "d"]], ["x", "a", "b", "c"])
    0.5
    """
    known = set(trigrams(reference))
    found = [trigram in known for row in rows for trigram in trigrams(row)]
    return sum(found) / len(found)


def trigram_measure(samples: list[str], corpus: Corpus) -> dict[str, float]:
    """Samples against the held-out text; beside them as many words of the training part, shuffled and as they are."""
    heldout, training = words(corpus.heldout), words(corpus.training)
    rows = [words(sample) for sample in samples]
    rng = random.Random(SAMPLE_SEED)
    shuffled = [trigram_share([rng.sample(training, len(row)) for row in rows], heldout) for _ in range(N_SHUFFLES)]
    starts = [[rng.randrange(len(training) - len(row)) for row in rows] for _ in range(N_SHUFFLES)]
    real = [trigram_share([training[at : at + len(row)] for at, row in zip(some, rows, strict=True)], heldout) for some in starts]
    return {
        "samples": trigram_share(rows, heldout),
        "shuffled_training_part": float(np.mean(shuffled)),
        "most_of_any_shuffle": max(shuffled),
        "real_training_part": float(np.mean(real)),
        "draws": N_SHUFFLES,
    }


@torch.no_grad()
def loss_by_position(model: HookedDecoder, tokens: Int[np.ndarray, "n"]) -> dict[str, float]:
    """Mean loss over the held-out windows, for bands of positions counted from 1."""
    inputs, targets = next_tokens(consecutive_windows(tokens, model.config.n_ctx))
    parts = zip(inputs.split(32), targets.split(32), strict=True)
    losses = [F.cross_entropy(model(some).transpose(1, 2), wanted, reduction="none") for some, wanted in parts]  # each (w, t)
    mean = torch.cat(losses).double().mean(0)
    return {f"{first}-{last}": mean[first - 1 : last].mean().item() for first, last in POSITION_BANDS}


def sample(model: HookedDecoder) -> list[str]:
    """Texts of a full context each, begun by nothing but a paragraph break."""
    prompt = model.to_tokens("\n\n").expand(N_SAMPLES, -1)
    ids = model.generate(prompt, model.config.n_ctx - prompt.shape[1], temperature=TEMPERATURE, top_k=TOP_K, seed=SAMPLE_SEED)
    return [text.strip() for text in model.to_string(ids)]


def induction_heads(model: HookedDecoder) -> dict[str, list[list[float]]]:
    """Mean attention on the repeats, per layer and head: to the row before, to the rows after earlier occurrences of the present symbol."""
    batch = repeated_blocks(rows=64, n_ctx=model.config.n_ctx, seed=(SAMPLE_SEED, 2, 0))
    tokens = batch.inputs
    rows = torch.arange(tokens.shape[1])
    scored = (batch.targets != UNSCORED)[:, :, None]  # (b, row, 1): second pass on
    before = (rows[:, None] - rows == 1).expand(len(tokens), -1, -1)
    # Source j is "after an earlier occurrence" when the symbol at j-1 is the one at row i, and j is not beyond i.
    after = torch.zeros_like(before)
    after[:, :, 1:] = (tokens[:, :, None] == tokens[:, None, :-1]) & (rows[:, None] >= rows[1:])
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens)
    patterns = [cache[f"blocks.{layer}.attn.hook_pattern"] for layer in range(model.config.n_layers)]  # each (b, h, i, j)

    def share(sources: torch.Tensor) -> list[list[float]]:
        picked = [(pattern * (sources & scored)[:, None]).sum((0, 2, 3)) / scored.sum() for pattern in patterns]  # each (h,)
        return [row.tolist() for row in picked]

    return {"previous_row": share(before), "after_earlier_occurrence": share(after)}


# ---- files ----


def finish_austen(folder: Path, corpus: Corpus) -> None:
    """Samples, measurements and card of one Austen decoder."""
    model = HookedDecoder.from_pretrained(folder)
    texts = sample(model)
    recipe = json.loads((folder / RECIPE_FILE).read_text(encoding="utf-8"))
    recipe["samples"] = {"count": len(texts), "temperature": TEMPERATURE, "top_k": TOP_K, "seed": SAMPLE_SEED}
    recipe["trigrams_in_heldout"] = trigram_measure(texts, corpus)
    recipe["loss_by_position"] = loss_by_position(model, encode(Tokenizer.from_file(str(folder / "tokenizer.json")), corpus.heldout))
    recipe["bytes_per_token"] = len(corpus.heldout.encode()) / recipe["text"]["heldout_tokens"]
    write_text(folder / SAMPLES_FILE, SAMPLE_BREAK.join(texts) + "\n")
    write_text(folder / RECIPE_FILE, json.dumps(recipe, indent=2) + "\n")
    write_text(folder / CARD_FILE, austen_card(folder.name, model, recipe, last_log_line(folder)))


def finish_induction(folder: Path) -> None:
    """Samples, measurements and card of `mha-induction`."""
    model = HookedDecoder.from_pretrained(folder)
    recipe = json.loads((folder / RECIPE_FILE).read_text(encoding="utf-8"))
    recipe["attention_on_repeats"] = induction_heads(model)
    half = model.config.n_ctx // 4
    prompts = repeated_blocks(rows=8, n_ctx=model.config.n_ctx, seed=(SAMPLE_SEED, 3, 0)).inputs[:, :half]
    # A block, its first symbol once more, and what the decoder makes of the rest.
    ids = model.generate(torch.cat([prompts, prompts[:, :1]], 1), half - 1, temperature=0)
    right = (ids[:, half:] == prompts).float()[:, 1:].mean().item()
    recipe["samples"] = {"count": len(ids), "temperature": 0, "block": half, "share_of_symbols_copied": right}
    rows = [f"{model.to_string(row[: half + 1])}\n  -> {model.to_string(row[half + 1 :])}" for row in ids]
    write_text(folder / SAMPLES_FILE, SAMPLE_BREAK.join(rows) + "\n")
    write_text(folder / RECIPE_FILE, json.dumps(recipe, indent=2) + "\n")
    write_text(folder / CARD_FILE, induction_card(model, recipe, last_log_line(folder)))


def last_log_line(folder: Path) -> dict[str, Any]:
    """The log's last line: the end of the training."""
    return json.loads((folder / LOG_FILE).read_text(encoding="utf-8").splitlines()[-1])


# ---- command ----


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0 when everything is there, 2 for input that will not do."""
    parser = argparse.ArgumentParser(
        prog="python -m models.zoo.build", description="Train and describe the decoders that ship with this package."
    )
    parser.add_argument("--text", required=True, metavar="FILE", help="the five novels, as docs/training.md describes")
    parser.add_argument(
        "-o", "--output", default=FOLDER, type=Path, metavar="FOLDER", help="where to; decoders found there are kept (default: the package)"
    )
    parser.add_argument("--only", metavar="NAME", choices=[*(f"{mixer}-austen" for mixer in AUSTEN), INDUCTION], help="one decoder only")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the recipe's; sums in another order give another model
    try:
        build(read_text(chosen.text), chosen.output, chosen.only)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def build(text: str, output: Path, only: str | None = None) -> None:
    """Train what is missing in `output`, then write held-out text, samples and cards."""
    corpus = split_heldout(text)
    for name, config in {f"{mixer}-austen": config for mixer, config in AUSTEN.items()}.items():
        if only in (None, name):
            if not (output / name).exists():
                train(config, text, output / name, on_step=report(name))
            finish_austen(output / name, corpus)
    if only in (None, INDUCTION):
        if not (output / INDUCTION).exists():
            train_induction(InductionConfig(), output / INDUCTION, on_step=report(INDUCTION))
        finish_induction(output / INDUCTION)
    write_text(output / HELDOUT_FILE, corpus.heldout)


def report(name: str) -> Any:
    """A line on stderr for every validation."""

    def on_step(step: Step) -> None:
        if step.validation_loss is not None:
            print(
                f"{name}: step {step.step}/{step.steps}, validation loss {step.validation_loss:.4f}, {step.eta:.0f} s to go",
                file=sys.stderr,
            )

    return on_step


if __name__ == "__main__":
    raise SystemExit(main())

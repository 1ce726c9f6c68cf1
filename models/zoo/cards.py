# ruff: noqa: E501  (a row of a table is one line)
"""The cards (README.md) of the shipped decoders. Every number in them comes from a decoder's recipe and log."""

import math
from typing import Any

from ..decoder import HookedDecoder
from ..induction import SYMBOLS

MIXER_WORDS = {
    "mha": "multi-head attention, four heads, learned positions",
    "she": "SHE, an Extractor with a matrix per lag, no positions",
    "ishe": "iSHE, an Extractor with a matrix per lag and the row factor 1/sqrt(i), no positions",
    "he": "HE, an Extractor with a vector per lag, no positions",
    "ihe": "iHE, an Extractor with a vector per lag and the row factor 1/sqrt(i), no positions",
}


def austen_card(name: str, model: HookedDecoder, recipe: dict[str, Any], end: dict[str, Any]) -> str:
    """The card of an Austen decoder; every number comes from its recipe and log."""
    config, training, text, validation = model.config, recipe["training"], recipe["text"], recipe["validation"]
    loss, shares, samples = validation["loss"], recipe["trigrams_in_heldout"], recipe["samples"]
    bits = loss / math.log(2) / recipe["bytes_per_token"]
    bands = "\n".join(f"| {band} | {value:.3f} |" for band, value in recipe["loss_by_position"].items())
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    return f"""# {name}

A decoder of {config.n_layers} layers, width {config.d_model}, context {config.n_ctx}, whose sublayer 1 is
{MIXER_WORDS[training["mixer"]]}.
Pre-LayerNorm, sublayer 1 then FFN (4 x width, GELU, biases), sublayer 1 without biases, unembedding not tied. {n_parameters:,} parameters, stored as float16.
Byte-level BPE, {config.d_vocab:,} tokens, no BOS.

| | |
|---|---|
| validation loss, nats a token | {loss:.4f} (before rounding to float16: {validation["loss_before_rounding_to_storage"]:.4f}) |
| perplexity a token; bits a byte | {math.exp(loss):.1f}; {bits:.3f} |
| measured on | {validation["tokens_predicted"]:,} held-out tokens, in {validation["windows"]} windows of {config.n_ctx} |
| trained on | {text["training_tokens"]:,} tokens; {training["steps"]:,} steps of {training["batch"]} x {config.n_ctx} |
| optimiser | {recipe["optimizer"]}; lr {training["lr"]}, {recipe["schedule"]}; decay {training["weight_decay"]}, clip {training["clip"]} |
| seed | {training["seed"]}, one run: no spread is known from it |
| took | {end["seconds"]:.0f} s on {recipe["threads"]} CPU thread (wall clock), torch {recipe["torch"]} |

The loss by position in the context (counted from 1), on the same held-out windows:

| positions | loss |
|---|---|
{bands}

Of the word trigrams in `samples.txt` ({samples["count"]} samples, temperature {samples["temperature"]}, top-k {samples["top_k"]}, seed {samples["seed"]}), {shares["samples"]:.2%} occur in the
held-out text. Of as many words of the training part they are {shares["real_training_part"]:.2%}, and {shares["shuffled_training_part"]:.3%} if those are shuffled (mean of {shares["draws"]}; the
most of any: {shares["most_of_any_shuffle"]:.3%}). Sampling among the {samples["top_k"]} likeliest tokens keeps to common words and so to common trigrams: a share above real text's is no merit.

**What it is for.** Trying the analyses of this package on something that was trained. It writes sentences in the manner of its corpus, without
sense; it is too small to copy names or to reason, and no circuit of that kind should be looked for in it. The five
were not trained to be compared: one seed each, one learning rate for all, and twice the steps for attention.

**Text.** Five novels by Jane Austen (Sense and Sensibility, Pride and Prejudice, Mansfield Park, Emma, Persuasion), in the public domain. The last
{text["heldout_share"]:.0%} of each was held out, from tokenizer and model alike; it ships as `heldout.txt` in the folder above.

**Made by** `python -m models.zoo.build --text FILE` (docs/training.md); this one alone: `--only {name}`.
"""


def induction_card(model: HookedDecoder, recipe: dict[str, Any], end: dict[str, Any]) -> str:
    """The card of `mha-induction`; every number comes from its recipe and log."""
    config, training, validation, samples = model.config, recipe["training"], recipe["validation"], recipe["samples"]
    attention = recipe["attention_on_repeats"]
    heads = "\n".join(
        f"| L{layer}H{head} | {attention['previous_row'][layer][head]:.3f} | {attention['after_earlier_occurrence'][layer][head]:.3f} |"
        for layer in range(config.n_layers)
        for head in range(config.n_heads)
    )
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    return f"""# mha-induction

Two layers of attention and nothing else ({config.n_heads} heads, width {config.d_model}, context {config.n_ctx}, learned positions, LayerNorm, no FFN, no biases but the norms'), trained
on random blocks of symbols that repeat. {n_parameters:,} parameters, stored as float16. Its {len(SYMBOLS)} tokens are the words {SYMBOLS[0]}, {SYMBOLS[1]}, .. {SYMBOLS[-1]}, separated by white space;
any other word is an error.

| | |
|---|---|
| loss on the repeats, nats a symbol | {validation["loss"]:.4f} (before rounding to float16: {validation["loss_before_rounding_to_storage"]:.4f}) |
| chance, ln {len(SYMBOLS)} | {validation["chance"]:.4f} |
| measured on | {validation["tokens_predicted"]:,} symbols in {validation["rows"]} rows that training never drew |
| trained | {training["steps"]:,} steps of {training["batch"]} x {config.n_ctx}, lr {training["lr"]}, decay {training["weight_decay"]}, clip {training["clip"]}, seed {training["seed"]} (one run) |
| optimiser | {recipe["optimizer"]}; {recipe["schedule"]} |
| took | {end["seconds"]:.0f} s on {recipe["threads"]} CPU thread (wall clock), torch {recipe["torch"]} |

A row repeats one block of 8 to {config.n_ctx // 2} random symbols until the context is full. The loss counts from the second pass on, without its first symbol; in
the first pass nothing can be predicted, and what the decoder says there means nothing.

Mean attention on the repeats, over 64 fresh rows: to the row before, and to the rows after earlier occurrences of the present symbol.

| head | row before | after an earlier occurrence |
|---|---|---|
{heads}

Given a block of {samples["block"]} symbols and its first one again, greedy continuation copies {samples["share_of_symbols_copied"]:.1%} of the rest (`samples.txt`, {samples["count"]} prompts).

**Made by** `python -m models.zoo.build --text FILE` (docs/training.md).
"""

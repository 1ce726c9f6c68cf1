# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Tutorial: find the heads that copy
#
# A decoder that has seen `A B ... A` often says `B`. Two heads in a row can do that: one writes into each token what stood before it, the
# other looks for a token that was preceded by the present one, and copies it. This is the induction circuit of Elhage et al. and Olsson
# et al. `mha-induction` ships with the package: two layers of attention and nothing else, trained on blocks of symbols that repeat. Let
# us find the two, and check each step by an intervention.

# %%
import random
from statistics import mean

import interp

model = interp.load_model("mha-induction")
text = "c1 h4 a0 p7 e5 k2 b3 d6 c1"
print(model.generate(text, 4, temperature=0))

# %% [markdown]
# ## Which heads write the answer?
#
# A ledger by head splits the logit of the model's top token into one number for each head, and checks that they add up to what the model
# printed.

# %%
heads = interp.ledger(model, text, by="head")
interp.figures.heads(heads)

# %% [markdown]
# Nearly all of it comes from layer 1, and all four heads there help. Layer 0 adds next to nothing *directly*. That does not yet mean that
# it is idle: a ledger counts what is written along the direction of the answer, and what layer 0 wrote may be what layer 1 reads.
#
# ## What do they read?

# %%
sources = interp.ledger(model, text, by="head+source")
interp.figures.sources(sources)

# %% [markdown]
# One column: token 1, the `h4` that followed the first `c1`. Taken over all heads:

# %%
interp.figures.tokens(interp.ledger(model, text, by="source"))

# %% [markdown]
# ## How do they find it?
#
# By where they look:

# %%
logits, cache = interp.run_with_cache(model, text)
interp.figures.attention(cache)

# %% [markdown]
# Choose the heads from the list. In layer 1 the last row (the second `c1`) looks at `h4`. Nothing in `h4` says that a `c1` stood before
# it, unless layer 0 has written it there. Do heads of layer 0 look at the token before?

# %%
pattern = cache["blocks.0.attn.hook_pattern"][0]  # (head, reading token, token read)
for head, weights in enumerate(pattern):
    print(f"L0H{head} puts {weights.diagonal(-1).mean():.0%} of its weight on the token before")

# %% [markdown]
# Two of them do, heads 1 and 3; the other two look mostly at the token itself. So the story is: layer 0 writes the previous symbol into
# each token, and layer 1 finds the token whose previous symbol is the present one.
#
# ## Is the story true?
#
# It predicts two things. First, nothing stands between layer 1 and the output but the final norm. So taking away what layer 1 read from
# `h4` costs the logit what the ledger says, and running again without it nearly that: only the norm's scale has changed.

# %%
gone = interp.ablate(model, text, sources=[(1, 1)])
print(f"the ledger says          {gone.predicted:.2f}")
print(f"out of the last stream   {gone.direct:.2f}")
print(f"running again without it {gone.total:.2f}")

# %% [markdown]
# Second, without the heads that look back layer 1 has nothing to find. One prompt is an anecdote, so let us ask twenty, each a block of
# eight symbols and its first one again:

# %%
draw = random.Random(0)
symbols = [f"{letter}{digit}" for letter in "abcdefghijklmnop" for digit in range(8)]
blocks = [draw.sample(symbols, 8) for _ in range(20)]
prompts = [" ".join([*block, block[0]]) for block in blocks]


def without(*heads):
    """What the answer's logit loses, on average: directly, and with everything run again."""
    gone = [(0, head) for head in heads]
    runs = [interp.ablate(model, prompt, answer=block[1], heads=gone) for prompt, block in zip(prompts, blocks, strict=True)]
    return f"directly {mean(run.direct for run in runs):+.2f}, in total {mean(run.total for run in runs):+.2f}"


for heads in [(0,), (1,), (2,), (3,), (1, 3)]:
    print("without L0", " and ".join(f"H{head}" for head in heads), without(*heads))

# %% [markdown]
# Here it becomes interesting. Without head 1 alone, or head 3 alone, nothing is lost: the answer even gains a little, since each can do
# the work of the other. Without both, most of the answer is gone. Whoever removes one head at a time would strike both off the list.
#
# Heads 0 and 2 matter too, though they look at the token itself. Perhaps what they write is what layer 1 compares the previous symbol
# with; this page does not test that.
#
# None of the four has an entry worth mentioning in the ledger. That is what a ledger is for, and what it is not: it accounts for a number
# exactly, at the place where the number is read. For what works further upstream, ask `interp.ablate` for the total.
#
# ## Over many prompts
#
# `ledger_over` averages entries over prompts, with an interval from a bootstrap:

# %%
over = interp.ledger_over(model, prompts, by="head", progress=False)
frame = over.to_dataframe().sort_values("mean", ascending=False)
frame[["label", "mean", "low", "high"]].head(6)

# %% [markdown]
# Next: [which lags an Extractor reads](which-lags-ishe-reads.md), or [how a ledger is certified](../certificates.md).

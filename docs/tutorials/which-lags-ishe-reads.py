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
# # Tutorial: which lags iSHE reads
#
# An Extractor does not look at content to decide what to read. Its weights depend on the lag alone, the distance between the row that is
# written and the row that is read; only a gate, one number for each width, depends on the present row. So instead of heads and patterns
# there are kernels and lags.

# %%
import interp

model = interp.load_model("ishe-austen")
text = "She was not at all surprised to see him; but she had never seen him so"
print(model.generate(text, 12, temperature=0))

# %% [markdown]
# ## The kernels
#
# They are weights, so no prompt is needed. How strongly does each layer weigh each lag?

# %%
interp.figures.kernels(model)

# %% [markdown]
# ## One logit, lag by lag

# %%
lags = interp.ledger(model, text, by="lag")
print(f"{lags.answer!r}: {lags.total[0]:.2f}")
interp.figures.sources(lags)

# %% [markdown]
# ## The same by token

# %%
sources = interp.ledger(model, text, by="source")
interp.figures.tokens(sources)

# %% [markdown]
# Both are splits of one sum, and each carries its own certificate:

# %%
for ledger in (lags, sources):
    rows, total = len(ledger.labels), ledger.values.sum()
    print(f"by {ledger.by}: {rows} rows, total {total:.4f}, holds: {ledger.certificate.holds}")

# %% [markdown]
# ## Is a lag's row what removing the lag does?
#
# Directly, yes: the extraction is linear in the rows it reads once the gate is fixed. In total the layers above see a changed stream, and
# the effect may be another.

# %%
for lag in (0, 1, 2, 8):
    gone = interp.ablate(model, text, lags=[lag])
    print(f"lag {lag}: ledger {gone.predicted:+.2f}, direct {gone.direct:+.2f}, total {gone.total:+.2f}")

# %% [markdown]
# ## Does mixing by lag forget?
#
# How far back does the answer reach? The moduli of the entries summed over layers, for the first eight lags:

# %%
frame = lags.to_dataframe()
by_lag = frame[frame["kind"] == "lag"].astype({"lag": int})
by_lag["size"] = by_lag["value"].abs()
by_lag.groupby("lag")["size"].sum().to_frame().T.iloc[:, :8]

# %% [markdown]
# ## What every stream would say
#
# The logit lens reads each stream with its own statistics. It does not add up, and its result says so; but it shows when the answer
# appears.

# %%
interp.figures.lens(interp.lens(model, text))

# %% [markdown]
# Next: [verify iSHE](../verify-ishe.md), or [write a mixer](../write-a-mixer.md) of your own: one method, and every picture on this page
# is yours.

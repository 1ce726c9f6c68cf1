"""The logit lens: every residual stream read through the final norm with its *own* statistics. It does not add up, and says so.

A ledger freezes the final scale, so its entries add up to the logit; a lens recomputes the scale at each stream, so it answers another
question (what would be printed if the model stopped here) and its differences between streams are not anybody's contribution. Only at
the last stream do the two agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .fold import Reading
from .protocols import Cached
from .views import DecoderView

NOTE = "own statistics at every stream: differences between streams are not contributions and do not add up (use a ledger for those)"


@dataclass(frozen=True, kw_only=True)
class Lens:
    """`values` (stream, position) float64: the number read as if the model stopped there; `top` the ids of the likeliest tokens, likeliest
    first, and `words` their texts where whoever called had a tokenizer."""

    model: str
    tokens: tuple[str, ...]
    positions: tuple[int, ...]
    answer: str
    against: str | None
    streams: tuple[str, ...]
    values: npt.NDArray[np.float64]
    top: tuple[tuple[tuple[int, ...], ...], ...]
    words: tuple[tuple[tuple[str, ...], ...], ...] = ()
    note: str = NOTE

    def to_dataframe(self) -> Any:
        """A pandas frame with one line a (stream, position)."""
        import pandas as pd

        return pd.DataFrame(
            [
                {"stream": s, "position": p, "value": self.values[i, c], "top": self.top[i][c][0]}
                for i, s in enumerate(self.streams)
                for c, p in enumerate(self.positions)
            ]
        )


@torch.no_grad()
def lens(view: DecoderView, cache: Cached, reading: Reading, rows: Sequence[int], *, tokens: Sequence[str] = (), top_k: int = 5) -> Lens:
    """Read `reading` at every stream before a block and at the last one, at `rows`.

    Raises:
        ValueError: `top_k` is not a whole number between 1 and the vocabulary.
    """
    readout = view.readout
    if not 1 <= top_k <= readout.W_U.shape[1]:
        raise ValueError(f"top_k: a whole number in 1..{readout.W_U.shape[1]} is needed, got {top_k!r}")
    streams = [*(b.pre for b in view.blocks), view.blocks[-1].post]
    values, tops = [], []
    for name in streams:
        r = cache[name][0, list(rows)].double()
        y = r if readout.norm is None else readout.norm.replay(r, readout.norm.scale(r))
        logits = y.to(readout.W_U.dtype) @ readout.W_U.detach()
        if readout.b_U is not None:
            logits = logits + readout.b_U.detach()
        logits = logits.double() * readout.multiplier
        if readout.soft_cap is not None:
            logits = readout.soft_cap * torch.tanh(logits / readout.soft_cap)
        values.append([float(sum(w * logits[i, k] for k, w in reading.signed(i))) for i in range(len(rows))])
        tops.append(tuple(tuple(row) for row in logits.topk(top_k, dim=-1).indices.tolist()))
    return Lens(
        model=view.name,
        tokens=tuple(tokens),
        positions=tuple(rows),
        answer=reading.answer_text,
        against=reading.against_text,
        streams=tuple(streams),
        values=np.array(values),
        top=tuple(tops),
    )

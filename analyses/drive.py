"""How a row comes near its final row, sublayer by sublayer, beside a null of the same writes in random order with random signs.

In here: the curves of one prompt and what they gain on the null. Not in here: the verdict over several prompts (claims.py). The claim,
that the core drives each row towards its output row, is [C23b] arXiv:2311.12678's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from .protocols import Cached
from .views import DecoderView

NULL_DRAWS = 32
START = "start"
"""The name of the stream before the first sublayer."""


@dataclass(frozen=True)
class Gain:
    """By how much streams are nearer to their final row than the null.

    Attributes:
        distance: null's distance to the final row less the stream's, each in units of its own whole way, averaged over sublayers and
            rows; positive is nearer.
        cosine: the stream's cosine with the final row less the null's.
    """

    distance: float
    cosine: float


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Streams of several rows against their last one.

    Attributes:
        distance: (stream, row) float64, `|r_k - r_n| / |r_0 - r_n|`: 1 at the start, 0 at the end.
        cosine: (stream, row) float64, of `r_k` with `r_n`.
        null_distance, null_cosine: (draw, stream) float64, the same of the null, averaged over rows.
    """

    distance: npt.NDArray[np.float64]
    cosine: npt.NDArray[np.float64]
    null_distance: npt.NDArray[np.float64]
    null_cosine: npt.NDArray[np.float64]

    @property
    def gains(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The gain in distance and in cosine against each draw of the null, (draw,) each: means over the streams between the ends."""
        distance, cosine = self.distance[1:-1].mean(), self.cosine[1:-1].mean()
        return self.null_distance[:, 1:-1].mean(1) - distance, cosine - self.null_cosine[:, 1:-1].mean(1)

    @property
    def gain(self) -> Gain:
        """The gain on the mean of the null."""
        distance, cosine = self.gains
        return Gain(float(distance.mean()), float(cosine.mean()))


@dataclass(frozen=True, kw_only=True)
class Drive(Curves):
    """The curves of one prompt through one model.

    Attributes:
        model, tokens: whose, and what was fed.
        streams: "start", then the sublayer after which each stream stands ("L0 attn"); sublayers that add at once make one ("L0 attn+mlp").
        layers: the layer of each stream, -1 for the start.
    """

    model: str
    tokens: tuple[str, ...]
    streams: tuple[str, ...]
    layers: tuple[int, ...]

    def to_dataframe(self) -> pd.DataFrame:
        """One line a stream: means over rows and, of the null, over draws."""
        return pd.DataFrame(
            {
                "stream": self.streams,
                "layer": self.layers,
                "distance": self.distance.mean(1),
                "null_distance": self.null_distance.mean(0),
                "cosine": self.cosine.mean(1),
                "null_cosine": self.null_cosine.mean(0),
            }
        )


def curves(start: Float[Tensor, "t d"], writes: Float[Tensor, "k t d"], *, draws: int = NULL_DRAWS, seed: int = 0) -> Curves:
    """Compare one stream, `start` plus its `writes` in order, with its null. A random walk already moves 84 % of rows monotonically,
    so that only the difference to the null says anything.

    Raises:
        ValueError: fewer than two writes, so that there is no order to speak of.
    """
    if len(writes) < 2:
        raise ValueError(f"writes: at least two are needed for an order, got {len(writes)}")
    rng = torch.Generator().manual_seed(seed)
    parts = torch.cat([start[None], writes]).double().transpose(0, 1)  # (t, k+1, d)
    gram = (parts @ parts.transpose(1, 2)).cpu()
    distance, cosine = approach(gram)
    null: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]] = []
    for _ in range(draws):
        order = torch.cat([torch.zeros(1, dtype=torch.long), 1 + torch.randperm(len(writes), generator=rng)])
        signs = torch.cat([torch.ones(1), torch.randint(0, 2, (len(writes),), generator=rng) * 2 - 1]).double()
        far, near = approach(gram[:, order][:, :, order] * signs[:, None] * signs)
        null.append((far.mean(0).numpy(), near.mean(0).numpy()))
    return Curves(
        distance=distance.T.numpy(),
        cosine=cosine.T.numpy(),
        null_distance=np.stack([far for far, _ in null]),
        null_cosine=np.stack([near for _, near in null]),
    )


def approach(gram: Float64[Tensor, "t n n"]) -> tuple[Float64[Tensor, "t n"], Float64[Tensor, "t n"]]:
    """Each stream's distance to the last (in units of the whole way) and its cosine with it.

    Read off the inner products of the start and the writes, so that a null costs no width: stream `k` is the sum of the first `k + 1`.
    """
    inner = gram.cumsum(1).cumsum(2)  # of stream with stream
    square = inner.diagonal(dim1=1, dim2=2)  # (t, n)
    with_last, last = inner[:, :, -1], square[:, -1:]
    to_last = (square - 2 * with_last + last).clamp(min=0).sqrt()
    return to_last / to_last[:, :1].clamp(min=1e-300), with_last / (square * last).clamp(min=1e-300).sqrt()


def steps(view: DecoderView) -> list[tuple[str, int, tuple[str, ...]]]:
    """The additions to the stream in order: label, layer, and the hooks that hold what is added together."""
    found: list[tuple[str, int, tuple[str, ...]]] = []
    for layer, block in enumerate(view.blocks):
        subs = block.sublayers
        if len(subs) > 1 and block.mid is None:
            found.append((f"L{layer} {'+'.join(s.slot for s in subs)}", layer, tuple(s.out for s in subs)))
        else:
            found += [(s.label, s.layer, (s.out,)) for s in subs]
    return found


def hooks(view: DecoderView) -> list[str]:
    """The hooks that `drive` reads."""
    return [view.blocks[0].pre, *(name for _, _, names in steps(view) for name in names)]


@torch.no_grad()
def drive(view: DecoderView, cache: Cached, *, tokens: Sequence[str] = (), draws: int = NULL_DRAWS, seed: int = 0) -> Drive:
    """The curves of one prompt, every row.

    Args:
        view: the model.
        cache: one prompt's activations with the names of `hooks(view)`.
        tokens: as fed, for the result.
        draws, seed: of the null.

    Raises:
        ValueError: a single addition to the stream has no order.
    """
    order = steps(view)
    if len(order) < 2:
        raise ValueError(f"drive: {view.name} adds to its stream {len(order)} time(s); an order needs at least two additions")
    writes = torch.stack([sum((cache[n][0].double() for n in names[1:]), cache[names[0]][0].double()) for _, _, names in order])
    found = curves(cache[view.blocks[0].pre][0], writes, draws=draws, seed=seed)
    return Drive(
        **found.__dict__,
        model=view.name,
        tokens=tuple(tokens),
        streams=(START, *(label for label, _, _ in order)),
        layers=(-1, *(layer for _, layer, _ in order)),
    )

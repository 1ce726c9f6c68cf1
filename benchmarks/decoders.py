"""Our own decoders beside plain torch, generation beside recomputation, streaming moments beside the forward they ride on."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from timing import REPETITIONS, Row, cost, interleaved, speedup
from torch import Tensor, nn

from analyses.statistics import MomentStream
from models import DecoderConfig, HookedDecoder
from models.generation import Read, recompute

RECOMPUTED = "recomputed"


class PlainBlock(nn.Module):
    """What `models.decoder.Block` computes, out of torch's own layers and without a hook."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        rows = self.ln1(x)
        q, k, v = (linear(rows).view(b, t, self.heads, -1).transpose(1, 2) for linear in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Plain(nn.Module):
    """The whole decoder in plain torch, with a hooked decoder's weights."""

    def __init__(self, model: HookedDecoder) -> None:
        super().__init__()
        c = model.config
        self.embed, self.pos = nn.Embedding(c.d_vocab, c.d_model), nn.Embedding(c.n_ctx, c.d_model)
        self.blocks = nn.ModuleList(PlainBlock(c.d_model, c.n_heads) for _ in range(c.n_layers))
        self.ln, self.unembed = nn.LayerNorm(c.d_model), nn.Linear(c.d_model, c.d_vocab, bias=False)
        self.embed.weight, self.pos.weight = model.embed.W_E, model.pos_embed.W_pos
        self.unembed.weight = nn.Parameter(model.W_U.T.contiguous())
        for ours, theirs in zip(model.blocks, self.blocks, strict=True):
            for linear, W in ((theirs.q, ours.attn.W_Q), (theirs.k, ours.attn.W_K), (theirs.v, ours.attn.W_V)):
                linear.weight = nn.Parameter(W.transpose(1, 2).flatten(0, 1))
            theirs.o.weight = nn.Parameter(ours.attn.W_O.flatten(0, 1).T.contiguous())
            theirs.up.weight, theirs.up.bias = nn.Parameter(ours.mlp.W_in.T.contiguous()), ours.mlp.b_in
            theirs.down.weight, theirs.down.bias = nn.Parameter(ours.mlp.W_out.T.contiguous()), ours.mlp.b_out

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.pos(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.unembed(self.ln(x))


def decoder(mixer: str, d: int, n_ctx: int = 512) -> HookedDecoder:
    torch.manual_seed(0)
    return HookedDecoder(DecoderConfig(n_layers=4, d_model=d, n_ctx=n_ctx, d_vocab=2000, mixer=mixer, n_heads=8)).eval()


def rows(quick: bool) -> Iterator[Row]:
    with torch.no_grad():
        yield from listening()
        yield from generation(quick)
        yield from statistics()


def listening() -> Iterator[Row]:
    for d, shapes in ((256, ((1, 16, 1.15), (8, 128, 1.05))), (64, ((1, 16, 1.15), (8, 128, 1.05)))):
        model = decoder("mha", d)
        plain = Plain(model).eval()
        for b, t, target in shapes:
            tokens = torch.arange(b * t).view(b, t) * 7919 % 2000
            torch.testing.assert_close(model(tokens), plain(tokens), rtol=1e-4, atol=1e-5)
            ways = {"hooked": partial(model, tokens), "plain torch": partial(plain, tokens)}
            times = interleaved(ways, 101 if b == 1 else 31)
            yield cost("hooked decoder, nobody listening", f"d{d} b{b} t{t}", times, "hooked", "plain torch", target)


def generation(quick: bool) -> Iterator[Row]:
    for mixer in ("she", "he", "mha"):
        model, new = decoder(mixer, 64), 64 if quick else 256
        prompt = torch.arange(16)[None]
        kept, again = continuing(model, prompt, new, model.reader), continuing(model, prompt, new, lambda capacity, m=model: recompute(m))
        repetitions = 5 if quick else REPETITIONS
        yield speedup(
            f"{mixer}, {new} new tokens", "d64 b1", interleaved({"kept": kept, RECOMPUTED: again}, repetitions), "kept", RECOMPUTED
        )


def continuing(model: HookedDecoder, prompt: Tensor, new: int, reader: Callable[[int], Read]) -> Callable[[], None]:
    """The likeliest continuation, token by token."""

    def run() -> None:
        read, token = reader(prompt.shape[1] + new), prompt
        for _ in range(new):
            token = read(token).argmax(-1, keepdim=True)

    return run


def statistics() -> Iterator[Row]:
    """Two streams in each of four layers of an Extractor that sums directly, as the analyses do."""
    model, tokens = decoder("she", 64, 128), torch.arange(32 * 128).view(32, 128) * 7919 % 2000
    _, cache = model.run_with_cache(tokens, names_filter=lambda name: name.endswith(("hook_resid_post", "hook_extraction")))
    streams = [MomentStream() for _ in cache]

    def measure() -> None:
        for stream, activation in zip(streams, cache.values(), strict=True):
            stream.add(activation)

    def forward() -> None:
        with model.explicit():
            model(tokens)

    times = interleaved({"moments": measure, "a direct forward": forward})
    yield cost("streaming moments, 8 sites", "she d64 b32 t128", times, "moments", "a direct forward", 0.05)

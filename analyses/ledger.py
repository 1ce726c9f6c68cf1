"""The residual stream as a signed ledger: every component, head, source, lag or neuron along any direction, and what the sum is worth.

In here: writing the ledger out. Each sublayer is split along the direction (side B, the formulas of fold.py), replayed in float64
through the model's own modules (side A), and pays its rounding into the budget; the five checks (checks.py) compare the accounts.
Not in here: running a model, tokenising, drawing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .certificate import Budget, Certificate, IncompleteLedger, Precision, Products, Roundings, norm_terms
from .checks import continuity, final_scale, judge, largest_partial
from .fold import (
    Reading,
    fold_sublayer,
    folded_heads,
    head_source_values,
    head_values,
    mixer_acts,
    neuron_values,
    output_direction,
)
from .protocols import Cached
from .views import Attention, Block, DecoderView, Mixer, Neurons, Sublayer, own_projection

By = Literal["component", "head", "source", "head+source", "lag", "neuron"]
SPLITS: tuple[By, ...] = ("component", "head", "source", "head+source", "lag", "neuron")
BY_SOURCE = ("source", "head+source", "lag")
"""The splits whose attention rows are read from the pattern and the values; the others are read from `z`."""

MAX_BYTES = 2**30


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row of a ledger: its label and what it is. `source` is an absolute position, `lag` counts back from the row (0 = present)."""

    label: str
    kind: str
    layer: int | None = None
    head: int | None = None
    source: int | None = None
    lag: int | None = None
    neuron: int | None = None


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Signed entries that add up to the number a model printed, with a certificate a position.

    `values` (entry, position) float64; `labels` one a row; the last entry is the rounding, so that every column adds up to `total`.
    """

    by: str
    model: str
    at: str
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    answer: str
    against: str | None
    entries: tuple[Entry, ...]
    values: np.ndarray[Any, np.dtype[np.float64]]
    total: np.ndarray[Any, np.dtype[np.float64]]
    certificates: tuple[Certificate, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(e.label for e in self.entries)

    @property
    def certificate(self) -> Certificate:
        """The certificate of the position whose worst check is worst."""
        return max(self.certificates, key=lambda c: (not c.holds, math.inf if math.isnan(c.worst.ratio) else c.worst.ratio))

    @property
    def holds(self) -> bool:
        return all(c.holds for c in self.certificates)

    def top(self, k: int = 10, position: int | None = None) -> list[tuple[str, float]]:
        """The `k` rows with the largest |value| at one position (of `positions`), largest first, as (label, value)."""
        if not isinstance(k, int) or k < 1:
            raise ValueError(f"k: a whole number >= 1 is needed, got {k!r}")
        column = self._column(position)
        order = np.argsort(-np.abs(self.values[:, column]), kind="stable")[:k]
        return [(self.labels[i], float(self.values[i, column])) for i in order]

    def _column(self, position: int | None) -> int:
        if position is None:
            if len(self.positions) > 1:
                raise ValueError(f"position: this ledger has {len(self.positions)} positions; name one of {list(self.positions)}")
            return 0
        if position not in self.positions:
            raise ValueError(f"position: {position} is not in this ledger; it has {list(self.positions)}")
        return self.positions.index(position)

    def to_dataframe(self) -> "Any":
        """A pandas frame with one line per (entry, position): label, kind, layer, head, source, lag, neuron, position, value.

        `frame.attrs` carries `holds` and `certificate`, the printable lines of the worst position's certificate.
        """
        import pandas as pd

        fields = [{**e.__dict__} for e in self.entries]
        frames = [pd.DataFrame(fields).assign(position=p, value=self.values[:, c]) for c, p in enumerate(self.positions)]
        frame = pd.concat(frames, ignore_index=True)
        frame.attrs |= {"holds": self.holds, "certificate": self.certificate.summary()}
        return frame

    def __str__(self) -> str:
        return self.certificate.summary()[0]


@torch.no_grad()
def build(
    view: DecoderView,
    cache: Cached,
    logits: Float[Tensor, "1 t v"] | None,
    reading: Reading,
    rows: Sequence[int],
    *,
    by: By = "component",
    at: str | None = None,
    tokens: Sequence[str] = (),
    token_ids: Sequence[int] = (),
    on_gap: Literal["raise", "report"] = "raise",
    max_bytes: int = MAX_BYTES,
) -> Ledger:
    """The ledger of one prompt at `rows`.

    Args:
        view: the decoder read as a sum.
        cache: one prompt's activations, name -> (1, t, ...), with at least `view.hooks`.
        logits: (1, t, v) as the model printed them; may be None for a probe or for a stopping point inside the model.
        reading: what is read, one set of answers a row.
        rows: absolute positions, counted over real tokens.
        by: how the sum is split.
        at: stopping point, the name of a stream hook ("blocks.3.hook_resid_pre"); None is the last one. Inside the model a logit is
            read along the final norm with the *final* scale frozen, and the number explained is the stream's own dot product.
        tokens, token_ids: the prompt as fed.
        on_gap: "raise" `IncompleteLedger` when the certificate does not hold, or "report" it in the result.
        max_bytes: refuse before computing when the entries would take more.

    Raises:
        ValueError: a part that this model cannot be split into, an unknown stopping point, a row outside the prompt, too many bytes.
        IncompleteLedger: the certificate does not hold and `on_gap="raise"`.
    """
    _refuse_unsplit(view, by)
    _refuse_limits(view, by, logit=reading.probe is None)
    final = view.blocks[-1].post
    stop = final if at is None else at
    blocks, sublayers = _until(view, stop)
    length = cache[view.embeds[0]].shape[1]
    for row in rows:
        if not 0 <= row < length:
            raise ValueError(f"position: {row} is outside the prompt of {length} tokens")
    _refuse_bytes(view, by, length, len(rows), max_bytes)
    work = _Work(view=view, cache=cache, rows=list(rows), by=by, tokens=list(tokens), length=length)

    # What is read: g in the normalised space, u in the stream.
    stream = work.at(stop)
    last = work.at(final) if reading.probe is None else stream
    g, scale, u = output_direction(view, reading, last)
    printed_logit = reading.probe is None and stop == final

    work.embed(u, stream, blocks)
    for s in sublayers:
        work.sublayer(s, u)
    work.additions(blocks, u)

    explained_logits = None
    soft_cap = torch.zeros(len(rows), dtype=torch.float64)
    if printed_logit:
        if logits is None:
            raise ValueError("logits: a ledger of a logit needs the logits that the model printed")
        explained_logits = _replay_logits(view, work.replayed, scale, reading)
        soft_cap = _read_out(work, view, reading, logits, last, scale, g, explained_logits)
        printed = _printed(logits, reading, work.rows)
        replay_linear = _combine(explained_logits, reading)
    else:
        printed = (stream * u).sum(-1)
        replay_linear = (work.replayed * u).sum(-1)

    values = torch.cat(work.values)
    explained = values.sum(0)
    device_matmul_tf32 = stream.is_cuda and torch.backends.cuda.matmul.allow_tf32
    native = Precision.of(view.dtype, view.norm_dtype, device_matmul_tf32)
    scales = None
    if reading.probe is None and view.readout.norm is not None and "ln_final.hook_scale" in cache:
        scales = final_scale(view, work.at("ln_final.hook_scale"), last, scale, native)
    read_input = work.at("ln_final.hook_in") if "ln_final.hook_in" in cache else None
    checks_of_row = judge(
        values,
        work.budget,
        work.row_checks,
        native,
        explained - soft_cap,
        replay_linear,
        soft_cap,
        printed,
        continuity(view, work.at, len(rows), blocks, stop, read_input),
        scales,
    )
    rounding = printed - explained
    entries = [*work.entries, Entry(label="rounding", kind="rounding")]
    certificates = tuple(
        Certificate(
            printed=float(printed[r]),
            explained=float(explained[r]),
            rounding=float(rounding[r]),
            dtype=str(view.dtype).removeprefix("torch."),
            norm_dtype=str(view.norm_dtype).removeprefix("torch."),
            checks=tuple(checks_of_row[r]),
        )
        for r in range(len(rows))
    )
    ledger = Ledger(
        by=by,
        model=view.name,
        at=stop,
        tokens=tuple(tokens),
        token_ids=tuple(token_ids),
        positions=tuple(rows),
        answer=reading.answer_text,
        against=reading.against_text,
        entries=tuple(entries),
        values=torch.cat([values, rounding[None]]).cpu().numpy(),
        total=printed.cpu().numpy(),
        certificates=certificates,
        notes=tuple(f"{k}: {v}" for k, v in view.limits.items()),
    )
    if on_gap == "raise" and not ledger.holds:
        raise IncompleteLedger(ledger.certificate)
    return ledger


@dataclass
class _Work:
    """The ledger while it is written: entries and values (side B), the replayed stream (side A), the budget, the checks by sublayer."""

    view: DecoderView
    cache: Cached
    rows: list[int]
    by: By
    tokens: list[str]
    length: int
    entries: list[Entry] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    budget: Budget = field(default_factory=Budget)
    replayed: Tensor = field(default_factory=lambda: torch.zeros(()))
    row_checks: list[tuple[str, Tensor]] = field(default_factory=list)
    by_source: Tensor | None = None

    def at(self, name: str) -> Float[Tensor, "r *rest"]:
        """The cached tensor at the ledger's rows, in float64."""
        return self.whole(name)[self.rows].double()

    def whole(self, name: str) -> Float[Tensor, "t *rest"]:
        try:
            return self.cache[name][0]
        except KeyError:
            raise ValueError(f"cache: the ledger needs {name!r}, which was not cached; run with names_filter=None") from None

    def write(self, entry: Entry, value: Float[Tensor, " r"]) -> None:
        self.write_many([entry], value[None])

    def write_many(self, entries: Sequence[Entry], values: Float[Tensor, "n r"]) -> None:
        self.entries.extend(entries)
        self.values.append(values)

    def embed(self, u: Tensor, stream: Tensor, blocks: Sequence[Block]) -> None:
        self.replayed = torch.zeros_like(stream)
        for name in self.view.embeds:
            e = self.at(name)
            kind = name.removeprefix("hook_")
            self.write(Entry(label=kind, kind=kind), (e * u).sum(-1))
            self.replayed = self.replayed + e
        # One embedding is handed on as it is, two are added.
        added = self.at(self.view.blocks[0].pre) if len(self.view.embeds) > 1 else torch.zeros_like(stream)
        self.budget.add("embed", _rounding(added, u))

    def sublayer(self, s: Sublayer, u: Tensor) -> None:
        """Split one sublayer along `u`, replay it through its own modules, and note what rounding allows between the two."""
        start = len(self.values)
        native = self.at(s.out)
        if s.parts is None:
            self.write(Entry(label=s.label, kind=s.slot, layer=s.layer), (native * u).sum(-1))
            self.replayed = self.replayed + native
            self.budget.add(s.label)
            return
        raw = self.at(s.raw)
        v = fold_sublayer(s, raw, u)
        if s.multiplier != 1.0:
            self.budget.add(s.label, _rounding(native, u))
        if s.post_norm is not None:
            scale, outer = s.post_norm.scale(raw), u * s.multiplier
            bias = s.post_norm.bias_along(outer)
            self.budget.add(s.label, norm_terms(raw, s.post_norm.weighted(outer) / scale, bias, s.post_norm.centred))
            if bias is not None:
                self.write(Entry(label=f"{s.label} post-norm bias", kind="bias", layer=s.layer), bias.sum(-1))
        before = self.by_source
        match s.parts:
            case Attention():
                own = self._attention(s, s.parts, v, raw)
            case Neurons():
                own = self._neurons(s, s.parts, v, raw)
            case Mixer():
                own = self._mixer(s, s.parts, v, raw)
        if s.post_norm is not None:
            own = s.post_norm.replay(own, scale)
        self.replayed = self.replayed + own * s.multiplier
        written = sum((block.sum(0) for block in self.values[start:]), torch.zeros_like(u[:, 0]))
        if self.by_source is not None and self.by_source is not before:
            written = written + (self.by_source if before is None else self.by_source - before).sum(0)
        self.row_checks.append((s.label, written - (native * u).sum(-1)))

    def _attention(self, s: Sublayer, a: Attention, u: Tensor, raw: Tensor) -> Tensor:
        folded, kv = folded_heads(a, u), list(a.kv_head)
        z = self.at(a.z)
        if self.by in BY_SOURCE:
            pattern = self.whole(a.pattern)[:, self.rows].double().transpose(0, 1)  # (r, h, t)
            v = self.whole(a.v).double()  # (t, kv, e)
            # The replay repeats the values as the model does; the view's map from query to KV head is what is being checked.
            group = len(a.kv_head) // v.shape[1]
            own_z = torch.einsum("rht,the->rhe", pattern, v.repeat_interleave(group, dim=1))
            self._write_sources(s, head_source_values(a, pattern, v, u), "head")
            modulus = torch.einsum("rht,the,rhe->r", pattern.abs(), v[:, kv].abs(), folded.abs())
            square = torch.einsum("rht,the,rhe->r", pattern.square(), v[:, kv].square(), folded.square())
            self.budget.add(
                s.label,
                Products(
                    n=self.length,
                    modulus=modulus,
                    square=square,
                    out_square=(z.square() * folded.square()).sum((1, 2)),
                    out_modulus=(z.abs() * folded.abs()).sum((1, 2)),
                ),
            )
        else:
            own_z = z
            heads = head_values(a, z, u)
            if self.by == "head":
                self.write_many(
                    [Entry(label=f"L{s.layer}H{h}", kind="head", layer=s.layer, head=h) for h in range(heads.shape[1])], heads.T
                )
            else:
                self.write(Entry(label=s.label, kind="attn", layer=s.layer), heads.sum(-1))
        self._bias(s, "b_O", a.b_O, u)
        self.budget.add(s.label, _matmul(z.flatten(1), a.W_O.detach().to(u).flatten(0, 1), u, raw, a.b_O))
        return own_projection(s, own_z)

    def _neurons(self, s: Sublayer, n: Neurons, u: Tensor, raw: Tensor) -> Tensor:
        post = self.at(n.post)
        neurons = neuron_values(n, post, u)
        if self.by == "neuron":
            names = [Entry(label=f"L{s.layer}N{k}", kind="neuron", layer=s.layer, neuron=k) for k in range(neurons.shape[1])]
            self.write_many(names, neurons.T)
        else:
            self.write(Entry(label=s.label, kind="mlp", layer=s.layer), neurons.sum(-1))
        self._bias(s, "b_out", n.b_out, u)
        self.budget.add(s.label, _matmul(post, n.W_out.detach().to(u), u, raw, n.b_out))
        return own_projection(s, post)

    def _mixer(self, s: Sublayer, m: Mixer, u: Tensor, raw: Tensor) -> Tensor:
        acts = mixer_acts(m, self.cache)
        w = m.module.writes(acts, u[None], self.rows)
        self._write_sources(s, w.value[0].transpose(0, 1), m.module.channel_kind)
        for name, value in m.module.constants(acts, u[None], self.rows).items():
            # Its slot in the label: a mixer's bias may be called as one of the FFN.
            self.write(Entry(label=f"{s.label} {name}", kind="bias", layer=s.layer), value[0])
        sources = max(self.rows) + 1
        self.budget.add(
            s.label,
            Products(
                n=w.terms * sources,
                modulus=w.magnitude[0].sum((0, 2)),
                square=w.square[0].sum((0, 2)),
                out_square=(raw.square() * u.square()).sum(-1),
                out_modulus=(raw.abs() * u.abs()).sum(-1),
            ),
            _rounding(raw, u),
        )
        return m.module.replay(acts, self.rows)[0]

    def _write_sources(self, s: Sublayer, writes: Float[Tensor, "r h t"], kind: str) -> None:
        """Writes along `u` from each source of each channel, gathered as the split asks."""
        named = [f"L{s.layer}H{h}" for h in range(writes.shape[1])] if kind == "head" or writes.shape[1] > 1 else [f"L{s.layer}"]
        head = [h if kind == "head" or writes.shape[1] > 1 else None for h in range(writes.shape[1])]
        sources = range(max(self.rows) + 1)
        if self.by == "source":
            self.by_source = self.by_source + writes.sum(1).T if self.by_source is not None else writes.sum(1).T
        elif self.by == "lag":
            source = torch.tensor(self.rows, device=writes.device)[:, None] - torch.tensor(sources, device=writes.device)  # (r, lag)
            lags = torch.where(source >= 0, writes.sum(1).gather(1, source.clamp(min=0)), 0.0)
            self.write_many([Entry(label=f"L{s.layer} lag {k}", kind="lag", layer=s.layer, lag=k) for k in sources], lags.T)
        elif self.by == "head+source":
            entries = [
                Entry(label=f"{name} <- {self._source(j)}", kind=kind, layer=s.layer, head=h, source=j)
                for name, h in zip(named, head, strict=True)
                for j in sources
            ]
            self.write_many(entries, writes[:, :, : len(sources)].flatten(1).T)
        elif self.by == "head":
            entries = [Entry(label=name, kind=kind, layer=s.layer, head=h) for name, h in zip(named, head, strict=True)]
            self.write_many(entries, writes.sum(-1).T)
        else:
            self.write(Entry(label=f"L{s.layer} {kind}", kind=kind, layer=s.layer), writes.sum((1, 2)))

    def _source(self, j: int) -> str:
        return f"{j} {self.tokens[j]!r}" if j < len(self.tokens) else str(j)

    def _bias(self, s: Sublayer, name: str, bias: Tensor | None, u: Tensor) -> None:
        if bias is not None:
            self.write(Entry(label=f"L{s.layer} {name}", kind="bias", layer=s.layer), u @ bias.detach().to(u))

    def additions(self, blocks: Sequence[Block], u: Tensor) -> None:
        """Rounding of every addition to the stream; the sums by source, gathered over all layers, become entries."""
        if self.by_source is not None:
            sources = range(max(self.rows) + 1)
            self.write_many(
                [Entry(label=f"from {self._source(j)}", kind="source", source=j) for j in sources], self.by_source[: len(sources)]
            )
        for block in blocks:
            if block.mid is not None:
                self.budget.add("stream", _rounding(self.at(block.mid), u))
            elif len(block.sublayers) > 1:
                self.budget.add("stream", _rounding(largest_partial(self.at, block), u))
            self.budget.add("stream", _rounding(self.at(block.post), u))


def _matmul(x: Tensor, W: Tensor, u: Tensor, out: Tensor, bias: Tensor | None) -> Products:
    modulus = ((x.abs() @ W.abs()) * u.abs()).sum(-1)
    square = ((x.square() @ W.square()) * u.square()).sum(-1)
    if bias is not None:
        b = bias.detach().to(u)
        modulus, square = modulus + u.abs() @ b.abs(), square + u.square() @ b.square()
    return Products(
        n=x.shape[-1] + (bias is not None),
        modulus=modulus,
        square=square,
        out_square=(out.square() * u.square()).sum(-1),
        out_modulus=(out.abs() * u.abs()).sum(-1),
    )


def _rounding(r: Tensor, u: Tensor) -> Roundings:
    return Roundings(modulus=(r.abs() * u.abs()).sum(-1), square=(r.square() * u.square()).sum(-1))


def _until(view: DecoderView, stop: str) -> tuple[list[Block], list[Sublayer]]:
    """The blocks that are complete at the stream hook `stop`, and every sublayer that has been added by then."""
    blocks: list[Block] = []
    sublayers: list[Sublayer] = []
    for block in view.blocks:
        if stop == block.pre:
            return blocks, sublayers
        if block.mid is not None and stop == block.mid:
            return blocks, [*sublayers, block.sublayers[0]]
        blocks.append(block)
        sublayers += block.sublayers
        if stop == block.post:
            return blocks, sublayers
    streams = [n for b in view.blocks for n in (b.pre, b.mid, b.post) if n is not None]
    raise ValueError(f"at: {stop!r} is no residual stream of this model; it has {streams[0]}, {streams[1]}, .. {streams[-1]}")


def _refuse_unsplit(view: DecoderView, by: str) -> None:
    if by not in SPLITS:
        raise ValueError(f"by: one of {', '.join(SPLITS)} is needed, got {by!r}")
    if by == "component":
        return
    concerned = [s for s in view.sublayers if (s.slot == "mlp") == (by == "neuron")]
    if not concerned:
        raise ValueError(f"by: {view.name} has no {'FFN' if by == 'neuron' else 'sublayer that mixes positions'}; use by='component'")
    for s in concerned:
        if s.parts is None:
            raise ValueError(f"by: {by!r} is not possible for {s.label} of {view.name}: {s.why_whole}; use by='component'")


def _refuse_limits(view: DecoderView, by: str, *, logit: bool) -> None:
    concerned = ["stream", *(["readout"] if logit else [])]
    if by in BY_SOURCE:
        concerned += [f"{s.label} sources" for s in view.sublayers]
    for label in concerned:
        if label in view.limits:
            raise ValueError(f"model: {view.name} has no such ledger, because at load {view.limits[label]}")


def _refuse_bytes(view: DecoderView, by: str, length: int, rows: int, max_bytes: int) -> None:
    entries = 0
    for s in view.sublayers:
        heads = len(s.parts.kv_head) if isinstance(s.parts, Attention) else 1
        if by == "head+source" and s.slot != "mlp":
            entries += heads * length
        elif by == "lag" and s.slot != "mlp":
            entries += length
        elif by == "neuron" and isinstance(s.parts, Neurons):
            entries += s.parts.W_out.shape[0]
        else:
            entries += heads
    needed = entries * rows * 8
    if needed > max_bytes:
        raise ValueError(
            f"by={by!r} at {rows} positions takes {needed / 2**30:.1f} GiB ({entries} entries), over max_bytes; "
            f"ask for at most {max(1, max_bytes // (entries * 8))} positions at a time, or raise max_bytes"
        )


def _replay_logits(view: DecoderView, stream: Tensor, scale: Tensor, reading: Reading) -> list[dict[int, Tensor]]:
    """Pre-cap logits of every token that is read, a row: the replayed stream through the model's own gain and unembedding rows."""
    readout = view.readout
    y = stream if readout.norm is None else readout.norm.replay(stream, scale)
    out = []
    for r in range(y.shape[0]):
        logits = {}
        for k, _ in reading.signed(r):
            column, bias = readout.own_column(k)
            logits[k] = readout.multiplier * (y[r] @ column.detach().to(y) + (0.0 if bias is None else bias.detach().to(y)))
        out.append(logits)
    return out


def _combine(logits: list[dict[int, Tensor]], reading: Reading) -> Tensor:
    return torch.stack([torch.stack([w * logits[r][k] for k, w in reading.signed(r)]).sum() for r in range(len(logits))])


def _printed(logits: Tensor, reading: Reading, rows: Sequence[int]) -> Tensor:
    native = logits[0, list(rows)].double()
    return torch.stack([torch.stack([w * native[r, k] for k, w in reading.signed(r)]).sum() for r in range(len(rows))])


def _read_out(
    work: _Work,
    view: DecoderView,
    reading: Reading,
    logits: Tensor,
    last: Tensor,
    scale: Tensor,
    g: Tensor,
    explained: list[dict[int, Tensor]],
) -> Float[Tensor, " r"]:
    """The rows of the readout (norm bias, `b_U`, soft cap) and its rounding; returns the soft cap's row."""
    readout, norm = view.readout, view.readout.norm
    if norm is not None:
        bias = norm.bias_along(g)
        if bias is not None:
            work.write(Entry(label="ln_final bias", kind="norm_bias"), bias.sum(-1))
        work.budget.add("readout", norm_terms(last, norm.weighted(g) / scale, bias, norm.centred))
    if readout.b_U is not None:
        b = readout.b_U.detach().double()
        bias_u = torch.stack([readout.multiplier * torch.stack([w * b[k] for k, w in reading.signed(r)]).sum() for r in range(len(g))])
        work.write(Entry(label="b_U", kind="unembed_bias"), bias_u)
    y = last if norm is None else norm.replay(last, scale)
    W = readout.W_U.detach()
    for r in range(len(g)):
        for k, w in reading.signed(r):
            t = y[r] * W[:, k].double() * (readout.multiplier * w)
            b_k = (
                torch.zeros((), dtype=torch.float64)
                if readout.b_U is None
                else readout.b_U[k].detach().double().cpu() * readout.multiplier * w
            )
            value = logits[0, work.rows[r], k].double() * w
            one = torch.zeros(len(g), dtype=torch.float64, device=g.device)
            one[r] = 1.0
            work.budget.add(
                "readout",
                Products(
                    n=t.numel() + (readout.b_U is not None),
                    modulus=one * (t.abs().sum() + b_k.abs().to(t)),
                    square=one * (t.square().sum() + b_k.square().to(t)),
                    out_square=one * value.square(),
                    out_modulus=one * value.abs(),
                ),
            )
            # A multiplier and a soft cap (divide, tanh, multiply) each round the logit again.
            extra = (readout.multiplier != 1.0) + 3 * (readout.soft_cap is not None)
            work.budget.add("readout", *[Roundings(modulus=one * value.abs(), square=one * value.square()) for _ in range(extra)])
    if readout.soft_cap is None:
        return torch.zeros_like(g[:, 0])
    cap = readout.soft_cap
    bent = [{k: cap * torch.tanh(x / cap) - x for k, x in row.items()} for row in explained]
    soft = _combine(bent, reading)
    work.write(Entry(label=f"soft cap {cap:g}", kind="softcap"), soft)
    return soft

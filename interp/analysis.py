"""The analyses of a loaded model: text in, a result with its certificate out.

In here: binding a model, its tokens and one capture to `analyses`. Not in here: formulas (analyses/), tokenising (tokens.py).
"""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from analyses import ablation as _ablation
from analyses import drive as _drive
from analyses import equivalence as _equivalence
from analyses import exact as _exact
from analyses import ledger as _ledger
from analyses import lens as _lens
from analyses.ablation import Ablation
from analyses.averaging import LedgerAverage, LedgerMean
from analyses.capture import explicit, model_name, refuse_training
from analyses.capture import run_with_cache as _run
from analyses.certificate import IncompleteLedger  # noqa: F401 - part of the front door
from analyses.drive import Drive
from analyses.equivalence import Equivalence
from analyses.fold import Reading
from analyses.ledger import MAX_BYTES, By, Ledger
from analyses.lens import Lens
from analyses.proof import limits as _limits
from analyses.protocols import Cached
from analyses.views import DecoderView

from .progress import track
from .tokens import encode, resolve_answer, strings

Answer = str | int | Sequence[str | int]


def load_view(model: Any) -> DecoderView:
    """The model read as a sum: names and weights, nothing run. `view.limits` says what cannot be split or trusted, and why.

    >>> import interp
    >>> model = interp.load_model("mha-induction")
    >>> interp.load_view(model).limits
    {}
    """
    view = DecoderView.of(model, model_name(model))
    proved = getattr(model, "limits", None)
    return view if not proved else view.limited(proved)


def prove(model: Any, tokens: Tensor | None = None) -> dict[str, str]:
    """Run one short prompt and check every identity an analysis rests on (`analyses.proof`).

    Args:
        model: a loaded model.
        tokens: ids (1, t); by default eight ids spread over the vocabulary.

    Returns:
        label -> reason for what fails; empty when everything holds.

    >>> import interp
    >>> model = interp.load_model("mha-induction")
    >>> interp.prove(model)
    {}
    """
    refuse_training(model)
    view = DecoderView.of(model, model_name(model))
    if tokens is None:
        length = min(8, int(model.cfg.n_ctx))
        device = next(model.parameters()).device
        tokens = (torch.arange(1, length + 1, device=device) * (int(model.cfg.d_vocab) // (length + 2)))[None]
    logits, cache = _captured(view, tokens)
    return dict(_limits(view, logits, cache))


@torch.no_grad()
def equivalence(model: Any, text: Any, *, prepend_bos: bool | None = None) -> Equivalence:
    """Check project-then-sum == concat-then-project in every layer of one prompt, over heads or over lags.

    Args:
        model: from `load_model`.
        text: a text, ids (t,) or (1, t), or an existing capture (see `ledger`).
        prepend_bos: see `interp.encode`.

    Returns:
        `.holds`, `.worst_ratio`, `.rows`, `.to_dataframe()`.

    >>> import interp
    >>> model = interp.load_model("ishe-austen")
    >>> interp.equivalence(model, "It is a truth universally acknowledged").holds
    True
    """
    view = load_view(model)
    _, cache, ids, tokens = _prompt(view, text, prepend_bos)
    return _equivalence.equivalence(view, cache, tokens=tokens, token_ids=ids)


@torch.no_grad()
def ledger(
    model: Any,
    text: Any,
    answer: Answer | None = None,
    against: Answer | None = None,
    position: int | Sequence[int] = -1,
    by: By = "head",
    *,
    direction: Tensor | None = None,
    at: str | None = None,
    exact: bool = False,
    on_gap: Literal["raise", "report"] = "raise",
    max_bytes: int = MAX_BYTES,
    prepend_bos: bool | None = None,
) -> Ledger:
    """The residual stream as a signed ledger that adds up to a number the model printed.

    Args:
        model: from `load_model`.
        text: a text, ids (t,) or (1, t), or an existing capture: `(logits, cache)` as `TransformerBridge.run_with_cache` returns it.
        answer: a text of exactly one token, an id, or a sequence (their mean); None means the model's top token at each position.
        against: the same, subtracted: the ledger of a logit difference.
        position: one position or several, counted over real tokens; negative from the end.
        by: "component", "head", "source" (token), "head+source", "lag" or "neuron".
        direction: a probe vector (d_model,) instead of an answer: the number explained is the stream's dot product with it.
        at: stop at a residual stream inside the model ("blocks.2.hook_resid_pre"). An answer is then read along the final norm with
            its *final* scale frozen (attribution); for each stream's own statistics see `interp.lens`.
        exact: explain a true float64 run instead of the printed number (about twice the time; float64 weights beside the stored ones).
        on_gap: "raise" `IncompleteLedger` when a check fails, or "report" it in the result, its figures and tables.
        max_bytes: refuse, before computing, entries that would take more.
        prepend_bos: see `interp.encode`.

    Returns:
        `.values` (entry, position) float64 with `.labels`, `.total`, `.certificate`, `.tokens`, `.top(k)`, `.to_dataframe()`.

    Raises:
        ValueError: an answer of several tokens, a position outside the prompt, a split that this model does not have.
        IncompleteLedger: a check fails and `on_gap="raise"`.

    >>> import interp
    >>> model = interp.load_model("mha-austen")
    >>> heads = interp.ledger(model, "It is a truth universally acknowledged", by="head")
    >>> heads.certificate.holds, len(heads.labels) == len(heads.values)
    (True, True)
    """
    if on_gap not in ("raise", "report"):
        raise ValueError(f"on_gap: 'raise' or 'report' is needed, got {on_gap!r}")
    if not isinstance(exact, bool):
        raise TypeError(f"exact: True or False is needed, got {exact!r}")
    if direction is not None and (answer is not None or against is not None):
        raise ValueError("direction: a probe vector replaces answer and against; give one or the other")
    refuse_training(model)
    if exact and isinstance(text, tuple):
        raise ValueError("exact: a float64 run needs the text or ids, not an existing capture")
    with _exact.float64_run(model) if exact else nullcontext():
        view = load_view(model)
        logits, cache, ids, tokens = _prompt(view, text, prepend_bos)
        rows = positions(position, len(ids) or cache[view.embeds[0]].shape[1])
        if direction is not None:
            reading = Reading(probe=_probe(direction, view.d_model), answer_text="probe")
        else:
            reading = _reading(model, logits, rows, answer, against)
        result = _ledger.build(
            view, cache, logits, reading, rows, by=by, at=at, tokens=tokens, token_ids=ids, on_gap=on_gap, max_bytes=max_bytes
        )
    return replace(result, notes=("explains a float64 run", *result.notes)) if exact else result


def ledger_over(
    model: Any,
    prompts: Iterable[Any],
    answers: Sequence[Answer] | Answer | None = None,
    against: Sequence[Answer] | Answer | None = None,
    position: int = -1,
    by: By = "head",
    *,
    on_gap: Literal["raise", "report"] = "raise",
    prepend_bos: bool | None = None,
    seed: int = 0,
    progress: bool = True,
) -> LedgerMean:
    """Ledgers of many prompts, averaged entry by entry: mean, standard error and bootstrap interval, in constant memory.

    Args:
        model: from `load_model`.
        prompts: texts or id sequences; any iterable, read once.
        answers: one answer a prompt (a list of the same length), or one for all; None is each prompt's own top token.
        against: the same, subtracted.
        position: one position, over real tokens.
        by: as in `ledger`; entries are matched across prompts by what they are (layer, head, neuron, lag, absolute source position).
        on_gap: as in `ledger`; the result says whether every certificate held, and the worst ratio.
        prepend_bos: see `interp.encode`.
        seed: of the bootstrap over prompts.
        progress: show a progress bar on stderr.

    Raises:
        ValueError: no prompts, or not one answer a prompt.

    >>> import interp
    >>> model = interp.load_model("mha-induction")
    >>> mean = interp.ledger_over(model, ["c1 h4 a0 c1", "b3 d6 e5 b3"], answers=["h4", "d6"], progress=False)
    >>> mean.holds, mean.prompts
    (True, 2)
    """
    if isinstance(prompts, str):
        raise TypeError("prompts: a sequence of prompts is needed, got one text; use interp.ledger for one")
    many = list(prompts)
    plus, minus = _per_prompt(answers, len(many), "answers"), _per_prompt(against, len(many), "against")
    average = LedgerAverage(seed=seed)
    for text, a, b in track(list(zip(many, plus, minus, strict=True)), "ledgers", show=progress):
        average.add(ledger(model, text, a, b, position, by, on_gap=on_gap, prepend_bos=prepend_bos))
    return average.result()


def ablate(
    model: Any,
    text: Any,
    answer: Answer | None = None,
    against: Answer | None = None,
    position: int = -1,
    *,
    heads: Sequence[tuple[int, int]] | None = None,
    lags: Sequence[int | tuple[int, int]] | None = None,
    sources: Sequence[int | tuple[int, int]] | None = None,
    neurons: Sequence[tuple[int, int]] | None = None,
    how: Literal["zero", "mean"] = "zero",
    prepend_bos: bool | None = None,
) -> Ablation:
    """Remove heads, lags, sources or neurons, and see the number move: by the ledger's entry, and in total.

    Args:
        model, text, answer, against, position, prepend_bos: as in `ledger`, for one position.
        heads, neurons: (layer, index) pairs.
        lags, sources: indices, in every layer that mixes positions, or (layer, index) pairs; a source is a position, negative from the
            end. Removed from every head of the layer.
        how: "zero", or "mean" over the prompt's positions.

    Returns:
        `.predicted` (the ledger's entries), `.direct` (the model's own number with those writes taken out of the last residual, scale
        frozen), `.check` (one against the other), `.total` (ablated for real).

    Raises:
        ValueError: not exactly one of heads, lags, sources, neurons; a target that does not exist.

    >>> import interp
    >>> model = interp.load_model("mha-induction")
    >>> gone = interp.ablate(model, "c1 h4 a0 p7 e5 k2 b3 d6 c1", sources=[1])
    >>> gone.holds, abs(gone.predicted - gone.direct) < gone.check.bound
    (True, True)
    """
    kind, wanted = _removal(heads, lags, sources, neurons, how)
    refuse_training(model)
    view = load_view(model)
    fed = encode(model, text, prepend_bos)
    before = ledger(model, fed.ids, answer, against, position, by="component")
    row = before.positions[0]
    targets = _targets(view, kind, wanted, fed.ids.shape[1])
    logits, _ = _run(model, fed.ids, names_filter=view.embeds[0])
    reading = _reading(model, logits, [row], answer, against)
    bound = before.certificate["native"].bound
    return _ablation.ablate(view, fed.ids, reading, row, kind, targets, how, bound, tokens=fed.str_tokens[0])


@torch.no_grad()
def ledger_without(
    model: Any,
    text: Any,
    answer: Answer | None = None,
    against: Answer | None = None,
    position: int = -1,
    by: By = "head",
    *,
    heads: Sequence[tuple[int, int]] | None = None,
    lags: Sequence[int | tuple[int, int]] | None = None,
    sources: Sequence[int | tuple[int, int]] | None = None,
    neurons: Sequence[tuple[int, int]] | None = None,
    how: Literal["zero", "mean"] = "zero",
    on_gap: Literal["raise", "report"] = "raise",
    prepend_bos: bool | None = None,
) -> Ledger:
    """The ledger of a run in which heads, lags, sources or neurons are ablated for real, to lay beside the ledger of the intact run.

    Args:
        model, text, position, by, on_gap, prepend_bos: as in `ledger`, for one position.
        answer: as in `ledger`; None means the top token of the *intact* model.
        against: as in `ledger`.
        heads, lags, sources, neurons, how: as in `ablate`.

    Returns:
        As `ledger`. Its total is `interp.ablate(...).after`.

    Raises:
        ValueError: as `ablate` and `ledger`.
        IncompleteLedger: a check fails and `on_gap="raise"`.

    >>> import interp
    >>> model, text = interp.load_model("mha-induction"), "c1 h4 a0 p7 e5 k2 b3 d6 c1"
    >>> gone = interp.ledger_without(model, text, heads=[(1, 1)])
    >>> gone.holds, bool(abs(gone.total[0] - interp.ablate(model, text, heads=[(1, 1)]).after) < 1e-4)
    (True, True)
    """
    if on_gap not in ("raise", "report"):
        raise ValueError(f"on_gap: 'raise' or 'report' is needed, got {on_gap!r}")
    kind, wanted = _removal(heads, lags, sources, neurons, how)
    if kind == "heads" and how == "mean" and by in _ledger.BY_SOURCE:
        raise ValueError(f"by: a head set to its mean reads no source, so there is no ledger by {by!r} of this run; use by='head'")
    refuse_training(model)
    view = load_view(model)
    fed = encode(model, text, prepend_bos)
    (row,) = positions(position, fed.ids.shape[1])
    intact, _ = _run(model, fed.ids, names_filter=view.embeds[0])
    reading = _reading(model, intact, [row], answer, against)
    logits, cache, without = _ablation.rerun(view, fed.ids, kind, _targets(view, kind, wanted, fed.ids.shape[1]), how)
    return _ledger.build(
        without, cache, logits, reading, [row], by=by, tokens=fed.str_tokens[0], token_ids=fed.ids[0].tolist(), on_gap=on_gap
    )


@torch.no_grad()
def lens(
    model: Any,
    text: Any,
    answer: Answer | None = None,
    against: Answer | None = None,
    position: int | Sequence[int] = -1,
    *,
    top_k: int = 5,
    prepend_bos: bool | None = None,
) -> Lens:
    """The logit lens: each residual stream read with its own statistics. It does not add up, and its result says so.

    Args:
        model, text, answer, against, position, prepend_bos: as in `ledger`.
        top_k: how many of the likeliest tokens to keep a stream.

    >>> import interp
    >>> model = interp.load_model("mha-induction")
    >>> interp.lens(model, "c1 h4 a0 p7 e5 k2 b3 d6 c1", answer="h4").streams
    ('blocks.0.hook_resid_pre', 'blocks.1.hook_resid_pre', 'blocks.1.hook_resid_post')
    """
    view = load_view(model)
    logits, cache, ids, tokens = _prompt(view, text, prepend_bos)
    rows = positions(position, len(ids) or cache[view.embeds[0]].shape[1])
    found = _lens.lens(view, cache, _reading(model, logits, rows, answer, against), rows, tokens=tokens, top_k=top_k)
    return replace(found, words=tuple(tuple(tuple(strings(model, ids)) for ids in row) for row in found.top))


@torch.no_grad()
def drive(model: Any, text: Any, *, prepend_bos: bool | None = None) -> Drive:
    """How every row nears its final row, sublayer by sublayer, beside a null: the same writes in random order with random signs.

    Args:
        model, text, prepend_bos: as in `ledger`.

    Returns:
        `.distance` and `.cosine` (stream, row), `.null_distance` and `.null_cosine` (draw, stream), `.gain`, `.to_dataframe()`.

    Raises:
        ValueError: a model with fewer than two additions to its stream.

    >>> import interp
    >>> found = interp.drive(interp.load_model("ishe-austen"), "It is a truth universally acknowledged")
    >>> found.streams[:3], bool(found.gain.distance > 0)
    (('start', 'L0 attn', 'L0 mlp'), True)
    """
    view = load_view(model)
    _, cache, _, tokens = _prompt(view, text, prepend_bos)
    return _drive.drive(view, cache, tokens=tokens)


def _per_prompt(answers: Any, count: int, name: str) -> list[Any]:
    if answers is None or isinstance(answers, str | int):
        return [answers] * count
    many = list(answers)
    if len(many) != count:
        raise ValueError(f"{name}: one a prompt is needed, got {len(many)} for {count} prompts")
    return many


def _removal(heads: Any, lags: Any, sources: Any, neurons: Any, how: str) -> tuple[_ablation.Kind, Any]:
    """What is to be ablated: the one keyword that was given, and its targets."""
    kinds: dict[_ablation.Kind, Any] = {"heads": heads, "lags": lags, "sources": sources, "neurons": neurons}
    given = [(kind, wanted) for kind, wanted in kinds.items() if wanted is not None]
    if len(given) != 1:
        raise ValueError(f"exactly one of heads, lags, sources, neurons is needed, got {', '.join(k for k, _ in given) or 'none'}")
    if how not in ("zero", "mean"):
        raise ValueError(f"how: 'zero' or 'mean' is needed, got {how!r}")
    return given[0]


def _targets(view: DecoderView, kind: str, wanted: Any, length: int) -> list[tuple[int, int]]:
    layers = [s.layer for s in view.sublayers if s.slot != "mlp"]
    if not isinstance(wanted, Sequence) or isinstance(wanted, str):
        raise TypeError(f"{kind}: a sequence is needed, such as {'[(0, 1)]' if kind in ('heads', 'neurons') else '[1]'}; got {wanted!r}")
    out = []
    for t in wanted:
        pair = t if isinstance(t, tuple) else None
        if pair is None and (kind in ("heads", "neurons") or isinstance(t, bool) or not isinstance(t, int)):
            raise TypeError(f"{kind}: (layer, index) pairs are needed, got {t!r}")
        if pair is not None and (len(pair) != 2 or not all(isinstance(i, int) for i in pair)):
            raise TypeError(f"{kind}: (layer, index) pairs are needed, got {t!r}")
        for layer, index in [pair] if pair is not None else [(layer, t) for layer in layers]:
            if kind == "sources" and not -length <= index < length:
                raise ValueError(f"sources: position {index} is outside the prompt of {length} tokens")
            out.append((layer, index % length if kind == "sources" else index))
    return out


def positions(position: int | Sequence[int], length: int) -> list[int]:
    """Absolute positions in a prompt of `length` tokens; negative ones count from the end."""
    many = [position] if isinstance(position, int) else list(position) if isinstance(position, Sequence) else []
    if not many or any(isinstance(p, bool) or not isinstance(p, int) for p in many):
        raise TypeError(f"position: a whole number or a sequence of them is needed, got {position!r}")
    for p in many:
        if not -length <= p < length:
            raise ValueError(f"position: {p} is outside the prompt of {length} tokens; use {-length}..{length - 1}")
    return [p % length for p in many]


def _prompt(view: DecoderView, text: Any, prepend_bos: bool | None) -> tuple[Any, Cached, list[int], list[str]]:
    """Logits, activations, ids and strings of one prompt, run now or captured before."""
    if isinstance(text, tuple) and len(text) == 2 and isinstance(text[0], Tensor) and hasattr(text[1], "keys"):
        return _captured_before(view, *text)
    fed = encode(view.model, text, prepend_bos)
    if fed.ids.shape[0] != 1:
        raise ValueError(f"text: one prompt is needed, got {fed.ids.shape[0]}; for many prompts use interp.ledger_over")
    logits, cache = _captured(view, fed.ids)
    return logits, cache, fed.ids[0].tolist(), list(fed.str_tokens[0])


def _captured(view: DecoderView, ids: Tensor) -> tuple[Tensor, Cached]:
    with explicit(view.model):
        return _run(view.model, ids, names_filter=view.hooks)


def _captured_before(view: DecoderView, logits: Tensor, cache: Any) -> tuple[Tensor, Cached, list[int], list[str]]:
    if logits.ndim != 3 or logits.shape[0] != 1:
        raise ValueError(
            f"text: a capture of one prompt is needed, logits (1, t, v); got {tuple(logits.shape)}; cut it with cache.prompt(i)"
        )
    if not getattr(cache, "has_batch_dim", True):
        raise ValueError("text: this cache has no batch axis; capture with remove_batch_dim=False")
    fed = getattr(cache, "tokens", None)
    if fed is None and "embed.hook_in" in cache:
        fed = cache["embed.hook_in"]
    ids = [] if fed is None else fed[0].tolist()
    return logits, cache, ids, list(strings(view.model, ids))


def _probe(direction: Any, d: int) -> Tensor:
    if not isinstance(direction, Tensor) or direction.shape != (d,) or not direction.is_floating_point():
        got = f"{tuple(direction.shape)} {direction.dtype}" if isinstance(direction, Tensor) else type(direction).__name__
        raise ValueError(f"direction: a floating tensor of shape ({d},) is needed, got {got}")
    if not bool(direction.isfinite().all()):
        raise ValueError("direction: it holds NaN or infinity")
    return direction.double()


def _reading(model: Any, logits: Tensor, rows: list[int], answer: Answer | None, against: Answer | None) -> Reading:
    top = [(int(logits[0, r].argmax()),) for r in rows]
    answers = top if answer is None else [_ids(model, answer, "answer")] * len(rows)
    minus = [] if against is None else [_ids(model, against, "against")] * len(rows)
    for plus, other in zip(answers, minus, strict=False):
        if set(plus) == set(other):
            raise ValueError(f"against: {_text(model, other)} is the answer itself; their difference is zero by definition")
    return Reading(
        answers=tuple(answers),
        against=tuple(minus),
        answer_text=_text(model, answers[0]) if len(set(answers)) == 1 else "the top token of each position",
        against_text=None if against is None else _text(model, minus[0]),
    )


def _ids(model: Any, answer: Answer, name: str) -> tuple[int, ...]:
    if isinstance(answer, str | int):
        return (resolve_answer(model, answer),)
    if not isinstance(answer, Sequence) or isinstance(answer, bytes):
        raise TypeError(f"{name}: a text of one token, an id, or a sequence of them is needed, got {answer!r}")
    many = tuple(resolve_answer(model, a) for a in answer)
    if not many:
        raise ValueError(f"{name}: an empty sequence; name at least one token")
    return many


def _text(model: Any, ids: Sequence[int]) -> str:
    return ", ".join(strings(model, ids))

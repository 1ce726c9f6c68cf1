"""Text to ids, by our own rules: nothing is cut in silence, nothing is empty, BOS never comes twice, padding always comes with a mask.

In here: `encode` and `resolve_answer`. TransformerLens' `to_tokens` truncates to `n_ctx` without a word, turns "" into [BOS] and pads
without a mask (a left-padded batch is then off by 10 logits), so it is not used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from jaxtyping import Int
from torch import Tensor

from analyses.capture import model_name

Prompts = str | Sequence[Any] | Tensor
"""One text, ids (t,) or (b, t), a list of ids, or a list of texts and id lists (several prompts)."""
PaddingSide = Literal["left", "right"]


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """What is fed to a model.

    Attributes:
        ids: (b, t), padding included.
        attention_mask: (b, t), 1 for a real token.
        str_tokens: one tuple of strings a prompt, real tokens only.
    """

    ids: Int[Tensor, "b t"]
    attention_mask: Int[Tensor, "b t"]
    str_tokens: tuple[tuple[str, ...], ...]


def encode(model: Any, text: Prompts, prepend_bos: bool | None = None, *, padding_side: PaddingSide = "right") -> Tokens:
    """Tokens of one prompt or of several.

    Args:
        model: a loaded model.
        text: a text, ids (t,), (1, t) or (b, t), or a list of texts and id lists, padded to one length. Ids are fed as they are.
        prepend_bos: None follows TransformerLens (a BOS for pretrained models that have one; none for our decoders, which have no BOS).
            A text that already begins with BOS does not get a second one.
        padding_side: where the shorter prompts of a batch are filled up; the mask says where.

    Raises:
        ValueError: no tokenizer, an empty text, more tokens than the model's context (with the cut that fits), ids outside the
            vocabulary, or a BOS that the model does not have.
        TypeError: `text` is none of these.

    >>> import interp
    >>> interp.encode(interp.load_model("mha-austen"), "It is a truth").str_tokens
    (('It', ' is', ' a', ' truth'),)
    """
    if padding_side not in ("left", "right"):
        raise ValueError(f"padding_side must be 'left' or 'right', got {padding_side!r}")
    rows = [_row(model, prompt, prepend_bos) for prompt in _prompts(text)]
    longest = max(len(row) for row in rows)
    filler = getattr(getattr(model, "tokenizer", None), "pad_token_id", None) or 0
    ids, mask = [], []
    for row in rows:
        gap = longest - len(row)
        before, after = (gap, 0) if padding_side == "left" else (0, gap)
        ids.append([filler] * before + row + [filler] * after)
        mask.append([0] * before + [1] * len(row) + [0] * after)
    device = _device(model)
    return Tokens(
        ids=torch.tensor(ids, dtype=torch.long, device=device),
        attention_mask=torch.tensor(mask, dtype=torch.long, device=device),
        str_tokens=tuple(strings(model, row) for row in rows),
    )


def resolve_answer(model: Any, answer: str | int) -> int:
    """The token id of an answer: a text of exactly one token, or an id.

    Raises:
        ValueError: no token or several (the message lists them), or an id outside the vocabulary.
        TypeError: neither a string nor an int.

    >>> import interp
    >>> interp.resolve_answer(interp.load_model("mha-induction"), "a0")
    0
    """
    if isinstance(answer, bool) or not isinstance(answer, str | int):
        raise TypeError(f"answer must be a text of one token or a token id, got {type(answer).__name__} {answer!r}")
    if isinstance(answer, int):
        size = _vocabulary(model)
        if not 0 <= answer < size:
            raise ValueError(f"answer: id {answer} is not in the vocabulary of {model_name(model)}, which has ids 0..{size - 1}")
        return answer
    ids = text_ids(model, answer)
    if len(ids) != 1:
        parts = list(strings(model, ids))
        raise ValueError(f"answer {answer!r} is {len(ids)} tokens {parts}, not one: {_answer_fix(parts)}")
    return ids[0]


def strings(model: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """Each id as the string it stands for; `<id>` where the model has no tokenizer."""
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        return tuple(f"<{i}>" for i in ids)
    return tuple(tokenizer.decode([i], skip_special_tokens=False) for i in ids)


def _answer_fix(parts: list[str]) -> str:
    return f"choose one of them, for example {parts[0]!r}, or pass an id" if parts else "give a text of one token, or an id"


def _prompts(text: Any) -> list[Any]:
    if isinstance(text, str):
        return [text]
    if isinstance(text, Tensor):
        if text.ndim not in (1, 2) or text.numel() == 0:
            raise ValueError(f"ids must have shape (t,) or (b, t) with at least one token, got {tuple(text.shape)}")
        return [text] if text.ndim == 1 else list(text)
    if isinstance(text, Sequence) and not isinstance(text, bytes | bytearray):
        if not text:
            raise ValueError("text is an empty list: give at least one prompt, with at least one token")
        return [text] if all(isinstance(item, int) for item in text) else list(text)
    raise TypeError(f"text must be a string, token ids, or a list of prompts; got {type(text).__name__}")


def _row(model: Any, prompt: Any, prepend_bos: bool | None) -> list[int]:
    limit = int(getattr(model.cfg, "n_ctx", 0)) or None
    if isinstance(prompt, str):
        own = text_ids(model, prompt)
        if not own:
            raise ValueError(f"text {prompt!r} is empty: {model_name(model)} needs at least one token")
        bos = _bos(model, prepend_bos)
        ids = _with_bos(own, bos)
        if limit and len(ids) > limit:
            raise ValueError(_too_long(model, prompt, len(ids), limit, bos))
        return ids
    ids = _checked_ids(model, prompt, prepend_bos)
    if limit and len(ids) > limit:
        raise ValueError(f"{len(ids)} ids are more than the {limit} that {model_name(model)} can read (n_ctx): keep ids[:{limit}]")
    return ids


def _checked_ids(model: Any, prompt: Any, prepend_bos: bool | None) -> list[int]:
    if isinstance(prompt, Tensor):
        if prompt.is_floating_point() or prompt.dtype == torch.bool or prompt.ndim != 1:
            raise TypeError(f"ids must be integers of shape (t,), got {prompt.dtype} of shape {tuple(prompt.shape)}")
        ids = [int(i) for i in prompt]
    elif isinstance(prompt, Sequence) and all(isinstance(i, int) and not isinstance(i, bool) for i in prompt):
        ids = list(cast(Sequence[int], prompt))
    else:
        raise TypeError(f"a prompt must be a text or a list of integer ids, got {prompt!r:.80}")
    if prepend_bos:
        raise ValueError("prepend_bos=True is for text; ids are fed as they are: put the BOS id in front yourself")
    if not ids:
        raise ValueError("a prompt is an empty list of ids: give at least one token")
    size = _vocabulary(model)
    if wrong := [i for i in ids if not 0 <= i < size]:
        raise ValueError(f"id {wrong[0]} is not in the vocabulary of {model_name(model)}, which has ids 0..{size - 1}")
    return ids


def _vocabulary(model: Any) -> int:
    return int(model.cfg.d_vocab)


def text_ids(model: Any, text: str) -> list[int]:
    """The ids of a text of any length, no BOS, nothing cut.

    Raises:
        ValueError: the model has no tokenizer.
    """
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise ValueError(f"{model_name(model)} has no tokenizer, so it cannot read the text {text!r:.60}: pass token ids")
    try:
        if _is_plain(tokenizer):
            return list(tokenizer.encode(text, add_special_tokens=False).ids)
        return list(tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"])
    except Exception as error:  # a vocabulary without a token for the unknown raises the bare class
        reason = " ".join(str(error).split())
        raise ValueError(f"the tokenizer of {model_name(model)} cannot read {text!r:.60} ({reason}): use its own words, or ids") from error


def _is_plain(tokenizer: Any) -> bool:
    """A `tokenizers.Tokenizer` (our decoders') in contrast to a transformers one."""
    return type(tokenizer).__module__.partition(".")[0] == "tokenizers"


def _bos(model: Any, prepend_bos: bool | None) -> int | None:
    """The id to put in front, or None."""
    tokenizer = getattr(model, "tokenizer", None)
    wanted = getattr(model.cfg, "default_prepend_bos", False) if prepend_bos is None else prepend_bos
    if not wanted:
        return None
    text, bos = getattr(tokenizer, "bos_token", None), getattr(tokenizer, "bos_token_id", None)
    # TransformerLens gives a tokenizer without BOS a made-up one; where that is no token of the vocabulary it is left out.
    if bos is None or text is None or bos >= _vocabulary(model) or text_ids(model, text) != [bos]:
        if prepend_bos:
            raise ValueError(f"prepend_bos: {model_name(model)} has no BOS token; leave prepend_bos out")
        return None
    return int(bos)


def _with_bos(ids: list[int], bos: int | None) -> list[int]:
    return ids if bos is None or ids[:1] == [bos] else [bos, *ids]


def _too_long(model: Any, text: str, count: int, limit: int, bos: int | None) -> str:
    """The message for a text that does not fit, with the longest beginning (in characters) that does."""

    def fit(end: int) -> bool:
        try:
            return len(_with_bos(text_ids(model, text[:end]), bos)) <= limit
        except ValueError:  # cut inside a word that the tokenizer knows only whole
            return False

    fits, breaks = 0, min(len(text), limit)
    while breaks < len(text) and fit(breaks):
        fits, breaks = breaks, min(2 * breaks, len(text))
    while breaks - fits > 1:
        middle = (fits + breaks) // 2
        if fit(middle):
            fits = middle
        else:
            breaks = middle
    reads = f"the {limit} that {model_name(model)} can read (n_ctx)"
    return f"text has {count} tokens, more than {reads}: the first {fits} characters fit, text[:{fits}]"


def _device(model: Any) -> torch.device:
    parameter = next(iter(model.parameters()), None)
    return torch.device("cpu") if parameter is None else parameter.device

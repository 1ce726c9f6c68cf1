"""Continuing a text with any loaded model."""

from dataclasses import dataclass
from typing import Any

import torch

from analyses.capture import model_name, refuse_training

from ._models import is_ours, wing
from .tokens import encode, strings, text_ids


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """A prompt and what the model added.

    Attributes:
        model: its name.
        tokens: the prompt as fed.
        new: the tokens added.
        text: prompt and continuation, without the BOS that was put in front.
    """

    model: str
    tokens: tuple[str, ...]
    new: tuple[str, ...]
    text: str


@torch.no_grad()
def generate(model: Any, text: str, new: int, *, temperature: float = 0.8, top_k: int | None = None, seed: int = 0) -> Continuation:
    """Continue a text. Our decoders keep what they have read; pretrained ones recompute each step from the start.

    Args:
        model: from `load_model`.
        text: the prompt.
        new: how many tokens to add.
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: sample among the k likeliest only.
        seed: of the sampling, on the CPU, so that it does not depend on the device.

    Raises:
        ValueError: prompt and new tokens exceed the context, or what `encode` refuses.
    """
    if new < 1 or temperature < 0 or (top_k is not None and top_k < 1):
        raise ValueError(f"new and top_k must be at least 1 and temperature not negative; got new={new}, {top_k=}, {temperature=}")
    refuse_training(model)
    fed = encode(model, text)
    count, limit = fed.ids.shape[1], int(model.cfg.n_ctx)
    if count + new > limit:
        raise ValueError(
            f"{count} prompt + {new} new tokens are more than the {limit} that {model_name(model)} can read (n_ctx): "
            f"ask for at most {limit - count} new ones, or shorten the prompt"
        )
    generator = torch.Generator().manual_seed(seed)
    read = model.reader(count + new) if is_ours(model) else wing("generation").recompute(model)
    ids = drawn = fed.ids
    for _ in range(new):
        logits = read(drawn)[0].float().cpu()
        if top_k is not None:
            logits = logits.masked_fill(logits < logits.topk(min(top_k, len(logits))).values[-1], -torch.inf)
        best = logits.argmax() if temperature == 0 else torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        drawn = best.reshape(1, 1).to(ids.device)
        ids = torch.cat([ids, drawn], dim=1)
    own = ids[0, count - len(text_ids(model, text)) :].tolist()  # without the BOS that was put in front
    return Continuation(
        model=model_name(model),
        tokens=fed.str_tokens[0],
        new=strings(model, ids[0, count:].tolist()),
        text=str(model.tokenizer.decode(own, skip_special_tokens=False)),
    )

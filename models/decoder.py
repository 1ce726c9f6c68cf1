"""The hooked decoder, top to bottom: embedding -> layers -> final norm -> unembedding; text, cache, generation."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from huggingface_hub import PyTorchModelHubMixin, snapshot_download
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformer_lens import ActivationCache, HookedRootModule
from transformer_lens.config import TransformerLensConfig
from transformer_lens.hook_points import HookPoint
from transformer_lens.utilities import Slice

from . import checkpoint
from .attention import MultiHeadAttention, uniform
from .config import EXTRACTORS, DecoderConfig, near_misses
from .extractor import Extractor
from .feedforward import FeedForward
from .generation import Read, reader
from .norms import Norm, heard, make_norm

BUILT_IN: dict[str, Callable[[DecoderConfig, int], nn.Module]] = {"mha": MultiHeadAttention, **dict.fromkeys(EXTRACTORS, Extractor)}
RETURN_TYPES = ("logits", "loss", "both")
CachingHooks = list[tuple[str, Callable[..., None]]]


@dataclass
class TransformerLensCfg(TransformerLensConfig):
    """TransformerLens' configuration, with the fields its tools read and its base class lacks."""

    model_name: str = ""
    parallel_attn_mlp: bool = False


class Embed(nn.Module):
    """Token embedding, N(0, 0.02)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.W_E = nn.Parameter(torch.empty(config.d_vocab, config.d_model).normal_(std=0.02))

    def forward(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        return F.embedding(tokens, self.W_E)


class PosEmbed(nn.Module):
    """Learned positions, N(0, 0.02); padded rows are not counted. `start` is the position of the first row."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.W_pos = nn.Parameter(torch.empty(config.n_ctx, config.d_model).normal_(std=0.02))

    def forward(
        self, tokens: Int[Tensor, "b t"], attention_mask: Int[Tensor, "b t"] | None = None, start: int = 0
    ) -> Float[Tensor, "b t d"]:
        if attention_mask is None:
            positions = torch.arange(start, start + tokens.shape[1], device=tokens.device).expand_as(tokens)
        else:
            positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
        return F.embedding(positions, self.W_pos)  # looked up, never a view: a hook may edit it in place


class Unembed(nn.Module):
    """Untied: ``logits = x W_U (+ b_U)``."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.W_U = uniform(config.d_model, config.d_vocab, fan_in=config.d_model)
        self.b_U = uniform(config.d_vocab, fan_in=config.d_model) if config.unembed_bias else None

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t v"]:
        return F.linear(x, self.W_U.T, self.b_U)


class Block(nn.Module):
    """One layer. Sublayer 1 sits in the slot `attn` behind `ln1`, sublayer 2 in `mlp` behind `ln2`, whatever their order.

    serial: pre + attn_out = mid, mid + mlp_out = post. swapped: pre + mlp_out = mid, mid + attn_out = post.
    parallel: pre + attn_out + mlp_out = post. mixer_only: pre + attn_out = post. ffn_only: pre + mlp_out = post.
    """

    hook_out_is_single_residual_stream = True  # what TransformerLens asks of a block whose output it reads

    def __init__(self, config: DecoderConfig, layer: int, mixer: Callable[[DecoderConfig, int], nn.Module]) -> None:
        super().__init__()
        self.layout = config.layer_layouts[layer]
        self.hook_resid_pre = HookPoint()
        if self.layout != "ffn_only":
            self.ln1 = make_norm(config.norm, config.d_model, config.norm_eps)
            self.attn = mixer(config, layer)
            self.hook_attn_out = HookPoint()
        if self.layout in ("serial", "swapped"):
            self.hook_resid_mid = HookPoint()
        if self.layout != "mixer_only":
            self.ln2 = make_norm(config.norm, config.d_model, config.norm_eps)
            self.mlp = FeedForward(config)
            self.hook_mlp_out = HookPoint()
        self.hook_resid_post = HookPoint()
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "b t d"], attention_mask: Int[Tensor, "b t"] | None = None, past: Any = None
    ) -> Float[Tensor, "b t d"]:
        """`past` is what the mixer's `start` made, for rows that follow those it has read (see generation.py)."""
        x = self.hook_resid_pre(x)
        if self.layout == "serial":
            x = self.hook_resid_mid(x + self._mix(x, attention_mask, past))
            x = x + self._feed(x)
        elif self.layout == "swapped":
            x = self.hook_resid_mid(x + self._feed(x))
            x = x + self._mix(x, attention_mask, past)
        elif self.layout == "parallel":
            x = x + self._mix(x, attention_mask, past) + self._feed(x)
        elif self.layout == "mixer_only":
            x = x + self._mix(x, attention_mask, past)
        else:
            x = x + self._feed(x)
        return self.hook_resid_post(x)

    def _mix(self, x: Tensor, attention_mask: Tensor | None, past: Any) -> Float[Tensor, "b t d"]:
        mixer: Any = self.attn
        rows = normed(self.ln1, x)
        out = mixer(rows, attention_mask) if past is None else mixer.extend(rows, past)
        return self.hook_attn_out(self.dropout(out) if self.training else out)

    def _feed(self, x: Tensor) -> Float[Tensor, "b t d"]:
        out = self.mlp(normed(self.ln2, x))
        return self.hook_mlp_out(self.dropout(out) if self.training else out)


def normed(norm: Norm | None, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
    """``norm(x)``; a decoder without normalisation has None in a norm's place."""
    return x if norm is None else norm(x)


class HookedDecoder(HookedRootModule, PyTorchModelHubMixin):
    """A decoder with TransformerLens' hook points, whichever mixers fill its layers.

    Args:
        config: What to build.
        mixers: Classes of your own by the name the config uses, each called ``cls(config, layer)`` and then
            ``forward(x, attention_mask=None)`` on the normalised rows (b,t,d).
        tokenizer: For text input; without one, give token ids.

    Raises:
        ValueError: The config names a mixer that neither this package nor `mixers` knows, or `mixers` renames a built-in one.

    >>> model = HookedDecoder(DecoderConfig(n_layers=2, d_model=8, n_ctx=16, d_vocab=50, mixer="ishe")).eval()
    >>> logits, cache = model.run_with_cache(torch.tensor([[3, 1, 4]]))
    >>> tuple(logits.shape), tuple(cache["blocks.1.attn.hook_extraction"].shape)
    ((1, 3, 50), (1, 3, 8))
    """

    def __init__(
        self, config: DecoderConfig, mixers: Mapping[str, Callable[..., nn.Module]] | None = None, tokenizer: Tokenizer | None = None
    ) -> None:
        super().__init__()
        if taken := set(mixers or ()) & BUILT_IN.keys():
            raise ValueError(
                f"mixers: {', '.join(map(repr, sorted(taken)))} is built in, your own would never be called: choose another name"
            )
        known = {**(mixers or {}), **BUILT_IN}
        for name in config.layer_mixers:
            if name not in known:
                raise ValueError(f"unknown mixer {name!r} ({near_misses(name, known)}); one of your own goes in mixers={{{name!r}: cls}}")
        self.config, self.tokenizer = config, tokenizer
        # Written to _modules because `embed`, `blocks`, .. are properties of the class, so that runtime protocols see them.
        self._modules["embed"] = Embed(config)
        self.hook_embed = HookPoint()  # (b,t,d)
        if config.positions == "learned":
            self.pos_embed = PosEmbed(config)
            self.hook_pos_embed = HookPoint()  # (b,t,d)
        self._modules["blocks"] = nn.ModuleList(Block(config, layer, known[name]) for layer, name in enumerate(config.layer_mixers))
        self._modules["ln_final"] = make_norm(config.norm, config.d_model, config.norm_eps)
        self._modules["unembed"] = Unembed(config)
        self.setup()

    @property
    def embed(self) -> Any:
        return self._modules["embed"]

    @property
    def blocks(self) -> Any:
        return self._modules["blocks"]

    @property
    def ln_final(self) -> Any:
        return self._modules["ln_final"]

    @property
    def unembed(self) -> Any:
        return self._modules["unembed"]

    @property
    def W_E(self) -> Float[Tensor, "v d"]:  # noqa: N802
        return self.embed.W_E

    @property
    def W_pos(self) -> Float[Tensor, "l d"]:  # noqa: N802
        if self.config.positions == "none":
            raise AttributeError("W_pos: this decoder has no positional embedding")
        return self.pos_embed.W_pos

    @property
    def W_U(self) -> Float[Tensor, "d v"]:  # noqa: N802
        return self.unembed.W_U

    @property
    def b_U(self) -> Float[Tensor, " v"]:  # noqa: N802
        """The bias on the logits; zeros where there is none, since TransformerLens adds it unasked."""
        return self.W_U.new_zeros(self.config.d_vocab) if self.unembed.b_U is None else self.unembed.b_U

    @property
    def cfg(self) -> "TransformerLensCfg":
        """The configuration under TransformerLens' field names, read off the decoder as it is now."""
        c = self.config
        return TransformerLensCfg(
            d_model=c.d_model,
            d_head=c.d_model // c.n_heads,
            n_layers=c.n_layers,
            n_ctx=c.n_ctx,
            n_heads=c.n_heads,
            d_mlp=c.d_mlp,
            d_vocab=c.d_vocab,
            device=str(self.W_E.device),
            default_prepend_bos=False,
            positional_embedding_type="standard" if c.positions == "learned" else "none",
            attn_only=set(c.layer_layouts) == {"mixer_only"},
            uses_rms_norm=c.norm == "rms",
            final_rms=c.norm == "rms",
            eps=c.norm_eps,
            act_fn=c.act_fn,
            normalization_type={"ln": "LN", "rms": "RMS", "none": None}[c.norm],
            dtype=self.W_E.dtype,
            model_name="-".join(dict.fromkeys(c.layer_mixers)),
            parallel_attn_mlp=set(c.layer_layouts) == {"parallel"},
        )

    # ---- hooks ----

    @contextmanager
    def explicit(self) -> Iterator["HookedDecoder"]:
        """Inside, attention and norms take the explicit path and Extractors the direct sum whether or not anybody listens, so that two
        runs differ by an edit alone."""
        modules = [module for module in self.modules() if hasattr(module, "force_explicit")]
        before = [module.force_explicit for module in modules]
        try:
            for module in modules:
                module.force_explicit = True  # type: ignore[assignment]
            yield self
        finally:
            for module, value in zip(modules, before, strict=True):
                module.force_explicit = value

    def get_caching_hooks(
        self,
        names_filter: str | Sequence[str] | Callable[[str], bool] | None = None,
        incl_bwd: bool = False,
        device: str | torch.device | None = None,
        remove_batch_dim: bool = False,
        cache: dict[str, Tensor] | None = None,
        pos_slice: Any = None,
    ) -> tuple[dict[str, Tensor], CachingHooks, CachingHooks]:
        """Hooks that copy activations into a dict; TransformerLens' keywords.

        Unlike TransformerLens' own: every copy is the cache's own tensor, a name that matches nothing raises, and positions are sliced
        along the axis that the hook point itself declares (`pos_dim`, else 1).

        Returns:
            The dict to be filled, the forward hooks, the backward hooks.

        Raises:
            ValueError: A name that is no hook point, or a filter that matches none.
        """
        positions, kept = Slice.unwrap(pos_slice), {} if cache is None else cache

        def save(tensor: Tensor, hook: HookPoint, suffix: str) -> None:
            value = tensor.detach()
            if positions.mode != "identity":
                value = positions.apply(value, dim=1 if hook.pos_dim is None else hook.pos_dim)
            value = value.to(device, copy=True)
            kept[f"{hook.name}{suffix}"] = value[0] if remove_batch_dim and len(value) == 1 else value

        names = self._hook_names(names_filter)
        forward: CachingHooks = [(name, partial(save, suffix="")) for name in names]
        backward: CachingHooks = [(name, partial(save, suffix="_grad")) for name in names] if incl_bwd else []
        return kept, forward, backward

    def add_caching_hooks(self, names_filter: Any = None, incl_bwd: bool = False, **kwargs: Any) -> dict[str, Tensor]:  # type: ignore[override]
        """Like `get_caching_hooks`, added to the model until `reset_hooks`."""
        cache, forward, backward = self.get_caching_hooks(names_filter, incl_bwd, **kwargs)
        for name, hook in forward:
            self.add_hook(name, hook, "fwd")
        for name, hook in backward:
            self.add_hook(name, hook, "bwd")
        return cache

    def run_with_cache(self, *model_args: Any, remove_batch_dim: bool = False, **kwargs: Any) -> tuple[Any, ActivationCache]:
        """The output, and what the hook points held, as an `ActivationCache`; TransformerLens' keywords, which see."""
        out, cache = super().run_with_cache(*model_args, remove_batch_dim=remove_batch_dim, **kwargs)
        return out, ActivationCache(cache, self, has_batch_dim=not remove_batch_dim)

    def _hook_names(self, names_filter: str | Sequence[str] | Callable[[str], bool] | None) -> list[str]:
        if names_filter is None:
            return list(self.hook_dict)
        if callable(names_filter):
            names = [name for name in self.hook_dict if names_filter(name)]
            if not names:
                raise ValueError("names_filter matches no hook point of this decoder; their names are model.hook_dict")
            return names
        names = [names_filter] if isinstance(names_filter, str) else list(names_filter)
        for name in names:
            self._check_hook_name(name)
        return names

    def _check_hook_name(self, name: str) -> None:
        if name not in self.hook_dict:
            close = get_close_matches(name, self.hook_dict, n=3, cutoff=0.5)
            raise ValueError(f"no hook point {name!r}: {near_misses(name, self.hook_dict) if close else 'their names are model.hook_dict'}")

    def _enable_hook_with_name(self, name: str, hook: Callable[..., Any], dir: Any) -> None:
        self._check_hook_name(name)
        super()._enable_hook_with_name(name, hook, dir)

    # ---- what TransformerLens' attribution tools ask ----

    def tokens_to_residual_directions(self, tokens: str | int | Tensor) -> Float[Tensor, "*tokens d"]:
        """For each token the direction ``w * W_U[:, token]``, w the final norm's gain, along which attributions sum to
        ``logit - b_U - b_norm . W_U``."""
        ids = self.to_single_token(tokens) if isinstance(tokens, str) else tokens
        columns = self.W_U.T[torch.as_tensor(ids, device=self.W_U.device)]  # (*tokens, d)
        return columns if self.ln_final is None else columns * self.ln_final.w

    def accumulated_bias(self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True) -> Float[Tensor, " d"]:
        """The sum of the output biases of the layers before `layer` (with `mlp_input`, of its sublayer 1 too)."""
        total = self.W_E.new_zeros(self.config.d_model)
        for i, block in enumerate(self.blocks[: layer + 1]):
            biases = []
            if hasattr(block, "attn") and (i < layer or mlp_input):
                biases += [getattr(block.attn, "b_O", None), getattr(block.attn, "b_out", None)]
            if hasattr(block, "mlp") and i < layer and include_mlp_biases:
                biases.append(block.mlp.b_out)
            for bias in biases:
                total = total if bias is None else total + bias
        return total

    # ---- forward ----

    def forward(
        self,
        input: Tensor | str | Sequence[str],
        return_type: str = "logits",
        attention_mask: Tensor | None = None,
    ) -> Any:
        """Logits (b,t,v), the mean next-token loss over real rows, or both.

        Args:
            input: Token ids (b,t) or (t,), a text, or texts (padded on the right, masked).
            return_type: ``logits``, ``loss`` or ``both``.
            attention_mask: (b,t), 1 at real tokens; the real tokens of a row are contiguous, padding on either side of them contributes to
                nobody and is not counted.
        """
        if return_type not in RETURN_TYPES:
            raise ValueError(f"return_type must be one of {', '.join(map(repr, RETURN_TYPES))}, got {return_type!r}")
        tokens, mask = self._tokens_and_mask(input, attention_mask)
        self._tell_extractors()
        x = self.hook_embed(self.embed(tokens))
        if self.config.positions == "learned":
            x = x + self.hook_pos_embed(self.pos_embed(tokens, mask))
        for block in self.blocks:
            x = block(x, mask)
        logits = self.unembed(normed(self.ln_final, x))
        if return_type == "logits":
            return logits
        loss = next_token_loss(logits, tokens, mask)
        return loss if return_type == "loss" else (logits, loss)

    def _tell_extractors(self) -> None:
        """A listener anywhere makes every sum over lags the direct one, not only where it sits: what it sees is made of all of them."""
        extractors = [block.attn for block in self.blocks if isinstance(getattr(block, "attn", None), Extractor)]
        if extractors:
            listened = heard(*self.hook_dict.values())
            for extractor in extractors:
                extractor.listened = listened

    def _tokens_and_mask(self, input: Any, attention_mask: Tensor | None) -> tuple[Int[Tensor, "b t"], Int[Tensor, "b t"] | None]:
        """Ids and mask as the layers want them; a mask of ones is no mask."""
        if isinstance(input, str):
            input = [input]
        if not isinstance(input, Tensor):
            if attention_mask is not None:
                raise ValueError("attention_mask goes with token ids; for texts it is made here")
            input, attention_mask = self._encode(input)
        tokens = input[None] if input.ndim == 1 else input
        if tokens.ndim != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool:
            raise ValueError(f"tokens must be integer ids of shape (b,t) or (t,), got {tokens.dtype} {tuple(tokens.shape)}")
        self._check_length(tokens.shape[1])
        tokens = tokens.to(self.embed.W_E.device, torch.long)
        if not (tokens.is_meta or torch.compiler.is_compiling()):  # a compiled graph cannot ask for values
            least, most = map(int, tokens.aminmax())
            if least < 0 or most >= self.config.d_vocab:
                raise ValueError(f"token ids must be in [0, {self.config.d_vocab}), got {least}..{most}")
        if attention_mask is None:
            return tokens, None
        mask = attention_mask[None] if attention_mask.ndim == 1 else attention_mask
        if mask.shape != tokens.shape:
            raise ValueError(f"attention_mask must have the tokens' shape {tuple(tokens.shape)}, got {tuple(mask.shape)}")
        mask = mask.to(tokens.device, torch.long)
        if mask.is_meta:
            return tokens, mask
        starts = (mask.diff(dim=1, prepend=torch.zeros_like(mask[:, :1])) == 1).sum(1)
        if int(mask.min()) < 0 or int(mask.max()) > 1 or not bool((starts == 1).all()):
            raise ValueError("attention_mask must be 0 or 1 with one contiguous run of 1 in every row: pad on the left or on the right")
        return tokens, None if bool(mask.all()) else mask

    def _check_length(self, count: int) -> None:
        if count == 0:
            raise ValueError("empty input: a decoder needs at least one token")
        if count > self.config.n_ctx:
            raise ValueError(f"{count} tokens, this decoder takes {self.config.n_ctx}: cut the input to {self.config.n_ctx} tokens")

    # ---- text ----

    def _encode(self, texts: Sequence[str]) -> tuple[Int[Tensor, "b t"], Int[Tensor, "b t"]]:
        """Ids and mask, padded on the right with id 0."""
        if self.tokenizer is None:
            raise ValueError("this decoder has no tokenizer, so it cannot read text: give token ids, or set model.tokenizer")
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"input must be token ids, a text or a list of texts, got {texts!r}")
        ids = [self.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        for text, row in zip(texts, ids, strict=True):
            if not row:
                raise ValueError(f"text {text!r} has no token: a decoder needs at least one")
        longest = max(map(len, ids))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in ids], device=self.embed.W_E.device)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids], device=self.embed.W_E.device)
        return tokens, mask

    def to_tokens(self, input: str | Sequence[str], prepend_bos: bool | None = None) -> Int[Tensor, "b t"]:
        """Token ids of one text, or of several that have equally many tokens; nothing is cut, no BOS is added (the decoder has none)."""
        if prepend_bos:
            raise ValueError("prepend_bos: this decoder has no BOS token; leave it out")
        tokens, mask = self._encode([input] if isinstance(input, str) else input)
        if not bool(mask.all()):
            raise ValueError("the texts have different numbers of tokens: call the model on the texts themselves, it pads and masks")
        return tokens

    def to_string(self, tokens: Tensor | Sequence[int] | int) -> Any:
        """The text of ids (t,), or the list of texts of ids (b,t)."""
        ids = torch.as_tensor(tokens)
        if ids.ndim == 2:
            return [self.to_string(row) for row in ids]
        if self.tokenizer is None:
            raise ValueError("this decoder has no tokenizer, so it cannot print text: set model.tokenizer")
        return self.tokenizer.decode(ids.reshape(-1).tolist(), skip_special_tokens=False)

    def to_str_tokens(self, input: str | Tensor | Sequence[int], prepend_bos: bool | None = None) -> list[str]:
        """The tokens of a text, or of ids (t,) or (1,t), one string each."""
        ids = self.to_tokens(input, prepend_bos)[0] if isinstance(input, str) else torch.as_tensor(input)
        if ids.ndim == 2 and len(ids) == 1:
            ids = ids[0]
        if ids.ndim != 1:
            raise ValueError(f"input must be one text or ids of one sequence, got shape {tuple(ids.shape)}")
        return [self.to_string(int(token)) for token in ids]

    def to_single_token(self, string: str) -> int:
        """The id of a string that is exactly one token."""
        ids = self.to_tokens(string)[0].tolist()
        if len(ids) != 1:
            raise ValueError(f"{string!r} is {len(ids)} tokens {self.to_str_tokens(string)}, not one: choose one of them, or give an id")
        return ids[0]

    # ---- generation ----

    def reader(self, capacity: int) -> Read:
        """A function that reads the next tokens (b,n) and returns the logits (b,v) after the last of them; see `generation.reader`."""
        return reader(self, capacity)

    @torch.no_grad()
    def generate(
        self,
        input: Any,
        max_new_tokens: int = 20,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        seed: int | None = None,
    ) -> Any:
        """Continue a prompt; a text gives a text, ids give ids (b, t + new).

        Past inputs are kept, so that a new token costs one row; where they cannot be, each step is recomputed from the start
        (see `reader`).

        Args:
            input: A text, or ids (b,t) or (t,).
            max_new_tokens: How many tokens to add.
            temperature: Divides the logits; 0 takes the likeliest token.
            top_k: Sample among the k likeliest only.
            seed: Of the sampling; None draws from torch's global generator.

        Raises:
            ValueError: Several texts, prompt and new tokens exceed `n_ctx`, or the model is in training mode with dropout.
            TypeError: A number of the wrong type.
        """
        for name, value in (("max_new_tokens", max_new_tokens), ("top_k", 1 if top_k is None else top_k)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name}: a whole number is needed, got {value!r}")
        if not math.isfinite(temperature) or 0 < temperature < 1e-6:
            raise ValueError(f"temperature: 0, or a finite number of at least 1e-6, is needed, got {temperature}")
        if max_new_tokens < 0 or temperature < 0 or (top_k is not None and top_k < 1):
            raise ValueError(
                f"max_new_tokens and temperature must not be negative, top_k at least 1; got {max_new_tokens}, {temperature}, {top_k}"
            )
        if self.training and self.config.dropout:
            raise ValueError("generate with dropout on is not the model's own text: call model.eval() first")
        if not isinstance(input, str | Tensor):
            raise ValueError(f"input: one text, or ids (b,t) or (t,), is needed, got {type(input).__name__}; continue texts one at a time")
        tokens, _ = self._tokens_and_mask(input, None)
        n_ctx, total = self.config.n_ctx, tokens.shape[1] + max_new_tokens
        if total > n_ctx:
            raise ValueError(
                f"{tokens.shape[1]} prompt + {max_new_tokens} new tokens = {total}, this decoder takes {n_ctx}: "
                f"ask for {max(n_ctx - tokens.shape[1], 0)}"
                + (f", or cut the prompt to {n_ctx - max_new_tokens}" if max_new_tokens < n_ctx else "")
            )
        generator = None if seed is None else torch.Generator(tokens.device).manual_seed(seed)
        read, new = self.reader(total), tokens
        for _ in range(max_new_tokens):
            logits = read(new).float()  # (b,v)
            if top_k is not None:
                least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
                logits = logits.masked_fill(logits < least, -torch.inf)
            if temperature == 0:
                new = logits.argmax(-1, keepdim=True)
            else:
                new = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
            tokens = torch.cat([tokens, new], 1)
        return self.to_string(tokens[0]) if isinstance(input, str) else tokens

    # ---- files ----

    def fingerprint(self) -> str:
        """sha256 over configuration and weights, unchanged by saving and loading."""
        return checkpoint.fingerprint(self.config, self.state_dict())

    def save_pretrained(
        self, save_directory: str | Path, *, dtype: torch.dtype | None = None, push_to_hub: bool = False, **hub: Any
    ) -> str | None:
        """Write config.json, model.safetensors and (with a tokenizer) tokenizer.json; all of them or nothing.

        Args:
            save_directory: Folder, made if it is not there; other files in it are left alone.
            dtype: Type of the stored weights; None keeps the parameters' own. They are widened again on load.
            push_to_hub: Also upload.
            **hub: Keywords of huggingface_hub's `push_to_hub`.

        Raises:
            ValueError: The folder cannot be written, or a weight is not finite in `dtype`.
        """
        if not push_to_hub and (unknown := hub.keys() - {"config", "model_card_kwargs"}):  # these two are what `push_to_hub` hands back
            raise TypeError(f"save_pretrained got {', '.join(map(repr, sorted(unknown)))}, which only push_to_hub=True takes")
        checkpoint.write(Path(save_directory), checkpoint.Checkpoint(self.config, self.state_dict(), self.tokenizer), dtype)
        return self.push_to_hub(**{"repo_id": Path(save_directory).name, **hub}) if push_to_hub else None

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, folder: str | Path, mixers: Mapping[str, Callable[..., nn.Module]] | None = None, **hub: Any
    ) -> "HookedDecoder":
        """Load a folder that `save_pretrained` wrote, in evaluation mode; strict and silent.

        Args:
            folder: The folder; a name "owner/name" that is no folder here is fetched from the hub.
            mixers: The classes of the mixers that are your own, as `HookedDecoder` takes them.
            **hub: Keywords of huggingface_hub's `snapshot_download` (revision, token, cache_dir, ..).

        Raises:
            ValueError: Anything that is not exactly what was saved: a file missing, truncated, altered or a pickle, an unknown key, a
                weight missing, too many, of another shape, NaN.
        """
        path = Path(folder)
        if not path.exists() and isinstance(folder, str) and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", folder):
            try:
                path = Path(snapshot_download(folder, allow_patterns=list(checkpoint.FILES), **hub))
            except OSError as error:
                reason = str(error).strip().splitlines()[0]
                raise ValueError(f"no folder {folder!r} here, and the hub does not give it: {reason}") from error
        elif hub:
            raise TypeError(f"from_pretrained got {', '.join(map(repr, sorted(hub)))}, which only a name on the hub takes")
        config, tensors, tokenizer = checkpoint.read(path)
        with torch.random.fork_rng(devices=[]):  # loading draws nothing from the caller's generator
            model = cls(config, mixers, tokenizer)
        wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        for name in sorted(wanted.keys() | found.keys()):
            if wanted.get(name) != found.get(name):
                raise ValueError(
                    f"{str(path / checkpoint.WEIGHTS)!r}: weight {name!r} is {found.get(name, 'missing')}, "
                    f"the configuration wants {wanted.get(name, 'none')}; take an intact copy"
                )
        model.load_state_dict(tensors, assign=True)
        return model.eval()


def next_token_loss(
    logits: Float[Tensor, "b t v"], tokens: Int[Tensor, "b t"], mask: Int[Tensor, "b t"] | None = None
) -> Float[Tensor, ""]:
    """Mean cross-entropy, in nats, of each token given those before it; pairs with a padded token do not count."""
    if tokens.shape[1] < 2:
        raise ValueError("a next-token loss needs at least two tokens")
    scores = logits[:, :-1].to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
    losses = F.cross_entropy(scores, tokens[:, 1:].flatten(), reduction="none")  # (b*(t-1),)
    if mask is None:
        return losses.mean()
    pairs = (mask[:, 1:] * mask[:, :-1]).flatten()
    return (losses * pairs).sum() / pairs.sum()

"""Strict capture over any model with a `hook_dict`: our decoders, `TransformerBridge`, or a bare `HookedRootModule`.

In here: which hook names a filter means (`resolve`), adding hooks for a while and removing exactly those (`hooked`), and one forward
pass whose activations are kept (`run_with_cache`). Not in here: text and tokenizers (the caller hands ids), and every analysis.

TransformerLens' own capture drops a mistyped name in silence, hands out tensors that alias the live ones, keys one tensor under
several names, and finds the position axis by the spelling of the hook. Here an unmatched name raises, a cached tensor is a copy, one
tensor has one key, and the axis is the hook point's own (`HookPoint.pos_dim`).
"""

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformer_lens.ActivationCache import ActivationCache

NamesFilter = None | str | Sequence[str] | Callable[[str], bool]
HookFn = Callable[..., Any]
"""`fn(tensor, hook)`: returns the tensor to use from here on, or None to leave it alone."""

Listener = tuple[Any, HookFn, Literal["fwd", "bwd"]]

_GLOBAL_FIRST = ("hook_embed", "hook_pos_embed")
_GLOBAL_LAST = ("ln_final.hook_scale", "ln_final.hook_normalized")
_PER_BLOCK = (
    "hook_resid_pre",
    "ln1.hook_scale",
    "ln1.hook_normalized",
    "attn.hook_q",
    "attn.hook_k",
    "attn.hook_v",
    "attn.hook_attn_scores",
    "attn.hook_pattern",
    "attn.hook_z",
    "attn.hook_value",
    "attn.hook_extraction",
    "attn.hook_adjustment",
    "hook_attn_out",
    "hook_resid_mid",
    "ln2.hook_scale",
    "ln2.hook_normalized",
    "mlp.hook_pre",
    "mlp.hook_post",
    "hook_mlp_out",
    "hook_resid_post",
)


def model_name(model: Any) -> str:
    """The name that results carry: what the model was loaded as (`model.loaded_as`), else `cfg.model_name`, else the class name.

    >>> from types import SimpleNamespace
    >>> model_name(SimpleNamespace(loaded_as="ishe-austen")), model_name(SimpleNamespace(cfg=SimpleNamespace(model_name="gpt2")))
    ('ishe-austen', 'gpt2')
    """
    name = getattr(model, "loaded_as", None) or getattr(getattr(model, "cfg", None), "model_name", None)
    return str(name) if name and name != "custom" else type(model).__name__


def explicit(model: Any) -> AbstractContextManager[Any]:
    """`model.explicit()` where the model has two paths (ours do), else a context that does nothing.

    Inside it the numbers do not depend on which hooks listen, so that a baseline and an intervention can be compared bitwise.
    """
    return model.explicit() if hasattr(model, "explicit") else nullcontext()


def default_names(model: Any) -> list[str]:
    """The documented hook names that `model` has, in the order of the forward pass, each tensor once."""
    hooks = model.hook_dict
    layers = sorted({int(n.split(".")[1]) for n in hooks if n.startswith("blocks.") and n.split(".")[1].isdigit()})
    wanted = [*_GLOBAL_FIRST, *(f"blocks.{i}.{n}" for i in layers for n in _PER_BLOCK), *_GLOBAL_LAST]
    seen: set[int] = set()
    names = []
    for name in wanted:
        point = hooks.get(name)
        if point is None or id(point) in seen or _closed(model, point, name) is not None or _is_rotary(point):
            continue
        seen.add(id(point))
        names.append(name)
    return names


def resolve(model: Any, names_filter: NamesFilter) -> list[str]:
    """The hook names that `names_filter` means on `model`.

    Args:
        model: anything with a `hook_dict`.
        names_filter: None (the documented names, each tensor once); a name; a glob (`"blocks.*.hook_resid_post"`); a sequence of
            names and globs, every one of which must match; or a predicate on names.

    Returns:
        Names as they were asked for. A glob or a predicate that reaches one hook point under several names gets it once, under
        TransformerLens' name; a name spelled out is kept as spelled.

    Raises:
        ValueError: nothing matches (the message lists the nearest real names), or the hook point is switched off on this model.
        TypeError: `names_filter` is of another type.

    >>> from transformer_lens.HookedRootModule import HookedRootModule
    >>> from transformer_lens.hook_points import HookPoint
    >>> class Tiny(HookedRootModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.hook_embed = HookPoint()
    ...         self.setup()
    >>> resolve(Tiny(), "hook_e*")
    ['hook_embed']
    """
    hooks: Mapping[str, Any] = model.hook_dict
    if names_filter is None:
        return default_names(model)
    if isinstance(names_filter, str):
        return _matches(model, hooks, names_filter)
    if callable(names_filter):
        found = _once(model, hooks, [name for name in hooks if names_filter(name)])
        if not found:
            raise ValueError(f"names_filter: the predicate accepts none of the {len(hooks)} hook names of {model_name(model)}")
        return found
    if not isinstance(names_filter, Sequence) or not all(isinstance(item, str) for item in names_filter):
        raise TypeError(f"names_filter must be None, a name, a list of names or a predicate; got {names_filter!r}")
    if not names_filter:
        raise ValueError("names_filter is an empty list: name at least one hook, or pass None for the documented ones")
    return list(dict.fromkeys(name for item in names_filter for name in _matches(model, hooks, item)))


def position_axis(point: Any, name: str = "") -> int:
    """The axis of a hook point's tensor that runs over (query) positions.

    The point's own `pos_dim` if it declares one; else TransformerLens' default, 1, or -2 for (b, h, query, key) scores and patterns.

    >>> from types import SimpleNamespace
    >>> position_axis(SimpleNamespace(pos_dim=2)), position_axis(SimpleNamespace(name="blocks.0.attn.hook_pattern"))
    (2, -2)
    """
    declared = getattr(point, "pos_dim", None)
    if declared is not None:
        return int(declared)
    spelled = name or getattr(point, "name", None) or ""
    return -2 if spelled.endswith(("hook_pattern", "hook_attn_scores")) else 1


class Cache(ActivationCache):
    """TransformerLens' `ActivationCache` that also knows what was fed.

    Attributes:
        tokens: (b, t) the ids fed.
        attention_mask: (b, t) 1 for a real token, 0 for padding.
        str_tokens: one tuple of strings a prompt, real tokens only; None if the caller gave none.
        model_name: the name of the model that was run.
    """

    def __init__(
        self,
        activations: dict[str, Tensor],
        model: Any,
        *,
        tokens: Int[Tensor, "b t"],
        attention_mask: Int[Tensor, "b t"],
        str_tokens: tuple[tuple[str, ...], ...] | None = None,
        axes: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(activations, model)
        self.tokens = tokens
        self.attention_mask = attention_mask
        self.str_tokens = str_tokens
        self.model_name = model_name(model)
        self.axes = dict(axes or {})

    def __repr__(self) -> str:
        return f"Cache({self.model_name}, {tuple(self.tokens.shape)} tokens, {len(self.cache_dict)} tensors)"

    def prompt(self, row: int) -> "Cache":
        """Prompt `row` alone, batch axis kept and padding removed: what a run of that prompt by itself would have cached.

        Args:
            row: index into the batch; negative counts from the end.

        Raises:
            ValueError: no such row, or the batch axis was removed from this cache.
        """
        batch = self.tokens.shape[0]
        if not -batch <= row < batch:
            raise ValueError(f"row: this cache holds {batch} prompt(s), so there is no prompt {row}")
        if not self.has_batch_dim:
            raise ValueError("prompt(row) needs the batch axis, and it was removed from this cache")
        row %= batch
        real = self.attention_mask[row].nonzero()[:, 0]
        shape = (batch, self.tokens.shape[1])
        kept = {name: _cut(value, row, real, self._axes_of(name), shape) for name, value in self.cache_dict.items()}
        return Cache(
            kept,
            self.model,
            tokens=self.tokens[row : row + 1, real],
            attention_mask=self.attention_mask[row : row + 1, real],
            str_tokens=None if self.str_tokens is None else self.str_tokens[row : row + 1],
            axes=self.axes,
        )

    def _axes_of(self, name: str) -> tuple[int, ...]:
        query = self.axes.get(name, 1)
        # Scores and patterns have a second axis over positions, that of the keys, which no hook point declares.
        return (query, -1) if name.endswith(("hook_pattern", "hook_attn_scores")) else (query,)


@contextmanager
def hooked(
    model: Any, hooks: Iterable[tuple[NamesFilter, HookFn]], *, backward: Iterable[tuple[NamesFilter, HookFn]] = ()
) -> Iterator[Any]:
    """Add hooks for the length of a `with` block, and take away exactly those, whatever happens inside.

    Args:
        model: anything with a `hook_dict`.
        hooks: pairs of a names filter (see `resolve`) and `fn(tensor, hook)`; a returned tensor replaces the activation.
        backward: the same for gradients.

    Yields:
        The model.

    Raises:
        ValueError: a filter matches nothing.
    """
    plan: list[Listener] = [(point, fn, "fwd") for point, fn in _points(model, hooks)]
    plan += [(point, fn, "bwd") for point, fn in _points(model, backward)]
    with _attached(plan):
        yield model


def run_with_cache(
    model: Any,
    tokens: Int[Tensor, "b t"],
    *,
    attention_mask: Int[Tensor, "b t"] | None = None,
    names_filter: NamesFilter = None,
    grad: bool = False,
    str_tokens: tuple[tuple[str, ...], ...] | None = None,
) -> tuple[Tensor, Cache]:
    """One forward pass, and copies of the activations that `names_filter` means.

    Args:
        model: anything with a `hook_dict`, in evaluation mode.
        tokens: ids (b, t).
        attention_mask: (b, t), 1 for a real token; None means that all are real.
        names_filter: see `resolve`.
        grad: keep the graph, so that the cached tensors and the logits can be differentiated.
        str_tokens: the tokens as strings, kept with the cache.

    Returns:
        (logits, cache): logits (b, t, v) as the model returns them; the cache's tensors have TransformerLens' shapes
        (`hook_q|k|v|z` (b, t, h, e), `hook_attn_scores|pattern` (b, h, t, t)) and share no memory with the model or each other.

    Raises:
        ValueError: training mode, unmatched names, a mask of another shape or with an all-padding row, or a hook that was asked for
            by name and never fired.
    """
    refuse_training(model)
    mask = _checked_mask(tokens, attention_mask)
    names = resolve(model, names_filter)
    points = model.hook_dict
    kept: dict[str, Tensor] = {}
    plan: list[Listener] = [(points[name], _keeper(kept, name, grad, tokens.shape), "fwd") for name in names]
    with torch.set_grad_enabled(grad), _attached(plan):
        logits = model(tokens) if attention_mask is None else model(tokens, attention_mask=mask)
    spelled = {names_filter} if isinstance(names_filter, str) else set(names_filter) if isinstance(names_filter, Sequence) else set()
    if silent := [name for name in names if name in spelled and name not in kept]:
        raise ValueError(f"hook {silent[0]!r} of {model_name(model)} carried no tensor in this run; leave it out of names_filter")
    if not kept:
        raise ValueError(f"none of the {len(names)} hooks that names_filter matches carried a tensor in this run of {model_name(model)}")
    ordered = {name: kept[name] for name in names if name in kept}
    axes = {name: position_axis(points[name], name) for name in ordered}
    return logits, Cache(ordered, model, tokens=tokens.clone(), attention_mask=mask, str_tokens=str_tokens, axes=axes)


def refuse_training(model: Any) -> None:
    """Raise ValueError if `model` or a dropout inside it is in training mode: its numbers would be random."""
    dropouts = (m for m in model.modules() if isinstance(m, nn.Dropout) and m.training) if isinstance(model, nn.Module) else iter(())
    if getattr(model, "training", False) or next(dropouts, None) is not None:
        raise ValueError(f"{model_name(model)} is in training mode, so dropout may change its numbers: call model.eval() first")


def _keeper(kept: dict[str, Tensor], name: str, grad: bool, shape: Sequence[int]) -> HookFn:
    batch, length = shape

    def keep(tensor: Any, hook: Any) -> None:
        if not isinstance(tensor, Tensor):
            return
        own = tensor.clone() if grad else tensor.detach().clone()
        # OPT runs its second norm on (b * t, d) rows; ids and masks, (b, t) and integer, are not touched.
        flat = own.ndim == 2 and own.is_floating_point() and own.shape[0] == batch * length
        kept[name] = own.unflatten(0, (batch, length)) if flat else own

    return keep


@contextmanager
def _attached(plan: Iterable[Listener]) -> Iterator[None]:
    added: list[tuple[Any, str, Any]] = []
    try:
        for point, fn, direction in plan:
            added.append((point, direction, point.add_hook(fn, dir=direction)))
        yield
    finally:
        # By handle and not by level or by clearing: hooks that others added, before or meanwhile, stay.
        for point, direction, handle in reversed(added):
            handle.hook.remove()
            listed = point.fwd_hooks if direction == "fwd" else point.bwd_hooks
            listed[:] = [other for other in listed if other is not handle]


def _points(model: Any, pairs: Iterable[tuple[NamesFilter, HookFn]]) -> Iterator[tuple[Any, HookFn]]:
    hooks = model.hook_dict
    for names_filter, fn in pairs:
        for name in resolve(model, names_filter):
            yield hooks[name], fn


def _matches(model: Any, hooks: Mapping[str, Any], wanted: str) -> list[str]:
    if wanted in hooks:
        if (reason := _closed(model, hooks[wanted], wanted)) is not None:
            raise ValueError(f"hook {wanted!r} is switched off on {model_name(model)}: {reason}")
        return [wanted]
    found = _once(model, hooks, fnmatch.filter(hooks, wanted)) if any(c in wanted for c in "*?[") else []
    if not found:
        near = difflib.get_close_matches(wanted, list(hooks), n=3, cutoff=0.5)
        hint = f"nearest: {', '.join(near)}" if near else "see model.hook_dict for the names"
        raise ValueError(f"names_filter: {model_name(model)} has no hook {wanted!r}; {hint}")
    return found


def _once(model: Any, hooks: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """One name a hook point, TransformerLens' own where there is a choice; points that are switched off are left out."""
    documented = set(default_names(model))
    best: dict[int, str] = {}
    for name in names:
        key = id(hooks[name])
        if key not in best or (name in documented and best[key] not in documented):
            best[key] = name
    return [name for name in best.values() if _closed(model, hooks[name], name) is None]


def _closed(model: Any, point: Any, name: str) -> str | None:
    """Why a hook point never fires on this model (TransformerLens switches some off by configuration), or None."""
    check = getattr(model, "check_hooks_to_add", None)
    if check is None:
        return None
    try:
        check(point, name, _nothing)
    except (ValueError, AssertionError) as reason:
        return str(reason)
    return None


def _is_rotary(point: Any) -> bool:
    # The Bridge lists rotary angles as `hook_pos_embed`: a tuple, not something added to the residual stream.
    return (getattr(point, "name", None) or "").startswith("rotary_emb.")


def _nothing(tensor: Any, hook: Any) -> None:
    return None


def _checked_mask(tokens: Tensor, attention_mask: Tensor | None) -> Tensor:
    if tokens.ndim != 2 or tokens.numel() == 0:
        raise ValueError(f"tokens must be ids of shape (batch, position) with at least one token; got shape {tuple(tokens.shape)}")
    if attention_mask is None:
        return torch.ones_like(tokens)
    if attention_mask.shape != tokens.shape:
        raise ValueError(f"attention_mask has shape {tuple(attention_mask.shape)}, tokens {tuple(tokens.shape)}: they must be equal")
    if not bool(((attention_mask == 0) | (attention_mask == 1)).all()):
        raise ValueError("attention_mask must hold 1 for a real token and 0 for padding, nothing else")
    if not bool(attention_mask.any(dim=1).all()):
        raise ValueError("attention_mask: a row is all padding; every prompt needs at least one real token")
    return attention_mask.clone()


def _cut(value: Tensor, row: int, real: Tensor, axes: tuple[int, ...], shape: tuple[int, int]) -> Tensor:
    """One prompt's part of a cached tensor. A leading 1 in a larger batch is shared by all rows (the Bridge's rotary angles)."""
    batch, length = shape
    part = value[row : row + 1] if value.shape[0] == batch else value
    for axis in axes:
        if part.shape[axis] == length:
            part = part.index_select(axis, real)
    return part.clone()

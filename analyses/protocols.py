"""What an analysis asks of a model and of a mixer. Structural: nothing here is imported by `models`, nothing there is needed here.

A model qualifies when it carries TransformerLens' hook and weight names (our decoders and `TransformerBridge` do). A mixer qualifies
in one of two ways: it has `W_O` and the hooks `hook_v`, `hook_pattern`, `hook_z` (attention: one view serves every model), or it
says itself what each source row writes (`AdditiveMixer`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

Acts = Mapping[str, Tensor]
"""What a mixer is handed: `input` (b, t, d), its input rows (after the norm's gain and bias), and the tensors named by `reads`."""


@runtime_checkable
class Writes(Protocol):
    """What each source row writes along a direction: every field (b, channel, row, source), float64.

    `value` the signed write; `magnitude` the sum of |terms| through the whole chain of products (what a rigorous bound needs);
    `square` the sum of terms^2 (what a practical one needs). `terms` is the number of products that one source adds to one output.
    """

    @property
    def value(self) -> Float[Tensor, "b channel row source"]: ...
    @property
    def magnitude(self) -> Float[Tensor, "b channel row source"]: ...
    @property
    def square(self) -> Float[Tensor, "b channel row source"]: ...
    @property
    def terms(self) -> int: ...


@runtime_checkable
class AdditiveMixer(Protocol):
    """A mixer whose output at row `i` is a sum over source rows once the gate of row `i` is held fixed.

    `writes` folds a direction `u` (b, row, d) at absolute `rows` through the mixer's own weights; `constants` gives what no source
    wrote (biases), label -> (b, row); `replay` evaluates the module's own kernel in float64, and must not go through `writes`: the
    two are compared. `sum(writes.value) + sum(constants) == replay . u` is the contract that `interp.testing.check_mixer` tests.
    """

    n_channels: int
    channel_kind: str
    reads: tuple[str, ...]

    def writes(self, acts: Acts, u: Float[Tensor, "b row d"], rows: Sequence[int]) -> Writes: ...
    def constants(self, acts: Acts, u: Float[Tensor, "b row d"], rows: Sequence[int]) -> Mapping[str, Float[Tensor, "b row"]]: ...
    def replay(self, acts: Acts, rows: Sequence[int]) -> Float[Tensor, "b row d"]: ...


@runtime_checkable
class Cached(Protocol):
    """Activations by hook name, a batch axis in front: TransformerLens' `ActivationCache`, ours, or a plain dict."""

    def __getitem__(self, key: str, /) -> Tensor: ...
    def __iter__(self) -> Iterator[str]: ...


@runtime_checkable
class HookedModel(Protocol):
    """A decoder with TransformerLens' names; `hook_dict` maps hook names to HookPoints, `blocks` are the layers in order."""

    cfg: Any
    hook_dict: Mapping[str, Any]
    blocks: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


def is_additive_mixer(module: object) -> bool:
    """Whether `module` offers the whole `AdditiveMixer` surface. `isinstance` on a protocol misses `nn.Module` children from 3.12 on."""
    return all(hasattr(module, name) for name in ("n_channels", "channel_kind", "reads", "writes", "constants", "replay"))

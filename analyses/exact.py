"""A true float64 run of any model, whatever its code casts to float32 on the way.

`model.double()` is not float64: Hugging Face norms, softmax and rotary tables cast to float32 by name. Here every cast and every
factory that names float32 is answered with float64 while the run lasts, so one dispatch rule serves every architecture.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class _PromoteFloat32(TorchDispatchMode):
    """Answers `dtype=float32` with float64 in every operator that is told a type."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") == torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*(torch.float64 if a is torch.float32 else a for a in args), **kwargs)


@contextmanager
def float64_run(model: nn.Module) -> Iterator[None]:
    """Inside this block `model` is held, and runs, in float64; afterwards every parameter and buffer is the tensor it was.

    While it lasts the float64 weights lie beside the stored ones: for a float32 model three times its memory. The weights are swapped
    in place, because a copied Bridge still listens to the original's hooks.
    """
    default = torch.get_default_dtype()
    tensors = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    kept = [(t, t.data) for t in {id(t): t for t in tensors}.values()]
    try:
        for t, data in kept:
            t.data = data.double()
        torch.set_default_dtype(torch.float64)
        with _PromoteFloat32():
            yield
    finally:
        torch.set_default_dtype(default)
        for t, data in kept:
            t.data = data

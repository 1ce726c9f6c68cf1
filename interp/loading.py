"""`load_model`: a shipped name, a folder of ours, a Hugging Face folder, a GGUF file or a hub id; anything else is refused offline."""

import difflib
import re
from pathlib import Path
from typing import Any

import torch

from . import huggingface
from ._models import wing

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(name_or_path: str | Path, *, device: str | torch.device = "cpu", dtype: str | torch.dtype | None = None) -> Any:
    """Load a model in evaluation mode, from the first of these that fits.

    1. the name of a shipped decoder (`interp models` lists them);
    2. an existing path: a folder that our or Hugging Face's `save_pretrained` wrote, or a .gguf file;
    3. "owner/name", fetched from the Hugging Face hub (or its cache).

    Loading prints nothing. Weights are read from safetensors (or GGUF) only; no pickle is opened and no code of a checkpoint is run.

    Args:
        name_or_path: which model.
        device: where the weights go.
        dtype: of the weights; None means float32. A name ("bfloat16") or a torch dtype.

    Returns:
        Our `HookedDecoder`, or TransformerLens' `TransformerBridge`; both have `hook_dict`, `cfg`, `tokenizer`, and the name
        that results carry (`interp.model_name`). `model.limits` (label -> reason) names what did not pass the proof by a short
        prompt that each hook is what its name says; analyses that need it refuse with that reason.

    Raises:
        ValueError: nothing of that name (with near misses, without asking the network), or a model that is not intact; one line.

    >>> import interp
    >>> interp.model_name(interp.load_model("ishe-austen"))
    'ishe-austen'
    """
    if not isinstance(name_or_path, str | Path):
        raise TypeError(f"name_or_path must be a name or a path, got {type(name_or_path).__name__}")
    name, place, kind = str(name_or_path), as_device(device), as_dtype(dtype)
    if name in list_models():
        return _proved(_ours(wing("zoo").path(name), name, place, kind))
    path = Path(name_or_path).expanduser()
    if name and path.exists():
        return _proved(_from_path(path, place, kind))
    if isinstance(name_or_path, str) and HUB_ID.fullmatch(name) and not name.endswith(".gguf"):
        return _proved(huggingface.load_folder(huggingface.fetch(name), name=name, device=place, dtype=kind))
    near = difflib.get_close_matches(name, list_models(), n=3, cutoff=0.5)
    known = f"did you mean {' or '.join(map(repr, near))}?" if near else f"shipped: {', '.join(list_models())};"
    raise ValueError(f"no model {name!r}: {known} else give a folder, a .gguf file or a hub id owner/name")


def list_models() -> list[str]:
    """The names of the decoders that come with the package.

    >>> "ishe-austen" in list_models()
    True
    """
    return list(wing("zoo").names())


def as_device(device: str | torch.device) -> torch.device:
    """A torch device that is there.

    Raises:
        ValueError: no such device on this machine.
    """
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device: {str(device)!r} cannot be used here ({' '.join(str(error).split())[:100]}); 'cpu' always can") from None
    return place


def as_dtype(dtype: str | torch.dtype | None) -> torch.dtype:
    """A floating-point dtype from its name; None means float32.

    >>> as_dtype("bfloat16"), as_dtype(None)
    (torch.bfloat16, torch.float32)
    """
    if dtype is None:
        return torch.float32
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if found is None or found not in DTYPES.values():
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}")
    return found


def _proved(model: Any) -> Any:
    from .analysis import prove

    try:
        model.limits = prove(model)
    except (TypeError, ValueError) as reason:  # no view of it as a sum: its activations can be kept all the same
        model.limits = {"stream": str(reason)}
    return model


def _from_path(path: Path, device: torch.device, dtype: torch.dtype) -> Any:
    name = path.resolve().stem if path.is_file() else path.resolve().name
    if path.is_dir():
        # Ours is closed-world and knows no model_type; every Hugging Face configuration has one.
        if "model_type" in huggingface.read_config(path):
            return huggingface.load_folder(path, name=name, device=device, dtype=dtype)
        return _ours(path, name, device, dtype)
    if path.suffix == ".gguf":
        return huggingface.load_gguf(path, name=name, device=device, dtype=dtype)
    huggingface.refuse_pickle(path)
    raise ValueError(f"{str(path)!r} is a file of another kind: give the folder it lies in, or a .gguf file")


def _ours(folder: Path, name: str, device: torch.device, dtype: torch.dtype) -> Any:
    model = wing().HookedDecoder.from_pretrained(folder).to(device=device, dtype=dtype)
    if model.tokenizer is None:
        raise ValueError(f"{str(folder)!r} has no tokenizer (tokenizer.json): save the decoder again together with its tokenizer")
    model.loaded_as = name
    return model

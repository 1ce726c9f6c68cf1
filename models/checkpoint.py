"""A decoder's folder: config.json, model.safetensors, tokenizer.json; nothing is ever unpickled, nothing half-written or half-read.

The weights file's metadata carries the compute type, the fingerprint over config and tensors, and the tokenizer's digest, all checked
at load. Weights may be stored narrower than they compute (float16): they are widened on load, exactly.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from .config import DecoderConfig

CONFIG, WEIGHTS, TOKENIZER = FILES = ("config.json", "model.safetensors", "tokenizer.json")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


class Checkpoint(NamedTuple):
    """What a folder holds."""

    config: DecoderConfig
    tensors: dict[str, Tensor]
    tokenizer: Tokenizer | None


def fingerprint(config: DecoderConfig, tensors: Mapping[str, Tensor]) -> str:
    """sha256 over the configuration and every tensor's name, shape and values.

    Values are hashed as float32 (float64 if they are), so that storing in a narrower type and widening again keeps the fingerprint.
    """
    digest = hashlib.sha256(json.dumps(config.to_dict(), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        wide = tensor.to("cpu", torch.promote_types(tensor.dtype, torch.float32)).contiguous()
        digest.update(f"{name} {tuple(tensor.shape)} {wide.dtype}".encode())
        digest.update(wide.numpy().data)
    return digest.hexdigest()


def write(folder: Path, checkpoint: Checkpoint, dtype: torch.dtype | None = None) -> None:
    """Write the three files into a temporary folder beside `folder`, then move them into place.

    Raises:
        ValueError: The place cannot be written, or a weight does not fit `dtype`.
    """
    config, tensors, tokenizer = checkpoint
    computes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(computes) != 1:
        raise ValueError(f"a decoder is saved in one compute type, its weights have {sorted(map(str, computes))}: model.to(dtype) first")
    stored = {
        name: tensor.detach().to("cpu", dtype if dtype and tensor.is_floating_point() else tensor.dtype).contiguous()
        for name, tensor in tensors.items()
    }
    for name, tensor in stored.items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"weight {name!r} is not finite as {tensor.dtype}: a decoder with NaN or inf is not saved")
    metadata = {"format": "pt", "compute": str(computes.pop()).removeprefix("torch."), "fingerprint": fingerprint(config, stored)}
    if tokenizer is not None:
        metadata["tokenizer"] = _digest(tokenizer.to_str())
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
            new = Path(temporary) / folder.name
            new.mkdir()
            (new / CONFIG).write_text(json.dumps(config.to_dict(), indent=2) + "\n")
            save_file(stored, str(new / WEIGHTS), metadata)
            if tokenizer is not None:
                (new / TOKENIZER).write_text(tokenizer.to_str(), encoding="utf-8")
            if not folder.exists():
                os.rename(new, folder)
                return
            for name in FILES:
                if (new / name).exists():
                    os.replace(new / name, folder / name)
                else:
                    (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write {str(folder)!r}: {error.strerror or error}; choose a folder you may write to") from error


def read(folder: Path) -> Checkpoint:
    """Read a folder, believing nothing: every check that fails is a one-line ValueError that names the file and the fix."""
    if folder.is_file():
        pickled = "is a pickle, which is never loaded" if folder.suffix in PICKLES else "is a file"
        raise ValueError(f"{str(folder)!r} {pickled}: give the folder that save_pretrained wrote")
    if not folder.is_dir():
        raise ValueError(f"no folder {str(folder)!r}: give the folder that save_pretrained wrote")
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
            if name == WEIGHTS and pickles:
                raise ValueError(f"{str(folder / pickles[0])!r} is a pickle, which is never loaded: save the weights as {WEIGHTS}")
            raise ValueError(f"{str(folder)!r} has no {name}: it is not a decoder's folder, or an incomplete copy; copy it again")
    try:
        values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        config = DecoderConfig.from_dict(values) if isinstance(values, dict) else None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{str(folder / CONFIG)!r} is no decoder's configuration: {error}") from error
    if config is None:
        raise ValueError(f"{str(folder / CONFIG)!r} is no decoder's configuration: it must hold one JSON object")
    metadata, tensors = _read_tensors(folder / WEIGHTS)
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{str(folder / WEIGHTS)!r}: weight {name!r} holds NaN or inf; take an intact copy, or train again")
    if metadata.get("fingerprint") != fingerprint(config, tensors):
        raise ValueError(f"{str(folder)!r}: {CONFIG} or {WEIGHTS} was altered, their fingerprint does not match; take an intact copy")
    compute = getattr(torch, metadata.get("compute", ""), None)
    if not isinstance(compute, torch.dtype):
        raise ValueError(f"{str(folder / WEIGHTS)!r} does not say which type it computes in; save it again with save_pretrained")
    tokenizer = _read_tokenizer(folder / TOKENIZER, metadata.get("tokenizer"))
    widened = {name: tensor.to(compute) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    return Checkpoint(config, widened, tokenizer)


def _read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{str(path)!r} is truncated or no safetensors file ({error}); take an intact copy") from error


def _read_tokenizer(path: Path, digest: str | None) -> Tokenizer | None:
    if digest is None:
        return None
    if not path.is_file():
        raise ValueError(f"{str(path)!r} is missing, the decoder was saved with a tokenizer; copy the folder again")
    text = path.read_text(encoding="utf-8")
    if _digest(text) != digest:
        raise ValueError(f"{str(path)!r} is not the tokenizer the decoder was saved with; take an intact copy")
    return Tokenizer.from_str(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

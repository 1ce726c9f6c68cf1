"""Hugging Face folders, hub ids and GGUF files as `TransformerBridge` models: strictly, silently, offline where the files are here.

In here: reading a folder with every check at the door, fetching a hub id, and turning a GGUF file into a folder. We load the model
ourselves and hand it to the Bridge, because the Bridge's own loader leaves missing weights random and reads pickles. Code that a
checkpoint brings along (`auto_map`) is never run.
"""

import json
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch

CONFIG = "config.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "sentencepiece.bpe.model")
HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


def load_folder(folder: Path, *, name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """A Hugging Face folder as a `TransformerBridge` in evaluation mode.

    Args:
        folder: config.json, *.safetensors and a tokenizer.
        name: what results call the model.
        device: where the weights go.
        dtype: what they are stored as.

    Raises:
        ValueError: one line that names what is wrong with the folder and the fix.
    """
    config = read_config(folder)
    weights = _check_weights(folder)
    if not any((folder / file).is_file() for file in TOKENIZERS):
        raise ValueError(f"{str(folder)!r} has no tokenizer ({TOKENIZERS[0]}): save one there with tokenizer.save_pretrained(folder)")
    with quiet():
        model, tokenizer = _read_model(folder, config, dtype)
        _check_finite(model, weights[0].parent)
        return as_bridge(model.to(device), tokenizer, name)


def load_gguf(file: Path, *, name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """A GGUF file as a `TransformerBridge`. Takes half a minute for 135M parameters; `convert_gguf` does that once for all."""
    with quiet():
        model, tokenizer = _read_gguf(file)
        return as_bridge(model.to(device=device, dtype=dtype), tokenizer, name)


def convert_gguf(file: str | Path, folder: str | Path) -> Path:
    """Turn a GGUF file into a Hugging Face folder in float32, which loads in seconds and offline.

    The folder is filled under another name and renamed at the end, so it is there complete or not at all.

    Args:
        file: the .gguf file.
        folder: where to; must not exist yet, or be empty.

    Returns:
        The folder.

    Raises:
        ValueError: `file` is no GGUF file or of an architecture that transformers cannot read; `folder` is taken or cannot be written.
    """
    file, folder = Path(file), Path(folder)
    check_gguf(file)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{str(folder)!r} is already there and not empty: name another folder, or remove it first")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    except OSError as error:
        raise ValueError(f"cannot write {str(folder)!r}: {error.strerror or error}; choose a folder you may write to") from error
    try:
        with quiet():
            model, tokenizer = _read_gguf(file)
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
        partial.chmod(0o755)
        os.replace(partial, folder)
    except OSError as error:
        raise ValueError(f"cannot write {str(folder)!r}: {error.strerror or error}; choose a folder you may write to") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def fetch(name: str) -> Path:
    """The files of a hub id, downloaded or from the cache: configuration, safetensors and tokenizer, nothing that can hold code.

    Raises:
        ValueError: no such repository, no access, or no connection and nothing cached.
    """
    from huggingface_hub import snapshot_download

    with quiet(keep_stderr=True):
        try:
            return Path(snapshot_download(name, allow_patterns=HUB_FILES))
        except Exception as error:  # the hub's client raises its own, httpx's and OS errors alike
            reason = " ".join(str(error).split())[:160] or type(error).__name__
            raise ValueError(f"cannot fetch {name!r} from the hub ({reason}): check name and connection, or give a local folder") from None


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as a dict.

    Raises:
        ValueError: missing, unreadable or not a JSON object.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(f"{str(folder)!r} has no {CONFIG}: give a folder that save_pretrained wrote (ours or Hugging Face's)")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not valid JSON ({error}): take an intact copy") from error
    if not isinstance(config, dict):
        raise ValueError(f"{str(path)!r} must hold one JSON object: take an intact copy")
    return config


def refuse_pickle(path: Path) -> None:
    """Raise ValueError if `path` is a pickle by its name or by its first bytes."""
    with path.open("rb") as file:
        head = file.read(9)
    # A safetensors file begins with eight bytes of length, which may look like anything, and then "{".
    looks = head[8:] != b"{" and (head[:2] == b"PK" or head[:1] == b"\x80")
    if path.suffix in PICKLES or looks:
        raise ValueError(f"{str(path)!r} is a pickle, which can run code and is never loaded: save the weights as safetensors")


def check_gguf(file: Path) -> None:
    """Raise ValueError unless `file` is there and begins as a GGUF file does."""
    if not file.is_file():
        raise ValueError(f"no file {str(file)!r}: give the path of a .gguf file")
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise ValueError(f"{str(file)!r} is no GGUF file (it does not begin with 'GGUF'): download it again")


@contextmanager
def quiet(*, keep_stderr: bool = False) -> Iterator[None]:
    """Keep transformers, TransformerLens and tqdm from printing while a model loads; everything is put back afterwards."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging as transformers_logging

    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    hub_bars_off, disabled = are_progress_bars_disabled(), logging.root.manager.disable
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    if not keep_stderr:
        disable_progress_bars()
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            if keep_stderr:
                yield
            else:
                with redirect_stderr(StringIO()):
                    yield
    finally:
        logging.disable(disabled)
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
        if not hub_bars_off:
            enable_progress_bars()


def _check_weights(folder: Path) -> list[Path]:
    """The safetensors files, each with a header that matches its length."""
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = sorted(path for path in folder.iterdir() if path.suffix in PICKLES)
        if pickles:
            refuse_pickle(pickles[0])
        raise ValueError(f"{str(folder)!r} holds no weights (*.safetensors): take an intact copy of the model")
    for path in files:
        refuse_pickle(path)
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{str(path)!r} is truncated or no safetensors file ({_line(error)}): take an intact copy") from error
    return files


def _read_model(folder: Path, config: dict[str, Any], dtype: torch.dtype) -> tuple[Any, Any]:
    from huggingface_hub.errors import StrictDataclassError
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = config.get("model_type")
    if kind not in CONFIG_MAPPING:
        brings = " and brings its own code (auto_map), which is never run" if "auto_map" in config else ""
        raise ValueError(f"{str(folder)!r}: transformers does not know model_type {kind!r}{brings}; use a model of a built-in type")
    try:
        model, info = _causal_lm().from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation="eager",  # the only one that shows scores and patterns to hooks
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (ValueError, RuntimeError, OSError, KeyError, TypeError, StrictDataclassError) as error:
        raise ValueError(f"cannot read the model in {str(folder)!r} ({_line(error)}): take an intact copy, or another model") from error
    # transformers leaves a missing weight random and says so in a log; for us it is no model.
    if missing := sorted(info["missing_keys"]):
        raise ValueError(f"{str(folder)!r} lacks {len(missing)} weight(s), {missing[0]!r} the first: take an intact copy")
    return model.eval(), _read_tokenizer(folder)


def _causal_lm() -> Any:
    """transformers' class, untyped: what its `from_pretrained` returns depends on its arguments, which its annotations do not say."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM


def _read_tokenizer(folder: Path, **where: Any) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **where)
    except Exception as error:  # the tokenizers' own errors derive from nothing narrower
        raise ValueError(f"cannot read the tokenizer in {str(folder)!r} ({_line(error)}): save it again with save_pretrained") from error


def _read_gguf(file: Path) -> tuple[Any, Any]:
    check_gguf(file)
    try:
        model = _causal_lm().from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager", local_files_only=True
        )
    except Exception as error:  # numpy's, struct's and gguf's errors on a damaged file
        raise ValueError(f"cannot read {str(file)!r} ({_line(error)}): damaged, or of an architecture transformers cannot read") from error
    # The weights are plain float32 by now; these marks of the packed ones would make save_pretrained refuse.
    for carrier in (model, model.config):
        if hasattr(carrier, "quantization_config"):
            delattr(carrier, "quantization_config")
    model.hf_quantizer = None
    model.is_quantized = False
    _check_finite(model, file)
    return model.eval(), _read_tokenizer(file.parent, gguf_file=file.name)


def _check_finite(model: Any, source: Path) -> None:
    for name, tensor in model.named_parameters():
        # The sum shows NaN and inf in one pass without a copy; a finite tensor whose sum overflows is looked at entry by entry.
        if not bool(tensor.sum().isfinite()) and not bool(tensor.isfinite().all()):
            raise ValueError(f"{str(source)!r}: weight {name!r} holds NaN or inf: take an intact copy")


def as_bridge(model: Any, tokenizer: Any, name: str) -> Any:
    """A Hugging Face decoder that is already in memory as a `TransformerBridge` in evaluation mode, silently.

    Raises:
        ValueError: TransformerLens does not support its architecture.
    """
    from transformer_lens.model_bridge import TransformerBridge

    try:
        bridge = TransformerBridge.boot_transformers(name, hf_model=model, tokenizer=tokenizer, device=model.device, dtype=model.dtype)
    except (ValueError, RuntimeError, AttributeError, KeyError, NotImplementedError) as error:
        kind = type(model).__name__
        raise ValueError(f"TransformerLens cannot read {name!r} ({kind}: {_line(error)}): use a decoder it supports") from error
    bridge.loaded_as = name
    return bridge.eval()


def _line(error: BaseException) -> str:
    """An exception's message on one line of bearable length."""
    return " ".join(str(error).split())[:200] or type(error).__name__

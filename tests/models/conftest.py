"""Small decoders in which nothing is zero: every bias, gain and weight is random, so that a term counted twice or left out shows."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from models import DecoderConfig, HookedDecoder

Make = Callable[..., HookedDecoder]


def make_decoder(mixer: Any = "ishe", *, mixers: Any = None, tokenizer: Any = None, seed: int = 0, **fields: Any) -> HookedDecoder:
    shape = {"n_layers": 2, "d_model": 8, "n_ctx": 10, "d_vocab": 23, "n_heads": 2, "mixer_bias": True, "unembed_bias": True}
    torch.manual_seed(seed)
    model = HookedDecoder(DecoderConfig(mixer=mixer, **{**shape, **fields}), mixers, tokenizer)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.4)
            if name.endswith(".w"):
                parameter.add_(1)
    return model.eval()


@pytest.fixture
def make() -> Make:
    return make_decoder


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(["a cat sat on a mat, a cat sat on a hat"] * 20, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def live_bytes() -> Any:
    """`LiveBytes` of the benchmarks: bytes in storages created inside a block."""
    spec = importlib.util.spec_from_file_location("live", Path(__file__).parents[2] / "benchmarks" / "live.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.LiveBytes

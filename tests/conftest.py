"""Shapes in signatures are checked while tests run; nothing here reaches the network."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from jaxtyping import install_import_hook  # noqa: E402

install_import_hook(["models", "analyses", "interp"], "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

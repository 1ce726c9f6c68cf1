"""Hooked decoders: attention and Extractors behind TransformerLens' hook points."""

from .config import DecoderConfig
from .decoder import HookedDecoder
from .extractor import Extractor

__all__ = ["DecoderConfig", "Extractor", "HookedDecoder"]

"""One frozen, validated description of a decoder. Nothing here touches torch."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from typing import Any, get_args, get_type_hints

EXTRACTORS = ("she", "ishe", "kshe", "he", "ihe", "khe")
MIXERS = ("mha", *EXTRACTORS)
LAYOUTS = ("serial", "swapped", "parallel", "mixer_only", "ffn_only")
NORMS = ("ln", "rms", "none")
ACTIVATIONS = ("gelu", "relu")
POSITIONS = ("learned", "none")


def near_misses(got: str, known: Any) -> str:
    """The tail of an error message: the nearest known names, or all of them when none is near."""
    known = sorted(known)
    close = get_close_matches(got, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else f"known: {', '.join(map(repr, known))}"


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """What a decoder is made of; a value that exists is a valid one.

    Args:
        n_layers: Number of layers.
        d_model: Width of the residual stream.
        n_ctx: Longest sequence, and the number of lags an Extractor knows.
        d_vocab: Vocabulary size.
        mixer: Sublayer 1, one name for all layers or one per layer: ``mha``, ``she``, ``ishe``, ``kshe``, ``he``, ``ihe``, ``khe``, or the
            name of a mixer of your own that `HookedDecoder(config, mixers={name: cls})` is given.
        layout: ``serial``, ``swapped`` (FFN first), ``parallel``, ``mixer_only``, ``ffn_only``; one or one per layer.
        n_heads: Heads of every ``mha`` layer; must divide ``d_model`` if there is one.
        d_mlp: Width of the FFN; None means ``4 * d_model``.
        norm: Pre-norm of every sublayer and of the unembedding: ``ln``, ``rms`` or ``none``.
        norm_eps: Added to the variance (mean square) inside the norm's root.
        act_fn: ``gelu`` (exact, erf) or ``relu``.
        positions: ``learned`` or ``none``; None means ``learned`` if any layer is ``mha``, else ``none``.
        dropout: Probability, applied to each sublayer's output, in training mode only.
        mixer_bias: Biases in sublayer 1.
        mlp_bias: Biases in the FFN.
        unembed_bias: A bias on the logits.

    Raises:
        ValueError: A value outside these; the message names the field, what it got and what it wants.
        TypeError: A field of the wrong type.

    >>> DecoderConfig(n_layers=2, d_model=8, n_ctx=16, d_vocab=50, mixer=("mha", "ishe")).positions
    'learned'
    """

    n_layers: int
    d_model: int
    n_ctx: int
    d_vocab: int
    mixer: str | Sequence[str]
    layout: str | Sequence[str] = "serial"
    n_heads: int = 4
    d_mlp: int | None = None
    norm: str = "ln"
    norm_eps: float = 1e-5
    act_fn: str = "gelu"
    positions: str | None = None
    dropout: float = 0.0
    mixer_bias: bool = False
    mlp_bias: bool = True
    unembed_bias: bool = False

    def __post_init__(self) -> None:
        for name in ("mixer", "layout"):
            if isinstance(getattr(self, name), list):  # JSON has no tuples; a frozen value holds nothing that can change
                object.__setattr__(self, name, tuple(getattr(self, name)))
        hints = get_type_hints(type(self))
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name), hints[field.name])
        for name in ("n_layers", "d_model", "n_ctx", "d_vocab", "n_heads", "d_mlp"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name in ("mixer", "layout"):
            value = getattr(self, name)
            if not isinstance(value, str) and len(value) != self.n_layers:
                raise ValueError(f"{name} names {len(value)} layers, n_layers is {self.n_layers}: give one name, or one per layer")
        for name, known in (("norm", NORMS), ("act_fn", ACTIVATIONS), ("positions", (*POSITIONS, None))):
            _check_choice(name, getattr(self, name), known)
        for layout in self.layer_layouts:
            _check_choice("layout", layout, LAYOUTS)
        if not all(name.isidentifier() for name in self.layer_mixers):
            raise ValueError(f"mixer must be a name like 'ishe', got {self.mixer!r}")
        if "mha" in self.layer_mixers and self.d_model % self.n_heads:
            raise ValueError(f"n_heads must divide d_model for mha, got n_heads={self.n_heads}, d_model={self.d_model}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if not self.norm_eps > 0:
            raise ValueError(f"norm_eps must be positive, got {self.norm_eps}")
        if self.d_mlp is None:
            object.__setattr__(self, "d_mlp", 4 * self.d_model)
        if self.positions is None:
            object.__setattr__(self, "positions", "learned" if "mha" in self.layer_mixers else "none")

    @property
    def layer_mixers(self) -> tuple[str, ...]:
        """The mixer's name, layer by layer."""
        return (self.mixer,) * self.n_layers if isinstance(self.mixer, str) else tuple(self.mixer)

    @property
    def layer_layouts(self) -> tuple[str, ...]:
        """The layout, layer by layer."""
        return (self.layout,) * self.n_layers if isinstance(self.layout, str) else tuple(self.layout)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, every field present.

        >>> config = DecoderConfig(n_layers=1, d_model=8, n_ctx=16, d_vocab=50, mixer="ishe")
        >>> DecoderConfig.from_dict(config.to_dict()) == config
        True
        """
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "DecoderConfig":
        """The inverse of `to_dict`; closed-world: a key too many or too few is a ValueError that names it."""
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                raise ValueError(f"unknown key {key!r} in a decoder's configuration: {near_misses(key, known)}")
        if missing := [key for key in known if key not in values]:
            raise ValueError(f"a decoder's configuration lacks {', '.join(map(repr, missing))}")
        return cls(**values)


def _check_type(name: str, value: Any, hint: Any) -> None:
    """isinstance for the few types a config uses; a bool is no int, an int is a fine float."""
    allowed = tuple(get_args(hint)) if not isinstance(hint, type) else (hint,)
    plain = tuple(getattr(kind, "__origin__", kind) for kind in allowed)
    if float in plain:
        plain += (int,)
    if (isinstance(value, bool) and bool not in plain) or not isinstance(value, plain):
        wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in plain)
        raise TypeError(f"{name} must be {wanted}, got {type(value).__name__} {value!r}")
    if isinstance(value, tuple) and not all(isinstance(item, str) for item in value):
        raise TypeError(f"{name} must hold names, got {value!r}")


def _check_choice(name: str, value: Any, known: tuple[Any, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(repr(choice) for choice in known)}, got {value!r}")

import json

import pytest

from models import DecoderConfig

GOOD = {"n_layers": 2, "d_model": 8, "n_ctx": 16, "d_vocab": 50, "mixer": "ishe"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_layers": 0}, "n_layers must be at least 1, got 0"),
        ({"layout": "sereal"}, "layout must be one of 'serial', 'swapped', 'parallel', 'mixer_only', 'ffn_only', got 'sereal'"),
        ({"layout": ("serial",)}, "layout names 1 layers, n_layers is 2"),
        ({"mixer": ("she",) * 3}, "mixer names 3 layers, n_layers is 2"),
        ({"mixer": "not a name"}, "mixer must be a name like 'ishe'"),
        ({"norm": "layer"}, "norm must be one of 'ln', 'rms', 'none', got 'layer'"),
        ({"act_fn": "swish"}, "act_fn must be one of 'gelu', 'relu', got 'swish'"),
        ({"positions": "rotary"}, "positions must be one of 'learned', 'none'"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"norm_eps": 0.0}, "norm_eps must be positive"),
        ({"mixer": "mha", "n_heads": 3}, "n_heads must divide d_model for mha, got n_heads=3, d_model=8"),
    ],
)
def test_a_wrong_value_is_named(fields, message):
    with pytest.raises(ValueError, match=message):
        DecoderConfig(**{**GOOD, **fields})


@pytest.mark.parametrize(
    "fields", [{"n_layers": "2"}, {"n_layers": True}, {"mlp_bias": 1}, {"mixer": 3}, {"mixer": (1, 2)}, {"dropout": "0"}]
)
def test_a_wrong_type_is_named(fields):
    with pytest.raises(TypeError, match=next(iter(fields))):
        DecoderConfig(**{**GOOD, **fields})


def test_defaults_are_resolved():
    assert DecoderConfig(**GOOD).positions == "none"
    assert DecoderConfig(**{**GOOD, "mixer": ("ishe", "mha")}).positions == "learned"
    assert DecoderConfig(**GOOD).d_mlp == 32
    assert DecoderConfig(**GOOD, layout=["swapped", "parallel"]).layer_layouts == ("swapped", "parallel")


def test_json_round_trip_and_closed_world():
    config = DecoderConfig(**{**GOOD, "mixer": ("ishe", "mha")}, layout=("serial", "ffn_only"), dropout=0.1)
    values = json.loads(json.dumps(config.to_dict()))
    assert DecoderConfig.from_dict(values) == config
    with pytest.raises(ValueError, match=r"unknown key 'n_layer'.*did you mean 'n_layers'"):
        DecoderConfig.from_dict({**values, "n_layer": 2})
    del values["norm"]
    with pytest.raises(ValueError, match="lacks 'norm'"):
        DecoderConfig.from_dict(values)

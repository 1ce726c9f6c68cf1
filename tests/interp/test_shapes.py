"""shapes: the article's table, from a run; on the meta device, so that its sizes cost nothing."""

import json

import pytest

from interp import cli
from interp.shapes import shapes
from models import DecoderConfig
from models.config import MIXERS


def config(mixer="mha", **fields):
    return DecoderConfig(**{"n_layers": 1, "d_model": 512, "n_ctx": 20, "d_vocab": 50_000, "mixer": mixer, "n_heads": 8} | fields)


def test_the_articles_table():
    """b = 1, s = 20, v = 50,000, d = 512, 8 heads: (1, 8, 20, 64) to (1, 20, 512), projected, against (1, 20, 8, 512), summed."""
    rows = {row.step: row for row in shapes(config()).rows}
    assert rows["tokens"].concatenated == (1, 20)
    assert rows["embedding"].concatenated == (1, 20, 512)
    assert rows["scores"].concatenated == rows["attention weights"].summed == (1, 8, 20, 20)
    assert rows["heads side by side"].concatenated == (1, 8, 20, 64)
    assert rows["heads concatenated"].concatenated == (1, 20, 512)
    assert rows["each head projected"].summed == (1, 20, 8, 512)
    assert rows["projected | summed over heads"].concatenated == rows["projected | summed over heads"].summed == (1, 20, 512)
    assert rows["logits"].concatenated == (1, 20, 50_000)
    assert [r.step for r in rows.values() if r.differs] == ["heads side by side", "heads concatenated", "each head projected"]


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_hook_point_is_there_once_in_the_order_of_the_run(mixer):
    from models import HookedDecoder

    small = config(mixer, n_layers=2, d_model=16, d_vocab=30, n_heads=2, n_ctx=5)
    hooks = [row.hook for row in shapes(small, batch=3, seq=4).rows if row.hook]
    assert sorted(hooks) == sorted(HookedDecoder(small).hook_dict)
    assert hooks[0] == "hook_embed"
    if mixer != "mha":
        rows = {row.step: row for row in shapes(small, batch=3, seq=4).rows}
        assert rows["last row: rows concatenated"].concatenated == (3, 64)
        assert rows["last row: each row through its lag"].summed == (3, 4, 16)
        assert rows["last row: projected | summed over lags"].differs is False


def test_doors():
    with pytest.raises(TypeError, match=r"config: .*got dict"):
        shapes({})
    with pytest.raises(ValueError, match="seq: 21 tokens do not fit"):
        shapes(config(), seq=21)
    with pytest.raises(ValueError, match="batch: "):
        shapes(config(), batch=0)
    with pytest.raises(ValueError, match="'gma' is not built in"):
        shapes(config("gma"))


def test_the_command(capsys):
    args = ["shapes", "--batch", "1", "--seq", "20", "--vocab", "50000", "--d-model", "512", "--heads", "8"]
    assert cli.main(args) == 0
    out = capsys.readouterr().out
    assert out.count("differs") == 3
    for shape in ("(1, 8, 20, 64)", "(1, 20, 8, 512)", "(1, 20, 50000)"):
        assert shape in out
    assert cli.main([*args, "--json", "--mixer", "ishe"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {"step", "hook", "concatenated", "summed", "differs"} <= set(rows[0])
    assert cli.main(["shapes", "--mixer", "ishee"]) == 2
    assert "did you mean" in capsys.readouterr().err
    assert cli.main(["shapes", "--heads", "7"]) == 2
    assert "n_heads must divide" in capsys.readouterr().err

"""The logit lens reads every stream with its own statistics: right at the last stream, honest that it does not add up."""

from typing import Any

import numpy as np
import pytest
import torch
from builders import decoder, prompt

from analyses.views import DecoderView
from interp import analysis

IDS = prompt(6)[0].tolist()


@pytest.mark.parametrize("norm", ["ln", "rms", "none"])
@pytest.mark.parametrize("mixer", ["mha", "ishe"])
def test_the_last_stream_is_what_the_model_printed(mixer: str, norm: str) -> None:
    model = decoder(mixer, norm=norm)
    found = analysis.lens(model, IDS, 7, 9, position=[2, -1])
    with torch.no_grad():
        logits = model(torch.tensor([IDS]))[0, [2, -1]].double()
    np.testing.assert_allclose(found.values[-1], (logits[:, 7] - logits[:, 9]).numpy(), atol=1e-5)
    assert [row[0] for row in found.top[-1]] == logits.argmax(-1).tolist()
    assert found.streams == ("blocks.0.hook_resid_pre", "blocks.1.hook_resid_pre", "blocks.1.hook_resid_post")
    assert found.positions == (2, 5)


def test_every_stream_is_read_with_its_own_statistics() -> None:
    model = decoder("mha", norm="ln")
    found = analysis.lens(model, IDS, 7, 9)
    _, cache = model.run_with_cache(torch.tensor([IDS]))
    with torch.no_grad():
        for i, name in enumerate(found.streams):
            logits = model.unembed(model.ln_final(cache[name]))[0, -1]
            assert found.values[i, 0] == pytest.approx(float(logits[7] - logits[9]), abs=1e-5)
            assert list(found.top[i][0]) == logits.topk(5).indices.tolist()


def test_it_does_not_add_up_and_says_so() -> None:
    """The ledger at the same stream freezes the final scale; the lens is off by far more than rounding, except at the end."""
    model = decoder("mha", norm="ln")
    found = analysis.lens(model, IDS, 7, 9)
    view = DecoderView.of(model)
    frozen = analysis.ledger(model, IDS, 7, 9, by="component", at=view.blocks[1].pre)
    last = analysis.ledger(model, IDS, 7, 9, by="component")
    constants = sum(v for e, v in zip(last.entries, last.values[:, 0], strict=True) if e.kind in ("norm_bias", "unembed_bias"))
    bound = last.certificate["native"].bound
    assert abs(found.values[1, 0] - (float(frozen.total[0]) + constants)) > 100 * bound
    assert abs(found.values[-1, 0] - float(last.total[0])) <= 2 * bound
    assert "do not add up (use a ledger for those)" in found.note


@pytest.mark.parametrize("name", ["gemma2", "granite", "llama"])
def test_caps_multipliers_and_families(name: str, tiny: Any) -> None:
    model = tiny(name)
    found = analysis.lens(model, IDS, 7, 12, prepend_bos=False)
    with torch.no_grad():
        logits = model(torch.tensor([IDS]), prepend_bos=False)[0, -1]
    assert found.values[-1, 0] == pytest.approx(float(logits[7] - logits[12]), abs=1e-5)
    assert len(found.streams) == 4


def test_the_frame_and_the_refusals() -> None:
    model = decoder("mha")
    found = analysis.lens(model, IDS, 7, position=[1, 2], top_k=3)
    frame = found.to_dataframe()
    assert list(frame.columns) == ["stream", "position", "value", "top"] and len(frame) == 6
    assert found.against is None
    for bad in (0, 30):
        with pytest.raises(ValueError, match=r"top_k: a whole number in 1..29 is needed"):
            analysis.lens(model, IDS, 7, top_k=bad)
    with pytest.raises(ValueError, match="outside the prompt"):
        analysis.lens(model, IDS, 7, position=9)

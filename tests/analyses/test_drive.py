"""The drive: its curves are distances and cosines, its null is made of the same writes, and parallel sublayers make one step."""

import numpy as np
import pytest
import torch

from analyses.capture import explicit, run_with_cache
from analyses.drive import Gain, approach, curves, drive, hooks, steps
from analyses.statistics import mean_interval
from analyses.views import DecoderView
from models.config import DecoderConfig
from models.decoder import HookedDecoder

D = 16


def test_one_write_has_no_order() -> None:
    with pytest.raises(ValueError, match="at least two are needed"):
        curves(torch.zeros(3, D), torch.zeros(1, 3, D))


def walk(aligned: bool, seed: int = 0) -> Gain:
    g = torch.Generator().manual_seed(seed)
    start = torch.randn(5, D, generator=g)
    if aligned:  # every write goes the same way
        writes = torch.randn(1, 5, D, generator=g) + 0.3 * torch.randn(12, 5, D, generator=g)
    else:  # far out, and back again
        out = 3 * torch.randn(6, 5, D, generator=g)
        writes = torch.cat([out, -out.flip(0) + 0.3 * torch.randn(6, 5, D, generator=g)])
    return curves(start, writes).gain


def test_drive_tells_a_straight_way_from_a_detour_and_a_random_walk() -> None:
    straight, detour = walk(True), walk(False)
    assert straight.distance > 0
    assert straight.cosine > 0
    assert detour.distance < 0
    gains = []
    for seed in range(60):
        g = torch.Generator().manual_seed(seed)
        gains.append(curves(torch.zeros(5, D), torch.randn(8, 5, D, generator=g), seed=seed).gain.distance)
    assert mean_interval(gains).low < 0 < mean_interval(gains).high  # a random walk is its own null


def test_the_approach_is_what_its_definition_says() -> None:
    g = torch.Generator().manual_seed(5)
    start, writes = torch.randn(4, D, generator=g).double(), torch.randn(7, 4, D, generator=g).double()
    parts = torch.cat([start[None], writes]).transpose(0, 1)
    distance, cosine = (c[:, 1:-1].mean() for c in approach(parts @ parts.transpose(1, 2)))
    streams = start + writes.cumsum(0)
    between, last = streams[:-1], streams[-1]
    assert float(distance) == pytest.approx(float(((between - last).norm(dim=-1) / (last - start).norm(dim=-1)).mean()))
    assert float(cosine) == pytest.approx(float(torch.cosine_similarity(between, last.expand_as(between), dim=-1).mean()))


def decoder(layout: str, n_layers: int = 3) -> HookedDecoder:
    torch.manual_seed(0)
    config = DecoderConfig(
        n_layers=n_layers, d_model=D, n_ctx=12, d_vocab=20, mixer="mha", layout=layout, n_heads=2, mixer_bias=True, unembed_bias=True
    )
    model = HookedDecoder(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def looked_at(model: HookedDecoder):
    view = DecoderView.of(model, "toy")
    ids = torch.arange(8)[None]
    with explicit(model):
        _, cache = run_with_cache(model, ids)
    return drive(view, cache, tokens=tuple("abcdefgh")), cache, view


@pytest.mark.parametrize("layout", ["serial", "swapped", "parallel", "mixer_only"])
def test_the_curves_are_read_off_the_streams_the_model_had(layout: str) -> None:
    result, cache, view = looked_at(decoder(layout))
    assert result.streams[0] == "start"
    assert len(result.streams) == len(result.layers) == len(result.distance) == len(result.cosine) == 1 + len(steps(view))
    last = cache["blocks.2.hook_resid_post"][0].double()
    start = cache["blocks.0.hook_resid_pre"][0].double()
    for layer in range(3):  # the stream after a layer is the last one of that layer
        stream = cache[f"blocks.{layer}.hook_resid_post"][0].double()
        at = max(i for i, at_layer in enumerate(result.layers) if at_layer == layer)
        assert result.distance[at] == pytest.approx(((stream - last).norm(dim=1) / (start - last).norm(dim=1)).numpy(), abs=1e-5)
        assert result.cosine[at] == pytest.approx(torch.cosine_similarity(stream, last).numpy(), abs=1e-5)
    assert result.distance[0] == pytest.approx(1)
    assert result.distance[-1] == pytest.approx(0, abs=1e-6)
    assert result.cosine[-1] == pytest.approx(1)


def test_sublayers_that_add_at_once_are_one_step() -> None:
    assert [label for label, _, _ in steps(DecoderView.of(decoder("parallel"), "toy"))] == ["L0 attn+mlp", "L1 attn+mlp", "L2 attn+mlp"]
    with pytest.raises(ValueError, match="at least two additions"):
        looked_at(decoder("parallel", n_layers=1))


def test_the_table_holds_the_means_and_the_null_starts_where_the_stream_does() -> None:
    result, _, view = looked_at(decoder("serial"))
    table = result.to_dataframe()
    assert list(table["stream"]) == list(result.streams)
    assert table["distance"].to_numpy() == pytest.approx(result.distance.mean(1))
    assert result.null_distance[:, 0] == pytest.approx(1)
    assert result.null_distance[:, -1] == pytest.approx(0, abs=1e-6)
    assert np.ptp(result.null_distance[:, 2]) > 0
    far, near = result.gains
    assert (far.mean(), near.mean()) == pytest.approx((result.gain.distance, result.gain.cosine))
    assert len(hooks(view)) == 7

"""The conformance kit passes our own mixers and refuses each way of being wrong, naming the check."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from interp.testing import check_mixer
from models import DecoderConfig
from models.extractor import Extractor


def made(kind: str, cls: type[Extractor] = Extractor) -> Callable[[DecoderConfig, int], Extractor]:
    return lambda config, layer: cls(dataclasses.replace(config, mixer=kind, mixer_bias=True), layer)


@pytest.mark.parametrize("kind", ["she", "ishe", "he", "ihe", "kshe", "khe"])
def test_our_own_mixers_pass(kind: str) -> None:
    report = check_mixer(made(kind))
    assert report.holds
    assert {c.name for c in report.checks} == {
        "surface", "writes", "native", "causal", "live", "padding", "equivalence", "ledger", "intervention", "can fail",
    }  # fmt: skip


class ShiftedWrites(Extractor):
    def writes(self, acts: Mapping[str, Tensor], u: Tensor, rows: Sequence[int]) -> Any:
        return super().writes({**acts, "input": acts["input"].roll(1, 1)}, u, rows)


class ForgottenConstant(Extractor):
    def constants(self, acts: Mapping[str, Tensor], u: Tensor, rows: Sequence[int]) -> Any:
        return {}


class SeesTheFuture(Extractor):
    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return super().forward(x, attention_mask) + 1e-3 * x.mean(1, keepdim=True)


class ForgetsTheMask(Extractor):
    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return super().forward(x, None)


class DeadHook(Extractor):
    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        self.hook_adjustment(x @ self.W_adj)
        point, self._modules["hook_adjustment"] = self._modules["hook_adjustment"], nn.Identity()
        try:
            return super().forward(x, attention_mask)
        finally:
            self._modules["hook_adjustment"] = point


@pytest.mark.parametrize(
    ("cls", "check"),
    [
        (ShiftedWrites, "writes"),
        (ForgottenConstant, "writes"),
        (SeesTheFuture, "causal"),
        (ForgetsTheMask, "padding"),
        (DeadHook, "live"),
    ],
)
def test_a_wrong_mixer_fails_the_check_that_is_meant_for_it(cls: type[Extractor], check: str) -> None:
    report = check_mixer(made("she", cls), on_failure="report")
    assert check in {c.name for c in report.checks if not c.holds}
    with pytest.raises(ValueError, match="not every check holds"):
        check_mixer(made("she", cls))


def test_what_is_no_mixer_is_refused_by_name() -> None:
    class NoWrites(nn.Module):
        def __init__(self, config: DecoderConfig, layer: int) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(config.d_model))

        def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            return x * self.scale

    with pytest.raises(TypeError, match="NoWrites lacks n_channels, channel_kind, reads, writes, constants, replay"):
        check_mixer(NoWrites)
    with pytest.raises(TypeError, match="mixer"):
        check_mixer(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_failure"):
        check_mixer(made("she"), on_failure="ignore")

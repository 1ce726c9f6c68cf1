"""Kept spectra: computed once, and never used for a weight that is not the one they came from."""

import copy
import gc
import io
import weakref

import pytest
import torch

from models.causal_sum import BLOCKED, FFT, SpectrumCache, fourier, spectra

CACHED = [BLOCKED, FFT]


@pytest.fixture
def transforms(monkeypatch):
    """How many transforms of lags have been computed."""
    counted, honest = [], spectra.lag_spectrum

    def count(W, n):
        counted.append(n)
        return honest(W, n)

    monkeypatch.setattr(spectra, "lag_spectrum", count)
    monkeypatch.setattr(fourier, "lag_spectrum", count)
    return counted


def weight(vector=False, t=70, d=4, seed=0):
    shape = (t, d) if vector else (t, d, d)
    return torch.nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))


def rows(t=70, d=4):
    return torch.randn(2, t, d, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kernel", CACHED, ids=lambda k: k.name)
@pytest.mark.parametrize("vector", [False, True])
def test_a_spectrum_is_computed_once_and_changes_nothing(kernel, vector, transforms):
    cache, W = SpectrumCache(), weight(vector)
    with torch.no_grad():
        first = kernel.sum(rows(), W, cache)
        computed = len(transforms)
        assert computed and torch.equal(kernel.sum(rows(), W, cache), first)
        assert len(transforms) == computed and cache.bytes_held > 0
        assert torch.equal(kernel.sum(rows(), W), first)


def adam(W):
    optimizer = torch.optim.AdamW([W], lr=1e-3)
    W.grad = torch.ones_like(W)
    optimizer.step()


def load(W):
    module = torch.nn.Module()
    module.W = W
    module.load_state_dict({"W": W.detach() * 2})


def in_place(W):
    with torch.no_grad():
        W[3].mul_(1.001)


def through_data(W):
    W.data[-1, 0, -1].add_(1e-7 * W.data[-1, 0, -1])


def exchange_lags(W):
    W.data[[1, 2]] = W.data[[2, 1]]


def exchange_channels(W):
    W.data[:] = W.data[:, :, [1, 0, 2, 3]]


def exchange_inputs(W):
    W.data[:] = W.data[:, [1, 0, 2, 3]]


def through_numpy(W):
    W.detach().numpy()[5, 1, 2] += 0.01


def other_storage(W):
    W.data = W.data * 2


def other_type(W):
    W.data = W.data.double() * 2


EDITS = [adam, load, in_place, through_data, exchange_lags, exchange_channels, exchange_inputs, through_numpy, other_storage, other_type]


@pytest.mark.parametrize("kernel", CACHED, ids=lambda k: k.name)
@pytest.mark.parametrize("edit", EDITS, ids=lambda f: f.__name__)
def test_a_spectrum_is_never_stale(kernel, edit):
    cache, W = SpectrumCache(), weight()
    with torch.no_grad():
        before = kernel.sum(rows(), W, cache)
    kept = W.detach().clone()
    edit(W)
    assert not torch.equal(W, kept)
    with torch.no_grad():
        assert torch.equal(kernel.sum(rows(), W, cache), kernel.sum(rows(), W))
        if edit not in (through_data, other_type):
            assert not torch.equal(kernel.sum(rows(), W, cache), before)


def test_a_spectrum_is_never_stale_after_to():
    module = torch.nn.Linear(4, 4)
    module.W, cache = weight(), SpectrumCache()
    with torch.no_grad():
        BLOCKED.sum(rows(), module.W, cache)
        module.to(torch.bfloat16)
        assert torch.equal(BLOCKED.sum(rows(), module.W, cache), BLOCKED.sum(rows(), module.W))
        module.to(torch.float32)
        assert torch.equal(BLOCKED.sum(rows(), module.W, cache), BLOCKED.sum(rows(), module.W))


def test_another_weight_is_another_spectrum_even_at_the_same_address():
    cache = SpectrumCache()
    with torch.no_grad():
        for seed in range(20):  # the allocator gives the same memory again
            W = weight(seed=seed)
            assert torch.equal(FFT.sum(rows(), W, cache), FFT.sum(rows(), W))
            del W


def test_lengths_are_kept_apart(transforms):
    cache, W = SpectrumCache(), weight()
    with torch.no_grad():
        for t in (70, 40, 33, 70, 40):
            assert torch.equal(BLOCKED.sum(rows(t), W, cache), BLOCKED.sum(rows(t), W))
            assert torch.equal(FFT.sum(rows(t), W, cache), FFT.sum(rows(t), W))


def test_a_growing_sequence_does_not_fill_the_memory(transforms):
    """The spectrum of a block does not depend on how many rows there are, and there is one a length."""
    cache, W = SpectrumCache(), weight(t=128)
    with torch.no_grad():
        for t in range(65, 128):
            BLOCKED.sum(rows(t), W, cache)
        assert transforms == [64, 128]
        for t in range(65, 128):
            FFT.sum(rows(t), W, cache)
    assert cache.bytes_held <= (33 + 65 + 97 + 129) * 16 * 8


@pytest.mark.parametrize("kernel", CACHED, ids=lambda k: k.name)
def test_never_where_a_gradient_of_the_weight_is_wanted(kernel):
    cache, W = SpectrumCache(), weight()
    with pytest.raises(RuntimeError, match="no gradient for its weight: call it under"):
        kernel.sum(rows(), W, cache)
    assert cache.bytes_held == 0
    x = rows().requires_grad_()  # a frozen weight lets a gradient through to the rows
    kernel.sum(x, W.detach(), cache).sum().backward()
    y = rows().requires_grad_()
    kernel.sum(y, W.detach()).sum().backward()
    assert torch.equal(x.grad, y.grad)


@pytest.mark.parametrize("kernel", CACHED, ids=lambda k: k.name)
def test_a_call_with_a_kept_spectrum_copies_no_weight(kernel, live_bytes):
    cache, W = SpectrumCache(), weight(t=140, d=64)
    with torch.no_grad():
        kernel.sum(rows(70, 64), W, cache)
        with live_bytes() as live:
            kernel.sum(rows(70, 64), W, cache)
    assert live.largest < W.nbytes / 2


def test_a_cache_keeps_no_weight_alive():
    cache, W = SpectrumCache(), weight()
    with torch.no_grad():
        FFT.sum(rows(), W, cache)
    gone = weakref.ref(W)
    del W
    gc.collect()
    assert gone() is None


def test_copies_and_pickles_are_empty():
    cache, W = SpectrumCache(), weight()
    with torch.no_grad():
        FFT.sum(rows(), W, cache)
    assert cache.bytes_held and copy.deepcopy(cache).bytes_held == 0
    buffer = io.BytesIO()
    torch.save(cache, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=False).bytes_held == 0


def test_inference_tensors_count_no_versions_and_are_not_kept():
    with torch.inference_mode():
        cache, W = SpectrumCache(), weight().clone()
        first = FFT.sum(rows(), W, cache)
        W.mul_(2)
        assert not torch.equal(FFT.sum(rows(), W, cache), first) and cache.bytes_held == 0

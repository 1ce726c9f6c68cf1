import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.causal_sum import LITERAL, PER_LAG, causal_sum

KERNELS = [LITERAL, PER_LAG]


def draw(seed, b, t, d, vector, dtype, spare=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(b, t, d, generator=generator) * scale).to(dtype)
    shape = (t + spare, d) if vector else (t + spare, d, d)
    return x, torch.randn(shape, generator=generator).to(dtype)


cases = {
    "seed": st.integers(0, 2**16),
    "b": st.integers(1, 3),
    "t": st.integers(1, 9),
    "d": st.integers(1, 6),
    "vector": st.booleans(),
    "spare": st.integers(0, 2),
}


@settings(deadline=None, max_examples=60)
@given(**cases, dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]))
def test_kernels_agree_with_the_exact_sum_within_their_own_bound(seed, b, t, d, vector, spare, dtype):
    x, W = draw(seed, b, t, d, vector, dtype, spare)
    exact = LITERAL.sum(x.double(), W.double())
    slack = LITERAL.bound(x.double(), W.double())  # the float64 reference rounds too
    for kernel in KERNELS:
        y = kernel.sum(x, W)
        assert y.dtype == dtype
        assert ((y.double() - exact).abs() <= kernel.bound(x, W) + slack).all()
    gap = (LITERAL.sum(x, W).double() - PER_LAG.sum(x, W).double()).abs()
    assert (gap <= LITERAL.bound(x, W) + PER_LAG.bound(x, W)).all()


@pytest.mark.parametrize("vector", [False, True])
def test_the_bound_sees_two_exchanged_lags(vector):
    x, W = draw(0, 2, 6, 4, vector, torch.float32)
    wrong = W.clone()
    wrong[[1, 2]] = W[[2, 1]]
    gap = (PER_LAG.sum(x, wrong).double() - LITERAL.sum(x.double(), W.double())).abs()
    assert (gap / PER_LAG.bound(x, W)).max() > 1000


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("poison", [1e30, torch.inf, torch.nan])
def test_causal_bitwise_whatever_the_future_holds(kernel, vector, poison):
    x, W = draw(1, 2, 9, 5, vector, torch.float32)
    before = kernel.sum(x, W)
    for i in range(1, 9):
        later = x.clone()
        later[:, i:] = poison
        assert torch.equal(kernel.sum(later, W)[:, :i], before[:, :i])
        assert not torch.equal(kernel.sum(later, W)[:, i:], before[:, i:])


@pytest.mark.parametrize("vector", [False, True])
def test_gradients_of_the_custom_function(vector):
    x, W = draw(2, 2, 4, 3, vector, torch.float64, spare=1)
    x, W = x.requires_grad_(), W.requires_grad_()
    assert torch.autograd.gradcheck(PER_LAG.sum, (x, W))
    assert torch.autograd.gradcheck(lambda x: PER_LAG.sum(x, W.detach()), (x,))
    assert torch.autograd.gradcheck(lambda W: PER_LAG.sum(x.detach(), W), (W,))


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_equal_those_of_the_literal_equation(vector, dtype):
    x, W = draw(3, 2, 7, 4, vector, dtype, spare=2)
    grads = []
    for kernel in KERNELS:
        leaves = x.clone().requires_grad_(), W.clone().requires_grad_()
        kernel.sum(*leaves).float().pow(2).sum().backward()
        grads.append([leaf.grad for leaf in leaves])
    for ours, reference in zip(*grads, strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(
            ours, reference, rtol=3e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-1 if dtype == torch.bfloat16 else 1e-4
        )
    assert (grads[1][1][7:] == 0).all()  # lags that no pair of rows has


def test_16_bit_sums_round_once_not_at_every_lag():
    """bf16 accumulation grows like sqrt(t) (TL#104's kind); one final rounding stays at half a unit."""
    x, W = torch.ones(1, 400, 1, dtype=torch.bfloat16), torch.full((400, 1, 1), 1.0, dtype=torch.bfloat16)
    assert PER_LAG.sum(x, W)[0, 399, 0] == 400  # added up in bf16 it sticks at 256


def test_more_rows_than_lags_is_refused():
    x, W = draw(4, 1, 5, 3, False, torch.float32)
    with pytest.raises(ValueError, match="5 rows need as many lags, this kernel has 4: cut the sequence to 4 rows"):
        causal_sum(x, W[:4])


def test_meta_device():
    assert causal_sum(torch.empty(2, 5, 3, device="meta"), torch.empty(6, 3, 3, device="meta")).shape == (2, 5, 3)
    assert causal_sum(torch.empty(2, 5, 3, device="meta"), torch.empty(6, 3, device="meta")).shape == (2, 5, 3)

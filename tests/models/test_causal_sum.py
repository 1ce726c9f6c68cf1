import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.causal_sum import BLOCKED, DFT, FFT, LITERAL, PER_LAG, causal_sum, pick_kernel

DIRECT, CAUSAL, KERNELS = [LITERAL, PER_LAG], [LITERAL, PER_LAG, BLOCKED], [LITERAL, PER_LAG, BLOCKED, FFT, DFT]
CASES = [(kernel, vector) for kernel in KERNELS for vector in (False, True) if not (kernel is DFT and vector)]
each_case = pytest.mark.parametrize(("kernel", "vector"), CASES, ids=[f"{k.name}-{'vector' if v else 'full'}" for k, v in CASES])


def draw(seed, b, t, d, vector, dtype, spare=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(b, t, d, generator=generator) * scale).to(dtype)
    shape = (t + spare, d) if vector else (t + spare, d, d)
    return x, torch.randn(shape, generator=generator).to(dtype)


def kernels(vector):
    return [kernel for kernel in KERNELS if not (kernel is DFT and vector)]


cases = {
    "seed": st.integers(0, 2**16),
    "b": st.integers(1, 3),
    "t": st.integers(1, 9) | st.sampled_from([31, 32, 33, 63, 64, 65, 97, 130]),
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
    for kernel in kernels(vector):
        y = kernel.sum(x, W)
        assert y.dtype == dtype
        assert ((y.double() - exact).abs() <= kernel.bound(x, W) + slack).all()
    gap = (LITERAL.sum(x, W).double() - PER_LAG.sum(x, W).double()).abs()
    assert (gap <= LITERAL.bound(x, W) + PER_LAG.bound(x, W)).all()


@pytest.mark.parametrize("t", [40, 128, 200])
@each_case
def test_one_outlying_token_stays_within_the_bound(kernel, vector, t):
    """A pretrained model has tokens 1e4 times the median; a transform's error is proportional to them in every row."""
    x, W = draw(5, 2, t, 4, vector, torch.float32)
    x[:, t // 2] *= 1e4
    exact = LITERAL.sum(x.double(), W.double())
    assert ((kernel.sum(x, W).double() - exact).abs() <= kernel.bound(x, W)).all()


@each_case
def test_the_bound_sees_two_exchanged_lags(kernel, vector):
    for t, dtype, least in ((6, torch.float32, 100), (70, torch.float64, 1e6)):
        x, W = draw(0, 2, t, 4, vector, dtype)
        wrong = W.clone()
        wrong[[1, 2]] = W[[2, 1]]
        gap = (kernel.sum(x, wrong).double() - LITERAL.sum(x.double(), W.double())).abs()
        assert (gap / kernel.bound(x, W)).max() > least


@each_case
def test_fp32_error_is_small_beside_the_result(kernel, vector):
    x, W = draw(6, 2, 256, 16, vector, torch.float32)
    exact = LITERAL.sum(x.double(), W.double())
    assert (kernel.sum(x, W) - exact).norm() <= 1e-6 * exact.norm()


@pytest.mark.parametrize("kernel", CAUSAL, ids=lambda k: k.name)
@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("poison", [1e30, torch.inf, torch.nan])
def test_causal_bitwise_whatever_the_future_holds(kernel, vector, poison):
    for t in (9, 97) if kernel is not LITERAL else (9,):
        x, W = draw(1, 2, t, 5, vector, torch.float32)
        before = kernel.sum(x, W)
        for i in range(1, t, 1 if t < 32 else 5):
            later = x.clone()
            later[:, i:] = poison
            assert torch.equal(kernel.sum(later, W)[:, :i], before[:, :i])
            assert not torch.equal(kernel.sum(later, W)[:, i:], before[:, i:])


@pytest.mark.parametrize(("kernel", "vector"), [(FFT, False), (FFT, True), (DFT, False)])
def test_a_plain_transform_is_not_causal(kernel, vector):
    """Why it is used for training and statistics alone: an infinity in the last row reaches the first."""
    x, W = draw(1, 2, 40, 5, vector, torch.float32)
    x[:, -1] = torch.inf
    assert kernel.sum(x, W)[:, 0].isnan().all()


@pytest.mark.parametrize("vector", [False, True])
def test_the_rule(vector):
    def pick(b, t, purpose):
        return pick_kernel(*draw(0, b, t, 2, vector, torch.float32), purpose)

    for b, t in ((1, 1), (16, 128), (2, 600)):
        assert pick(b, t, "exact") is PER_LAG
    assert pick(1, 255, "frozen") is PER_LAG and pick(1, 256, "frozen") is BLOCKED
    assert pick(16, 31, "training") is PER_LAG and pick(16, 128, "training") is FFT
    assert pick(16, 64, "training") is (FFT if vector else DFT)
    assert pick(3, 128, "training") is (FFT if vector else PER_LAG)


@each_case
def test_gradients_of_the_custom_functions(kernel, vector):
    x, W = draw(2, 2, 4, 3, vector, torch.float64, spare=1)
    if kernel is BLOCKED:
        x, W = draw(2, 1, 67, 1, vector, torch.float64, spare=1)
    x, W = x.requires_grad_(), W.requires_grad_()
    assert torch.autograd.gradcheck(kernel.sum, (x, W))
    assert torch.autograd.gradcheck(lambda x: kernel.sum(x, W.detach()), (x,))
    assert torch.autograd.gradcheck(lambda W: kernel.sum(x.detach(), W), (W,))


@pytest.mark.parametrize("t", [7, 70])
@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_equal_those_of_the_literal_equation(vector, dtype, t):
    x, W = draw(3, 2, t, 4, vector, dtype, spare=2)
    leaves = x.double().requires_grad_(), W.double().requires_grad_()
    LITERAL.sum(*leaves).pow(2).sum().backward()
    for kernel in kernels(vector):
        ours = x.clone().requires_grad_(), W.clone().requires_grad_()
        kernel.sum(*ours).float().pow(2).sum().backward()
        for leaf, reference in zip(ours, leaves, strict=True):
            assert leaf.grad.dtype == dtype
            assert (leaf.grad - reference.grad).norm() <= (1e-2 if dtype == torch.bfloat16 else 1e-6) * reference.grad.norm()
        assert (ours[1].grad[t:] == 0).all()  # lags that no pair of rows has


@each_case
def test_16_bit_sums_round_once_not_at_every_lag(kernel, vector):
    """bf16 accumulation grows like sqrt(t): added up in bf16 this sticks at 256."""
    if kernel is LITERAL:
        return
    shape = (400, 1) if vector else (400, 1, 1)
    x, W = torch.ones(1, 400, 1, dtype=torch.bfloat16), torch.full(shape, 1.0, dtype=torch.bfloat16)
    assert kernel.sum(x, W)[0, 399, 0] == 400


def test_more_rows_than_lags_is_refused():
    x, W = draw(4, 1, 5, 3, False, torch.float32)
    with pytest.raises(ValueError, match="5 rows need as many lags, this kernel has 4: cut the sequence to 4 rows"):
        causal_sum(x, W[:4])


@pytest.mark.parametrize("purpose", ["exact", "frozen", "training"])
def test_meta_device(purpose):
    x = torch.empty(4, 300, 3, device="meta")
    assert causal_sum(x, torch.empty(301, 3, 3, device="meta"), purpose).shape == (4, 300, 3)
    assert causal_sum(x, torch.empty(301, 3, device="meta"), purpose).shape == (4, 300, 3)


# ---- memory ----


def test_live_bytes_counts(live_bytes):
    with live_bytes() as live:
        a = torch.zeros(1000)
        a = (a + 1) + 1
        a[:10].add_(1)
    assert live.peak == 12000 and live.live == 4000


@pytest.mark.parametrize("t", [64, 65, 96, 100])
@pytest.mark.parametrize("kernel", [PER_LAG, BLOCKED, FFT, DFT], ids=lambda k: k.name)
def test_memory_is_a_few_times_the_weight(kernel, t, live_bytes):
    x, W = draw(7, 1, t, 256, False, torch.float32)  # W is the larger by far
    with live_bytes() as live, torch.no_grad():
        kernel.sum(x, W)
    assert live.peak <= 5 * W.nbytes
    x, W = x.requires_grad_(), W.requires_grad_()
    with live_bytes() as live:
        kernel.sum(x, W).sum().backward()
    assert live.peak <= 8 * W.nbytes

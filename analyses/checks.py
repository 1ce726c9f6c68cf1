"""The five checks of a ledger's certificate, on tensors: continuity, algebra, rows, native, scale.

What each compares and by which bound it is judged stands in the docstrings; the bounds themselves are in certificate.py.
"""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from .certificate import DOUBLE, ROW_SIGMAS, SIGMAS, Budget, Check, Precision, Products, check, gamma, unit
from .views import Block, DecoderView

At = Callable[[str], Tensor]
"""The cached tensor of a name at the ledger's rows, in float64."""


def largest_partial(at: At, block: Block) -> Tensor:
    """Parallel sublayers are added in an order the hooks do not show: the largest partial sum of any order bounds its rounding."""
    pre, (a, b) = at(block.pre), (at(s.out) for s in block.sublayers)
    return torch.stack([(a + b).abs(), (pre + a).abs(), (pre + b).abs()]).amax(0)


def continuity(view: DecoderView, at: At, count: int, blocks: Sequence[Block], stop: str, read_input: Tensor | None) -> list[Check]:
    """`r_k` against `r_(k-1) + o_k`, coordinate by coordinate, and exact hand-over between blocks; one check a row, the worst place."""
    # Half an epsilon of the result, and a last bit for our own float64 sum of two narrower values.
    u_s = unit(view.dtype) + 2 * unit(torch.float64)
    worst: list[Check] = [check("continuity", 0.0, 0.0, kind="proved") for _ in range(count)]

    def step(where: str, after: Tensor, expected: Tensor, bound: Tensor) -> None:
        gap = (after - expected).abs()
        ratios = torch.where(gap == 0, torch.zeros_like(gap), gap / bound)
        for r in range(count):
            c = int(ratios[r].nan_to_num(nan=math.inf).argmax())
            found = check("continuity", float(gap[r, c]), float(bound[r, c]), kind="proved", where=where)
            if not (found.ratio <= worst[r].ratio) or worst[r].where == "":
                worst[r] = found

    first = view.blocks[0]
    pre = at(first.pre)
    step("embeddings", pre, sum((at(n) for n in view.embeds), torch.zeros_like(pre)), u_s * pre.abs())
    for i, block in enumerate(view.blocks):
        if i and (block in blocks or stop in (block.pre, block.mid)):
            before, here = at(view.blocks[i - 1].post), at(block.pre)
            step(f"{block.pre} == {view.blocks[i - 1].post}", here, before, torch.zeros_like(here))
        if stop == block.pre:
            break
        here = at(block.pre)
        if block.mid is not None:
            mid = at(block.mid)
            step(block.sublayers[0].label, mid, here + at(block.sublayers[0].out), u_s * mid.abs())
            if stop == block.mid:
                break
            post = at(block.post)
            step(block.sublayers[1].label, post, mid + at(block.sublayers[1].out), u_s * post.abs())
        else:
            post = at(block.post)
            bound = u_s * post.abs()
            if len(block.sublayers) > 1:
                bound = bound + u_s * largest_partial(at, block)
            step(block.sublayers[-1].label, post, here + sum((at(s.out) for s in block.sublayers), torch.zeros_like(here)), bound)
        if stop == block.post:
            break
    if stop == view.blocks[-1].post and read_input is not None:
        last = at(stop)
        step("readout input", read_input, last, torch.zeros_like(last))
    return worst


def final_scale(view: DecoderView, cached: Tensor, last: Tensor, scale: Tensor, p: Precision) -> list[Check]:
    norm = view.readout.norm
    assert norm is not None
    condition = torch.ones_like(scale)
    if norm.centred:
        centred = norm.centre(last)
        condition = 1 + 2 * last.mean(-1, keepdim=True).square() / centred.square().mean(-1, keepdim=True).clamp(min=1e-100)
    bound = (gamma(view.d_model + 4, p.norm) / 2 * condition + 3 * p.norm) * scale
    gap = (cached - scale).abs()
    return [check("scale", float(gap[r]), float(bound[r]), kind="proved", where="ln_final.hook_scale") for r in range(len(scale))]


def judge(
    values: Float[Tensor, "n r"],
    budget: Budget,
    row_checks: Sequence[tuple[str, Tensor]],
    native: Precision,
    linear: Tensor,
    replay_linear: Tensor,
    soft_cap: Tensor,
    printed: Tensor,
    continuity: list[Check],
    scale: list[Check] | None,
) -> list[list[Check]]:
    """The checks of every row. `linear` is the ledger's sum before the cap, `replay_linear` the replay's."""
    own_sum = Products(
        n=len(values),
        modulus=values.abs().sum(0),
        square=values.square().sum(0),
        out_square=linear.square(),
        out_modulus=linear.abs(),
    )
    double_sigma = (2 * budget.sigma(DOUBLE).square() + own_sum.variance(DOUBLE)).sqrt()
    double_proved = 2 * budget.proved(DOUBLE) + own_sum.proved(DOUBLE)
    native_sigma, native_proved = budget.sigma(native), budget.proved(native)
    row_sigma = {row: (budget.sigma(native, [row]), budget.proved(native, [row])) for row, _ in row_checks}
    out = []
    for r in range(values.shape[1]):
        found = [
            continuity[r],
            check(
                "algebra",
                abs(float(linear[r] - replay_linear[r])),
                SIGMAS * float(double_sigma[r]),
                kind="practical",
                proved=float(double_proved[r]),
                where="ledger against float64 replay",
            ),
        ]
        rows = [
            check(
                "rows",
                abs(float(gap[r])),
                ROW_SIGMAS * float(row_sigma[label][0][r]),
                kind="practical",
                proved=float(row_sigma[label][1][r]),
                where=label,
            )
            for label, gap in row_checks
        ]
        if rows:
            found.append(max(rows, key=lambda c: math.inf if math.isnan(c.ratio) else c.ratio))
        replay = float(replay_linear[r] + soft_cap[r])
        found.append(
            check(
                "native",
                abs(replay - float(printed[r])),
                SIGMAS * float(native_sigma[r]),
                kind="practical",
                proved=float(native_proved[r]),
                where="float64 replay against the printed number",
            )
        )
        if scale is not None:
            found.append(scale[r])
        out.append(found)
    return out

"""The pre-norms, fused when nobody listens and split at the two hook points when somebody does.

One definition for every norm: `hook_scale` is the divisor, `hook_normalized` is ``(x - mean)/scale`` (RMS: ``x/scale``) before gain and
bias, `affine` applies gain and bias. Statistics of 16-bit inputs are taken in float32 on both paths.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint


def heard(*hooks: nn.Module) -> bool:
    """Whether any torch or TransformerLens hook, forward or backward, sits on one of the hook points."""
    for h in hooks:  # noqa: SIM110  # a generator costs twice as much, and this is asked three times a layer
        if h._forward_hooks or h._forward_pre_hooks or h._backward_hooks or h._backward_pre_hooks:
            return True
    return False


class Norm(nn.Module):
    """LayerNorm (``ln``: gain `w`, bias `b`) or RMSNorm (``rms``: gain `w`, `b` is None).

    The two paths agree within ``8 (d + 8) u (1 + |x| / scale) |w| + 2 u |b|`` with u the unit roundoff of the arithmetic, d the width
    and |x| the largest entry of the row; not bitwise.
    """

    def __init__(self, kind: str, d_model: int, eps: float) -> None:
        super().__init__()
        self.kind, self.eps = kind, eps
        self.force_explicit = False
        self.w = nn.Parameter(torch.ones(d_model))
        self.b = nn.Parameter(torch.zeros(d_model)) if kind == "ln" else None
        self.hook_scale = HookPoint()  # (b,t,1)
        self.hook_normalized = HookPoint()  # (b,t,d)

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        if self.force_explicit or heard(self.hook_scale, self.hook_normalized):
            return self._explicit(x)
        if self.kind == "ln":
            return F.layer_norm(x, self.w.shape, self.w, self.b, self.eps)
        return F.rms_norm(x, self.w.shape, self.w, self.eps)

    def _explicit(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        x_ = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.kind == "ln":
            x_ = x_ - x_.mean(-1, keepdim=True)
        scale = self.hook_scale((x_.pow(2).mean(-1, keepdim=True) + self.eps).sqrt())
        return self.affine(self.hook_normalized(x_ / scale)).to(x.dtype)

    def affine(self, normalized: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
        """Gain and bias; what the explicit path applies to `hook_normalized`."""
        return normalized * self.w if self.b is None else normalized * self.w + self.b


def make_norm(kind: str, d_model: int, eps: float) -> Norm | None:
    """The norm a configuration names; None where it names none."""
    return None if kind == "none" else Norm(kind, d_model, eps)

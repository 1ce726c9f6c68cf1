"""Sublayer 2, the feed-forward network: maps each row alone."""

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from .attention import uniform
from .config import DecoderConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}


class FeedForward(nn.Module):
    """``out_i = act(x_i W_in + b_in) W_out + b_out``; neuron n writes ``post_n W_out[n]``.

    Initialised as torch's linear layers are: U(-1/sqrt(fan_in), 1/sqrt(fan_in)), biases too.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        d, m = config.d_model, config.d_mlp
        assert m is not None  # resolved by the config
        self.act_fn = ACTIVATIONS[config.act_fn]
        self.W_in = uniform(d, m, fan_in=d)
        self.W_out = uniform(m, d, fan_in=m)
        self.b_in = uniform(m, fan_in=d) if config.mlp_bias else None
        self.b_out = uniform(d, fan_in=m) if config.mlp_bias else None
        self.hook_pre = HookPoint()  # (b,t,m)
        self.hook_post = HookPoint()  # (b,t,m)

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        pre = self.hook_pre(F.linear(x, self.W_in.T, self.b_in))
        return self.project(self.hook_post(self.act_fn(pre)))

    def project(self, post: Float[Tensor, "b t m"]) -> Float[Tensor, "b t d"]:
        """The down projection alone: what a replay of this layer calls."""
        return F.linear(post, self.W_out.T, self.b_out)

"""Eager torch: first derivatives of quadrature.py as calls of it, not graphs through its nodes.

What looks at the operations themselves, torch.compile, torch.func or forward mode, gets the plain
code. So does a derivative of these derivatives: they are plain code where a graph is asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn.arrays.torch_state import is_eager, is_recorded
from kofn.subsets import quadrature, routes


def serves(z: Tensor) -> bool:
    """Whether eager operations on `z` are recorded: what these derivatives are for."""
    return is_eager(z) and is_recorded(z)


class LogCount(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, k: Tensor) -> Tensor:
        ctx.save_for_backward(z, k)
        return routes.log_count(z, k)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        z, k = ctx.saved_tensors
        coin = quadrature.coins(z)
        shift = coin.sign * (routes.tails(z, k) - coin.tail)  # π − p
        return cotangent[..., None] * shift, None


class Tails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, k: Tensor) -> Tensor:
        ctx.save_for_backward(z, k)
        return routes.tails(z, k)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        z, k = ctx.saved_tensors
        return routes.covariance(z, k, quadrature.coins(z).sign * cotangent), None

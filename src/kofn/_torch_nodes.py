"""Eager torch: first derivatives of _nodes.py that are calls of it, not graphs through its nodes.

What looks at the operations themselves, torch.compile, torch.func or forward mode, gets the plain
code. So does a derivative of these derivatives: they are plain code where a graph is asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn import _dispatch, _nodes
from kofn.arrays.torch_state import is_eager, is_recorded


def serves(z: Tensor) -> bool:
    """Whether eager operations on `z` are recorded: what these derivatives are for."""
    return is_eager(z) and is_recorded(z)


class LogCount(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, k: Tensor) -> Tensor:
        ctx.save_for_backward(z, k)
        return _dispatch.log_count(z, k)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        z, k = ctx.saved_tensors
        coin = _nodes.coins(z)
        shift = coin.sign * (_dispatch.tails(z, k) - coin.tail)  # π − p
        return cotangent[..., None] * shift, None


class Tails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, k: Tensor) -> Tensor:
        ctx.save_for_backward(z, k)
        return _dispatch.tails(z, k)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        z, k = ctx.saved_tensors
        return _dispatch.covariance(z, k, _nodes.coins(z).sign * cotangent), None

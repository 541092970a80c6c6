"""Eager torch: the first derivative of _maximum.py is a call of it, not a graph through its nodes.

What looks at the operations themselves, torch.compile, torch.func or forward mode, gets the plain
code. So does a derivative of this derivative: it is plain code where a graph is asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn import _maximum
from kofn._maximum_nodes import Noise
from kofn._torch_nodes import serves

__all__ = ["Probabilities", "serves"]


class Probabilities(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, noise: Noise) -> Tensor:
        ctx.save_for_backward(y)
        ctx.noise = noise
        return _maximum.evaluate(y, noise)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return _maximum.jacobian_product(y, ctx.noise, cotangent), None

"""Eager torch: the first derivative of argmax_quadrature.py is a call of it, not a graph of nodes.

What looks at the operations themselves, torch.compile, torch.func or forward mode, gets the plain
code. So does a derivative of this derivative: it is plain code where a graph is asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn.maps import argmax_quadrature
from kofn.maps.argmax_nodes import Noise
from kofn.subsets.torch_nodes import serves

__all__ = ["Probabilities", "serves"]


class Probabilities(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, noise: Noise) -> Tensor:
        ctx.save_for_backward(y)
        ctx.noise = noise
        return argmax_quadrature.evaluate(y, noise)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return argmax_quadrature.jacobian_product(y, ctx.noise, cotangent), None

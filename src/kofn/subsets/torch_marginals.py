"""Marginals of k-subsets for torch tensors by fused rows: from logits, and back.

Only for eager first derivatives, like fused.py. A derivative of the derivative gets plain code.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn import links
from kofn.arrays.torch_state import is_plain
from kofn.rows import threshold_route
from kofn.subsets import conditional_bernoulli, quadrature


class Marginals(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Any, y: Tensor, k: Tensor) -> Tensor:
        hi, lo = threshold_route.threshold(y, k, torch.ones_like(k), links.logistic)
        ctx.save_for_backward(y, k, hi, lo)
        ctx.kernel = kernel
        return kernel.at(quadrature.MARGINALS, y, hi, lo, k)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        y, k, hi, lo = ctx.saved_tensors
        if not torch.is_grad_enabled() and is_plain(cotangent):
            return None, ctx.kernel.at(quadrature.COVARIANCE, y, hi, lo, k, cotangent), None
        with torch.enable_grad():
            p = conditional_bernoulli.marginals(conditional_bernoulli.rows_of(y, k))
            return None, *torch.autograd.grad(p, y, cotangent, create_graph=True), None

"""The gates of a router as one node of autograd (test_adapters_short.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kofn.adapters.torch.eager import Call
from kofn.arrays.torch.state import is_eager


class _Gates(torch.autograd.Function):
    """Softmax of the k largest scores, times 1 + weights − stop(weights)."""

    @staticmethod
    def forward(
        ctx: Any, call: Call, again: Any, x: Tensor, bias: Tensor | None, counts: Any
    ) -> Any:
        ready: Any = call.ready
        gates, indices, kept = ready(x, bias, counts)  # gates are a copy: callers may write there
        if kept is None:
            return None, None
        ctx.call, ctx.again = call, again
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(x, indices, kept)
        return gates, indices

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor | None, _: object) -> Any:
        if cotangent is None:
            return None, None, None, None, None
        x, indices, kept = ctx.saved_tensors
        if not torch.is_grad_enabled() and is_eager(cotangent):
            return None, None, ctx.call.ready_back(x, cotangent, indices, kept), None, None
        with torch.enable_grad():
            answer = ctx.again(x, indices)
            slopes = torch.autograd.grad(answer, x, cotangent, create_graph=True)
            return None, None, *slopes, None, None


apply: Callable[..., Any] = super(torch.autograd.Function, _Gates).apply

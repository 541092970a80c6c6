"""Fused rows for torch tensors: the `autograd.Function` around a kernel's forward and backward.

Only for eager first derivatives. Whatever looks at the operations themselves — torch.compile,
torch.func, forward mode, a second derivative — gets the reference, where they are all there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn import implicit
from kofn._rows import Given, rows_of
from kofn._torch import is_plain


def weights(given: Given, kernels: Any) -> Tensor:
    """By the kernels of a module: cpu.py or gpu.py."""
    x, k, temperature, link = given
    if torch.is_grad_enabled() and (
        x.requires_grad or k.requires_grad or temperature.requires_grad
    ):
        return _Weights.apply(x, k, temperature, link, kernels)  # type: ignore[no-untyped-call]
    return kernels.weights(x, k, temperature, link)[0]


class _Weights(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, k: Tensor, temperature: Tensor, link: Any, kernels: Any
    ) -> Any:
        weights, theta = kernels.weights(x, k, temperature, link)
        ctx.save_for_backward(x, k, temperature)
        ctx.link, ctx.theta, ctx.kernels = link, theta, kernels
        return weights

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        x, k, temperature = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_plain(cotangent):
            return *_graph(x, k, temperature, ctx.link, cotangent), None, None
        in_x, in_rows = ctx.kernels.gradients(x, cotangent, ctx.theta, k, temperature, ctx.link)
        wanted = ctx.needs_input_grad
        in_k, in_t = in_rows[0] if wanted[1] else None, in_rows[1] if wanted[2] else None
        return in_x, in_k, in_t, None, None


def _graph(x: Tensor, k: Tensor, temperature: Tensor, link: Any, cotangent: Tensor) -> Any:
    """The same cotangents as a graph, for a derivative of the derivative."""
    with torch.enable_grad():
        wanted = [a for a in (x, k, temperature) if a.requires_grad]
        p = implicit.weights(rows_of(Given(x, k, temperature, link)))
        found = iter(torch.autograd.grad(p, wanted, cotangent, create_graph=True))
    return [next(found) if a.requires_grad else None for a in (x, k, temperature)]

"""Fused rows for torch tensors in main memory: forward and backward in one visit each.

Only for eager first derivatives. Whatever looks at the operations themselves — torch.compile,
torch.func, forward mode, a second derivative — gets the reference, where they are all there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kofn import implicit
from kofn._rows import Given, Rows, rows_of
from kofn._torch import is_plain
from kofn.kernels import cpu


def weights(given: Given, reference: Callable[[Rows], Tensor]) -> Tensor:
    """The weights of `given`, whose derivative's derivative is that of `reference`."""
    x, k, temperature, link = given
    if torch.is_grad_enabled() and (
        x.requires_grad or k.requires_grad or temperature.requires_grad
    ):
        return _Weights.apply(x, k, temperature, link, reference)  # type: ignore[no-untyped-call]
    return cpu.weights(x, k, temperature, link)[0]


class _Weights(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, k: Tensor, temperature: Tensor, link: Any, reference: Any
    ) -> Any:
        weights, theta = cpu.weights(x, k, temperature, link)
        ctx.save_for_backward(x, k, temperature)
        ctx.link, ctx.theta, ctx.reference = link, theta, reference
        return weights

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        x, k, temperature = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_plain(cotangent):
            given = Given(x, k, temperature, ctx.link)
            return *_graph(given, ctx.reference, cotangent), None, None
        in_x, in_rows = cpu.gradients(x, cotangent, ctx.theta, k, temperature, ctx.link)
        wanted = ctx.needs_input_grad
        in_k, in_t = (row if want else None for row, want in zip(in_rows, wanted[1:3], strict=True))
        return in_x, in_k, in_t, None, None


def value(given: Given) -> Tensor:
    """S_k of `given`."""
    x, k, temperature, link = given
    if torch.is_grad_enabled() and (
        x.requires_grad or k.requires_grad or temperature.requires_grad
    ):
        return _Value.apply(x, k, temperature, link)  # type: ignore[no-untyped-call]
    return cpu.values(x, cpu.threshold(x, k, temperature, link), k, temperature, link)[0]


class _Value(torch.autograd.Function):
    """S_k, whose slopes are the weights, θ, and −Σ Ω(weights)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: Tensor, temperature: Tensor, link: Any) -> Any:
        weights, theta = cpu.weights(x, k, temperature, link)
        values, in_t = cpu.values(x, theta, k, temperature, link)
        ctx.save_for_backward(x, k, temperature)
        ctx.link, ctx.weights, ctx.in_t = link, weights, in_t
        ctx.theta = theta.sum(0) - temperature * link.edge
        return values.clone()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        x, k, temperature = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_plain(cotangent):
            given = Given(x, k, temperature, ctx.link)
            return *_graph(given, implicit.value, cotangent), None
        each = cotangent[..., None]
        in_x = torch.where(x == math.inf, 0.0, each * ctx.weights)
        # Where nothing or everything is chosen θ is infinite, and S_k constant in k.
        in_k = torch.where(ctx.theta.isinf(), 0.0, cotangent * ctx.theta)
        return in_x, in_k, cotangent * ctx.in_t, None


def _graph(given: Given, reference: Callable[[Rows], Tensor], cotangent: Tensor) -> Any:
    """The same cotangents as a graph, for a derivative of the derivative."""
    numbers = given[:3]
    with torch.enable_grad():
        wanted = [a for a in numbers if a.requires_grad]
        p = reference(rows_of(given))
        # Softmax does not depend on k.
        found = iter(
            torch.autograd.grad(p, wanted, cotangent, create_graph=True, allow_unused=True)
        )
    return [next(found) if a.requires_grad else None for a in numbers]

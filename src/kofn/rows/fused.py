"""Fused rows for torch tensors: the `autograd.Function` around a kernel's forward and backward.

Only for eager first derivatives. Whatever looks at the operations themselves — torch.compile,
torch.func, forward mode, a second derivative — gets the reference, where they are all there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kofn.arrays.torch_state import is_plain
from kofn.rows import answers
from kofn.rows.given import Given
from kofn.rows.settled import Rows, rows_of


def weights(given: Given, kernels: Any, reference: Callable[[Rows], Tensor]) -> Tensor:
    """By the kernels of a module, launch.py or launch.py; `reference` has the second derivative."""
    x, k, temperature, link = given
    if torch.is_grad_enabled() and (
        x.requires_grad or k.requires_grad or temperature.requires_grad
    ):
        how = kernels, reference
        return _Weights.apply(x, k, temperature, link, *how)  # type: ignore[no-untyped-call]
    return kernels.weights(x, k, temperature, link)[0]


class _Weights(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, k: Tensor, temperature: Tensor, link: Any, kernels: Any, reference: Any
    ) -> Any:
        weights, theta = kernels.weights(x, k, temperature, link)
        ctx.save_for_backward(x, k, temperature)
        ctx.link, ctx.theta, ctx.kernels, ctx.reference = link, theta, kernels, reference
        return weights

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        x, k, temperature = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_plain(cotangent):
            given = Given(x, k, temperature, ctx.link)
            return *_graph(given, ctx.reference, cotangent), None, None, None
        in_x, in_rows = ctx.kernels.gradients(x, cotangent, ctx.theta, k, temperature, ctx.link)
        wanted = ctx.needs_input_grad
        in_k, in_t = (row if want else None for row, want in zip(in_rows, wanted[1:3], strict=True))
        return in_x, in_k, in_t, None, None, None


def value(given: Given, kernels: Any) -> Tensor:
    """S_k of `given`."""
    x, k, temperature, link = given
    if torch.is_grad_enabled() and (
        x.requires_grad or k.requires_grad or temperature.requires_grad
    ):
        return _Value.apply(x, k, temperature, link, kernels)  # type: ignore[no-untyped-call]
    return kernels.values(x, kernels.threshold(*given), k, temperature, link)[0]


class _Value(torch.autograd.Function):
    """S_k, whose slopes are the weights, θ, and −Σ Ω(weights)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, k: Tensor, temperature: Tensor, link: Any, kernels: Any
    ) -> Any:
        weights, theta = kernels.weights(x, k, temperature, link)
        values, in_t = kernels.values(x, theta, k, temperature, link)
        ctx.save_for_backward(x, k, temperature)
        ctx.link, ctx.weights, ctx.in_t = link, weights, in_t
        ctx.theta = theta.sum(0) - temperature * link.edge
        return values.clone()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        x, k, temperature = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_plain(cotangent):
            given = Given(x, k, temperature, ctx.link)
            return *_graph(given, answers.value, cotangent), None, None
        each = cotangent[..., None]
        in_x = torch.where(x == math.inf, 0.0, each * ctx.weights)
        # Where nothing or everything is chosen θ is infinite, and S_k constant in k.
        in_k = torch.where(ctx.theta.isinf(), 0.0, cotangent * ctx.theta)
        return in_x, in_k, cotangent * ctx.in_t, None, None


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

"""Functions of torch tensors with an explicit first derivative: one `autograd.Function` for all.

These serve eager first derivatives only. torch.compile, torch.func, forward mode and second
derivatives need the plain operations instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn.arrays.torch_state import is_eager

Tensors = Sequence[Tensor]


class Rule(NamedTuple):
    """A function of tensors, and the pullback of a cotangent of its result."""

    value: Callable[..., tuple[Tensor, Tensors]]
    """value(*tensors) is (answer, kept): tensors that `pullback` will need."""

    pullback: Callable[[Tensor, Tensors, Tensors], Sequence[Tensor | None]]
    """pullback(cotangent, tensors, kept) has a cotangent for each of the tensors."""

    plain: Callable[..., Tensor] | None = None
    """plain(*tensors) is the same answer as differentiable code, for a second derivative; None
    where `pullback` is differentiable code itself."""


def by_rule(rule: Rule, *tensors: Tensor) -> Tensor:
    """Return the result of `rule`, differentiable if one of `tensors` is."""
    if torch.is_grad_enabled():
        for tensor in tensors:  # sooner than any() of a generator
            if tensor.requires_grad:
                return _ByRule.apply(rule, *tensors)  # type: ignore[no-untyped-call]
    return rule.value(*tensors)[0]


class _ByRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rule: Rule, *tensors: Tensor) -> Tensor:
        answer, kept = rule.value(*tensors)
        # Saved through autograd, which frees the tensors, runs hooks and detects changes in place.
        ctx.save_for_backward(*tensors, *kept)
        ctx.rule, ctx.count = rule, len(tensors)
        return answer

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        saved, rule = ctx.saved_tensors, ctx.rule
        tensors, kept = saved[: ctx.count], saved[ctx.count :]
        first = not torch.is_grad_enabled() and is_eager(cotangent)
        if first or rule.plain is None:
            return None, *rule.pullback(cotangent, tensors, kept)
        wanted = ctx.needs_input_grad[1:]
        with torch.enable_grad():
            some = [tensor for tensor, want in zip(tensors, wanted, strict=True) if want]
            answer = rule.plain(*tensors)
            found = iter(
                torch.autograd.grad(answer, some, cotangent, create_graph=True, allow_unused=True)
            )
        return None, *(next(found) if want else None for want in wanted)


# Function.apply asks whether a transform is active, which callers of `recorded` know.
_apply: Callable[..., Any] = super(torch.autograd.Function, _ByRule).apply


def recorded(rule: Rule, *tensors: Tensor) -> Tensor:
    """Return `by_rule` of plain `tensors` where gradients are on and one of them has one."""
    return _apply(rule, *tensors)

"""Tensors of k and T on a device, limited by one launch, and by one on the way back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn import kernels
from kofn.arrays.torch.state import is_eager


def limited(
    k: Tensor | float, t: Tensor | float, n: int, limits: tuple[float, float]
) -> tuple[Any, Any]:
    """Return k and T in float32, NaN where they are out of range; T is cut off at its limits."""
    both = _Limited.apply(k, t, n, limits)  # type: ignore[no-untyped-call]  # PyTorch's
    return k if both[0] is None else both[0], t if both[1] is None else both[1]


class _Limited(torch.autograd.Function):
    """Its way back lets those cotangents through whose numbers are within the limits."""

    @staticmethod
    def forward(
        ctx: Any, k: Tensor | float, t: Tensor | float, n: int, limits: tuple[float, float]
    ) -> tuple[Tensor | None, Tensor | None]:
        like = k if isinstance(k, Tensor) else t
        assert isinstance(like, Tensor)
        ctx.kernels = kernels.found("rows", like.new_empty(0, dtype=torch.float32), "torch")
        *both, inside = ctx.kernels.limited(k, t, n, limits)
        ctx.save_for_backward(inside)
        ctx.dtypes = [one.dtype if isinstance(one, Tensor) else None for one in (k, t)]
        constant = zip(both, ctx.needs_input_grad, strict=False)
        ctx.mark_non_differentiable(
            *(o for o, learned in constant if o is not None and not learned)
        )
        ctx.set_materialize_grads(False)
        return both[0], both[1]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        (inside,) = ctx.saved_tensors
        if torch.is_grad_enabled() or not all(is_eager(g) for g in cotangents if g is not None):
            return *map(_passed, cotangents, inside, ctx.dtypes), None, None
        return *ctx.kernels.limited_gradients(inside, cotangents, ctx.dtypes), None, None


def _passed(cotangent: Tensor | None, inside: Tensor, dtype: torch.dtype) -> Tensor | None:
    return None if cotangent is None else torch.where(inside, cotangent, 0.0).to(dtype)

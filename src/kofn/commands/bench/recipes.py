"""What `kofn bench` times beside kofn's functions: PyTorch's, and choices as usually written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import kofn

Map = Callable[[Any], Any]
FOR_ONE: dict[str, Map] = {name: getattr(kofn, name) for name in ("softmax", "sparsemax", "entmax")}
"""The maps for k = 1."""


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def cross_entropy(target: Tensor) -> Map:
    """Return PyTorch's cross-entropy in float32, or in float64 of scores that are."""

    def cross_entropy(x: Tensor) -> Tensor:
        return F.cross_entropy(x if x.dtype == torch.float64 else x.float(), target)

    return cross_entropy


def labels(case: Any) -> Tensor:
    """Draw the index of an entry for each row."""
    rows, n = case.shape
    drawn = torch.randint(n, (rows,), generator=torch.Generator().manual_seed(2))
    return drawn.to(case.device)


def chosen(case: Any) -> Tensor:
    """Draw k entries of each row, as booleans."""
    drawn = torch.rand(case.shape, generator=torch.Generator().manual_seed(2))
    none = torch.zeros(case.shape, dtype=torch.bool)
    return none.scatter(-1, drawn.topk(case.k).indices, True).to(case.device)


def straight_through(k: int) -> Map:
    """Return the hard choice as usually written: 1 for the k largest, the gradient of a softmax."""

    def straight_through(x: Tensor) -> Tensor:
        hard = torch.zeros_like(x).scatter(-1, x.topk(k).indices, 1.0)
        soft = k * x.softmax(-1)
        return soft + (hard - soft).detach()

    return straight_through


class Bisected(torch.autograd.Function):
    """The sigmoid top-k as usually written: 40 bisection steps and the implicit gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: int) -> Tensor:
        low = x.min(-1, keepdim=True).values - 20
        high = x.max(-1, keepdim=True).values + 20
        for _ in range(40):
            middle = (low + high) / 2
            many = torch.sigmoid(x - middle).sum(-1, keepdim=True) > k
            low, high = torch.where(many, middle, low), torch.where(many, high, middle)
        p = torch.sigmoid(x - (low + high) / 2)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (p,) = ctx.saved_tensors
        w = p * (1 - p)
        mean = (w * g).sum(-1, keepdim=True) / w.sum(-1, keepdim=True)
        return w * (g - mean), None


def by_newton(k: int) -> Map:
    """Return the sigmoid top-k by twelve Newton steps in a bracket, which a compiler makes fast.

    One step more, with constants but for the sum, has the implicit gradient.
    """

    def slope(p: Tensor) -> Tensor:
        return (p * (1 - p)).sum(-1, keepdim=True)

    def newton(x: Tensor) -> Tensor:
        fixed = x.detach()
        low = fixed.amin(-1, keepdim=True) - 20
        high = fixed.amax(-1, keepdim=True) + 20
        theta = (low + high) / 2
        for _ in range(12):
            p = torch.sigmoid(fixed - theta)
            excess = p.sum(-1, keepdim=True) - k
            low, high = torch.where(excess > 0, theta, low), torch.where(excess > 0, high, theta)
            step = theta + excess / slope(p)
            theta = torch.where((step >= low) & (step <= high), step, (low + high) / 2)
        p = torch.sigmoid(x - theta)
        theta = theta + (p.sum(-1, keepdim=True) - k) / slope(p).detach()
        return torch.sigmoid(x - theta)

    return newton


def compiled(function: Map) -> Map:
    """Return a function compiled for one shape."""
    torch.compiler.reset()  # else shapes that came before count as recompilations
    made: Map = torch.compile(function, fullgraph=True, dynamic=False)
    return made


def sorted_sparsemax(x: Tensor) -> Tensor:
    """Sparsemax as usually written: sort, cumulative sums, count of the support."""
    ordered = torch.sort(x, dim=-1, descending=True).values
    count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    total = ordered.cumsum(-1) - 1
    support = (count * ordered > total).sum(-1, keepdim=True)
    return (x - total.gather(-1, support - 1) / support.to(x.dtype)).clamp(min=0)

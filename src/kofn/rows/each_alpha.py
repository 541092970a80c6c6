"""Weights of entmax with an alpha per row, by a kernel for every alpha, in eager PyTorch.

Kernels take alpha as a number. Attention learns one per head, so there are few of them. θ depends
on alpha, too, but its derivative there follows from the weights alone: see `_in_alpha`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kofn import kernels
from kofn.arrays.torch_rule import Rule, by_rule
from kofn.arrays.torch_state import is_plain
from kofn.rows import kernel_weights
from kofn.rows.given import Given
from kofn.rows.settled import Rows, rows_of

MOST = 64
"""The number of alphas up to which a kernel is called for each."""


def weights(given: Given, reference: Callable[[Rows], Tensor]) -> Tensor | None:
    """Return the weights of `given`; None if kernels do not serve one of its alphas."""
    given = given.wide() if given.is_half else given
    x, *numbers, link, form = given
    if not (isinstance(link.alpha, Tensor) and is_plain(x) and is_plain(link.alpha)):
        return None
    groups = _groups(link.alpha.detach(), x, link)
    if groups is None:
        return None
    constants = [each if type(each) is float else None for each in numbers]

    def whole(tensors: Any) -> Given:
        left = iter(tensors[2:])
        k, t = (next(left) if each is None else each for each in constants)
        return Given(tensors[0], k, t, link.with_alpha(tensors[1]), form)

    def value(*tensors: Tensor) -> Any:
        given = whole(tensors)
        found = torch.empty_like(given.scores)
        theta = found.new_empty(2, *found.shape[:-1])
        for alpha, rows in groups:
            part, backend = _part(given, alpha, rows)
            found[rows], theta[:, rows] = kernel_weights.weights(backend, part)
        return found, (theta, found)

    def pullback(cotangent: Tensor, tensors: Any, kept: Any) -> Any:
        given, (theta, found) = whole(tensors), kept
        in_scores = torch.empty_like(given.scores)
        in_rows = [torch.empty_like(theta[0]) for _ in range(2)]
        for alpha, rows in groups:
            part, backend = _part(given, alpha, rows)
            slopes, others = backend.gradients(
                part.scores, cotangent[rows].contiguous(), theta[:, rows].contiguous(), *part[1:4]
            )
            in_scores[rows] = slopes
            if len(tensors) > 2:  # for numbers there are no slopes
                for each, slope in zip(in_rows, others, strict=True):
                    each[rows] = slope
        in_alpha = _in_alpha(found, cotangent, tensors[1]) if tensors[1].requires_grad else None
        others = (i for i, each in zip(in_rows, constants, strict=True) if each is None)
        return in_scores, in_alpha, *others

    def plain(*tensors: Tensor) -> Tensor:
        return reference(rows_of(whole(tensors)))

    tensors = (x, link.alpha, *(each for each in numbers if type(each) is not float))
    return by_rule(Rule(value, pullback, plain), *tensors)


def _groups(alpha: Tensor, x: Tensor, link: Any) -> list[tuple[float, Tensor]] | None:
    """Return every alpha and its rows, as flags; None if kernels cannot serve them all."""
    values = alpha.unique()  # type: ignore[no-untyped-call]
    if not 0 < len(values) <= MOST:
        return None
    each = values.tolist()
    if any(kernels.serving(x, link.with_alpha(one), "torch") is None for one in each):
        return None
    return [(one, alpha == value) for one, value in zip(each, values, strict=True)]


def _part(given: Given, alpha: float, rows: Tensor) -> tuple[Given, Any]:
    x, k, t, link, form = given
    k, t = (each if type(each) is float else each[rows] for each in (k, t))
    part = Given(x[rows], k, t, link.with_alpha(alpha), form)
    return part, kernels.serving(part.scores, part.link, "torch")


def _in_alpha(p: Tensor, cotangent: Tensor, alpha: Tensor) -> Tensor:
    """Return the cotangent of alpha per row: Σ g (∂F − F′ Σ∂F/ΣF′), with F = p.

    With a = α − 1 and L = log p, inside of the support F′ = p·e^{−aL} and, up to a multiple of F′,
    which θ takes up, ∂F/∂α = −p(L/a + (e^{−aL} − 1)/a²), which is −pL²/2 at a = 0. Source: Correia,
    Niculae & Martins, "Adaptively Sparse Transformers" (2019), for k = 1.
    """
    inside = (p > 0) & (p < 1)
    p, g, a = p.double(), cotangent.double(), (alpha.double() - 1)[..., None]
    log = torch.where(inside, p, 0.5).log()
    y = a * log
    small = y.abs() < 1e-2
    series = -(0.5 - y / 6 + y * y / 24 - y**3 / 120 + y**4 / 720 - y**5 / 5040)
    y = torch.where(small, 1.0, y)
    ratio = torch.where(small, series, -(y + torch.expm1(-y)) / (y * y))
    moved = torch.where(inside, p * log * log * ratio, 0.0)
    slope = torch.where(inside, p * torch.exp(-a * log), 0.0)
    total = slope.sum(-1)
    shift = moved.sum(-1) / torch.where(total > 0, total, 1.0)
    # A NaN in the row is one in p, which is not inside.
    found = (g * (moved - slope * shift[..., None])).sum(-1) + 0 * p.sum(-1)
    return found.to(cotangent.dtype)

"""Weights and logarithms of entmax with an alpha per row, by kernels for each alpha: PyTorch.

Kernels take alpha as a number. Attention learns one per head, so there are few of them. θ depends
on alpha, too, but its derivative there follows from the weights alone: see `in_alpha_of`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kofn import kernels
from kofn.arrays.torch_rule import Rule, by_rule
from kofn.arrays.torch_state import is_plain
from kofn.kernels.contract import kind_of
from kofn.rows import kernel_weights
from kofn.rows.given import Given
from kofn.rows.settled import Rows, rows_of

MOST = 64
"""The number of alphas up to which a kernel is called for each."""
_AT_ONCE = 2**14
"""Entries whose derivatives in alpha are computed together: a cache holds them."""


def weights(given: Given, reference: Callable[[Rows], Tensor]) -> Tensor | None:
    """Return the weights of `given`; None if kernels do not serve one of its alphas."""
    given = given.wide() if given.is_half else given
    alphas = _served(given)
    if alphas is None:
        return None

    def pullback(given: Given, cotangent: Tensor, found: Tensor, theta: Tensor) -> Any:
        in_scores, in_rows = gradients_by_each(given, alphas, cotangent, theta)
        learned = given.link.alpha.requires_grad
        in_alpha = in_alpha_of(found, cotangent, given.link.alpha) if learned else None
        return in_scores, in_alpha, *in_rows

    return _by_rule(given, alphas, weights_by_each, pullback, reference)


def log_weights(given: Given, reference: Callable[[Rows], Tensor]) -> Tensor | None:
    """Return log p of `given`; None if kernels do not serve one of its alphas, or half types."""
    alphas = None if given.is_half else _served(given)
    if alphas is None or not all(_has_logarithms(given, alpha) for alpha in alphas):
        return None

    def pullback(given: Given, cotangent: Tensor, found: Tensor, theta: Tensor) -> Any:
        in_scores, in_t = torch.empty_like(cotangent), torch.empty_like(theta[0])
        for alpha in alphas:
            rows, part, backend = _part(given, alpha)
            g, at = cotangent[rows].contiguous(), theta[:, rows].contiguous()
            in_scores[rows], in_t[rows] = kernel_weights.log_gradients(backend, part, g, at)
        learned = given.link.alpha.requires_grad
        in_alpha = in_alpha_of_log(found, cotangent, given.link.alpha) if learned else None
        return in_scores, in_alpha, None, in_t

    def value(given: Given, alphas: list[float]) -> tuple[Tensor, Tensor]:
        return weights_by_each(given, alphas, kernel_weights.log_weights)

    return _by_rule(given, alphas, value, pullback, reference)


def _served(given: Given) -> list[float] | None:
    x, link = given.scores, given.link
    if not (isinstance(link.alpha, Tensor) and is_plain(x) and is_plain(link.alpha)):
        return None
    return alphas_of(link, x)


def _has_logarithms(given: Given, alpha: float) -> bool:
    link = given.link.with_alpha(alpha)
    backend = kernels.serving(given.scores, link, "torch")
    return backend is not None and kind_of(link) in backend.LOGARITHMS


def _by_rule(
    given: Given, alphas: list[float], by_each: Callable, pulled: Callable, reference: Callable
) -> Tensor:
    """Return what `by_each` does, with the cotangents of scores, alpha, k and T by `pulled`."""
    x, *numbers, link, form = given
    constants = [each if type(each) is float else None for each in numbers]
    tensors = (x, link.alpha, *(each for each in numbers if type(each) is not float))
    # The rule keeps no tensor but by autograd, which frees them and runs hooks.
    link = link.with_alpha(alphas[0])

    def whole(tensors: Any) -> Given:
        left = iter(tensors[2:])
        k, t = (next(left) if each is None else each for each in constants)
        return Given(tensors[0], k, t, link.with_alpha(tensors[1]), form)

    def value(*tensors: Tensor) -> Any:
        found, theta = by_each(whole(tensors), alphas)
        return found, (theta, found)

    def pullback(cotangent: Tensor, tensors: Any, kept: Any) -> Any:
        theta, found = kept
        in_scores, in_alpha, *in_rows = pulled(whole(tensors), cotangent, found, theta)
        others = (i for i, each in zip(in_rows, constants, strict=True) if each is None)
        return in_scores, in_alpha, *others

    def plain(*tensors: Tensor) -> Tensor:
        return reference(rows_of(whole(tensors)))

    return by_rule(Rule(value, pullback, plain), *tensors)


def weights_by_each(
    given: Given, alphas: list[float], of: Callable = kernel_weights.weights
) -> tuple[Tensor, Tensor]:
    """Return (weights, θ as two floats) of rows by a kernel for each of these alphas."""
    found = torch.empty_like(given.scores)
    theta = found.new_empty(2, *found.shape[:-1])
    for alpha in alphas:
        rows, part, backend = _part(given, alpha)
        found[rows], theta[:, rows] = of(backend, part)
    return found, theta


def gradients_by_each(
    given: Given, alphas: list[float], cotangent: Tensor, theta: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the cotangents of the scores, and of k and temperature, (2, …), 0 for numbers."""
    in_scores, in_rows = torch.empty_like(given.scores), torch.zeros_like(theta)
    for alpha in alphas:
        rows, part, backend = _part(given, alpha)
        slopes, others = backend.gradients(
            part.scores, cotangent[rows].contiguous(), theta[:, rows].contiguous(), *part[1:4]
        )
        in_scores[rows] = slopes
        if others is not None:
            in_rows[:, rows] = others
    return in_scores, in_rows


def alphas_of(link: Any, x: Tensor) -> list[float] | None:
    """Return every alpha; None if they are too many, or kernels cannot serve them all."""
    values = link.alpha.detach().unique().tolist()
    if not 0 < len(values) <= MOST:
        return None
    served = (kernels.serving(x, link.with_alpha(one), "torch") is not None for one in values)
    return values if all(served) else None


def _part(given: Given, alpha: float) -> tuple[Tensor, Given, Any]:
    """Return which rows have this alpha, as flags, these rows, and the kernels."""
    x, k, t, link, form = given
    rows = link.alpha.detach() == alpha
    k, t = (each if type(each) is float else each[rows] for each in (k, t))
    part = Given(x[rows], k, t, link.with_alpha(alpha), form)
    return rows, part, kernels.serving(part.scores, part.link, "torch")


def in_alpha_of(p: Tensor, cotangent: Tensor, alpha: Tensor) -> Tensor:
    """Return the cotangent of alpha per row: Σ g (∂F − F′ Σ∂F/ΣF′), with F = p.

    With a = α − 1 and L = log p, inside of the support F′ = p·e^{−aL} and, up to a multiple of F′,
    which θ takes up, ∂F/∂α = −p(L/a + (e^{−aL} − 1)/a²), which is −pL²/2 at a = 0. Source: Correia,
    Niculae & Martins, "Adaptively Sparse Transformers" (2019), for k = 1.
    """
    return _in_blocks(_of_weights, p, cotangent, alpha)


def in_alpha_of_log(log: Tensor, cotangent: Tensor, alpha: Tensor) -> Tensor:
    """Return the cotangent of alpha per row, for one of log p: that of p, divided by p."""
    return _in_blocks(_of_logarithms, log, cotangent, alpha)


def _in_blocks(of: Callable, found: Tensor, cotangent: Tensor, alpha: Tensor) -> Tensor:
    a = (alpha.double() - 1).expand(found.shape[:-1])
    rows, size = a.numel(), found.shape[-1]
    parts = (found.reshape(rows, size), cotangent.reshape(rows, size), a.reshape(rows, 1))
    at_once = max(1, _AT_ONCE // max(size, 1))
    each = zip(*(torch.split(part, at_once) for part in parts), strict=True)
    return torch.cat([of(*block) for block in each]).reshape(a.shape).to(cotangent.dtype)


def _of_weights(p: Tensor, g: Tensor, a: Tensor) -> Tensor:
    p = p.double()
    inside = (p > 0) & (p < 1)
    log = torch.where(inside, p, 1.0).log_()
    p_inside = torch.where(inside, p, 0.0)
    # A NaN in the row is one in p, which is not inside.
    return 0 * p.sum(-1) - _against(log, p_inside, p_inside * g, a)


def _of_logarithms(log: Tensor, g: Tensor, a: Tensor) -> Tensor:
    log = log.double()
    inside = log > -math.inf  # 1 too: next to it, others may be e^{−300}, and are to move alike
    p = log.exp()
    some = torch.where(inside, log, 0.0)
    p_inside, g = (torch.where(inside, each, 0.0) for each in (p, g.double()))
    return 0 * p.sum(-1) - _against(some, p_inside, g, a)


def _against(log: Tensor, p: Tensor, g: Tensor, a: Tensor) -> Tensor:
    """Return Σ g (−∂F + F′ Σ∂F/ΣF′)/p of rows [M, N], with a [M, 1]; `log` is overwritten."""
    y = a * log  # ≤ 0
    e = torch.expm1(-y)
    series = torch.full_like(y, -1 / 5040)
    for each in (1 / 720, -1 / 120, 1 / 24, -1 / 6, 1 / 2):
        series.mul_(y).add_(each)
    ratio = torch.where(y > -1e-2, series, (y + e).div_(y * y))
    moved = log.square_().mul_(ratio)
    slope = e.add_(1)
    total = (p * slope).sum(-1)
    shift = (p * moved).sum(-1) / torch.where(total > 0, total, 1.0)
    return moved.addcmul_(slope, shift[:, None], value=-1).mul_(g).sum(-1)

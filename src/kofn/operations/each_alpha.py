"""Weights and logarithms of entmax with an alpha per row, by kernels for each alpha: PyTorch.

Kernels take alpha as a number. Attention learns one per head, so there are few of them. Which ones
there are is known in the call only: an operator asks there, and runs the array code if kernels do
not serve them all. θ depends on alpha, too, but its derivative there follows from the weights
alone: see `in_alpha_of`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kofn import kernels
from kofn.arrays.torch_state import is_plain, recording
from kofn.kernels.contract import kind_of
from kofn.operations import logarithms, topk
from kofn.operations.operation import Operation
from kofn.operations.signatures import EACH_ALPHA
from kofn.rows.given import Given
from kofn.rows.settled import rows_of

MOST = 64
"""The number of alphas up to which a kernel is called for each."""
_AT_ONCE = 2**14
"""Entries whose derivatives in alpha are computed together: a cache holds them."""


def alphas_of(link: Any, x: Tensor, offered: str = "SERVED") -> list[float] | None:
    """Return every alpha; None if they are too many, or kernels cannot serve them all."""
    values = link.alpha.detach().unique().tolist()
    if not 0 < len(values) <= MOST:
        return None
    links = (link.with_alpha(one) for one in values)
    served = (_backend(x, one) is not None and _offers(x, one, offered) for one in links)
    return values if all(served) else None


def _serves(x: Tensor, link: Any, framework: str, offered: str) -> Any:
    plain = isinstance(link.alpha, Tensor) and is_plain(x) and is_plain(link.alpha)
    return (plain and alphas_of(link, x, offered)) or None


def _backend(x: Tensor, link: Any) -> Any:
    return kernels.serving_of("rows", x, "torch", link)


def _offers(x: Tensor, link: Any, offered: str) -> bool:
    return kind_of(link) in getattr(_backend(x, link), offered)


def _by_each(of: Operation, given: Given) -> tuple[Tensor, Tensor]:
    """Return the answer of rows, and θ as two floats, by a kernel for each of the alphas."""
    x = given.scores
    alphas = alphas_of(given.link, x, of.offered)
    if alphas is None:
        with torch.no_grad():
            assert of.reference is not None
            return of.reference(rows_of(given)), x.new_zeros((2, *x.shape[:-1]))
    found = torch.empty_like(x)
    theta = found.new_empty(2, *found.shape[:-1])
    for alpha in alphas:
        rows, part, backend = _part(given, alpha)
        found[rows], theta[:, rows] = of.kernel(backend, part)
    return found, theta


def _back_by_each(
    of: Operation, in_alpha: Callable, given: Given, cotangent: Tensor, found: Tensor, theta: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the cotangents of the scores, and of alpha, k and the temperature as (3, …)."""
    alphas = alphas_of(given.link, given.scores, of.offered)
    if alphas is None:
        return recording(_by_reference, of.reference, given, cotangent)
    in_x, in_rows = torch.empty_like(given.scores), torch.zeros_like(theta)
    for alpha in alphas:
        rows, part, backend = _part(given, alpha)
        g, at = cotangent[rows].contiguous(), theta[:, rows].contiguous()
        in_x[rows], others = of.back[0].kernel(backend, part, g, at)
        if others is not None:
            in_rows[:, rows] = others
    return in_x, torch.stack((in_alpha(found, cotangent, given.link.alpha), *in_rows))


def _by_reference(function: Any, given: Given, cotangent: Tensor) -> tuple[Tensor, Tensor]:
    x, k, t, link = given.per_row()[:4]
    leaves = [each.detach().clone().requires_grad_() for each in (x, link.alpha, k, t)]
    scores, alpha, k, t = leaves
    found = function(rows_of(Given(scores, k, t, link.with_alpha(alpha))))
    in_x, *in_rows = torch.autograd.grad(found, leaves, cotangent, materialize_grads=True)
    return in_x, torch.stack(in_rows)


def _part(given: Given, alpha: float) -> tuple[Tensor, Given, Any]:
    """Return which rows have this alpha, as flags, these rows, and the kernels."""
    x, k, t, link, form = given[:5]
    rows = link.alpha.detach() == alpha
    k, t = (each if type(each) is float else each[rows] for each in (k, t))
    part = Given(x[rows], k, t, link.with_alpha(alpha), form)
    return rows, part, _backend(part.scores, part.link)


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


def _of_each(name: str, of: Operation, in_alpha: Callable) -> Operation:
    """Declare an operation for rows with an alpha each."""
    back = Operation(
        name=f"{name}_backward",
        takes="cotangent n, x n, found n, theta 2, alpha r, k #, t #, link str",
        gives="x n, alpha+k+t 3",
        of=EACH_ALPHA._replace(serves=_serves),
        kernel=lambda _, given, *arrays: _back_by_each(of, in_alpha, given, *arrays),
    )
    return Operation(
        name=name,
        takes="x n, alpha r, k #, t #, link str",
        gives="found n, theta 2",
        of=EACH_ALPHA._replace(serves=_serves),
        kernel=lambda _, given: _by_each(of, given),
        reference=of.reference,
        back=(back,),
        offered=of.offered,
        constant=of.constant,
    )


WEIGHTS = _of_each("weights_each_alpha", topk.WEIGHTS, in_alpha_of)
LOG_WEIGHTS = _of_each("log_weights_each_alpha", logarithms.LOG_WEIGHTS, in_alpha_of_log)

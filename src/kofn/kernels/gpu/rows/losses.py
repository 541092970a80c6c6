"""Losses from θ: few operations of PyTorch, in float64, where no sum needs care.

Each term is ≥ 0 and made of the smaller tail, so small losses keep their digits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn.arrays.kinds import LEAST_IN_PLAY, dtype_name, scalar
from kofn.arrays.torch.state import recording
from kofn.kernels.gpu.rows.place import placed


def gaps(
    x: Tensor, theta: Tensor, target: Tensor, temperature: Any, link: Any, likely: bool,
    wanted: bool, of_alpha: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """Return what `RowKernels.gaps` does."""
    link, z, high, known, out, top = placed(x, theta, temperature, link)
    nothing = scalar(z, 0.0)
    # One that takes all of a row has −∞ for θ, and is as likely as its score says.
    still = out | ((high == torch.inf) if likely else (high.abs() == torch.inf))
    z = torch.where(still, nothing, z)
    labels = target[..., None] if target.ndim < x.ndim else None
    how = _likely if likely else _of_weights if labels is None else _of_labels
    given = target if labels is None else labels
    loss, away = how(z, given, link, still, top)
    # A bounded link would hide a NaN, which a row with one has for θ.
    away = torch.where(still, nothing, away + known)
    infinite = scalar(loss, torch.inf)
    if likely:
        return torch.stack((loss, loss)).float(), away.float() if wanted else None, False
    if labels is None:
        wrong = (out & (target != top)).any(-1)
    else:
        own = x.gather(-1, labels)[..., 0]
        tops = top.sum(-1)
        wrong = (own <= LEAST_IN_PLAY[dtype_name(x)]) | (tops > (own == torch.inf))
    # Infinity and a NaN are NaN.
    loss = torch.where(wrong, loss + infinite, loss)
    moved = (away * z).sum(-1)
    found = torch.stack((loss, moved)).float(), away.float() if wanted else None, False
    return (*found, recording(_in_alpha, link, z, given, still)) if of_alpha else found


def _of_labels(
    z: Tensor, labels: Tensor, link: Any, still: Tensor, top: Tensor
) -> tuple[Tensor, Tensor]:
    """Σ G(z) − z at the label, and p − t."""
    own, nothing = z.gather(-1, labels), scalar(z, 0.0)
    terms = link.integral(z).scatter_(-1, labels, link.upper_integral(own))
    away = link.cdf(z).scatter_(-1, labels, -link.sf(own))
    return torch.where(still, nothing, terms).sum(-1), away


def _of_weights(
    z: Tensor, target: Tensor, link: Any, still: Tensor, top: Tensor
) -> tuple[Tensor, Tensor]:
    """Σ [G(z) + Ω(t) − tz], and p − t."""
    low, high, p, nothing = link.integral(z), link.upper_integral(z), link.cdf(z), scalar(z, 0.0)
    if not target.is_floating_point():
        flags = target != 0
        terms = torch.where(still, nothing, torch.where(flags, high, low))
        away = torch.where(flags, -link.sf(z), p)
        return terms.sum(-1), away
    share, upper = target.double(), p > 0.5
    rest = torch.where(upper, 1 - share, -share)
    terms = torch.where(upper, high, low) + rest * (z + link.edge)
    away = torch.where(upper, rest - link.sf(z), p + rest)
    return (torch.where(still, nothing, terms) + link.omega(share)).sum(-1), away


def _likely(
    z: Tensor, labels: Tensor, link: Any, still: Tensor, top: Tensor
) -> tuple[Tensor, Tensor]:
    """−log p of the label, and p − t."""
    least = scalar(z, -torch.inf)
    z = torch.where(still, least, z)
    own = z.gather(-1, labels)
    others = z.scatter(-1, labels, -torch.inf)
    rest = others.logsumexp(-1, keepdim=True)
    loss = torch.logaddexp(rest - own, scalar(z, 0.0))
    # A row that +inf shares has no loss but at one of these.
    tops = top.sum(-1, keepdim=True)
    shared = torch.where(top.gather(-1, labels), tops.double().log(), scalar(z, torch.inf))
    known = ~loss.isnan() | (own == least)
    loss = torch.where(known & (tops > 0), shared, torch.where(own == least, -least, loss))
    away = torch.exp(others - torch.logaddexp(rest, own)).scatter_(-1, labels, torch.expm1(-loss))
    away = torch.where(loss == torch.inf, scalar(z, 0.0), away)
    return loss[..., 0], away


def _in_alpha(link: Any, z: Tensor, target: Tensor, still: Tensor) -> Tensor:
    """Return the derivatives in alpha at z of mean zero, where the loss does not move with θ."""
    alpha = torch.as_tensor(link.alpha, dtype=z.dtype, device=z.device)
    alpha = alpha.expand(*z.shape[:-1], 1).detach().clone().requires_grad_()
    away = z + link.edge
    with torch.enable_grad():
        other = link.with_alpha(alpha)
        terms = other.integral(away - other.edge)
        terms = torch.where(still, scalar(z, 0.0), terms)
        if target.is_floating_point() and target.shape == z.shape:
            terms = terms + other.omega(target.double())
        (found,) = torch.autograd.grad(terms.sum(), alpha)
    return found[..., 0].float()

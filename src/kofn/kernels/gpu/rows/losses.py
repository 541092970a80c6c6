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


def losses(
    x: Tensor, theta: Tensor, target: Tensor, temperature: Any, link: Any, likely: bool,
    wanted: bool, of_alpha: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the answers of `RowKernels.losses`."""
    link, z, high, known, out, top = placed(x, theta, temperature, link)
    nothing = scalar(z, 0.0)
    # A choice of all entries has −∞ for θ, and is as likely as its score says.
    constant = out | ((high == torch.inf) if likely else (high.abs() == torch.inf))
    z = torch.where(constant, nothing, z)
    labels = target[..., None] if target.ndim < x.ndim else None
    how = _likely if likely else _of_weights if labels is None else _of_labels
    given = target if labels is None else labels
    loss, residual = how(z, given, link, constant, top)
    # A bounded link would hide a NaN, which a row with one has for θ.
    residual = torch.where(constant, nothing, residual + known)
    infinite = scalar(loss, torch.inf)
    if likely:
        return torch.stack((loss, loss)).float(), residual.float() if wanted else None, False
    if labels is None:
        wrong = (out & (target != top)).any(-1)
    else:
        own = x.gather(-1, labels)[..., 0]
        tops = top.sum(-1)
        wrong = (own <= LEAST_IN_PLAY[dtype_name(x)]) | (tops > (own == torch.inf))
    # Infinity and a NaN are NaN.
    loss = torch.where(wrong, loss + infinite, loss)
    lever = (residual * z).sum(-1)
    answers = torch.stack((loss, lever)).float(), residual.float() if wanted else None, False
    return (*answers, recording(_in_alpha, link, z, given, constant)) if of_alpha else answers


def _of_labels(
    z: Tensor, labels: Tensor, link: Any, constant: Tensor, top: Tensor
) -> tuple[Tensor, Tensor]:
    """Σ G(z) − z at the label, and p − t."""
    own, nothing = z.gather(-1, labels), scalar(z, 0.0)
    terms = link.integral(z).scatter_(-1, labels, link.upper_integral(own))
    residual = link.cdf(z).scatter_(-1, labels, -link.sf(own))
    return torch.where(constant, nothing, terms).sum(-1), residual


def _of_weights(
    z: Tensor, target: Tensor, link: Any, constant: Tensor, top: Tensor
) -> tuple[Tensor, Tensor]:
    """Σ [G(z) + Ω(t) − tz], and p − t."""
    low, high, p, nothing = link.integral(z), link.upper_integral(z), link.cdf(z), scalar(z, 0.0)
    if not target.is_floating_point():
        flags = target != 0
        terms = torch.where(constant, nothing, torch.where(flags, high, low))
        residual = torch.where(flags, -link.sf(z), p)
        return terms.sum(-1), residual
    share, upper = target.double(), p > 0.5
    rest = torch.where(upper, 1 - share, -share)
    terms = torch.where(upper, high, low) + rest * (z + link.edge)
    residual = torch.where(upper, rest - link.sf(z), p + rest)
    return (torch.where(constant, nothing, terms) + link.omega(share)).sum(-1), residual


def _likely(
    z: Tensor, labels: Tensor, link: Any, constant: Tensor, top: Tensor
) -> tuple[Tensor, Tensor]:
    """−log p of the label, and p − t."""
    least = scalar(z, -torch.inf)
    z = torch.where(constant, least, z)
    own = z.gather(-1, labels)
    others = z.scatter(-1, labels, -torch.inf)
    rest = others.logsumexp(-1, keepdim=True)
    loss = torch.logaddexp(rest - own, scalar(z, 0.0))
    # A row that +inf shares has no loss but at one of these.
    tops = top.sum(-1, keepdim=True)
    shared = torch.where(top.gather(-1, labels), tops.double().log(), scalar(z, torch.inf))
    known = ~loss.isnan() | (own == least)
    loss = torch.where(known & (tops > 0), shared, torch.where(own == least, -least, loss))
    shares = torch.exp(others - torch.logaddexp(rest, own))
    residual = shares.scatter_(-1, labels, torch.expm1(-loss))
    residual = torch.where(loss == torch.inf, scalar(z, 0.0), residual)
    return loss[..., 0], residual


def _in_alpha(link: Any, z: Tensor, target: Tensor, constant: Tensor) -> Tensor:
    """Return the derivatives in alpha at z of mean zero, where the loss does not move with θ."""
    alpha = torch.as_tensor(link.alpha, dtype=z.dtype, device=z.device)
    alpha = alpha.expand(*z.shape[:-1], 1).detach().clone().requires_grad_()
    from_end = z + link.edge
    with torch.enable_grad():
        other = link.with_alpha(alpha)
        terms = other.integral(from_end - other.edge)
        terms = torch.where(constant, scalar(z, 0.0), terms)
        if target.is_floating_point() and target.shape == z.shape:
            terms = terms + other.omega(target.double())
        (in_alphas,) = torch.autograd.grad(terms.sum(), alpha)
    return in_alphas[..., 0].float()

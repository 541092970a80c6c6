"""The cotangents of alpha, by array code in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn.arrays.kinds import LEAST_IN_PLAY, dtype_name
from kofn.arrays.torch.state import recording
from kofn.arrays.typing import Number
from kofn.links.alpha import in_alpha as by_weights
from kofn.links.link import Link


def in_alpha(
    x: Tensor, cotangent: Tensor, theta: Tensor, temperature: Any, link: Link, *, logs: bool = False
) -> Tensor:
    """Return the cotangent of the alpha of each row, whose θ is known as two floats.

    The cotangents are of weights, or of their logarithms.
    """
    link, z, constant = _placed(x, theta, temperature, link)
    p = link.cdf(z).masked_fill(theta[0].isinf()[..., None] | (x == torch.inf), 1.0)
    each = cotangent.double()
    each = each.masked_fill(constant | (p == 0), 0.0) if logs else each * p
    alpha = torch.as_tensor(link.alpha, dtype=p.dtype, device=p.device)
    cotangents: Tensor = by_weights(p, each, alpha[..., 0] if alpha.ndim else alpha)
    return (cotangents + 0 * theta[0].masked_fill(theta[0].isinf(), 0.0)).to(theta.dtype)


def of_losses(x: Tensor, target: Tensor, theta: Tensor, temperature: Number, link: Link) -> Tensor:
    """Return the derivatives in alpha at z of mean zero, where the loss does not move with θ."""
    link, z, constant = _placed(x, theta, temperature, link)
    return recording(_of_terms, link, z.masked_fill(constant, 0.0), target, constant)


def _of_terms(link: Link, z: Tensor, target: Tensor, constant: Tensor) -> Tensor:
    alpha = torch.as_tensor(link.alpha, dtype=z.dtype, device=z.device)
    alpha = alpha.expand(*z.shape[:-1], 1).detach().clone().requires_grad_()
    with torch.enable_grad():
        other = link.with_alpha(alpha)
        terms = other.integral(z + link.edge - other.edge).masked_fill(constant, 0.0)
        if target.is_floating_point() and target.shape == z.shape:
            terms = terms + other.omega(target.double())
        (in_alphas,) = torch.autograd.grad(terms.sum(), alpha)
    return in_alphas[..., 0].float()


def _placed(x: Tensor, theta: Tensor, temperature: Any, link: Link) -> tuple[Any, Tensor, Tensor]:
    """Return (link with an axis more, z, which scores do not move).

    Rows without a finite θ are counted from 0.
    """
    link = link.map_alpha(lambda alpha: alpha.double()[..., None])
    t = temperature if isinstance(temperature, float) else temperature.double()[..., None]
    high, low = theta.double().unsqueeze(-1)
    endless = high.abs() == torch.inf
    # θ has 48 bits next to the greatest score, and its parts further apart have more: their sum
    # would lose a T that is a small part of the scores. Subtraction from x casts x.
    z = ((x - high.masked_fill(endless, 0.0)) - low) / t
    out = (x <= LEAST_IN_PLAY[dtype_name(x)]) | (x == torch.inf)
    return link, z, endless | out

"""The cotangent of alpha for weights, by array code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def in_alpha(x: Tensor, cotangent: Tensor, theta: Tensor, temperature: Any, link: Any) -> Tensor:
    """Return the cotangent of the alpha of each row, whose θ is known as two floats."""
    high, low = theta[0][..., None], theta[1][..., None]
    t = temperature if isinstance(temperature, float) else temperature[..., None]
    p = link.map_alpha(lambda alpha: alpha[..., None]).cdf(((x - high) - low) / t)
    p = p.masked_fill(high.isinf() | (x == torch.inf), 1.0)
    return in_alpha_of(p, cotangent, torch.as_tensor(link.alpha, device=x.device))


def in_alpha_of(p: Tensor, cotangent: Tensor, alpha: Tensor) -> Tensor:
    """Return the same from the weights: Σ g (∂F − F′ Σ∂F/ΣF′), with F = p.

    With a = α − 1 and L = log p, inside of the support F′ = p·e^{−aL} and, up to a multiple of F′,
    which θ takes up, ∂F/∂α = −p(L/a + (e^{−aL} − 1)/a²), which is −pL²/2 at a = 0. Source: Correia,
    Niculae & Martins, "Adaptively Sparse Transformers" (2019), for k = 1.
    """
    a, p = (alpha.double() - 1)[..., None], p.double()
    inside = (p > 0) & (p < 1)
    log = torch.where(inside, p, 1.0).log()
    y, some = a * log, torch.where(inside, p, 0.0)  # y ≤ 0
    e = torch.expm1(-y)
    series = torch.full_like(y, -1 / 5040)
    for each in (1 / 720, -1 / 120, 1 / 24, -1 / 6, 1 / 2):
        series = series * y + each
    moved = log * log * torch.where(y > -1e-2, series, (y + e) / (y * y))
    slope = e + 1
    total = (some * slope).sum(-1)
    shift = (some * moved).sum(-1) / torch.where(total > 0, total, 1.0)
    pulled = (some * cotangent * (moved - slope * shift[..., None])).sum(-1)
    # A NaN in the row is one in p, which is not inside.
    return (0 * p.sum(-1) - pulled).to(cotangent.dtype)

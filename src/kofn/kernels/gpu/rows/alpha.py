"""The cotangent of alpha for weights, by array code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn.links.alpha import in_alpha as by_weights


def in_alpha(x: Tensor, cotangent: Tensor, theta: Tensor, temperature: Any, link: Any) -> Tensor:
    """Return the cotangent of the alpha of each row, whose θ is known as two floats."""
    high, low = theta[0][..., None], theta[1][..., None]
    t = temperature if isinstance(temperature, float) else temperature[..., None]
    p = link.map_alpha(lambda alpha: alpha[..., None]).cdf(((x - high) - low) / t)
    p = p.masked_fill(high.isinf() | (x == torch.inf), 1.0)
    alpha = torch.as_tensor(link.alpha, dtype=torch.float64, device=x.device)
    cotangents: Tensor = by_weights(p, cotangent.double() * p, alpha)
    return cotangents.to(cotangent.dtype)

"""Where the entries of a row are from its θ: in float64, by few operations of PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn.arrays.kinds import LEAST_IN_PLAY, dtype_name, scalar


def placed(x: Tensor, theta: Tensor, temperature: Any, link: Any) -> tuple[Any, ...]:
    """Return (link, z, the high part of θ, 0 or NaN like θ, scores out of play or +inf, +inf).

    The link has its alpha, and all of that an axis more, in float64. Rows without a finite θ are
    counted from 0.
    """
    link = link.map_alpha(lambda alpha: alpha.double()[..., None])
    t = temperature if isinstance(temperature, float) else temperature.double()[..., None]
    high, low = theta.double().unsqueeze(-1)
    center = torch.where(high.abs() == torch.inf, scalar(high, 0.0), high)
    top = x == torch.inf
    out = (x <= LEAST_IN_PLAY[dtype_name(x)]) | top
    # θ has 48 bits next to the greatest score, and its parts further apart have more: their sum
    # would lose a T that is a small part of the scores. Subtraction from x casts x.
    return link, ((x - center) - low) / t, high, center * 0.0, out, top

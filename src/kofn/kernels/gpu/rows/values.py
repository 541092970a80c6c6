"""S_k and its slope in the temperature from θ: few operations of PyTorch, in float64.

In float64 the sums of all entries may be taken as they are. In float32 their cancellation costs
array code over a thousand operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn.arrays.kinds import LEAST_IN_PLAY, dtype_name


def values(x: Tensor, theta: Tensor, k: Any, temperature: Any, link: Any) -> Tensor:
    """Return S_k = kθ + T Σ G(z), and its slope in T, Σ(G(z) − zF(z)), like θ.

    Rows without a finite θ have every entry, none, or a NaN. A number in the place of a tensor, as
    in `where`, is a launch: `masked_fill` takes it along.
    """
    link = link.map_alpha(lambda alpha: alpha.double()[..., None])
    edge = link.edge.squeeze(-1) if isinstance(link.edge, Tensor) else link.edge
    t = temperature if isinstance(temperature, float) else temperature.double()
    of_row = t if isinstance(t, float) else t[..., None]
    high, low = theta.double()
    endless, unknown = high.abs() == torch.inf, high.isnan()
    # The sum of θ's parts loses digits of the lower one; subtraction from finite x casts it.
    center = high.masked_fill(endless, 0.0)
    top = x == torch.inf
    constant = (x <= LEAST_IN_PLAY[dtype_name(x)]) | top
    known = x.masked_fill(constant, 0.0)
    z = (((known - center[..., None]) - low[..., None]) / of_row).masked_fill(constant, 0.0)
    integral = link.integral(z)
    parts = torch.stack((integral, integral - z * link.cdf(z)))
    integral, slope = parts.masked_fill(constant, 0.0).sum(-1)
    value = (k * (center + (low - t * edge)) + t * integral).masked_fill(endless, 0.0)
    value = torch.where(high == -torch.inf, known.sum(-1, dtype=torch.float64), value)
    # A score of +inf is in the sum of any entries, and takes 1 of k.
    count = top.sum(-1)
    value = value.masked_fill(count.clamp(max=1) * k > 0, torch.inf)
    slope = (slope - (k - count) * edge).masked_fill(endless, 0.0)
    return torch.stack((value, slope)).masked_fill(unknown, torch.nan).to(theta.dtype)

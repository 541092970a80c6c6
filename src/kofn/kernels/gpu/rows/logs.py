"""Logarithms of weights and their way back from θ: few operations of PyTorch, in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn.arrays.kinds import scalar
from kofn.kernels.gpu.rows.alpha import in_alpha
from kofn.kernels.gpu.rows.formulas import EPS
from kofn.kernels.gpu.rows.place import placed


def logarithms(x: Tensor, theta: Tensor, k: Any, temperature: Any, link: Any) -> Tensor:
    """Return log p in the dtype of x: 0 or −∞ where θ is endless, a share of k at +inf."""
    link, z, high, known, out, top = placed(x, theta, temperature, link)
    endless = high.abs() == torch.inf
    logs = link.log_cdf(torch.where(out | endless, scalar(z, 0.0), z)) + known
    least, whole = scalar(z, -torch.inf), scalar(z, 0.0)
    logs = torch.where(endless, torch.where(high < 0, whole, least), logs)
    number = top.sum(-1, keepdim=True)
    count = k if isinstance(k, float) else k.double()[..., None]
    share = (count / number.clamp(min=1)).clamp(max=1.0).log()
    return torch.where(out, torch.where(top, share, least), logs).to(x.dtype)


def log_gradients(
    x: Tensor, cotangent: Tensor, theta: Tensor, temperature: Any, link: Any, of_alpha: bool
) -> tuple[Any, ...]:
    """Return what `RowKernels.log_gradients` does; no row is given up.

    F′/F comes from the smaller tail, and F′/ΣF′ from log F′: neither underflows.
    """
    given, number = link, isinstance(temperature, float)
    link, z, high, known, out, _ = placed(x, theta, temperature, link)
    nothing, least = scalar(z, 0.0), scalar(z, -torch.inf)
    constant = out | (high.abs() == torch.inf)
    z = torch.where(constant, nothing, z)
    if given.capped is not False:
        # The least that is chosen has the slope from below: θ, a float32, says so to four of its
        # rounding errors (`up_to_1` to those of float64).
        z = torch.where((z > 1) & (z < 1 + 4 * EPS.value), scalar(z, 1.0), z)
    p = link.cdf(z)
    slope = torch.where(p > 0.5, link.pdf(z) / p, link.cdf_slope(z))
    # Weights that are exactly 0 are constant, and may carry any cotangent.
    flat = constant | (link.log_cdf(z) == -torch.inf)
    pulled = torch.where(flat, nothing, slope * cotangent)
    logs = torch.where(constant, least, link.log_pdf(z))
    most = logs.amax(-1, keepdim=True)
    raised = torch.exp(logs - torch.where(most == -torch.inf, nothing, most))
    size = raised.sum(-1, keepdim=True)
    mean = pulled.sum(-1, keepdim=True) / torch.where(size == 0, scalar(z, 1.0), size)
    t = temperature if number else temperature.double()[..., None]
    in_x = (pulled - raised * mean) / t
    in_x = torch.where(constant, nothing, in_x + known)  # a bounded link would hide a NaN
    in_t = -(in_x * z).sum(-1)
    answers = in_x.to(x.dtype), torch.stack((in_t, in_t)).to(theta.dtype), False
    if not of_alpha:
        return answers
    each = torch.where(flat | (p == 0), nothing, cotangent / p)
    in_alphas = in_alpha(x, each.float(), theta, temperature, given)
    return *answers, in_alphas + known.float()[..., 0]

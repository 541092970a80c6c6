"""The check of a link's integral, which values and losses need."""

from __future__ import annotations

import math

import numpy as np

from kofn.arrays.kinds import Array, is_jax, is_torch
from kofn.links.link import Link


def require_integral(link: Link, like: Array) -> None:
    """Raise an error if the link's integral is missing or is not ∫F."""
    if link.integral_is_known:
        return
    z, lower, upper = _ends(link, like)
    # The tolerance allows for rounding of G(z) − z and for heavy tails.
    if not max(abs(lower), abs(upper)) <= 1 / math.sqrt(z):
        raise ValueError(
            f"the integral of {link!r} is not the one of a distribution with mean zero: "
            f"G(−z) = {lower:.3g} and G(z) − z = {upper:.3g} at z = {z:.3g}, both must go to 0; "
            "give G = ∫F from −∞ and shift cdf, pdf and integral so that the mean is 0"
        )


def _ends(link: Link, like: Array) -> tuple[float, float, float]:
    """Return (z, G(−z), G(z) − z) at a large z as numbers, even while `like` is traced."""
    if is_torch(like):
        from kofn.rows.torch_constants import integral_ends as of_torch

        ends: tuple[float, float, float] = of_torch(link.id)
        return ends
    if is_jax(like):
        from kofn.rows.jax_compiled import integral_ends as of_jax

        return of_jax(link.id)
    return link.integral_ends(np.asarray(2.0**26))

"""The Laplace link: its tails are exponentials. (Tests: test_links.py.)"""

from __future__ import annotations

import math

from kofn.arrays.kinds import Array, namespace
from kofn.arrays.typing import ArrayT
from kofn.links.kind import Kind, formulas
from kofn.links.safe_math import below
from kofn.links.symmetric import Symmetric
from kofn.links.vocabulary import (
    Real,
    exp,
    exp_in_reach,
    far,
    least,
    like,
    log,
    log_chance,
    log_rest,
    over,
    size,
    where,
)

LOG_2 = math.log(2)


def tail(a: Real, b: Real, per_b: Real) -> Real:
    upper = a > b
    t = 0.5 * where(upper, over(b, where(upper, a, 1)), a * per_b)
    return t, upper, t, where(upper, -t, t)


def gpu_tail(e: Real, upper: Real) -> Real:
    """The same by e^−|z|, of which it takes no quotient."""
    t = 0.5 * e
    return t, upper, t, where(upper, -t, t)


def density(z: Real) -> Real:
    return 0.5 * exp_in_reach(-size(z))


def integral(z: Real) -> Real:
    away = least(size(z), far(z))
    t = 0.5 * exp(-away)
    return t, z > 0, t + away * t


def quantile(q: Real, rest: Real) -> Real:
    """F⁻¹ of q = 1 − rest, which float32 has only apart."""
    return where(q < 0.5, log(2 * q), -log(2 * rest))


def log_below(z: Real) -> Real:
    return z - LOG_2, like(z, 1)


def omega(q: Real) -> Real:
    less = least(q, 1 - q)
    return less * (log_chance(less + less) - 1)


def logarithm(z: Real) -> Real:
    small = 0.5 * exp(-size(z))
    return where(z > 0, log_rest(small), z - LOG_2)


def hazard(z: Real) -> Real:
    t = 0.5 * exp(-size(z))
    return where(z > 0, over(t, 1 - t), 1), t


def noise(z: Real) -> Real:
    t, upper = 0.5 * exp(-size(z)), z > 0
    return t, upper, where(upper, over(t, 1 - t), 1)


class Laplace(Symmetric):
    """F(z) = e^z/2 below 0, 1 − e^−z/2 above (LapSum, Struski et al. 2025)."""

    smooth = True
    kinks = ((0.0, 0.5),)
    colour = "#45A8E2"
    kinds = (
        Kind(
            1,
            formulas(__name__),
            octaves=True,
            order=2,
            exponential_tails=True,
        ),
    )

    def cdf(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        under, low = below(z)
        return xp.where(under, xp.exp(low) / 2, 1 - xp.exp(-xp.where(under, 0.0, z)) / 2)

    def _low(self, z: ArrayT) -> ArrayT:
        return namespace(z).exp(z) / 2

    def pdf(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        return xp.exp(-xp.abs(z)) / 2

    def tails(self, z: ArrayT) -> tuple[Array, ArrayT, ArrayT]:
        tail = self.pdf(z)
        return z > 0, tail, tail

    def log_pdf(self, z: ArrayT) -> ArrayT:
        return -namespace(z).abs(z) - math.log(2)  # type: ignore[return-value]  # of its kind

    def log_cdf(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        under, low = below(z)
        return xp.where(under, low - math.log(2), xp.log1p(-xp.exp(-xp.where(under, 0.0, z)) / 2))

    def cdf_slope(self, z: ArrayT) -> ArrayT:
        return namespace(z).ones_like(z)

    def integral(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        under, low = below(z)
        high = xp.where(under, 0.0, z)
        return xp.where(under, xp.exp(low) / 2, high + xp.exp(-high) / 2)


laplace = Laplace("laplace")

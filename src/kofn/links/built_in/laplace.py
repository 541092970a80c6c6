"""The Laplace link: its tails are exponentials. (Tests: test_links.py.)"""

from __future__ import annotations

import math

from kofn.arrays.kinds import namespace
from kofn.arrays.typing import ArrayT
from kofn.links.kind import Kind, formulas
from kofn.links.symmetric import Symmetric
from kofn.links.vocabulary import *

LOG_2 = math.log(2)


def tail(a: Real, b: Real, per_b: Real) -> Real:
    upper = a > b
    t = 0.5 * where(upper, over(b, where(upper, a, 1)), a * per_b)
    return t, upper, t, where(upper, -t, t)


def tail_of_size(e: Real, upper: Real) -> Real:
    """The same by e^−|z| and whether z > 0: no quotient is needed."""
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
    kinds = (Kind(1, formulas(__name__), octaves=True, order=2, exponential_tails=True),)

    def _low(self, z: ArrayT) -> ArrayT:
        return namespace(z).exp(z) / 2

    def log_pdf(self, z: ArrayT) -> ArrayT:
        return -namespace(z).abs(z) - math.log(2)  # type: ignore[return-value]  # of its kind


laplace = Laplace("laplace")

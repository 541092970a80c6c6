"""The exponential link: an exponential function capped at 1. (Tests: test_links.py.)"""

from __future__ import annotations

import math

from kofn.arrays.kinds import Array, namespace
from kofn.arrays.typing import ArrayT
from kofn.links.kind import Kind, formulas
from kofn.links.link import BuiltIn
from kofn.links.safe_math import below, up_to_1, x_log_x
from kofn.links.vocabulary import *

INF = math.inf
END = KINK * 2.0**-23
"""As `rounding`, in float32, of a logarithm in float64."""


def tail(a: Real, b: Real, per_b: Real) -> Real:
    """At e^(z−1) = a/b."""
    p = a * per_b
    upper = p > 0.5
    inside = where(p < 1 + rounding(a), least(p, 1), 0)
    return where(upper, greatest(1 - p, 0), p), upper, inside, inside


def density(z: Real) -> Real:
    u = z - 1
    return where(u < rounding(z), exp_in_reach(least(u, 0)), 0)


def integral(z: Real) -> Real:
    inside = least(z - 1, 0)
    p = where(z < 1, exp(inside), 0)
    return p, z >= 1, where(p > 0, -p * inside, 0)


def quantile(q: Real) -> Real:
    return log(q) + 1


def log_below(z: Real) -> Real:
    return where(z - 1 < END, least(z - 1, 0), -INF), like(z, 1)


def omega(q: Real) -> Real:
    return q * log_chance(q)


def above(z: Real) -> Real:
    """G − z where ½ < F < 1."""
    return expm2(least(greatest(z - 1, -0.7), 0))


def logarithm(z: Real) -> Real:
    return least(z - 1, 0)


def hazard(z: Real) -> Real:
    slope = density(greatest(z, -reach(z)))
    return where(z - 1 < rounding(z), like(z, 1), 0), where(z > -reach(z), slope, 0)


class Exponential(BuiltIn):
    """F(z) = min(1, e^{z−1}): softmax at k = 1, capped softmax beyond (shifted to mean zero)."""

    capped = True
    kinks = ((1.0, 1.0),)
    colour = "#D55E00"
    other_names = ("softmax",)
    kinds = (Kind(3, formulas(__name__), octaves=True, checked=2.0**-5),)

    def cdf(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        inside, u = up_to_1(z - 1)
        return xp.where(inside, xp.exp(u), 1.0)

    def sf(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        inside, u = up_to_1(z - 1)
        return xp.where(inside, -xp.expm1(u), 0.0)

    def pdf(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        inside, u = up_to_1(z - 1)
        return xp.where(inside, xp.exp(u), 0.0)

    def tail(self, z: Array) -> tuple[Array, Array]:
        xp = namespace(z)
        inside, u = up_to_1(z - 1)
        p = xp.exp(u)
        upper = p > 0.5
        return upper, xp.where(inside, xp.where(upper, 1 - p, p), 0.0)

    def tails(self, z: ArrayT) -> tuple[Array, ArrayT, ArrayT]:
        xp = namespace(z)
        p = xp.exp(below(z - 1)[1])
        upper = p > 0.5
        return upper, xp.where(upper, 1 - p, p), xp.where(z < 1, p, 0.0)

    def log_pdf(self, z: ArrayT) -> ArrayT:
        inside, u = up_to_1(z - 1)
        return namespace(z).where(inside, u, -math.inf)

    def log_cdf(self, z: ArrayT) -> ArrayT:
        inside, u = up_to_1(z - 1)
        return namespace(z).where(inside, u, 0.0)

    def quantile(self, q: ArrayT) -> ArrayT:
        return namespace(q).log(q) + 1

    def slope_at(self, p: ArrayT, q: Array) -> ArrayT:
        """Return F′ where F is p and 1 − F is q, inside of (0, 1), or at p = 1 from below."""
        return p

    def integral(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        under, u = below(z - 1)
        return xp.where(under, xp.exp(u), z)

    def upper_integral(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        under, u = below(z - 1)
        return xp.where(under, xp.expm1(u) - u, 0.0)

    def omega(self, q: ArrayT) -> ArrayT:
        return x_log_x(q)


exponential = Exponential("exponential")

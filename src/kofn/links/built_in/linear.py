"""The linear link: sparsemax at k = 1. (Tests: test_links.py.)"""

from __future__ import annotations

import math
from typing import Any

from kofn.arrays.kinds import Array, cast, namespace, scalar
from kofn.arrays.typing import ArrayT
from kofn.links.bounded import Bounded
from kofn.links.kind import Kind, formulas
from kofn.links.link import BuiltIn, zero_at_ends
from kofn.links.vocabulary import *

SMALL, INF = 1e-35, math.inf


def tail(z: Real) -> Real:
    t = greatest(least(z, 1 - z), 0)
    return t, z > 0.5, where(t > 0, like(z, 1), 0), like(z, 0)


def density(z: Real) -> Real:
    return where((z > 0) & (z <= 1), like(z, 1), 0)


def integral(z: Real) -> Real:
    inside = where(z < 1, least(greatest(z, 0), 1), 0)
    return 0.5 * inside * inside, z >= 1, 0.5 * inside * (1 - inside)


def quantile(q: Real) -> Real:
    return q


def omega(q: Real) -> Real:
    return 0.5 * q * (q - 1)


def above(z: Real) -> Real:
    """G − z where ½ < F < 1."""
    return 0.5 * (1 - z) * (1 - z)


def logarithm(z: Real) -> Real:
    raised = log(least(greatest(z, SMALL), 1))
    return where(z > 0, raised, -INF)


def hazard(z: Real) -> Real:
    slope = density(greatest(z, -reach(z)))
    inside = (slope > 0) & (z > 0)
    return where(inside, over(1, least(greatest(z, SMALL), 1)), 0), slope


def noise(z: Real) -> Real:
    inside = (z > SMALL) & (z < 1)
    steep = where(inside, over(1, where(inside, z, 1)), 0)
    p = least(greatest(z, 0), 1)
    rest, upper = 1 - p, p > 0.5
    return where(upper, rest, p), upper, steep


class Ramp(BuiltIn):
    """F = clip(y, 0, 1), y = z + ½: sparsemax at k = 1, projection on the capped simplex beyond."""

    edge = -0.5
    order = 1.0

    kinks = ((0.0, 0.0), (1.0, 1.0))
    colour = "#222222"
    other_names = ("sparsemax", "relu", "hardsigmoid")
    kinds = (Kind(4, formulas(__name__), steps=2.0, checked=2.0**-4),)

    def cdf(self, z: ArrayT) -> ArrayT:
        return _pieces(z, 0.0, z, 1.0)

    def sf(self, z: ArrayT) -> ArrayT:
        return _pieces(z, 1.0, 1 - z, 0.0)

    def pdf(self, z: ArrayT) -> ArrayT:
        return _pieces(z, 0.0, namespace(z).ones_like(z), 0.0)

    def log_cdf(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        inside = (z > 0) & (z < 1)
        log_z = xp.log(xp.where(inside, z, 1.0))
        return xp.where(z > 0, log_z, -math.inf)

    def log_pdf(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        return xp.where((z > 0) & (z < 1), scalar(z, 0.0), -math.inf)

    def above_half(self, z: Array) -> Array:
        return z > 0.5

    def tail(self, z: Array) -> tuple[Array, Array]:
        upper = z > 0.5
        return upper, _pieces(z, 0.0, namespace(z).where(upper, 1 - z, z), 0.0)

    def tails(self, z: ArrayT) -> tuple[Array, Any, Any]:
        xp = namespace(z)
        upper = z > 0.5
        tail = xp.where(upper, 1 - z, z)
        inside = tail > 0
        return upper, xp.where(inside, tail, 0.0), cast(inside, z.dtype)

    def quantile(self, q: ArrayT) -> ArrayT:
        return q

    def slope_at(self, p: ArrayT, q: Array) -> ArrayT:
        """Return F′ where F is p and 1 − F is q, inside of (0, 1), or at p = 1 from below."""
        return 0 * p + 1  # NaN at NaN

    def integral(self, z: ArrayT) -> ArrayT:
        return _pieces(z, 0.0, z**2 / 2, z - 0.5)

    def upper_integral(self, z: ArrayT) -> ArrayT:
        return _pieces(z, 0.5 - z, (1 - z) ** 2 / 2, 0.0)

    def omega(self, q: ArrayT) -> ArrayT:
        return q * (q - 1) / 2 + zero_at_ends(q)


def _pieces(z: ArrayT, below: Any, inside: Array, above: Any) -> ArrayT:
    xp = namespace(z)
    return xp.where(z <= 0, below, xp.where(z < 1, inside, above))


linear = Bounded("linear", Ramp("inner linear"))

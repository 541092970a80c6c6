"""The exponential link: an exponential function capped at 1."""

from __future__ import annotations

import math

from kofn.arrays.kinds import Array, namespace
from kofn.arrays.typing import ArrayT
from kofn.links.link import BuiltIn
from kofn.links.safe_math import below, up_to_1, x_log_x


class _Exponential(BuiltIn):
    """F(z) = min(1, e^{z−1}): softmax at k = 1, capped softmax beyond (shifted to mean zero)."""

    capped = True

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

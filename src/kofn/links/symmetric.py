"""The symmetric links: logistic, Laplace and normal."""

from __future__ import annotations

import math

from kofn.arrays.kinds import Array, namespace, special
from kofn.arrays.typing import ArrayT
from kofn.links.link import BuiltIn, zero_at_ends
from kofn.links.safe_math import below, softplus, x_log_x


class _Symmetric(BuiltIn):
    """A symmetric link, F(−z) = 1 − F(z): the upper tail is the lower one reflected."""

    def above_half(self, z: Array) -> Array:
        return z > 0

    def sf(self, z: ArrayT) -> ArrayT:
        return self.cdf(-z)  # type: ignore[return-value]  # of its kind

    def tail(self, z: Array) -> tuple[Array, Array]:
        upper = z > 0
        return upper, self._low(namespace(z).where(upper, -z, z))

    def _low(self, z: ArrayT) -> ArrayT:
        """Return F where z ≤ 0."""
        return self.cdf(z)

    def log_sf(self, z: ArrayT) -> ArrayT:
        return self.log_cdf(-z)  # type: ignore[return-value]  # of its kind

    def sf_slope(self, z: ArrayT) -> ArrayT:
        return self.cdf_slope(-z)  # type: ignore[return-value]  # of its kind

    def upper_integral(self, z: ArrayT) -> ArrayT:
        return self.integral(-z)  # type: ignore[return-value]  # of its kind

    def upper_quantile(self, q: ArrayT) -> ArrayT:
        return -self.quantile(q)  # type: ignore[return-value]  # of its kind

    def slope_at(self, p: ArrayT, q: Array) -> ArrayT:
        """Return F′ where F is p and 1 − F is q, inside of (0, 1)."""
        return self.pdf(self.quantile(namespace(p).minimum(p, q)))

    def median(self, like: ArrayT) -> ArrayT:
        return namespace(like).zeros_like(like)


class _Logistic(_Symmetric):
    """F(z) = 1/(1 + e^−z): entropic optimal-transport top-k (Xie et al. 2020), LML (2019)."""

    def cdf(self, z: ArrayT) -> ArrayT:
        return special(z).expit(z)

    def pdf(self, z: ArrayT) -> ArrayT:
        return self.cdf(z) * self.cdf(-z)

    def tails(self, z: ArrayT) -> tuple[Array, ArrayT, ArrayT]:
        xp = namespace(z)
        e = xp.exp(-xp.abs(z))
        tail = e / (1 + e)
        return z > 0, tail, tail * (1 - tail)

    def log_pdf(self, z: ArrayT) -> ArrayT:
        return self.log_cdf(z) + self.log_cdf(-z)

    def log_cdf(self, z: ArrayT) -> ArrayT:
        return -self.integral(-z)  # type: ignore[return-value]  # of its kind

    def cdf_slope(self, z: ArrayT) -> ArrayT:
        return self.cdf(-z)  # type: ignore[return-value]  # of its kind

    def quantile(self, q: ArrayT) -> ArrayT:
        xp = namespace(q)
        return xp.log(q) - xp.log1p(-q)

    def integral(self, z: ArrayT) -> ArrayT:
        return softplus(z)

    def omega(self, q: ArrayT) -> ArrayT:
        return x_log_x(q) + x_log_x(1 - q)


class _Laplace(_Symmetric):
    """F(z) = e^z/2 below 0, 1 − e^−z/2 above (LapSum, Struski et al. 2025)."""

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

    def quantile(self, q: ArrayT) -> ArrayT:
        xp = namespace(q)
        return xp.where(q < 0.5, xp.log(2 * q), -xp.log(2 * (1 - q)))

    def integral(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        under, low = below(z)
        high = xp.where(under, 0.0, z)
        return xp.where(under, xp.exp(low) / 2, high + xp.exp(-high) / 2)

    def omega(self, q: ArrayT) -> ArrayT:
        tail = namespace(q).minimum(q, 1 - q)
        return x_log_x(tail) + (math.log(2) - 1) * tail


class _Normal(_Symmetric):
    """F(z) = Φ(z), the standard normal distribution."""

    def cdf(self, z: ArrayT) -> ArrayT:
        # ndtr is inaccurate in its lower tail in float32; erfc is accurate.
        return special(z).erfc(z * -math.sqrt(0.5)) / 2

    def pdf(self, z: ArrayT) -> ArrayT:
        return namespace(z).exp(self.log_pdf(z))

    def tails(self, z: ArrayT) -> tuple[Array, ArrayT, ArrayT]:
        return z > 0, self.cdf(-namespace(z).abs(z)), self.pdf(z)  # type: ignore[return-value]  # of its kind

    def log_pdf(self, z: ArrayT) -> ArrayT:
        return -z * z / 2 - math.log(2 * math.pi) / 2

    def log_cdf(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        start = _mills_start(z)
        far, upper = z < start, z > 0
        # The slope of PyTorch's log_ndtr is wrong by 1 % at −600 in float32, and vmap lacks it.
        near = self.cdf(xp.where(far, -1.0, xp.where(upper, -z, z)))
        below = xp.where(far, z, start)
        tail = -below * below / 2 - xp.log(-below) - math.log(2 * math.pi) / 2
        log_near = xp.where(upper, xp.log1p(-near), xp.log(near))
        return xp.where(far, tail + xp.log1p(_mills(below)), log_near)

    def cdf_slope(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        start = _mills_start(z)
        far = z < start
        below, above = xp.where(far, z, start), xp.where(far, start, z)
        near = xp.exp(self.log_pdf(above) - self.log_cdf(above))
        return xp.where(far, -below / (1 + _mills(below)), near)

    def quantile(self, q: ArrayT) -> ArrayT:
        return special(q).ndtri(q)

    def integral(self, z: ArrayT) -> ArrayT:
        return z * self.cdf(z) + self.pdf(z)

    def omega(self, q: ArrayT) -> ArrayT:
        xp = namespace(q)
        inside = (q > 0) & (q < 1)
        density = self.pdf(self.quantile(xp.where(inside, q, 0.5)))
        return xp.where(inside, -density, zero_at_ends(q))


def _mills_start(z: Array) -> float:
    """Return the z below which ten terms of `_mills` reach 1e-14 (1e-11 in float32)."""
    return -14.0 if float(namespace(z).finfo(z.dtype).eps) < 1e-12 else -10.0


def _mills(z: ArrayT) -> ArrayT:
    """Return −z times Mills' ratio, minus 1, for z far below 0, by ten terms of its series."""
    series, square = namespace(z).zeros_like(z), 1 / (z * z)
    for odd in range(19, 0, -2):
        series = -odd * square * (1 + series)
    return series

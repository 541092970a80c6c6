"""The normal link: its tail and its logarithm are words of their own. (Tests: test_links.py.)"""

from __future__ import annotations

import math
from collections.abc import Callable

from kofn.arrays.autodiff import by_slope
from kofn.arrays.kinds import Array, namespace, special
from kofn.arrays.typing import ArrayT
from kofn.links.kind import Kind, formulas
from kofn.links.link import zero_at_ends
from kofn.links.symmetric import Symmetric
from kofn.links.vocabulary import *

A, B, C, D, E, F = 2.515517, 0.802853, 0.010328, 1.432788, 0.189269, 0.001308
"""Φ⁻¹ to 5e-4: t − above/below of t = √(−2 log q) (Abramowitz & Stegun 26.2.23)."""
LATTICE = 1 / 16, 12.5, 19.0, 6, 100, 50_000
LOG_BELL, ROOT_HALF, LEAST = 0.5 * math.log(2 * math.pi), math.sqrt(0.5), 1e-37


def tail(z: Real) -> Real:
    t, slope = normal_tail(size(z))
    return t, z > 0, slope, -z * slope


def density(z: Real) -> Real:
    _, slope = normal_tail(size(z))
    return slope


def integral(z: Real) -> Real:
    away = least(size(z), far(z))
    t, bell = normal_tail(away)
    rest = greatest(bell - away * t, 0)
    return rest, z > 0, rest + away * t


def quantile(q: Real, rest: Real) -> Real:
    t = sqrt(-2 * log(least(q, rest)))
    above = A + t * (B + t * C)
    below = 1 + t * (D + t * (E + t * F))
    z = t - above / below
    return where(q < 0.5, -z, z)


def log_below(z: Real) -> Real:
    log_slope = -0.5 * z * z - LOG_BELL
    if z > -30:  # one number: libm's functions are no vector code
        log_tail = log(0.5 * erfc(-z * ROOT_HALF))
        return log_tail, exp(log_slope - log_tail)
    # The asymptotic series of Mills' ratio, good to 2e-12 from here on.
    s = 1 / (z * z)
    series = 1 - s * (1 - 3 * s * (1 - 5 * s * (1 - 7 * s * (1 - 9 * s))))
    return log_slope - log(-z) + log(series), -z / series


def logarithm(z: Real) -> Real:
    log_tail, _, t = far_tail(least(size(z), farthest(z)))
    return where(z > 0, log_rest(t), log_tail)


def hazard(z: Real) -> Real:
    away = least(size(z), farthest(z))
    _, steep, t = far_tail(away)
    slope = density(least(away, reach(z)))
    return where(z > 0, slope / (1 - t), steep), slope


def noise(z: Real) -> Real:
    t, slope = normal_tail(size(z))
    upper = z > 0
    cdf = where(upper, 1 - t, t)
    some = cdf > LEAST
    return t, upper, where(some, over(slope, where(some, cdf, 1)), 0)


class Normal(Symmetric):
    """F(z) = Φ(z), the standard normal distribution."""

    smooth = True
    colour = "#009E73"
    other_names = ("gaussian", "probit", "erf")
    kinds = (Kind(2, formulas(__name__), order=3, checked=2.0**-5, lattice=LATTICE),)

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
        return by_slope(self._log_cdf, self._slope_of_log, z)

    def _log_cdf(self, z: ArrayT) -> ArrayT:
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
        return by_slope(self._cdf_slope, self._bend, z)

    def _cdf_slope(self, z: ArrayT) -> ArrayT:
        return self._steep(z, lambda z: namespace(z).exp(self.log_pdf(z) - self.log_cdf(z)))

    def _slope_of_log(self, z: ArrayT) -> ArrayT:
        """Return `cdf_slope` as a derivative: e^(−z²/2) has the rounding error that erfc's has."""
        return by_slope(self._bell_over_tail, self._bend, z)

    def _bell_over_tail(self, z: ArrayT) -> ArrayT:
        def near(z: ArrayT) -> ArrayT:
            x = z * -math.sqrt(0.5)
            bell = namespace(z).exp(-x * x) / math.sqrt(2 * math.pi)
            return bell / self.cdf(z)

        return self._steep(z, near)

    def _steep(self, z: ArrayT, near: Callable[[ArrayT], ArrayT]) -> ArrayT:
        """Return F′/F, by `near` unless z is far below 0."""
        xp = namespace(z)
        start = _mills_start(z)
        far = z < start
        below, above = xp.where(far, z, start), xp.where(far, start, z)
        return xp.where(far, -below / (1 + _mills(below)), near(above))

    def _bend(self, z: ArrayT) -> ArrayT:
        """Return the slope of `cdf_slope`: of r = φ/Φ it is −r·(z + r)."""
        xp = namespace(z)
        start, slope = _mills_start(z), self._slope_of_log(z)
        far = z < start
        rest = _mills(xp.where(far, z, start))
        # The sum of the two would cancel far out.
        return -slope * xp.where(far, z * (rest / (1 + rest)), z + slope)

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


normal = Normal("normal")

"""The logistic link.

The formulas here say what any link's return. `a`, `b` and `per_b` are e^z = a/b, and compiled
code keeps `a` for a whole search; `per_b` is 1/b, of use where a ≤ b. A link that is not
in octaves is given z instead; one with an alpha, `rise` = α − 1, too. (Tests: test_links.py.)
"""

from __future__ import annotations

from kofn.arrays.autodiff import by_slope
from kofn.arrays.kinds import Array, namespace, special
from kofn.arrays.typing import ArrayT
from kofn.links.kind import Kind, formulas
from kofn.links.safe_math import softplus
from kofn.links.symmetric import Symmetric
from kofn.links.vocabulary import *


def tail(a: Real, b: Real) -> Real:
    """(the smaller of F and 1 − F; whether F > ½; F′; F″)."""
    r = over(1, a + b)
    low, high = a * r, b * r
    upper = a > b
    slope = low * high
    return where(upper, high, low), upper, slope, slope * (high - low)


def tail_of_size(e: Real, upper: Real) -> Real:
    """The same by e^−|z| and whether z > 0, for a GPU and arrays: a few operations fewer."""
    r = over(1, 1 + e)
    t = e * r
    slope = t * r
    bend = slope * (r - t)
    return t, upper, slope, where(upper, -bend, bend)


def density(z: Real) -> Real:
    """F′ within `reach`; at a kink the slope below it."""
    e = exp_in_reach(-size(z))
    t = over(e, 1 + e)
    return t - t * t


def integral(z: Real) -> Real:
    """(G, less z where z is far up; whether it is; G − zF = −Ω(F))."""
    away = least(size(z), far(z))
    e = exp(-away)
    t, rest = e / (1 + e), log1p(e)
    return rest, z > 0, rest + away * t


def quantile(q: Real) -> Real:
    """F⁻¹(q) for a bracket: a few digits are enough."""
    return log(q) - log1p(-q)


def gpu_quantile(q: Real, rest: Real) -> Real:
    """The same of q and 1 − q, which float32 has only apart."""
    return log(q) - log(rest)


def log_below(z: Real) -> Real:
    """(log F; F′/F) far below θ, in float64. Links that are not symmetric have `log_above`, too."""
    e = exp(z)
    return z - log1p(e), 1 / (1 + e)


def omega(q: Real) -> Real:
    """Ω(q) = ∫₀^q F⁻¹ inside of (0, 1). Without it soft targets are for array code."""
    return q * log_chance(q) + (1 - q) * log(1 - q)


def logarithm(z: Real) -> Real:
    """log F. Without it, or `hazard`, logarithms of weights are for array code."""
    return least(z, 0) - log1p(exp(-size(z)))


def hazard(z: Real) -> Real:
    """(F′/F; F′) where F > 0; zeros elsewhere."""
    e = exp(-size(z))
    t = over(e, 1 + e)
    return where(z > 0, t, 1 - t), t - t * t


def noise(z: Real) -> Real:
    """(the smaller of F and 1 − F; whether F > ½; F′/F) of a noise."""
    e = exp(-size(z))
    r = over(1, 1 + e)
    t, upper = e * r, z > 0
    return t, upper, where(upper, t, r)


class Logistic(Symmetric):
    """F(z) = 1/(1 + e^−z): entropic optimal-transport top-k (Xie et al. 2020), LML (2019)."""

    smooth = True
    colour = "#0072B2"
    other_names = ("sigmoid", "expit")
    kinds = (
        Kind(
            0,
            formulas(__name__),
            octaves=True,
            order=3,
            checked=2.0**-5,
            exponential_tails=True,
            lattice=(1 / 4, 84.0, 93.0, 0, 0, 64),
        ),
    )

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
        return by_slope(lambda z: -softplus(-z), self.cdf_slope, z)

    def cdf_slope(self, z: ArrayT) -> ArrayT:
        return self.cdf(-z)  # type: ignore[return-value]  # of its kind

    def integral(self, z: ArrayT) -> ArrayT:
        return softplus(z)


logistic = Logistic("logistic")

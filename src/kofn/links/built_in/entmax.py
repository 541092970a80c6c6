"""The entmax links, with an alpha between exponential and linear. (Tests: test_links.py.)

Formulas are for α > 1.1, by `rise` = α − 1: a rounded α less 1 would be off by more. The ones
at α = 1.5 are apart, for speed.
"""

from __future__ import annotations

import math
from typing import Any, Never

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_number
from kofn.arrays.kinds import Array, cast_like, framework, is_numpy, namespace, scalar
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT, Number
from kofn.links.bounded import Bounded
from kofn.links.kind import Kind, formulas
from kofn.links.link import BuiltIn, Link, zero_at_ends
from kofn.links.safe_math import expm1_over, log1p_over, up_to_1
from kofn.links.vocabulary import *

NEAR_1 = 1.1
"""The α below which entmax's support ends too far away to be counted from: at −1/(α(α − 1))."""
SMALL, INF, TWO_THIRDS = 1e-35, math.inf, 2 / 3


def tail(z: Real, rise: Real) -> Real:
    base = least(greatest(rise * z, 0), 1)
    inside = (base > 0) & (base < 1)
    p = where(base > 0, power(base, 1 / rise), 0)
    first = divided(p, where(inside, base, 1))
    second = divided((1 - rise) * first, where(inside, base, 1))
    upper = p > 0.5
    return where(upper, 1 - p, p), upper, where(inside, first, 0), where(inside, second, 0)


def density(z: Real, rise: Real) -> Real:
    raw = rise * z
    base = least(raw, 1)
    inside = (base > 0) & (raw < 1 + rounding(z))
    base = power(where(inside, base, 1), (1 - rise) / rise)
    return where(inside, base, 0)


def integral(z: Real, rise: Real) -> Real:
    base = rise * z
    inside = where(base < 1, least(greatest(base, 0), 1), 0)
    p = power(inside, 1 / rise)
    return p * inside / (1 + rise), base >= 1, (p - p * inside) / (rise * (1 + rise))


def quantile(q: Real, alpha: Real) -> Real:
    return q ** (alpha - 1) / (alpha - 1)


def gpu_quantile(q: Real, rise: Real) -> Real:
    """The same of float32, in which a rounded α less 1 is good enough."""
    return exp(rise * log(q)) / rise


def omega(q: Real, rise: Real) -> Real:
    return (power(q, 1 + rise) - q) / (rise * (1 + rise))


def above(z: Real, part: Real, edge: Real) -> Real:
    """G − z where ½ < F < 1 and G is `part`."""
    return greatest(part - (z + edge), 0)


def logarithm(z: Real, rise: Real) -> Real:
    base = rise * z
    raised = log(least(greatest(base, SMALL), 1))
    return where(base > 0, raised / rise, -INF)


def hazard(z: Real, rise: Real) -> Real:
    slope, base = density(greatest(z, -reach(z)), rise), rise * z
    inside = (slope > 0) & (base > 0)
    return where(inside, over(1, least(greatest(base, SMALL), 1)), 0), slope


def square_tail(z: Real) -> Real:
    base = least(greatest(0.5 * z, 0), 1)
    inside = (base > 0) & (base < 1)
    p = base * base
    upper = p > 0.5
    return where(upper, 1 - p, p), upper, where(inside, base, 0), where(inside, like(z, 0.5), 0)


def square_density(z: Real) -> Real:
    raw = 0.5 * z
    base = least(raw, 1)
    inside = (base > 0) & (raw < 1 + rounding(z))
    return where(inside, base, 0)


def square_integral(z: Real, rise: Real) -> Real:
    base = 0.5 * z
    inside = where(base < 1, least(greatest(base, 0), 1), 0)
    p = inside * inside
    return p * inside / (1 + rise), base >= 1, (p - p * inside) / (rise * (1 + rise))


def square_above(z: Real) -> Real:
    base = 0.5 * z
    return TWO_THIRDS * (1 - base) * (1 - base) * (base + 2)


def square_logarithm(z: Real) -> Real:
    base = 0.5 * z
    raised = log(least(greatest(base, SMALL), 1))
    return where(base > 0, raised + raised, -INF)


def square_hazard(z: Real) -> Real:
    slope, base = square_density(greatest(z, -reach(z))), 0.5 * z
    inside = (slope > 0) & (base > 0)
    return where(inside, over(1, least(greatest(base, SMALL), 1)), 0), slope


def square_noise(z: Real) -> Real:
    base = 0.5 * z
    inside = (base > SMALL) & (base < 1)
    steep = where(inside, over(1, where(inside, base, 1)), 0)
    base = least(greatest(base, 0), 1)
    upper, rest = base * base > 0.5, 1 - base
    return where(upper, rest * (1 + base), base * base), upper, steep


class Power(BuiltIn):
    """F = [(α−1)y]₊^{1/(α−1)} up to 1, y = z + 1/(α(α−1)): α-entmax at k = 1 (Peters et al. 2019).

    Near α = 1, where y would be large, F = [1 + (α−1)u]₊^{1/(α−1)} at u = z − 1/α instead, smooth
    in α through 1 (exponential) as exp(u·g((α−1)u)), g(t) = log1p(t)/t.
    """

    colour = "#CC79A7"
    other_names = ("entmax15",)
    kinds = (
        Kind(5, formulas(__name__, "square_"), steps=3.0, checked=2.0**-4),
        Kind(6, formulas(__name__), steps=6.0),
    )
    """At α = 1.5, where F is a square, and elsewhere."""

    def __init__(self, name: str, alpha: Number) -> None:
        super().__init__(name)
        self.alpha = alpha

    def with_alpha(self, alpha: Number) -> BuiltIn:
        link = object.__new__(Power)
        link.name, link.id = self.name, self.id
        link.alpha = alpha
        return link

    @property
    def edge(self) -> Any:
        alpha = self.alpha
        if isinstance(alpha, float):
            return 0.0 if alpha < NEAR_1 else -1 / (alpha * (alpha - 1))
        near, others = _parted(alpha)
        return namespace(alpha).where(near, 0.0, -1 / (others * (others - 1)))

    @property
    def kinks(self) -> tuple[tuple[float, float], ...]:  # type: ignore[override]
        alpha = self.alpha
        # In Python, because compilers that trace this do not support NumPy.
        upper = 1 / alpha if alpha < NEAR_1 else 1 / (alpha - 1)
        lower = ((upper - 1 / (alpha - 1), 0.0),) if alpha > 1 else ()
        return (*lower, (upper, 1.0))

    @property
    def order(self) -> Any:
        alpha = self.alpha
        if isinstance(alpha, float):
            return None if alpha < NEAR_1 else 1 / (alpha - 1)
        near, others = _parted(alpha)
        return namespace(alpha).where(near, 0.0, 1 / (others - 1))

    @property
    def capped(self) -> Any:
        return self.alpha < NEAR_1

    def _like(self, z: Array) -> Number:
        return self.alpha if isinstance(self.alpha, float) else cast_like(self.alpha, z)

    def _inside(self, z: ArrayT) -> tuple[Array, ArrayT, ArrayT]:
        """Return (inside the support, log F there and log ½ elsewhere, above the support)."""
        alpha = self._like(z)
        if isinstance(alpha, float):
            return (_near_1 if alpha < NEAR_1 else _from_end)(z, alpha)
        xp = namespace(z)
        near, others = _parted(alpha)
        if is_numpy(z) and not near.any():  # as nearly always: half of the work
            return _from_end(z, alpha)
        ways = zip(_near_1(z, xp.where(near, alpha, 1.0)), _from_end(z, others), strict=True)
        inside, log_cdf, above = (xp.where(near, one, other) for one, other in ways)
        return inside, log_cdf, above

    def cdf(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        inside, log_cdf, above = self._inside(z)
        return xp.where(inside, xp.exp(log_cdf), xp.where(above, scalar(z, 1.0), 0.0))

    def sf(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        inside, log_cdf, above = self._inside(z)
        return xp.where(inside, -xp.expm1(log_cdf), xp.where(above, scalar(z, 0.0), 1.0))

    def tail(self, z: Array) -> tuple[Array, Array]:
        xp = namespace(z)
        inside, log_cdf, above = self._inside(z)
        p = xp.exp(log_cdf)
        upper = xp.where(inside, p > 0.5, above)
        return upper, xp.where(inside, xp.where(upper, 1 - p, p), 0.0)

    def tails(self, z: ArrayT) -> tuple[Array, Any, Any]:
        return *self.tail(z), self.pdf(z)

    def pdf(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        inside, log_cdf, _ = self._inside(z)
        return xp.where(inside, xp.exp((2 - self._like(z)) * log_cdf), 0.0)

    def reversed_hazard(self, z: ArrayT, cdf: Array, pdf: Array) -> ArrayT:
        """Return 1/base for F = base^(1/(α−1)) strictly inside the support, 0 elsewhere.

        For a number α.
        """
        xp, alpha = namespace(z), self._like(z)
        near_1 = isinstance(alpha, float) and alpha < NEAR_1
        base = 1 + (alpha - 1) * (z - 1 / alpha) if near_1 else (alpha - 1) * z
        inside = (base > 0) & (base < 1)
        return xp.where(inside, 1 / xp.where(inside, base, 1.0), 0.0)

    def log_pdf(self, z: ArrayT) -> ArrayT:
        inside, log_cdf, _ = self._inside(z)
        return namespace(z).where(inside, (2 - self._like(z)) * log_cdf, -math.inf)

    def log_cdf(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        inside, log_cdf, above = self._inside(z)
        return xp.where(inside, log_cdf, xp.where(above, scalar(z, 0.0), -math.inf))

    def slope_at(self, p: ArrayT, q: Array) -> ArrayT:
        return p ** (2 - self._like(p))

    def quantile(self, q: ArrayT) -> ArrayT:
        xp = namespace(q)
        alpha = self._like(q)
        log_q = xp.log(q)
        near_1 = log_q * expm1_over((alpha - 1) * log_q) + 1 / alpha
        if isinstance(alpha, float):
            return near_1 if alpha < NEAR_1 else xp.exp((alpha - 1) * log_q) / (alpha - 1)
        near, others = _parted(alpha)
        return xp.where(near, near_1, xp.exp((others - 1) * log_q) / (others - 1))

    def integral(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        alpha = self._like(z)
        inside, log_cdf, above = self._inside(z)
        beyond = xp.where(above, z + self.edge, 0.0)
        return xp.where(inside, xp.exp(alpha * log_cdf) / alpha, beyond)

    def upper_integral(self, z: ArrayT) -> ArrayT:
        above = self._inside(z)[2]
        return namespace(z).where(above, 0.0, self.integral(z) - (z + self.edge))

    def omega(self, q: ArrayT) -> ArrayT:
        xp = namespace(q)
        alpha = self._like(q)
        inside = (q > 0) & (q < 1)
        log_q = xp.log(xp.where(inside, q, 1.0))
        return q * log_q * expm1_over((alpha - 1) * log_q) / alpha + zero_at_ends(q)


def _parted(alpha: Array) -> tuple[Array, Array]:
    """Return (whether α is near 1, α where it is not and 2 elsewhere)."""
    near = alpha < NEAR_1
    return near, namespace(alpha).where(near, 2.0, alpha)


def _near_1(z: Array, alpha: Number) -> tuple[Array, Any, Any]:
    xp = namespace(z)
    below_1, u = up_to_1(z - 1 / alpha)
    t = (alpha - 1) * u
    inside = below_1 & (t > -1)
    log_cdf = xp.where(inside, u, -math.log(2)) * log1p_over(xp.where(inside, t, 0.0))
    return inside, log_cdf, ~below_1


def _from_end(z: Array, alpha: Number) -> tuple[Array, Any, Any]:
    xp = namespace(z)
    base = (alpha - 1) * z
    below_1, _ = up_to_1(base - 1)
    inside = below_1 & (base > 0)
    base = xp.where(inside, base, 0.5)
    # As in `up_to_1`: just above 1, the value is 1 and the slope is the one from below.
    base = base - stop_gradient(xp.where(base > 1, base - 1, 0.0))
    return inside, xp.log(base) / (alpha - 1), ~below_1


_entmax = Bounded("entmax", Power("inner entmax", 1.5))


def entmax(alpha: float | Array = 1.5, **others: Never) -> Link:
    """Return the link whose map for k = 1 is α-entmax; α = 1 is `exponential`, α = 2 `linear`.

    Args:
        alpha: a number ≥ 1, or an array that broadcasts to the batch shape of the scores (one α
            per row); it may carry a gradient.

    Raises:
        ValueError: a number below 1, infinite or NaN.

    Source: Peters, Niculae & Martins, "Sparse Sequence-to-Sequence Models" (2019).

    Example:
        >>> import numpy as np
        >>> from kofn import links, soft_topk
        >>> soft_topk(np.array([1.0, 0.5, 0.2, -1.0]), 2, link=links.entmax(1.3)).round(3)
        array([0.987, 0.573, 0.394, 0.046])
    """
    if others:
        raise unknown_keyword(entmax, others)
    if framework(alpha) is None:
        alpha = check_number("alpha", alpha, low=1.0, allowed="a finite number ≥ 1")
        # torch.compile may have a symbol for a float, but α decides which code is called. To
        # write it down, the compiler takes the number and checks it in later calls.
        alpha = float.fromhex(alpha.hex())
    return _entmax.with_alpha(alpha)

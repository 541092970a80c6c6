"""Links with weights of exactly 0: linear and entmax, with z measured from the support's end.

If n equal entries share a small k, every weight is k/n, and z = (x − θ)/T is as near to the lower
end of the support as F⁻¹(k/n). For a distribution of mean zero that end is a number such as −½.
float32 has a spacing of 3e-8 there, and Σp would have an error of n times that. The solver
therefore uses the link `inner`, whose z is 0 at the end; θ is returned for mean zero.
"""

from __future__ import annotations

import math
from typing import Any

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, cast, cast_like, is_numpy, namespace, scalar
from kofn.arrays.typing import ArrayT, Number
from kofn.links.link import BuiltIn, Link, zero_at_ends
from kofn.links.safe_math import expm1_over, log1p_over, up_to_1

NEAR_1 = 1.1
"""The α below which entmax's support ends too far away to be counted from: at −1/(α(α − 1))."""


class Bounded(BuiltIn):
    """A link with bounded support: F(z) = inner.F(z − edge)."""

    def __init__(self, name: str, inner: Link) -> None:
        super().__init__(name, infinite_tails=False)
        self._inner = inner
        self.alpha = inner.alpha

    def with_alpha(self, alpha: Number) -> Link:
        link = object.__new__(Bounded)
        link.name, link.id, link._infinite_tails = self.name, self.id, False
        link._inner, link.alpha = self._inner.with_alpha(alpha), alpha
        return link

    @property
    def inner(self) -> Link:
        return self._inner

    def _inside(self, z: ArrayT) -> ArrayT:
        inner: ArrayT = z - self._inner.edge
        return inner

    def cdf(self, z: ArrayT) -> ArrayT:
        return self._inner.cdf(self._inside(z))

    def sf(self, z: ArrayT) -> ArrayT:
        return self._inner.sf(self._inside(z))

    def pdf(self, z: ArrayT) -> ArrayT:
        return self._inner.pdf(self._inside(z))

    def log_pdf(self, z: ArrayT) -> ArrayT:
        return self._inner.log_pdf(self._inside(z))

    def log_cdf(self, z: ArrayT) -> ArrayT:
        return self._inner.log_cdf(self._inside(z))

    def quantile(self, q: ArrayT) -> ArrayT:
        shifted: ArrayT = self._inner.quantile(q) + self._inner.edge
        return shifted

    def integral(self, z: ArrayT) -> ArrayT:
        return self._inner.integral(self._inside(z))

    def upper_integral(self, z: ArrayT) -> ArrayT:
        return self._inner.upper_integral(self._inside(z))

    def omega(self, q: ArrayT) -> ArrayT:
        return self._inner.omega(q)


class Ramp(BuiltIn):
    """F = clip(y, 0, 1), y = z + ½: sparsemax at k = 1, projection on the capped simplex beyond."""

    edge = -0.5
    order = 1.0

    def __init__(self, name: str) -> None:
        super().__init__(name, infinite_tails=False)

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


class Power(BuiltIn):
    """F = [(α−1)y]₊^{1/(α−1)} up to 1, y = z + 1/(α(α−1)): α-entmax at k = 1 (Peters et al. 2019).

    Near α = 1, where y would be large, F = [1 + (α−1)u]₊^{1/(α−1)} at u = z − 1/α instead, smooth
    in α through 1 (exponential) as exp(u·g((α−1)u)), g(t) = log1p(t)/t.
    """

    def __init__(self, name: str, alpha: Number) -> None:
        super().__init__(name, infinite_tails=False)
        self.alpha = alpha

    def with_alpha(self, alpha: Number) -> Link:
        link = object.__new__(Power)
        link.name, link.id, link._infinite_tails = self.name, self.id, False
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


def _pieces(z: ArrayT, below: Any, inside: Array, above: Any) -> ArrayT:
    xp = namespace(z)
    return xp.where(z <= 0, below, xp.where(z < 1, inside, above))


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

"""The table of links: the distribution functions F of Σ F((x − θ)/T) = k.

Every link is shifted so that its distribution has mean zero; then Ω(q) = ∫₀^q F⁻¹ vanishes at
both ends and value and loss come out as people expect (softmax's log-sum-exp, cross-entropy).
A link is a few scalar functions. Adding one is adding one class here and its line in the table;
the solver, the maps, the losses and the tests enumerate the table.
"""

from __future__ import annotations

import math
from typing import Any

from kofn._array import Array, cast_like, framework, namespace, scalar, special
from kofn._link import Link, register, zero_at_ends
from kofn._pieces import below, expm1_over, log1p_over, up_to_1, x_log_x
from kofn._validate import check_number

__all__ = ["Link", "entmax", "exponential", "laplace", "linear", "logistic", "normal"]


class _BuiltIn(Link):
    """A row of the table: methods instead of arguments, tails known in advance."""

    def __init__(self, name: str, *, infinite_tails: bool) -> None:
        self.name = name
        self._infinite_tails = infinite_tails
        self.id = register(self)

    @property
    def integral_is_known(self) -> bool:
        return True


class _Symmetric(_BuiltIn):
    """F(−z) = 1 − F(z), so the upper tail is the lower one reflected."""

    def above_half(self, z: Array) -> Array:
        return z > 0

    def sf(self, z: Array) -> Array:
        return self.cdf(-z)

    def log_sf(self, z: Array) -> Array:
        return self.log_cdf(-z)

    def upper_integral(self, z: Array) -> Array:
        return self.integral(-z)


class _Logistic(_Symmetric):
    """F(z) = 1/(1 + e^−z): the entropic optimal-transport top-k (Xie et al. 2020), LML (2019)."""

    def cdf(self, z: Array) -> Array:
        return special(z).expit(z)

    def pdf(self, z: Array) -> Array:
        return self.cdf(z) * self.cdf(-z)

    def tails(self, z: Array) -> tuple[Array, Array, Array]:
        xp = namespace(z)
        e = xp.exp(-xp.abs(z))
        r = 1 / (1 + e)
        return z > 0, e * r, e * r * r

    def log_pdf(self, z: Array) -> Array:
        return self.log_cdf(z) + self.log_cdf(-z)

    def log_cdf(self, z: Array) -> Array:
        return -self.integral(-z)

    def quantile(self, q: Array) -> Array:
        xp = namespace(q)
        return xp.log(q) - xp.log1p(-q)

    def integral(self, z: Array) -> Array:
        return namespace(z).logaddexp(z, namespace(z).zeros_like(z))

    def omega(self, q: Array) -> Array:
        return x_log_x(q) + x_log_x(1 - q)


class _Laplace(_Symmetric):
    """F(z) = e^z/2 below 0, 1 − e^−z/2 above (LapSum, Struski et al. 2025)."""

    def cdf(self, z: Array) -> Array:
        xp = namespace(z)
        under, low = below(z)
        return xp.where(under, xp.exp(low) / 2, 1 - xp.exp(-xp.where(under, 0.0, z)) / 2)

    def pdf(self, z: Array) -> Array:
        xp = namespace(z)
        return xp.exp(-xp.abs(z)) / 2

    def tails(self, z: Array) -> tuple[Array, Array, Array]:
        tail = self.pdf(z)
        return z > 0, tail, tail

    def log_pdf(self, z: Array) -> Array:
        return -namespace(z).abs(z) - math.log(2)

    def log_cdf(self, z: Array) -> Array:
        xp = namespace(z)
        under, low = below(z)
        return xp.where(under, low - math.log(2), xp.log1p(-xp.exp(-xp.where(under, 0.0, z)) / 2))

    def quantile(self, q: Array) -> Array:
        xp = namespace(q)
        return xp.where(q < 0.5, xp.log(2 * q), -xp.log(2 * (1 - q)))

    def integral(self, z: Array) -> Array:
        xp = namespace(z)
        under, low = below(z)
        high = xp.where(under, 0.0, z)
        return xp.where(under, xp.exp(low) / 2, high + xp.exp(-high) / 2)

    def omega(self, q: Array) -> Array:
        tail = namespace(q).minimum(q, 1 - q)
        return x_log_x(tail) + (math.log(2) - 1) * tail


class _Normal(_Symmetric):
    """F(z) = Φ(z), the standard normal distribution."""

    def cdf(self, z: Array) -> Array:
        # ndtr loses its lower tail in float32; erfc keeps it.
        return special(z).erfc(z * -math.sqrt(0.5)) / 2

    def pdf(self, z: Array) -> Array:
        return namespace(z).exp(self.log_pdf(z))

    def tails(self, z: Array) -> tuple[Array, Array, Array]:
        return z > 0, self.cdf(-namespace(z).abs(z)), self.pdf(z)

    def log_pdf(self, z: Array) -> Array:
        return -z * z / 2 - math.log(2 * math.pi) / 2

    def log_cdf(self, z: Array) -> Array:
        return special(z).log_ndtr(z)

    def quantile(self, q: Array) -> Array:
        return special(q).ndtri(q)

    def integral(self, z: Array) -> Array:
        return z * self.cdf(z) + self.pdf(z)

    def omega(self, q: Array) -> Array:
        xp = namespace(q)
        inside = (q > 0) & (q < 1)
        density = self.pdf(self.quantile(xp.where(inside, q, 0.5)))
        return xp.where(inside, -density, zero_at_ends(q))


class _Exponential(_BuiltIn):
    """F(z) = min(1, e^{z−1}): softmax at k = 1, capped softmax beyond (shifted to mean zero)."""

    def cdf(self, z: Array) -> Array:
        xp = namespace(z)
        inside, u = up_to_1(z - 1)
        return xp.where(inside, xp.exp(u), 1.0)

    def sf(self, z: Array) -> Array:
        xp = namespace(z)
        inside, u = up_to_1(z - 1)
        return xp.where(inside, -xp.expm1(u), 0.0)

    def pdf(self, z: Array) -> Array:
        xp = namespace(z)
        inside, u = up_to_1(z - 1)
        return xp.where(inside, xp.exp(u), 0.0)

    def tails(self, z: Array) -> tuple[Array, Array, Array]:
        xp = namespace(z)
        p = xp.exp(below(z - 1)[1])
        upper = p > 0.5
        return upper, xp.where(upper, 1 - p, p), xp.where(z < 1, p, 0.0)

    def log_pdf(self, z: Array) -> Array:
        inside, u = up_to_1(z - 1)
        return namespace(z).where(inside, u, -math.inf)

    def quantile(self, q: Array) -> Array:
        return namespace(q).log(q) + 1

    def integral(self, z: Array) -> Array:
        xp = namespace(z)
        under, u = below(z - 1)
        return xp.where(under, xp.exp(u), z)

    def upper_integral(self, z: Array) -> Array:
        xp = namespace(z)
        under, u = below(z - 1)
        return xp.where(under, xp.expm1(u) - u, 0.0)

    def omega(self, q: Array) -> Array:
        return x_log_x(q)


class _Linear(_Symmetric):
    """F(z) = clip(z + ½, 0, 1): sparsemax at k = 1, the projection on the capped simplex beyond."""

    def cdf(self, z: Array) -> Array:
        return self._pieces(z, 0.0, z + 0.5, 1.0)

    def pdf(self, z: Array) -> Array:
        return self._pieces(z, 0.0, namespace(z).ones_like(z), 0.0)

    def tails(self, z: Array) -> tuple[Array, Array, Array]:
        xp = namespace(z)
        room = 0.5 - xp.abs(z)
        inside = room > 0
        return z > 0, xp.where(inside, room, 0.0), xp.astype(inside, z.dtype)

    def quantile(self, q: Array) -> Array:
        return q - 0.5

    def integral(self, z: Array) -> Array:
        return self._pieces(z, 0.0, (z + 0.5) ** 2 / 2, z)

    def upper_integral(self, z: Array) -> Array:
        return self._pieces(z, -z, (0.5 - z) ** 2 / 2, 0.0)

    def omega(self, q: Array) -> Array:
        return q * (q - 1) / 2 + zero_at_ends(q)

    @staticmethod
    def _pieces(z: Array, below: Any, inside: Array, above: Any) -> Array:
        xp = namespace(z)
        return xp.where(z <= -0.5, below, xp.where(z < 0.5, inside, above))


class _Entmax(_BuiltIn):
    """F(z) = [1 + (α−1)u]₊^{1/(α−1)} up to 1, u = z − 1/α: α-entmax at k = 1 (Peters et al. 2019).

    Smooth in α through 1 (exponential) and 2 (linear): F = exp(u·g((α−1)u)), g(t) = log1p(t)/t.
    """

    def __init__(self, name: str, alpha: Any) -> None:
        super().__init__(name, infinite_tails=False)
        self.alpha = alpha

    def at(self, alpha: Array) -> Link:
        link = object.__new__(_Entmax)
        link.name, link.id, link.alpha = self.name, self.id, alpha
        link._infinite_tails = False
        return link

    def _inside(self, z: Array) -> tuple[Array, Array, Array]:
        """(strictly inside the support, log F there and log ½ elsewhere, above the support)."""
        xp = namespace(z)
        alpha = self._like(z)
        below_1, u = up_to_1(z - 1 / alpha)
        t = (alpha - 1) * u
        inside = below_1 & (t > -1)
        safe = xp.where(inside, t, 0.0)
        if isinstance(alpha, float) and alpha != 1:
            log_cdf = xp.where(inside, xp.log1p(safe) / (alpha - 1), -math.log(2))
        else:  # an α with a gradient, which log1p(t)/(α − 1) would lose at 1
            log_cdf = xp.where(inside, u, -math.log(2)) * log1p_over(safe)
        return inside, log_cdf, ~below_1

    def _like(self, z: Array) -> Any:
        return self.alpha if isinstance(self.alpha, float) else cast_like(self.alpha, z)

    def cdf(self, z: Array) -> Array:
        xp = namespace(z)
        inside, log_cdf, above = self._inside(z)
        return xp.where(inside, xp.exp(log_cdf), xp.where(above, scalar(z, 1.0), 0.0))

    def sf(self, z: Array) -> Array:
        xp = namespace(z)
        inside, log_cdf, above = self._inside(z)
        return xp.where(inside, -xp.expm1(log_cdf), xp.where(above, scalar(z, 0.0), 1.0))

    def pdf(self, z: Array) -> Array:
        xp = namespace(z)
        inside, log_cdf, _ = self._inside(z)
        return xp.where(inside, xp.exp((2 - self._like(z)) * log_cdf), 0.0)

    def log_pdf(self, z: Array) -> Array:
        inside, log_cdf, _ = self._inside(z)
        return namespace(z).where(inside, (2 - self._like(z)) * log_cdf, -math.inf)

    def quantile(self, q: Array) -> Array:
        xp = namespace(q)
        alpha = self._like(q)
        log_q = xp.log(q)
        return log_q * expm1_over((alpha - 1) * log_q) + 1 / alpha

    def integral(self, z: Array) -> Array:
        xp = namespace(z)
        alpha = self._like(z)
        inside, log_cdf, above = self._inside(z)
        return xp.where(inside, xp.exp(alpha * log_cdf) / alpha, xp.where(above, z, 0.0))

    def upper_integral(self, z: Array) -> Array:
        return namespace(z).where(self._inside(z)[2], 0.0, self.integral(z) - z)

    def omega(self, q: Array) -> Array:
        xp = namespace(q)
        alpha = self._like(q)
        inside = (q > 0) & (q < 1)
        log_q = xp.log(xp.where(inside, q, 1.0))
        return q * log_q * expm1_over((alpha - 1) * log_q) / alpha + zero_at_ends(q)


logistic = _Logistic("logistic", infinite_tails=True)
laplace = _Laplace("laplace", infinite_tails=True)
normal = _Normal("normal", infinite_tails=True)
exponential = _Exponential("exponential", infinite_tails=False)
linear = _Linear("linear", infinite_tails=False)
_entmax = _Entmax("entmax", 1.5)

TABLE = {link.name: link for link in (logistic, laplace, normal, exponential, linear, _entmax)}
"""The links that can be asked for by name; "entmax" means entmax(1.5)."""


def entmax(alpha: float | Array = 1.5) -> Link:
    """The link whose k = 1 map is α-entmax; α = 1 is `exponential`, α = 2 `linear`.

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
    if framework(alpha) is None:
        alpha = check_number("alpha", alpha, low=1.0, allowed="a finite number ≥ 1")
    return _entmax.at(alpha)


def resolve(link: str | Link) -> Link:
    """The link a user asked for, by name or as an object."""
    if isinstance(link, Link):
        return link
    if isinstance(link, str) and link in TABLE:
        return TABLE[link]
    names = ", ".join(repr(name) for name in TABLE)
    error = ValueError if isinstance(link, str) else TypeError
    raise error(f"link must be a kofn.Link or one of {names}; got {link!r}")

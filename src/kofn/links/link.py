"""The class of links: a distribution function F, optional related functions, and defaults.

(Tests: test_links.py.)
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.flow import repeat
from kofn.arrays.kinds import Array, full_like, namespace, scalar
from kofn.arrays.tracing import is_compiling
from kofn.arrays.typing import ArrayT, Number
from kofn.links.kind import Kind

_REGISTRY: dict[str, Link] = {}


class Link:
    """A cumulative distribution function F: weights are p = F((x − θ)/T) with Σp = k.

    Each argument is an elementwise function of one array, of the same framework as the scores
    (write it with torch, jax.numpy or numpy functions). Missing functions are derived from `cdf`.

    Args:
        cdf: F, increasing from 0 to 1.
        pdf: F′. At a kink it must return the same side as automatic differentiation of `cdf`.
        sf: 1 − F without the subtraction. Default: 1 − cdf, inaccurate in the upper tail.
        log_pdf: log F′. Default: log(pdf).
        quantile: F⁻¹. Default: bisection on `cdf`.
        integral: G = ∫F with G(−∞) = 0 and G(z) − z → 0 at +∞, that is, a distribution of mean
            zero. Weights and thresholds do not need it; the value S_k and the loss do.

    Raises:
        TypeError: an argument is not callable.
        RuntimeError: the link is made inside a compiled function; make it once, outside.

    kofn keeps every link until the process ends: make each link once, at module level.

    Example:
        >>> import math, numpy as np
        >>> from kofn import Link, soft_topk
        >>> cauchy = Link(
        ...     cdf=lambda z: 0.5 + np.arctan(z) / math.pi,
        ...     pdf=lambda z: 1 / (math.pi * (1 + z * z)),
        ... )
        >>> soft_topk(np.array([3.0, 1.0, 0.0, -1.0]), 2, link=cauchy).round(3)
        array([0.874, 0.621, 0.328, 0.178])
    """

    name: str
    alpha: Any = None
    order: Any = None
    """The power of the distance as which F meets 0, where its support has an end that is known."""
    capped: Any = False
    """Whether F is 1 from an end on, but may be smaller than any float without being 0."""
    smooth = False
    """Whether F′ is known to be continuous and |F″| to be no more than F′, roughly."""

    def __init__(
        self,
        cdf: Callable[[Array], Array],
        pdf: Callable[[Array], Array],
        *,
        sf: Callable[[Array], Array] | None = None,
        log_pdf: Callable[[Array], Array] | None = None,
        quantile: Callable[[Array], Array] | None = None,
        integral: Callable[[Array], Array] | None = None,
    ) -> None:
        if is_compiling():
            raise RuntimeError(
                "a Link was made inside a compiled function, which would make a new one in every "
                "call; make it once, outside, and use it inside"
            )
        given = dict(cdf=cdf, pdf=pdf, sf=sf, log_pdf=log_pdf, quantile=quantile, integral=integral)
        for name, function in given.items():
            if callable(function):
                setattr(self, name, function)  # instead of the default below
            elif function is not None or name in ("cdf", "pdf"):
                raise TypeError(f"{name} must be a function of one array; got {function!r}")
        self.name = f"your own, with cdf {getattr(cdf, '__qualname__', cdf)}"
        self._infinite_tails: bool | None = None if sf and quantile else False
        # A saved program must not find another link under the same id in another process.
        self.id = register(self, f"{self.name}, {os.urandom(6).hex()}")

    def __repr__(self) -> str:
        alpha = self.alpha
        shown = "" if alpha is None else f"({alpha if isinstance(alpha, float) else 'array'})"
        return f"<kofn link: {self.name}{shown}>"

    # Defaults for optional functions, derived from the given ones.

    def cdf(self, z: ArrayT) -> ArrayT:
        raise TypeError(f"{self!r} has no cdf")

    def pdf(self, z: ArrayT) -> ArrayT:
        raise TypeError(f"{self!r} has no pdf")

    def sf(self, z: ArrayT) -> ArrayT:
        return 1 - self.cdf(z)

    def log_pdf(self, z: ArrayT) -> ArrayT:
        return namespace(z).log(self.pdf(z))

    def log_cdf(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        upper, cdf = self.above_half(z), self.cdf(z)
        low = xp.where(upper | ~(cdf > 0), 1.0, cdf)
        log_low = xp.where(upper | (cdf > 0), xp.log(low), -math.inf)
        return log_low + xp.log1p(-xp.where(upper, self.sf(z), 0.0))

    def log_sf(self, z: ArrayT) -> ArrayT:
        return namespace(z).log(self.sf(z))

    def cdf_slope(self, z: ArrayT) -> ArrayT:
        """Return F′/F, the slope of log F, where F ≤ ½."""
        return namespace(z).exp(self.log_pdf(z) - self.log_cdf(z))

    def sf_slope(self, z: ArrayT) -> ArrayT:
        """Return F′/(1 − F), the slope of −log(1 − F), where F > ½."""
        return namespace(z).exp(self.log_pdf(z) - self.log_sf(z))

    def log_tail(self, z: ArrayT) -> ArrayT:
        """Return log F where F ≤ ½, and log(1 − F) elsewhere."""
        return _on_sides(self, self.log_cdf, self.log_sf, z)

    def tail_slope(self, z: ArrayT) -> ArrayT:
        """Return the size of the slope of `log_tail`."""
        return _on_sides(self, self.cdf_slope, self.sf_slope, z)

    def above_half(self, z: Array) -> Array:
        """Return whether F(z) > ½."""
        return self.cdf(z) > 0.5

    def tail(self, z: Array) -> tuple[Array, Array]:
        """Return F > ½, and the smaller of F and 1 − F to full relative accuracy."""
        xp = namespace(z)
        upper = self.above_half(z)
        # Both branches of a `where` are differentiated, so each gets a z at which it is finite.
        return upper, xp.where(
            upper, self.sf(xp.where(upper, z, 0.0)), self.cdf(xp.where(upper, 0.0, z))
        )

    def tails(self, z: ArrayT) -> tuple[Array, ArrayT, ArrayT]:
        """Return `tail` and F′ for the solver, which needs no derivatives."""
        upper = self.above_half(z)
        tail = namespace(z).where(upper, self.sf(z), self.cdf(z))
        return upper, tail, self.pdf(z)

    def reversed_hazard(self, z: ArrayT, cdf: Array, pdf: Array) -> ArrayT:
        """Return F′/F from both; 0 where F is 0."""
        some = cdf > 0
        return namespace(z).where(some, pdf / namespace(z).where(some, cdf, 1.0), 0.0)

    def quantile(self, q: ArrayT) -> ArrayT:
        z: ArrayT = _bisect_quantile(self.cdf, q)
        return z

    def upper_quantile(self, q: ArrayT) -> ArrayT:
        """Return F⁻¹(1 − q), without the subtraction if the link can."""
        return self.quantile(1 - q)

    def median(self, like: ArrayT) -> ArrayT:
        """Return F⁻¹(½) in the shape of `like`, without a gradient."""
        return stop_gradient(self.quantile(namespace(like).full_like(like, 0.5)))

    def integral(self, z: ArrayT) -> ArrayT:
        """Return G(z) = ∫_{−∞}^z F."""
        raise ValueError(
            f"{self!r} was made without `integral`, so it has weights but no value and no loss. "
            "Give Link(integral=G) with G = ∫F, G(−∞) = 0 and G(z) − z → 0; a distribution "
            "without a mean (Cauchy's) has no such G"
        )

    def upper_integral(self, z: ArrayT) -> ArrayT:
        """Return ∫_z^∞ (1 − F) = G(z) − z."""
        return self.integral(z) - z

    def omega(self, q: ArrayT) -> ArrayT:
        """Return Ω(q) = ∫₀^q F⁻¹, the regulariser of the weights; 0 at 0 and 1."""
        xp = namespace(q)
        inside = (q > 0) & (q < 1)
        z = self.quantile(xp.where(inside, q, 0.5))
        return xp.where(inside, q * z - self.integral(z), zero_at_ends(q))

    @property
    def inner(self) -> Link:
        """Return the link that the solver uses: this link with z measured from `edge`."""
        return self

    @property
    def edge(self) -> Any:
        """Return the z, for mean zero, that is z = 0 of the inner link."""
        return 0.0

    def with_alpha(self, alpha: Number) -> Link:
        """Return this link with its parameter, if it has one, set to a value per row or entry."""
        return self

    def map_alpha(self, function: Callable[[Any], Any]) -> Link:
        """Return this link with `function` applied to its parameter, if that is an array."""
        number = self.alpha is None or isinstance(self.alpha, float)
        return self if number else self.with_alpha(function(self.alpha))

    def static_and_array_alpha(self) -> tuple[float | None, Array | None]:
        """Return the parameter as (number, array), one at least None."""
        return (self.alpha, None) if isinstance(self.alpha, float) else (None, self.alpha)

    @property
    def integral_is_known(self) -> bool:
        """Return whether G is known to be ∫F without a check."""
        return False

    def integral_ends(self, z: Array) -> tuple[float, float, float]:
        """Return (z, G(−z), G(z) − z) as numbers."""
        return float(z), float(self.integral(-z)), float(self.integral(z) - z)

    def has_infinite_tails(self, like: Array) -> Array | bool:
        """Return whether 0 < F < 1 everywhere, as far as is known."""
        if self._infinite_tails is not None:
            return self._infinite_tails
        xp = namespace(like)
        zero, one = full_like(like, (), 0.0), full_like(like, (), 1.0)
        return xp.isinf(self.quantile(zero)) & xp.isinf(self.quantile(one))


class BuiltIn(Link):
    """A built-in link: methods instead of arguments, and traits that it states."""

    _infinite_tails: bool | None = False
    """Whether 0 < F < 1 everywhere."""
    kinks: tuple[tuple[float, float], ...] = ()
    """(z, F(z)) at the kinks and jumps of F′, the ends of the support included; α is a number."""
    kinds: tuple[Kind, ...] = ()
    """What compiled code knows of it; without one it is for array code alone."""
    colour: str | None = None
    """Its colour in pictures."""
    other_names: tuple[str, ...] = ()
    """What others call it, or the map that it is at k = 1; errors answer these."""
    tested = -6.0, 6.0
    """The z between which tests compare its functions: beyond it 1 − F, say, is only rounding."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.id = register(self, name)

    @property
    def integral_is_known(self) -> bool:
        return True

    @property
    def inner(self) -> BuiltIn:
        return self

    def with_alpha(self, alpha: Number) -> BuiltIn:
        return self


def _bisect_quantile(cdf: Callable[[Array], Array], q: Array) -> Any:
    """Find F⁻¹(q) by widening a bracket until it contains q, then bisection."""
    xp = namespace(q)
    one = xp.ones_like(q)

    def grow(bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        return xp.where(cdf(low) > q, 4 * low, low), xp.where(cdf(high) < q, 4 * high, high)

    def halve(bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = low + (high - low) / 2
        below = cdf(middle) < q
        return xp.where(below, middle, low), xp.where(below, high, middle)

    low, high = repeat(q, 60, halve, repeat(q, 30, grow, (-one, one)))
    return low + (high - low) / 2


def register(link: Link, key: str) -> str:
    """Return the id of the link in operators: they accept strings, but no Python objects.

    Saved programs contain it, so the id of a built-in link never changes.
    """
    _REGISTRY[key] = link
    return key


def built_in() -> list[BuiltIn]:
    """Return the built-in links that are not the inner link of another, by their numbers."""
    every = [link for link in _REGISTRY.values() if isinstance(link, BuiltIn)]
    inner = [link.inner for link in every if link.inner is not link]
    outer = [link for link in every if link not in inner]
    return sorted(outer, key=lambda link: min((k.number for k in link.inner.kinds), default=99))


def by_id(link_id: str, alpha: Array | float | None) -> Link:
    """Return the link with this id, the name that operators use."""
    link = _REGISTRY.get(link_id)
    if link is None:
        raise RuntimeError(
            f"this process has no link with the id {link_id!r}; your own links exist only in the "
            "process that made them, so a program saved with one cannot run in another process"
        )
    return link if alpha is None else link.with_alpha(alpha)


def zero_at_ends(q: ArrayT) -> ArrayT:
    """Return 0 for a weight in [0, 1], NaN for anything else."""
    return namespace(q).where((q >= 0) & (q <= 1), scalar(q, 0.0), math.nan)


def _on_sides(
    link: Link, below: Callable[..., Any], above: Callable[..., Any], z: ArrayT
) -> ArrayT:
    xp, upper, half = namespace(z), link.above_half(z), link.median(z)
    low = below(xp.where(upper, half, z))
    answer: ArrayT = xp.where(upper, above(xp.where(upper, z, half)), low)
    return answer

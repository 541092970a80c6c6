"""Links with weights of exactly 0, with z measured from the support's end.

If n equal entries share a small k, every weight is k/n, and z = (x − θ)/T is as near to the lower
end of the support as F⁻¹(k/n). For a distribution of mean zero that end is a number such as −½.
float32 has a spacing of 3e-8 there, and Σp would have an error of n times that. The solver
therefore uses the link `inner`, whose z is 0 at the end; θ is returned for mean zero.
(Tests: test_links.py.)
"""

from __future__ import annotations

from typing import Any

from kofn.arrays.typing import ArrayT, Number
from kofn.links.link import BuiltIn, Link, register


class Shifted(Link):
    """A link with F(z) = inner.F(z − edge)."""

    _inner: Link

    def __init__(self, name: str, inner: Link) -> None:
        self.name, self._inner, self.alpha = name, inner, inner.alpha
        self._infinite_tails = False
        self.id = register(self, f"{inner.id}, from {inner.edge}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self._inner), ()

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


class Bounded(Shifted, BuiltIn):
    """A built-in link with bounded support."""

    _inner: BuiltIn

    def __init__(self, name: str, inner: BuiltIn) -> None:
        BuiltIn.__init__(self, name)
        self._inner = inner
        self.alpha = inner.alpha

    __reduce__ = object.__reduce__  # type: ignore[assignment]
    """As other built-in links; of a link of a user's own, a copy is the link itself."""

    @property
    def colour(self) -> str | None:  # type: ignore[override]
        return self._inner.colour

    def with_alpha(self, alpha: Number) -> BuiltIn:
        link = object.__new__(Bounded)
        link.name, link.id = self.name, self.id
        link._inner, link.alpha = self._inner.with_alpha(alpha), alpha
        return link

    @property
    def inner(self) -> BuiltIn:
        return self._inner

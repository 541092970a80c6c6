"""Array code of a link by its formulas. (Tests: test_links.py.)"""

from __future__ import annotations

from kofn.arrays.kinds import Array, namespace
from kofn.arrays.typing import ArrayT
from kofn.links.kind import Kind
from kofn.links.link import BuiltIn, Link, zero_at_ends
from kofn.links.vocabulary import Real, exp, where


class OfFormulas(Link):
    """A link that is made of scalar formulas; its class overrides what array code does better."""

    kinds: tuple[Kind, ...]

    def _tail(self, z: Array) -> tuple[Real, ...]:
        """Return (the smaller of F and 1 − F; whether F > ½; F′; F″)."""
        (kind,) = self.kinds
        tail: tuple[Real, ...]
        if "tail_of_size" in kind.formulas:
            upper = z > 0
            tail = kind.called("tail_of_size", exp(where(upper, -z, z)), upper)
        else:
            tail = kind.called("tail", *(apart(z) if kind.octaves else (z,)))
        return tail

    def cdf(self, z: ArrayT) -> ArrayT:
        t, upper, *_ = self._tail(z)
        return namespace(z).where(upper, 1 - t, t)

    def sf(self, z: ArrayT) -> ArrayT:
        t, upper, *_ = self._tail(z)
        return namespace(z).where(upper, t, 1 - t)

    def above_half(self, z: Array) -> Array:
        above: Array = self._tail(z)[1]
        return above

    def tail(self, z: Array) -> tuple[Array, Array]:
        t, upper, *_ = self._tail(z)
        return upper, t

    def tails(self, z: ArrayT) -> tuple[Array, ArrayT, ArrayT]:
        t, upper, slope, _ = self._tail(z)
        return upper, t, slope

    def pdf(self, z: ArrayT) -> ArrayT:
        slope: ArrayT = self.kinds[0].called("density", z)
        return slope

    def quantile(self, q: ArrayT) -> ArrayT:
        if "quantile" not in self.kinds[0].formulas:
            return super().quantile(q)
        z: ArrayT = self.kinds[0].called("quantile", q, 1 - q)
        return z

    def integral(self, z: ArrayT) -> ArrayT:
        if "integral" not in self.kinds[0].formulas:
            return super().integral(z)
        rest, up, _ = self.kinds[0].called("integral", z)
        return rest + namespace(z).where(up, self._from_mean(z), 0.0)

    def upper_integral(self, z: ArrayT) -> ArrayT:
        if "integral" not in self.kinds[0].formulas:
            return super().upper_integral(z)
        rest, up, _ = self.kinds[0].called("integral", z)
        return rest - namespace(z).where(up, 0.0, self._from_mean(z))

    def _from_mean(self, z: ArrayT) -> ArrayT:
        moved: ArrayT = z + self.edge if self.edge else z
        return moved

    def omega(self, q: ArrayT) -> ArrayT:
        if "omega" not in self.kinds[0].formulas:
            return super().omega(q)
        xp = namespace(q)
        inside = (q > 0) & (q < 1)
        bent = self.kinds[0].called("omega", xp.where(inside, q, 0.5))
        return xp.where(inside, bent, zero_at_ends(q))


class TwoTails(OfFormulas, BuiltIn):
    """A built-in link with 0 < F < 1 everywhere."""

    _infinite_tails = True

    @property
    def integral_is_known(self) -> bool:
        return "integral" in self.kinds[0].formulas

    def slope_at(self, p: ArrayT, q: Array) -> ArrayT:
        """Return F′ where F is p and 1 − F is q, inside of (0, 1)."""
        return self.pdf(self.kinds[0].called("quantile", p, q))

    def log_pdf(self, z: ArrayT) -> ArrayT:
        xp = namespace(z)
        upper = self.above_half(z)
        low, high = xp.where(upper, 0.0, z), xp.where(upper, z, 0.0)
        below = self.log_cdf(low) + xp.log(self.cdf_slope(low))
        return xp.where(upper, self.log_sf(high) + xp.log(self.sf_slope(high)), below)

    def log_cdf(self, z: ArrayT) -> ArrayT:
        log: ArrayT = self.kinds[0].called("logarithm", z)
        return log

    def log_sf(self, z: ArrayT) -> ArrayT:
        log: ArrayT = self.kinds[0].called("log_above", z)[0]
        return log

    def cdf_slope(self, z: ArrayT) -> ArrayT:
        steep: ArrayT = self.kinds[0].called("log_below", z)[1]
        return steep

    def sf_slope(self, z: ArrayT) -> ArrayT:
        steep: ArrayT = self.kinds[0].called("log_above", z)[1]
        return steep


def apart(z: Array) -> tuple[Real, Real, float]:
    """Return (a, b, 1/b) with e^z = a/b and the greater of both 1; 1/b is of use where a ≤ b."""
    upper = z > 0
    e = exp(where(upper, -z, z))
    return where(upper, 1.0, e), where(upper, e, 1.0), 1.0

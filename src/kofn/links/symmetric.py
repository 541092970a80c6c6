"""Links with F(−z) = 1 − F(z). (Tests: test_links.py.)"""

from __future__ import annotations

from kofn.arrays.kinds import Array, namespace
from kofn.arrays.typing import ArrayT
from kofn.links.two_tails import TwoTails


class Symmetric(TwoTails):
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

    def log_tail(self, z: ArrayT) -> ArrayT:
        return self.log_cdf(self._reflected(z))

    def tail_slope(self, z: ArrayT) -> ArrayT:
        return self.cdf_slope(self._reflected(z))

    def _reflected(self, z: ArrayT) -> ArrayT:
        return namespace(z).where(z > 0, -z, z)

    def upper_integral(self, z: ArrayT) -> ArrayT:
        return self.integral(-z)  # type: ignore[return-value]  # of its kind

    def upper_quantile(self, q: ArrayT) -> ArrayT:
        return -self.quantile(q)  # type: ignore[return-value]  # of its kind

    def slope_at(self, p: ArrayT, q: Array) -> ArrayT:
        """Return F′ where F is p and 1 − F is q, inside of (0, 1)."""
        return self.pdf(self.quantile(namespace(p).minimum(p, q)))

    def median(self, like: ArrayT) -> ArrayT:
        return namespace(like).zeros_like(like)

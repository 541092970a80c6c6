"""Costs of entries in the equation Σ c·F((x − θc)/T) = B: all that the search must know of them."""

from __future__ import annotations

from typing import NamedTuple

from kofn.arrays.kinds import Array, namespace
from kofn.arrays.operations import in_parts
from kofn.solver.reductions import Reductions, sums_of


class Costs(NamedTuple):
    """The costs of the entries of a `Problem`, in units of `Price.scale`."""

    each: Array  # 0 where an entry does not pay
    rest: Array  # what rounding x − T·edge left over, so that x + rest is exact
    parts: tuple[Array, Array]  # costs as a sum of two numbers of half the digits
    coarse: tuple[Array, Array]  # costs and budget on a grid, so that sums are exact
    fine: tuple[Array, Array]  # their rest

    def distance(self, x: Array, anchor: Array, offset: Array, over: Reductions) -> Array:
        """Return x − θc; products of halves are exact, so it has an error of its own size."""
        left = less_product(x, self.parts, anchor, over)
        return (left - self.each * over.expand(offset)) + self.rest

    def crossing(self, distance: Array) -> Array:
        """Return the θ where x − θc is 0, for x less anything, of entries that cost something."""
        return distance / namespace(distance).where(self.each > 0, self.each, 1.0)

    def sums(
        self, upper: Array, tail: Array, density: Array, over: Reductions
    ) -> tuple[Array, ...]:
        """Return `threshold.Sums`, by one round of sums.

        The cost of the entries above ½ beyond the budget is the sum of two parts. The part of
        multiples of the grid is exact unless it is huge.
        """
        xp, c = namespace(tail), self.each
        (coarse, whole), (fine, rest) = self.coarse, self.fine
        below, above, first, weight, bought, small, sizes = sums_of(
            over,
            xp.where(upper, 0.0, c * tail),
            xp.where(upper, c * tail, 0.0),
            c * density,
            c * c * density,
            xp.where(upper, coarse, 0.0),
            xp.where(upper, fine, 0.0),
            xp.abs(fine),
        )
        missing = (bought - whole) + (small - rest)
        huge = bought + whole > 1 / float(xp.finfo(tail.dtype).eps) ** 0.5
        doubt = xp.where(huge, bought + whole, sizes + xp.abs(rest))
        doubt = xp.where(missing == 0, 0.0, doubt)
        # A step moves z by c·step: by one unit, on average over the slopes, if it is this long.
        unit = xp.where(weight > 0, first / weight, 1.0)
        return missing, below, above, weight, doubt, unit

    def weight(self, upper: Array, density: Array, over: Reductions) -> Array:
        """Return Σ c²F′ where F ≤ ½."""
        return over.sum(namespace(density).where(upper, 0.0, self.each * self.each * density))


def less_product(x: Array, parts: tuple[Array, Array], theta: Array, over: Reductions) -> Array:
    """Return x − θc of costs in parts."""
    large, small = parts
    first, second = (over.expand(part) for part in in_parts(theta))
    left = x - large * first
    return ((left - large * second) - small * first) - small * second

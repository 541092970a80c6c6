"""The equation Σ F((x − θ)/T) = k of each row; with costs c, Σ c·F((x − θc)/T) = k."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from kofn.arrays.kinds import Array, cast, namespace
from kofn.arrays.typing import FloatInfo
from kofn.links.link import Link
from kofn.solver.costs import Costs
from kofn.solver.reductions import Reductions, sums_of


def far(dtype_info: FloatInfo) -> float:
    """Return a bound for |z|, beyond every link's tails, whose square is finite."""
    return math.sqrt(float(dtype_info.max)) / 16


def least_weight(like: Array) -> float:
    """Return the least ΣF′ whose relevant terms are all normal numbers."""
    info = namespace(like).finfo(like.dtype)
    return float(info.smallest_normal) / float(info.eps)


def split(link: Link, z: Array, live: Array) -> tuple[Array, Array, Array]:
    """Return F > ½, F where it is ≤ ½, and 1 − F where F > ½: the smaller tail of each entry.

    The split is at F = ½, not at z = 0; the two agree for symmetric links only.
    """
    xp = namespace(z)
    upper, tail = link.tail(z)
    upper = upper & live
    # A user's cdf may round to just below 0.
    tail = xp.where(live & ~(tail < 0), tail, 0.0)
    return upper, xp.where(upper, 0.0, tail), xp.where(upper, tail, 0.0)


class Searched(Protocol):
    """The equations that a search solves; its steps are in units of T."""

    @property
    def x(self) -> Array:
        """Return numbers per entry, in the dtype of the search."""

    @property
    def temperature(self) -> Array:
        """Return T per row."""

    def z(self, anchor: Array, offset: Array) -> Array:
        """Return (x − θ)/T at θ = anchor + offset."""


class Balanced(Protocol):
    """The parts of a row's equation that a Newton step needs besides its sums."""

    @property
    def k(self) -> Array:
        """Return how many to choose, or what to spend, per row."""

    @property
    def n(self) -> Array:
        """Return how many there are to choose from, or what they cost, per row."""

    @property
    def link(self) -> Link:
        """Return the link with its parameter per entry."""

    @property
    def row_link(self) -> Link:
        """Return the link with its parameter per row."""


class Problem(NamedTuple):
    """The equations to solve, one per row."""

    x: Array
    live: Array  # with costs, the entries that cost something
    k: Array
    n: Array
    temperature: Array
    link: Link
    row_link: Link  # the link with its parameter per row; `link` has it per entry
    over: Reductions
    costs: Costs | None = None

    def distance(self, anchor: Array, offset: Array) -> Array:
        """Return x − θ, or x − θc, at θ = anchor + offset."""
        if self.costs is not None:
            return self.costs.distance(self.x, anchor, offset, self.over)
        return (self.x - self.over.expand(anchor)) - self.over.expand(offset)

    def z(self, anchor: Array, offset: Array) -> Array:
        xp = namespace(self.x)
        limit = far(xp.finfo(self.x.dtype))
        z = self.distance(anchor, offset) / self.over.expand(self.temperature)
        return xp.clip(z, -limit, limit)

    def excess(self, anchor: Array, offset: Array) -> Array:
        """Return ΣF − k at θ = anchor + offset."""
        upper, low, high = split(self.link, self.z(anchor, offset), self.live)
        count, below, above = sums_of(self.over, upper, low, high)
        return (cast(count, self.x.dtype) - self.k) + (below - above)

"""What the search for prices sees of a matrix: sums over its rows, at some prices of columns.

`InMemory` has the matrix at hand; `streaming/assignment` takes each sum in a pass over blocks.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

from kofn.arrays.kinds import Array, full_like, namespace
from kofn.links.link import Link
from kofn.maps.assignment.margins import Columns, Open
from kofn.maps.assignment.newton import (
    centred,
    curvature,
    newton_step,
    slopes_of,
    theta_of,
    weights_of,
)
from kofn.maps.assignment.wide import Near, near


class Matrix(Columns, Protocol):
    """Matrices with prices to be found; the search holds a number per column of them at most."""

    @property
    def t(self) -> Array:
        """Return the temperature given."""

    @property
    def spread(self) -> Array:
        """Return how far the scores that are open are apart, of each matrix."""

    def look(self, beta: Array, t: Array) -> tuple[Any, Array]:
        """Return an object to keep for these prices, and what columns have in excess by them."""

    def newton_step(
        self, seen: Any, excess: Array, error: Array, room: Array, damping: Array
    ) -> Array:
        """Return S⁻¹·R, for prices in units of T; see newton.py."""

    def curvature(self, seen: Any, step: Array) -> Array:
        """Return stepᵀ·S·step."""

    def rounding(self, seen: Any, beta: Array, t: Array) -> Array:
        """Return how far rounded prices move weights between 0 and 1, roughly."""

    def alternated(self, beta: Array, t: Array) -> Array:
        """Return the prices by the columns' own thresholds, at the rows' thresholds for β.

        This minimises the convex function over β alone: slower than Newton's method, but sure.
        """


class Seen(NamedTuple):
    """Scores less prices, and their weights."""

    rows: Near
    weights: Array


class InMemory(NamedTuple):
    """Matrices as arrays."""

    open: Open
    link: Link
    spread: Array

    @property
    def c(self) -> Array:
        return self.open.c

    @property
    def number(self) -> Array:
        return self.open.number

    @property
    def t(self) -> Array:
        return self.open.t

    def look(self, beta: Array, t: Array) -> tuple[Seen, Array]:
        seen = seen_at(self.open, beta, t, self.spread, self.link)
        return seen, namespace(beta).sum(seen.weights, axis=-2) - self.open.c

    def newton_step(
        self, seen: Seen, excess: Array, error: Array, room: Array, damping: Array
    ) -> Array:
        return newton_step(self.open, self._slopes(seen), excess, error, room, damping)

    def curvature(self, seen: Seen, step: Array) -> Array:
        return curvature(self._slopes(seen), step)

    def rounding(self, seen: Seen, beta: Array, t: Array) -> Array:
        return rounding(self.open.x, seen.weights, beta, t)

    def alternated(self, beta: Array, t: Array) -> Array:
        xp, p = namespace(beta), self.open
        alpha = self._thresholds(p.x - beta[..., None, :], p.k, t)
        turned = xp.moveaxis(p.x - alpha[..., :, None], (-1,), (-2,))
        return centred(p, self._thresholds(turned, p.c, t))

    def _slopes(self, seen: Seen) -> Array:
        return slopes_at(seen, self.open.k, self.link)

    def _thresholds(self, y: Array, k: Array, t: Array) -> Array:
        return thresholds_of(y, k, t, self.spread, self.link)


def seen_at(p: Open, beta: Array, t: Array, spread: Array, link: Link) -> Seen:
    """Return the weights of rows at some prices of columns."""
    rows = near(p.x - beta[..., None, :], p.k, t, spread, link)
    return Seen(rows, weights_of(link, rows.y, p.k, rows.t))


def slopes_at(seen: Seen, k: Array, link: Link) -> Array:
    """Return F′ of each entry."""
    return slopes_of(link, seen.weights, seen.rows.y, k, seen.rows.t[..., 0])


def thresholds_of(y: Array, k: Array, t: Array, spread: Array, link: Link) -> Array:
    """Return the thresholds of rows, 0 where they are infinite."""
    rows = near(y, k, t, spread, link)
    theta, xp = theta_of(link, rows.y, k, rows.t), namespace(y)
    return xp.where(xp.isfinite(theta), rows.origin + theta * rows.unit, 0.0)


def rounding(x: Array, weights: Array, beta: Array, t: Array) -> Array:
    """Return `Matrix.rounding` of the rows of x."""
    xp = namespace(x)
    inside = (weights > 0) & (weights < 1) & (x > -math.inf)
    size = xp.where(inside, xp.abs(x), 0.0) + xp.where(inside, xp.abs(beta)[..., None, :], 0.0)
    return 8 * float(xp.finfo(x.dtype).eps) / t * xp.max(size, axis=(-2, -1))


def spread_of(x: Array) -> Array:
    """Return the difference between the greatest and the least score of each matrix, half of the
    greatest float at most; 0 if no entry is open.
    """
    xp = namespace(x)
    high = xp.max(x, axis=(-2, -1))
    low = xp.min(xp.where(x > -math.inf, x, math.inf), axis=(-2, -1))
    return apart(low, high)


def apart(low: Array, high: Array) -> Array:
    """Return high − low as `spread_of` does."""
    xp = namespace(high)
    most = float(xp.finfo(high.dtype).max) / 2
    return xp.where(
        high > low, xp.minimum(high / 2 - low / 2, full_like(high, (), most / 2)) * 2, 0.0
    )

"""What the search for prices sees of a matrix: sums over its rows, at some prices of columns.

`InMemory` has the matrix at hand; `streaming/assignment` takes each sum in a pass over blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from kofn.adapters import route
from kofn.arrays.flow import namespace_like, only_if_like
from kofn.arrays.kinds import Array, is_jax, namespace
from kofn.arrays.typing import Namespace
from kofn.links.link import BuiltIn, Link
from kofn.maps.assignment.margins import Columns, Open
from kofn.maps.assignment.newton import Steps, curvature, slopes_of, steps_of, theta_of
from kofn.maps.assignment.wide import Near, near
from kofn.operations.topk import WEIGHTS


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


class Rows(NamedTuple):
    """Rows of matrices, which a search looks at for many prices and temperatures."""

    xp: Any  # the namespace of the arrays
    when: Any  # of `near`
    k: Array
    spread: Array
    link: Link
    weights: Callable[[Array, Array], Array]  # of scores, and a temperature for each row

    def at(self, y: Array, t: Array) -> Seen:
        """Return the weights of rows of scores less prices."""
        rows = near(self.xp, self.when, y, self.k, t, self.spread)
        return Seen(rows, self.weights(rows.y, rows.t))

    def slopes(self, seen: Seen) -> Array:
        """Return F′ of each entry."""
        return slopes_of(self.link, seen.weights, seen.rows.y, self.k, seen.rows.t[..., 0])

    def thresholds(self, y: Array, t: Array) -> Array:
        """Return the thresholds of rows of scores less prices, 0 where they are infinite."""
        rows, xp = near(self.xp, self.when, y, self.k, t, self.spread), self.xp
        theta = theta_of(self.link, rows.y, self.k, rows.t)
        return xp.where(xp.isfinite(theta), rows.origin + theta * rows.unit, 0.0)


def rows_of(x: Array, k: Array, spread: Array, link: Link) -> Rows:
    """Return what solves for weights and thresholds of rows as long as the matrices' x."""
    when = only_if_like(x) if isinstance(link, BuiltIn) and not is_jax(x) else None
    return Rows(namespace_like(x), when, k, spread, link, route.again(WEIGHTS, x, k, link))


class InMemory(NamedTuple):
    """Matrices as arrays, with the numbers that are the same at all prices."""

    x: Array
    c: Array
    number: Array
    t: Array
    spread: Array
    rows: Rows
    steps: Steps

    def look(self, beta: Array, t: Array) -> tuple[Seen, Array]:
        seen = self.rows.at(self.x - beta[..., None, :], t)
        return seen, self.rows.xp.sum(seen.weights, axis=-2) - self.c

    def newton_step(
        self, seen: Seen, excess: Array, error: Array, room: Array, damping: Array
    ) -> Array:
        return self.steps.step(self.rows.slopes(seen), excess, error, room, damping)

    def curvature(self, seen: Seen, step: Array) -> Array:
        return curvature(self.rows.xp, self.rows.slopes(seen), step)

    def rounding(self, seen: Seen, beta: Array, t: Array) -> Array:
        return rounding(self.x, seen.weights, beta, t)

    def alternated(self, beta: Array, t: Array) -> Array:
        alpha = self.rows.thresholds(self.x - beta[..., None, :], t)
        turned = self.rows.xp.moveaxis(self.x - alpha[..., :, None], (-1,), (-2,))
        return self.steps.centred(self.rows._replace(k=self.c).thresholds(turned, t))


def in_memory(p: Open, link: Link) -> InMemory:
    """Return the open part of matrices as the search sees it."""
    xp = namespace_like(p.x)
    rows = rows_of(p.x, p.k, spread := spread_of(xp, p.x), link)
    return InMemory(p.x, p.c, p.number, p.t, spread, rows, steps_of(xp, p))


def rounding(x: Array, weights: Array, beta: Array, t: Array) -> Array:
    """Return `Matrix.rounding` of the rows of x."""
    xp = namespace(x)
    inside = (weights > 0) & (weights < 1) & (x > -math.inf)
    size = xp.where(inside, xp.abs(x), 0.0) + xp.where(inside, xp.abs(beta)[..., None, :], 0.0)
    return moved_by(xp, t, xp.max(size, axis=(-2, -1)))


def moved_by(xp: Any, t: Array, size: Array) -> Array:
    """Return by how much weights move where scores and prices of such a size are rounded."""
    return 8 * float(xp.finfo(t.dtype).eps) / t * size


def spread_of(xp: Namespace[Any], x: Array) -> Array:
    """Return the difference between the greatest and the least score of each matrix, half of the
    greatest float at most; 0 if no entry is open.
    """
    high = xp.max(x, axis=(-2, -1))
    low = xp.min(xp.where(x > -math.inf, x, math.inf), axis=(-2, -1))
    return apart(xp, low, high)


def apart(xp: Any, low: Array, high: Array) -> Array:
    """Return high − low as `spread_of` does."""
    most = float(xp.finfo(high.dtype).max) / 2
    half = xp.clip(high / 2 - low / 2, -math.inf, most / 2)
    return xp.where(high > low, half * 2, 0.0)

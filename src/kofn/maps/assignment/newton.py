"""Newton's step for the prices of columns: the slopes of weights, and the equations of S.

S = D_c − WᵀD_r⁻¹W, where W is F′ of each entry and D_r, D_c are its sums over rows and columns.
docs/maps_assignment.md derives it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kofn import links
from kofn.adapters import route
from kofn.arrays.flow import only_if, while_loop
from kofn.arrays.kinds import Array, full_like, namespace
from kofn.arrays.operations import arange
from kofn.arrays.typing import Namespace
from kofn.links.link import Link
from kofn.maps.assignment.margins import Columns
from kofn.operations.topk import THETA, WEIGHTS
from kofn.rows.given import given_again

DENSE = 256
"""Columns up to which S is formed and factorised; above, conjugate gradients take less time."""
PRODUCTS = 64
"""Products with S for one step at most. If these do not suffice, at low T, S is formed."""

LEAST_CURVED = 1e-2
"""The least slope of a column, as a part of what it may still gain or lose.

Columns whose entries all have weight 0 or 1 have no slope, and Newton's step would be infinite.
"""


class Steps(NamedTuple):
    """Newton's steps for the prices of some columns, with what they have in common."""

    xp: Any  # the namespace of the arrays
    some: Any  # (…, n), which columns are open
    number: Any  # (…,), how many, but at least 1
    least: Any  # the least number that is added to the diagonal of S
    at: Array | None  # (n, n), the diagonal; None of so many columns that S is rarely formed

    def step(
        self, slopes: Array, excess: Array, error: Array, room: Array, damping: Array
    ) -> Array:
        """Return S⁻¹·R, damped while R is large: S has no inverse where slopes are 0."""
        part, columns = weighted(self.xp, slopes)
        return self.solved(part, columns, excess, room, self.damped(error, damping))

    def solved(
        self, part: Array, columns: Array, excess: Array, room: Array, damping: Array
    ) -> Array:
        """Return the same; `part` is D_r^−½·W, and `columns` the diagonal of D_c."""
        xp, rest = self.xp, (excess, room, damping)
        if self.at is not None:
            return self.centred(self.dense(part.swapaxes(-1, -2) @ part, columns, *rest))
        step, short = conjugate(xp, part, columns, *rest)

        def dense() -> Array:
            return self.dense(part.swapaxes(-1, -2) @ part, columns, *rest)

        sure = only_if(short, dense, step)
        return self.centred(xp.where(short[..., None], sure, step))

    def damped(self, error: Array, damping: Array) -> Array:
        """Return the addition to the diagonal of S, whose numbers are at most 1."""
        xp = self.xp
        return xp.maximum(damping * xp.clip(error / 10, 0.0, 1e-2), self.least)

    def dense(
        self, product: Array, columns: Array, excess: Array, room: Array, damping: Array
    ) -> Array:
        """Return (S + damping)⁻¹·R by S as a matrix; `product` is WᵀD_r⁻¹W."""
        xp, at = self.xp, on_diagonal(columns) if self.at is None else self.at
        scale, level = scale_of(xp, columns, room, LEAST_CURVED)
        matrix = schur(xp, product, columns, scale, level, at)
        matrix = matrix + xp.where(at, damping[..., None, None], 0.0)
        known = xp.isfinite(xp.sum(matrix, axis=(-2, -1)) + xp.sum(excess, axis=-1))
        matrix = xp.where(known[..., None, None], matrix, at)
        solution: Array = xp.linalg.solve(matrix, (excess / scale)[..., None])[..., 0]
        return solution / scale

    def centred(self, beta: Array) -> Array:
        """Return prices of mean 0 over the columns that are open, 0 for the others."""
        xp, some = self.xp, self.some
        mean = xp.sum(xp.where(some, beta, 0.0), axis=-1) / self.number
        return xp.where(some, beta - mean[..., None], 0.0)


def steps_of(xp: Any, p: Columns) -> Steps:
    """Return the steps for the prices of these columns."""
    some, c = p.number > 0, p.c
    number = xp.sum(some, axis=-1)
    least = full_like(c, (), float(xp.finfo(c.dtype).eps) * 16)
    at = on_diagonal(c) if c.shape[-1] <= DENSE else None
    return Steps(xp, some, xp.where(number > 0, number, 1), least, at)


def conjugate(
    xp: Namespace[Any], part: Array, columns: Array, excess: Array, room: Array, damping: Array
) -> tuple[Array, Array]:
    """Return (S + damping)⁻¹·R without S, and where the products do not suffice for it.

    These are conjugate gradients with the diagonal of S as preconditioner: the scale of `schur`.
    """
    scale, level = scale_of(xp, columns, room, LEAST_CURVED)

    def product(v: Array) -> Array:
        w = v / scale
        inner = part.swapaxes(-1, -2) @ (part @ w[..., None])
        across = level * xp.sum(level * v, axis=-1)[..., None]
        return (columns * w - inner[..., 0]) / scale + across + damping[..., None] * v

    right = excess / scale
    zero = xp.zeros_like(right)
    size = xp.sum(right * right, axis=-1)
    enough = size * float(xp.finfo(part.dtype).eps) ** 1.5

    def unfinished(s: Any) -> Array:
        return xp.any(s[3] > enough)

    def advance(s: Any) -> Any:
        solution, rest, towards, left = s
        along = product(towards)
        curved = xp.sum(towards * along, axis=-1)
        good = (left > enough) & (curved > 0)
        length = xp.where(good, left / xp.where(good, curved, 1.0), 0.0)[..., None]
        rest = rest - length * along
        new = xp.where(good, xp.sum(rest * rest, axis=-1), 0.0)
        ratio = xp.where(good, new / xp.where(good, left, 1.0), 0.0)[..., None]
        return solution + length * towards, rest, rest + ratio * towards, new

    state = (zero, right, right, size)
    solution, _, _, left = while_loop(part, unfinished, advance, state, PRODUCTS)
    return solution / scale, left > enough


def schur(xp: Any, product: Array, columns: Array, scale: Array, level: Array, at: Array) -> Array:
    """Return S = D_c − WᵀD_r⁻¹W, divided by a scale of its rows and columns, of `scale_of`.

    `product` is WᵀD_r⁻¹W. The diagonal of S is then at most 1. S is 0 along a constant, for β + 1
    and α − 1 give the same weights; there it is 1 instead.
    """
    whole = diagonal(xp, columns, at) - product
    across = level[..., :, None] * level[..., None, :]
    return whole / scale[..., :, None] / scale[..., None, :] + across


def weighted(xp: Any, slopes: Array) -> tuple[Array, Array]:
    """Return D_r^−½·W and the diagonal of D_c."""
    rows, columns = xp.sum(slopes, axis=-1), xp.sum(slopes, axis=-2)
    least = float(xp.finfo(slopes.dtype).smallest_normal)
    inverse = xp.where(rows > least, 1 / xp.sqrt(xp.where(rows > least, rows, 1.0)), 0.0)
    return slopes * inverse[..., None], columns


def scale_of(xp: Any, columns: Array, room: Array, least_curved: float) -> tuple[Array, Array]:
    """Return the scale of columns, and the constant in it."""
    least = float(xp.finfo(columns.dtype).smallest_normal)
    size = xp.maximum(columns, least_curved * room)
    size = xp.where(size > least, size, 1.0)
    scale = xp.sqrt(size)
    level = scale / xp.sqrt(xp.sum(size, axis=-1))[..., None]
    return scale, level


def curvature(xp: Any, slopes: Array, step: Array) -> Array:
    """Return stepᵀ·S·step."""
    rows = xp.sum(slopes, axis=-1)
    mean = (slopes @ step[..., None])[..., 0] / xp.where(rows > 0, rows, 1.0)
    deviation = step[..., None, :] - mean[..., None]
    return xp.sum(slopes * deviation**2, axis=(-2, -1))


def on_diagonal(values: Array) -> Array:
    """Return which entries of a matrix lie on its diagonal."""
    numbers = arange(values[..., :1], values.shape[-1])
    return numbers[:, None] == numbers


def diagonal(xp: Namespace[Any], values: Array, at: Array) -> Array:
    """Return matrices with these diagonals, which lie `at` these entries."""
    return xp.where(at, values[..., None], 0.0)


def slopes_of(link: Link, weights: Array, y: Array, k: Array, t: Array) -> Array:
    """Return F′ of each entry, for most links from the weights F; 0 where an entry is excluded."""
    rest = 1 - weights
    if link is links.logistic:
        return weights * rest
    xp = namespace(y)
    if link is links.laplace:
        return xp.minimum(weights, rest)
    if hasattr(link.inner, "slope_at") and link is not links.normal:
        inner: Any = link.inner.map_alpha(lambda alpha: alpha[..., None])
        inside = (weights > 0) & (rest > 0)
        return xp.where(inside, inner.slope_at(xp.where(inside, weights, 0.5), rest), 0.0)
    return densities(link, y, k, t)


def densities(link: Link, y: Array, k: Array, t: Array) -> Array:
    """Return F′ of each entry at the rows' thresholds; 0 where an entry is excluded."""
    moving, z, entries = places(link, y, k, t)
    return namespace(y).where(moving, entries.pdf(z), 0.0)


def weights_of(link: Link, y: Array, k: Array, t: Array) -> Array:
    """Return the weights of rows that were checked; t has a number for each row."""
    return route.answer(WEIGHTS, given_again(y, k, t, link))


def theta_of(link: Link, y: Array, k: Array, t: Array) -> Array:
    """Return the thresholds of such rows."""
    return route.answer(THETA, given_again(y, k, t, link))


def places(link: Link, y: Array, k: Array, t: Array) -> tuple[Array, Array, Link]:
    """Return which entries have a place, z = (y − θ)/T, and the link as entries have it."""
    xp = namespace(y)
    theta = theta_of(link, y, k, t[..., None])[..., None]
    moving = xp.isfinite(y) & xp.isfinite(theta)
    z = (xp.where(moving, y, 0.0) - xp.where(moving, theta, 0.0)) / t[..., None, None]
    return moving, z, link.map_alpha(lambda alpha: alpha[..., None])


def room_of(xp: Namespace[Any], p: Columns) -> Array:
    """Return what the error of a column's sum is relative to; 1 for closed columns."""
    room = xp.minimum(p.c, xp.maximum(p.number - p.c, 1e-4 * p.c))
    return xp.where((p.number > 0) & (room > 0), room, 1.0)

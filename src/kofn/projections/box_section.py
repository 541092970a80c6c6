"""The projection onto a box cut by a hyperplane."""

from __future__ import annotations

import math
from typing import NamedTuple, Never

from kofn.arrays.autodiff import moving, stop_gradient
from kofn.arrays.kinds import Array, full_like, namespace, scalar
from kofn.arrays.names import unknown_keyword
from kofn.arrays.operations import (
    divided_as,
    in_parts,
    power_of_two,
    take_along_last,
    with_undivided_rows,
)
from kofn.arrays.typing import ArrayT
from kofn.arrays.without_onnx import refuse
from kofn.projections.vectors import vectors
from kofn.solver.costs import less_product
from kofn.solver.reductions import DENSE

__all__ = ["projection_box_section"]


class Section(NamedTuple):
    """{p: lower ≤ p ≤ upper, Σwp = c}, and the vectors x that are projected onto it."""

    x: Array
    lower: Array
    upper: Array
    w: Array
    c: Array  # per vector

    def sum(self, entries: Array) -> Array:
        """Return Σw·entries, per vector with a dimension of 1."""
        xp = namespace(self.x)
        # A bound may be infinite where w = 0.
        return xp.sum(xp.where(self.w == 0, 0.0, self.w * entries), axis=-1)[..., None]


class Parts(NamedTuple):
    """The place of each entry at the solution: inside of its bounds, or at one of them."""

    inside: Array
    at_upper: Array  # else at its lower bound


def projection_box_section(
    x: ArrayT,
    lower: float | Array,
    upper: float | Array,
    w: float | Array,
    c: float | Array,
    *,
    dim: int | None = -1,
    **others: Never,
) -> ArrayT:
    """Return argmin_p ‖p − x‖² for lower ≤ p ≤ upper and Σwp = c.

    It is clip(x − θw, lower, upper) with the number θ for which the sum is c.

    Args:
        x: torch.Tensor, jax.Array or numpy.ndarray of floats, any shape.
        lower, upper: bounds, which may be infinite: numbers, or arrays that broadcast to `x`.
        w: the weights of the sum, of either sign: a number, or an array that broadcasts to `x`.
        c: the sum; a number, or an array that broadcasts to the batch shape.
        dim: the dimension that vectors lie along; None takes all of `x` as one vector.

    Returns:
        An array like `x`, differentiable in all arguments. NaN for a vector with a NaN, and for
        one whose set is empty: c is beyond the sums that the bounds allow, or lower > upper. An
        infinite entry of x goes to its bound, and is NaN if that is infinite, too.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a shape that does not fit; a number w or c is not finite.

    Source: Brucker, "An O(n) algorithm for quadratic knapsack problems" (1984); the names are those
    of jaxopt.projection.projection_box_section.

    Example:
        >>> import numpy as np
        >>> from kofn.projections import projection_box_section
        >>> x = np.array([2.0, 0.5, -1.0])
        >>> projection_box_section(x, 0.0, np.array([1.0, 2.0, 2.0]), 1.0, 2.0)
        array([1., 1., 0.])
    """
    if others:
        raise unknown_keyword(projection_box_section, others)
    refuse("projections.projection_box_section")
    given = vectors(x, dim)
    bounds = (
        given.per_entry("lower", lower, infinite=True),
        given.per_entry("upper", upper, infinite=True),
    )
    total = given.per_vector("c", c, positive=False)
    total = full_like(given.rows, given.batch, total) if isinstance(total, float) else total
    rows = with_undivided_rows(given.rows)
    numbers = *bounds, given.per_entry("w", w), total
    section = Section(rows, *(divided_as(each, rows) for each in numbers))
    with given.form.quiet():
        return given.restored(_projected(_scaled(section)))


def _scaled(section: Section) -> Section:
    """Return the same set with weights of at most 2, so that their squares do not overflow."""
    xp, w = namespace(section.w), section.w
    if not w.shape[-1]:
        return section
    unit = power_of_two(xp.max(xp.abs(stop_gradient(w)), axis=-1))
    return section._replace(w=w / unit[..., None], c=section.c / unit)


def _projected(section: Section) -> Array:
    """Return the projection: θ in closed form, once the entries inside are known.

    That form is differentiable in all arguments, to any order, with the exact derivatives. θ is a
    sum, anchor + rest, so that x − θw has all its digits where x and θw nearly cancel.
    """
    fixed = Section(*map(stop_gradient, section))
    xp = namespace(fixed.x)
    low, high = _ends(fixed)
    parts = _parts(fixed, low, high)
    anchor = xp.where(xp.isfinite(low), low, xp.where(xp.isfinite(high), high, 0.0))
    for _ in range(2):
        offset = _offset(fixed, parts, anchor)
        anchor = anchor + _step(fixed, parts, offset)
    offset, rest = _offset(fixed, None, anchor), xp.zeros_like(anchor)
    for _ in range(2):  # a break that rounding has moved may have put an entry on its wrong side
        rest = rest + _step(fixed, parts, offset - rest * fixed.w)
        parts = _parts_of(fixed, offset - rest * fixed.w)
    offset = _offset(section, parts, anchor)
    rest = rest + _step(section, parts, offset - rest * section.w)
    return xp.where(_is_empty(fixed), math.nan, _bounded(section, parts, offset - rest * section.w))


def _offset(section: Section, parts: Parts | None, anchor: Array) -> Array:
    """Return x − anchor·w, with derivatives in both; only of the entries inside, if it is said."""
    x, _, _, w, _ = section
    xp = namespace(x)
    if parts is not None:  # an infinite x would make the derivatives NaN
        x, w = (xp.where(parts.inside, each, 0.0) for each in (x, w))
    value = less_product(stop_gradient(x), in_parts(stop_gradient(w)), anchor[..., 0], DENSE)
    return value + moving(x) - anchor * moving(w)


def _step(section: Section, parts: Parts, entries: Array) -> Array:
    """Return how much is to be added to θ, for entries inside that are `entries` now."""
    xp = namespace(section.x)
    w = xp.where(parts.inside, section.w, 0.0)
    slope = xp.sum(w * w, axis=-1)[..., None]
    excess = section.sum(_placed(section, parts, entries)) - section.c[..., None]
    some = slope > 0
    return xp.where(some, xp.where(some, excess, 0.0) / xp.where(some, slope, 1.0), 0.0)


def _placed(section: Section, parts: Parts, entries: Array) -> Array:
    """Return the entries inside, and the bounds of the others."""
    xp = namespace(section.x)
    bound = xp.where(parts.at_upper, section.upper, section.lower)
    # Other entries are 0, for the derivative of infinity times 0 is NaN.
    return xp.where(parts.inside, entries, xp.where(parts.inside, 0.0, bound))


def _bounded(section: Section, parts: Parts, entries: Array) -> Array:
    """Return `_placed` within the bounds, which rounding may have passed."""
    xp = namespace(section.x)
    placed = _placed(section, parts, entries)
    value, lower, upper = map(stop_gradient, (placed, section.lower, section.upper))
    within = xp.minimum(xp.maximum(value, lower), upper)
    return placed + xp.where(within == value, 0.0, within - value)


def _breaks(section: Section) -> tuple[Array, Array]:
    """Return the θ at which each entry leaves its first bound, and at which it meets its second."""
    x, lower, upper, w, _ = section
    xp = namespace(x)
    some = xp.where(w == 0, 1.0, w)
    one, other = (x - upper) / some, (x - lower) / some
    first, second = xp.minimum(one, other), xp.maximum(one, other)
    return xp.where(w == 0, -math.inf, first), xp.where(w == 0, math.inf, second)


def _ends(section: Section) -> tuple[Array, Array]:
    """Return the two neighbours among the breaks between which θ lies; ±inf beyond them.

    The sum falls as θ grows, so a search by halves over the sorted breaks finds them.
    """
    xp = namespace(section.x)
    first, second = _breaks(section)
    outermost = divided_as(full_like(first, (*first.shape[:-1], 1), math.inf), first)
    breaks = xp.concat((-outermost, xp.sort(xp.concat((first, second), axis=-1), axis=-1)), axis=-1)
    breaks = xp.concat((breaks, outermost), axis=-1)
    count = breaks.shape[-1]
    low = xp.zeros_like(section.c[..., None], dtype=xp.int32)
    high = low + (count - 1)
    for _ in range((count - 1).bit_length()):
        middle = (low + high) // 2
        theta = take_along_last(breaks, middle)
        enough = xp.isfinite(theta) & (_sum_at(section, theta) >= section.c[..., None])
        enough = enough | (theta == -math.inf)
        low, high = xp.where(enough, middle, low), xp.where(enough, high, middle)
    return take_along_last(breaks, low), take_along_last(breaks, low + 1)


def _sum_at(section: Section, theta: Array) -> Array:
    """Return the sum at θ, where that is finite."""
    x, lower, upper, w, _ = section
    xp = namespace(x)
    theta = xp.where(xp.isfinite(theta), theta, 0.0)
    return section.sum(xp.minimum(xp.maximum(x - theta * w, lower), upper))


def _parts(section: Section, low: Array, high: Array) -> Parts:
    """Return what becomes of each entry for θ in [low, high], between which there is no break."""
    x, lower, upper, w, _ = section
    xp = namespace(x)
    first, second = _breaks(section)
    before, past = first >= high, second <= low
    free = w == 0
    inside = xp.where(free, (lower < x) & (x < upper), ~before & ~past)
    at_upper = xp.where(free, x >= upper, xp.where(w > 0, before, past))
    return Parts(inside, at_upper)


def _parts_of(section: Section, entries: Array) -> Parts:
    """Return what becomes of entries that are x − θw."""
    return Parts((section.lower < entries) & (entries < section.upper), entries >= section.upper)


def _is_empty(section: Section) -> Array:
    """Return which sets are empty, or have a NaN among their numbers."""
    x, lower, upper, w, c = section
    xp = namespace(x)
    least, most = xp.where(w > 0, lower, upper), xp.where(w > 0, upper, lower)
    rounding = 4 * float(xp.finfo(x.dtype).eps)
    c = c[..., None]
    low, high = section.sum(least), section.sum(most)
    sign = xp.where(w < 0, scalar(w, -1.0), 1.0)
    near_low, near_high = (
        rounding * (section.sum(sign * xp.abs(end)) + xp.abs(c)) for end in (least, most)
    )
    outside = ~((low - near_low <= c) & (c <= high + near_high))
    known = xp.isfinite(xp.where(x > 0, xp.minimum(x, upper), xp.maximum(x, lower)))
    wrong = ~((lower <= upper) & known & xp.isfinite(w))
    return outside | ~xp.isfinite(c) | xp.any(wrong, axis=-1)[..., None]

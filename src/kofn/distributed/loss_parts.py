"""What a loss of rows in several processes, or on several JAX devices, does to its target and with
its values: class weights, smoothing, rows that do not count, and the reduction.
"""

from __future__ import annotations

from typing import NamedTuple

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, cast, deleted, namespace
from kofn.solver.reductions import Reductions, wide_sums_of


class Target(NamedTuple):
    """A target per entry that is here, smoothed; the rest is per row and alike everywhere."""

    each: Array
    number: Array  # Σt
    available: Array  # rows with an entry that is not excluded
    row_weight: Array | None  # the mean class weight of a row's labels
    used: Array | None  # rows whose label is not ignored
    valid: Array | None  # 1, or NaN where a label is out of range
    by_class: Array | None
    integers: bool

    @property
    def weighed(self) -> Array:
        """Return the target times the weights of its classes."""
        return self.each if self.by_class is None else self.each * self.by_class


def spread(target: Target, x: Array, over: Reductions, smoothing: float, of_one: bool) -> Target:
    """Return a target of which `each`, `used`, `valid` and `by_class` are known, with the rest.

    Smoothing spreads a share of the target's weight evenly, and if `of_one`, of 1.
    """
    xp, each, playing = namespace(x), target.each, ~deleted(x)
    parts = [each, playing, *([] if target.by_class is None else [target.weighed])]
    number, count, *weighed = wide_sums_of(over, *parts)
    if weighed:
        some = number > 0
        mean = xp.where(some, weighed[0] / xp.where(some, number, 1.0), 1.0)
        target = target._replace(row_weight=cast(mean, x.dtype))
    if smoothing:
        share = xp.ones_like(number) if of_one else number
        even = cast(smoothing * share / xp.where(count > 0, count, 1.0), x.dtype)
        each = (1 - smoothing) * each + xp.where(playing, over.expand(even), 0.0)
    return target._replace(each=each, number=number, available=count > 0)


def weighted(value: Array, target: Target, likely: bool) -> tuple[Array, Array]:
    """Return the losses of rows, and what each counts in the mean."""
    xp, weight, counted = namespace(value), target.row_weight, target.available
    counted = counted if target.used is None else counted & target.used
    value = value if target.valid is None else value * target.valid
    if weight is not None and not likely:
        value = xp.where(weight == 0, 0.0, value) * weight
    if weight is None or (likely and not target.integers):
        weight = xp.ones_like(value)
    return xp.where(counted, value, 0.0), xp.where(counted, cast(weight, value.dtype), 0.0)


def reduced(value: Array, weight: Array, reduction: str) -> Array:
    """Return all losses, their sum, or their mean."""
    if reduction == "none":
        return value
    xp = namespace(value)
    total = xp.sum(value)
    if reduction == "sum":
        return total
    count = xp.sum(stop_gradient(weight))
    return total / xp.where(count == 0, 1.0, count)

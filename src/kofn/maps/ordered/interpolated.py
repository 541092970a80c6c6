"""Quantiles of rows whose numbers are in order, wherever these lie."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, Protocol

from kofn.arrays.autodiff import has_gradients, nan_where, stop_gradient
from kofn.arrays.checks import check_choice, check_number, check_real, check_same_kind
from kofn.arrays.kinds import (
    Array,
    cast,
    cast_like,
    clip,
    dtype_name,
    framework,
    full_like,
    most_precise_dtype,
    namespace,
    scalar,
)
from kofn.arrays.tracing import is_at_hand

Interpolation = Literal["linear", "lower", "higher", "midpoint", "nearest"]
INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


LONG = 1 << 22
"""Entries of a row too long for numbers of entries and a half to be exact in float32."""


class Rows(Protocol):
    """Rows of numbers, which know their order."""

    @property
    def counts(self) -> Array:
        """Return how many numbers each row has, (…, 1), or (1,) for all rows, as floats."""

    def ranked(self, ranks: Array) -> Array:
        """Return the numbers of these ranks, (…, m), 0 for the smallest; NaN is the largest.

        Ranks are whole numbers as floats, (…, m) or (m,). In a row without numbers, any do.
        """

    def threshold(self, k: Array, temperature: float) -> Array:
        """Return θ of soft top-k, (…), for a number of entries, (…) or ()."""

    def greatest(self) -> Array:
        """Return the greatest number of each row, (…), NaN if there is one; −inf if there is none.

        Without a derivative.
        """

    def total(self, rows: Array) -> Array:
        """Return the sum of the numbers of these rows, given as flags (…, 1); 0 of the others."""


class Wanted(NamedTuple):
    """Which quantiles, and how."""

    q: Array  # with one dimension, in the most precise type; NaN where it is out of range
    interpolation: str
    temperature: float
    rounding: float
    """The relative error of q: 0.13 in float32 is not the 0.13 that was meant."""


def wanted(q: float | Array, interpolation: str, temperature: float, x: Array) -> Wanted:
    """Check the arguments for quantiles of x."""
    check_choice("interpolation", interpolation, INTERPOLATIONS)
    soft = check_smooth(temperature)
    exact = framework(q) is None or dtype_name(q) == "float64"  # type: ignore[arg-type]  # an array
    return Wanted(_shares(q, x), interpolation, soft, 0.0 if exact else 2.0**-23)


def check_smooth(temperature: float) -> float:
    allowed = "a finite number ≥ 0, in the units of x"
    return check_number("temperature", temperature, low=0.0, allowed=allowed, arrays=False)


def _shares(q: float | Array, x: Array) -> Array:
    dtype = most_precise_dtype(x)
    if framework(q) is None:
        number = check_number("q", q, low=0.0, high=1.0, allowed="a number in [0, 1]")
        return full_like(cast(x[..., :0], dtype), (1,), number)
    array = check_same_kind("q", q, x, "x")
    check_real("q", array)
    if array.ndim > 1:
        raise ValueError(f"q must have at most one dimension; got shape {tuple(array.shape)}")
    wide = cast_like(array, cast(x[..., :0], dtype)).reshape(-1)
    return namespace(wide).where((wide >= 0) & (wide <= 1), wide, math.nan)


def quantiles(rows: Rows, of: Wanted) -> Array:
    """Return the quantiles of rows, (…, number of q)."""
    q, interpolation, temperature, rounding = of
    xp, count = namespace(q), rows.counts
    last = xp.where(count > 0, count - 1, 0.0)
    at = xp.where(xp.isnan(q), 0.0, q) * last
    if rounding:
        near = xp.round(2 * stop_gradient(at)) / 2  # also where "nearest" decides
        close = abs(stop_gradient(at) - near) <= clip(near * rounding, 0.0, 2.0**-10)
        at = xp.where(close, near + (at - stop_gradient(at)), at)
    low, high, share = _places(at, last, interpolation)
    if temperature > 0:
        first, second = (_thresholds(rows, count - each - 0.5, temperature) for each in (low, high))
        top = first[..., :1]  # NaN if there is one
    else:
        low, high = (xp.broadcast_to(each, at.shape) for each in (low, high))
        end = xp.broadcast_to(last, (*at.shape[:-1], 1))
        values = rows.ranked(xp.concat((low, high, end), axis=-1))
        many = q.shape[0]
        first, second, top = values[..., :many], values[..., many:-1], values[..., -1:]
    between = _between(first, second, cast(share, first.dtype))
    between = _with_nan(between, q, (count > 0) & xp.isnan(top), rows)
    return xp.where((count <= 0) | xp.isnan(q), math.nan, between)


def _with_nan(numbers: Array, q: Array, bad: Array, rows: Rows) -> Array:
    """Return NaN for rows that have one; so are their derivatives, in each number and in q."""
    if is_at_hand(bad) and not bad.any():
        return numbers
    if has_gradients(numbers):
        every = rows.total(bad) + cast(q, numbers.dtype)
        numbers = numbers + namespace(numbers).where(bad, every, 0.0)
    return nan_where(numbers, bad)


def _thresholds(rows: Rows, k: Array, temperature: float) -> Array:
    xp, each = namespace(k), (rows.threshold(k[..., i], temperature) for i in range(k.shape[-1]))
    thresholds = xp.stack(tuple(each), axis=-1)
    if is_at_hand(thresholds) and not xp.isnan(thresholds).any():
        return thresholds
    # Soft top-k chooses no −inf, and has no threshold in a row of nothing else.
    return xp.where((rows.greatest() == -math.inf)[..., None], -math.inf, thresholds)


def mirrored(k: Array, count: Array) -> tuple[Array, Array]:
    """Return the smaller of k and count − k, and 1, or −1 where the row has to change its sign.

    The k largest and the count − k smallest have one threshold.
    """
    xp, few = namespace(k), 2 * k <= count
    return xp.where(few, k, count - k), xp.where(few, scalar(k, 1.0), -1.0)


def _between(first: Array, second: Array, share: Array) -> Array:
    """Interpolate between two numbers: an infinite one wins, if it has a share, unless both do."""
    xp = namespace(first)
    both = xp.isfinite(first) & xp.isfinite(second)
    # Other numbers are 0, for the derivative of infinity times 0 is NaN.
    low, high = (xp.where(both, each, 0.0) for each in (first, second))
    plain = both & xp.isfinite(high - low)
    inside = low + share * xp.where(plain, high - low, 0.0)
    far = low * (1 - share) + high * share  # where the difference overflows
    ends = xp.where((share > 0) & (first != second), first + second, first)
    return xp.where(plain, inside, xp.where(both, far, ends))


def _places(at: Array, last: Array, interpolation: str) -> tuple[Array, Array, Array]:
    """Return the two places next to one, and the share of the second."""
    xp, fixed = namespace(at), stop_gradient(at)
    below = xp.floor(fixed)
    above = xp.minimum(below + 1, last)
    if interpolation == "linear":
        # Next to the last place is the one before it: q = 1 moves the other way.
        end = below >= last
        above = xp.where(end, xp.where(last > 0, last - 1, 0.0), above)
        return below, above, xp.where(end, below - at, at - below)
    share = fixed - below
    if interpolation == "midpoint":
        return below, above, xp.where(share > 0, scalar(share, 0.5), 0.0)
    if interpolation == "nearest":
        below = xp.round(fixed)
    elif interpolation == "higher":
        below = xp.ceil(fixed)
    return below, below, xp.zeros_like(share)

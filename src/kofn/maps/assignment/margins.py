"""What the margins alone decide: rows and columns that take nothing, or all that they can.

A row with k = 0 has weights of 0, and one with as many available entries as k has weights of 1;
columns alike. The others get what remains, so it is done until nothing more follows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

from kofn.arrays.flow import only_if, while_loop
from kofn.arrays.kinds import Array, namespace, scalar
from kofn.arrays.typing import Namespace

TOLERANCE = 1e-5
"""How far the sums of the two margins may be apart, and a margin beyond its end, by rounding."""


class Settled(NamedTuple):
    """What the margins of each matrix decide; constants."""

    live: Array  # entries that they leave open
    full: Array  # entries whose weight is 1; entries of neither have 0
    possible: Array  # per matrix, whether weights with these margins exist as far as is seen here


class Open(NamedTuple):
    """The part of each matrix that its margins leave open."""

    x: Array  # (…, m, n), −inf where a weight is settled
    k: Array  # (…, m), the margins that are left
    c: Array  # (…, n)
    t: Array  # (…,)
    number: Array  # (…, n), how many entries of each column are open; a constant


class Columns(Protocol):
    """The open columns of matrices."""

    @property
    def c(self) -> Array:
        """Return the margins that are left."""

    @property
    def number(self) -> Array:
        """Return how many entries of each are open."""


class _State(NamedTuple):
    live: Array
    full: Array
    k: Array
    c: Array
    of_rows: Array  # how many entries are live
    of_columns: Array


def settled(xp: Namespace[Any], x: Array, k: Array, c: Array) -> Settled:
    """Settle what margins decide, of constants; xp is their namespace."""
    live = (x > -math.inf) | xp.isnan(x)
    of_rows, of_columns = counted(xp, live, k, c)
    # A NaN in a row or column that takes nothing, or all, would leave with it.
    bad = impossible(xp, k, of_rows) | impossible(xp, c, of_columns)
    bad = bad | xp.any(xp.isnan(x), axis=(-2, -1))

    def decided(s: _State) -> tuple[Array, ...]:
        """Return rows that take nothing, and all, and such columns."""
        pairs = *closing(xp, s.k, k, s.of_rows), *closing(xp, s.c, c, s.of_columns)
        return tuple(flags & ~bad[..., None] for flags in pairs)

    def unfinished(s: _State) -> Array:
        return xp.any(xp.stack([xp.any(flags) for flags in decided(s)]))

    def advance(s: _State) -> _State:
        flags = decided(s)
        none, every = closed(s.live, flags[:2], flags[2:])
        rows, columns = counted(xp, every, k, c)
        live = s.live & ~none & ~every
        return _State(live, s.full | every, s.k - rows, s.c - columns, *counted(xp, live, k, c))

    start = _State(live, live & ~live, k, c, of_rows, of_columns)
    most = x.shape[-1] + x.shape[-2] + 1
    end = while_loop(x, unfinished, advance, start, most)
    if end is not start:
        bad = bad | impossible(xp, end.k, end.of_rows) | impossible(xp, end.c, end.of_columns)
    return Settled(end.live, end.full, ~bad)


def opened(xp: Namespace[Any], x: Array, k: Array, c: Array, t: Array, of: Settled) -> Open:
    """Return the scores of entries that are not settled, and the margins left for them."""
    rows, columns = counted(xp, of.live, k, c)
    none: tuple[Array, ...] = xp.zeros_like(k), xp.zeros_like(c)
    taken = only_if(of.full, lambda: counted(xp, of.full, k, c), none)
    return Open(
        xp.where(of.live, x, -math.inf),
        xp.where(rows > 0, k - taken[0], 0.0),
        xp.where(columns > 0, c - taken[1], 0.0),
        t,
        columns,
    )


def counted(xp: Namespace[Any], flags: Array, k: Array, c: Array) -> tuple[Array, Array]:
    """Return how many of each row, and of each column, are set."""
    return xp.sum(flags, axis=-1, dtype=k.dtype), xp.sum(flags, axis=-2, dtype=c.dtype)


def closing(xp: Any, left: Array, given: Array, number: Array) -> tuple[Array, Array]:
    """Return rows, or columns, that take nothing, and all, of the `number` of entries open.

    `left` are the margins that are left of the given ones.
    """
    # What rounding may leave of a margin from which whole numbers were taken; and by what one
    # that takes all may be short of it, for columns were scaled to sum to what rows do.
    eps = 8 * float(xp.finfo(given.dtype).eps)
    some = number > 0
    return some & (left <= eps * (given - left)), some & (left >= number - eps * given)


Flags = tuple[Array, ...]
"""Rows, or columns, that take nothing, and those that take all."""


def closed(live: Array, rows: Flags, columns: Flags) -> tuple[Array, Array]:
    """Return which entries these settle as 0, and as 1."""
    none = live & (rows[0][..., :, None] | columns[0][..., None, :])
    return none, live & ~none & (rows[1][..., :, None] | columns[1][..., None, :])


def closed_price(like: Array, full: Array, live: Array) -> Array:
    """Return the price of settled rows, or columns, with `live` entries, `full` of them taken:
    +∞ where none, −∞ where all.
    """
    xp = namespace(live)
    end = xp.where(full == live, scalar(like, -math.inf), math.nan)
    end = xp.where(full == 0, math.inf, end)
    return xp.where(live == 0, math.nan, end)


def impossible(xp: Any, margin: Array, most: Array) -> Array:
    """Return whether a margin of a matrix is NaN, or out of range by more than rounding."""
    rounding = TOLERANCE * (1 + most)
    good = (margin >= -rounding) & (margin <= most + rounding)
    return xp.any(~good, axis=-1)

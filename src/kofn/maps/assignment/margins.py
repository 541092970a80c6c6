"""What the margins alone decide: rows and columns that take nothing, or all that they can.

A row with k = 0 has weights of 0, and one with as many available entries as k has weights of 1;
columns alike. That changes what is left for the others, so it is done until nothing more follows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from kofn.arrays.flow import only_if, while_loop
from kofn.arrays.kinds import Array, cast, namespace

TOLERANCE = 1e-5
"""How far the sums of the two margins may be apart, and a margin beyond its end, by rounding."""


class Settled(NamedTuple):
    """What the margins of each matrix decide; constants."""

    live: Array  # entries that they leave open
    full: Array  # entries whose weight is 1; those of neither have 0
    possible: Array  # per matrix, whether weights with these margins exist as far as is seen here


class Open(NamedTuple):
    """The part of each matrix that its margins leave open."""

    x: Array  # (…, m, n), −inf where a weight is settled
    k: Array  # (…, m), what is left of the margins
    c: Array  # (…, n)
    t: Array  # (…,)
    number: Array  # (…, n), how many entries of each column are open; a constant


class _State(NamedTuple):
    live: Array
    full: Array
    k: Array
    c: Array
    of_rows: Array  # how many entries are live
    of_columns: Array


def settled(x: Array, k: Array, c: Array) -> Settled:
    """Settle what margins decide, of constants."""
    xp = namespace(x)
    live = (x > -math.inf) | xp.isnan(x)
    of_rows, of_columns = counted(live, k, c)
    # A NaN in a row or column that takes nothing, or all, would leave with it.
    bad = _impossible(k, c, of_rows, of_columns) | xp.any(xp.isnan(x), axis=(-2, -1))
    eps = 8 * float(xp.finfo(x.dtype).eps)

    def decided(s: _State) -> tuple[Array, ...]:
        """Return rows that take nothing, and all, and such columns."""
        # What rounding may leave of a margin from which whole numbers were taken; and by what one
        # that takes all may be short of it, for columns were scaled to sum to what rows do.
        row, column = eps * (k - s.k), eps * (c - s.c)
        rows = (s.of_rows > 0) & ~bad[..., None]
        columns = (s.of_columns > 0) & ~bad[..., None]
        return (
            rows & (s.k <= row),
            rows & (s.k >= s.of_rows - eps * k),
            columns & (s.c <= column),
            columns & (s.c >= s.of_columns - eps * c),
        )

    def unfinished(s: _State) -> Array:
        return xp.any(xp.stack([xp.any(flags) for flags in decided(s)]))

    def advance(s: _State) -> _State:
        row, whole_row, column, whole_column = decided(s)
        none = s.live & (row[..., :, None] | column[..., None, :])
        every = s.live & ~none & (whole_row[..., :, None] | whole_column[..., None, :])
        rows, columns = counted(every, k, c)
        live = s.live & ~none & ~every
        return _State(live, s.full | every, s.k - rows, s.c - columns, *counted(live, k, c))

    start = _State(live, live & ~live, k, c, of_rows, of_columns)
    most = x.shape[-1] + x.shape[-2] + 1
    found = while_loop(x, unfinished, advance, start, most)
    bad = bad | _impossible(*found[2:])
    return Settled(found.live, found.full, ~bad)


def opened(x: Array, k: Array, c: Array, t: Array, of: Settled) -> Open:
    """Return the scores of entries that are not settled, and the margins left for them."""
    xp = namespace(x)
    rows, columns = counted(of.live, k, c)
    none: tuple[Array, ...] = xp.zeros_like(k), xp.zeros_like(c)
    taken = only_if(of.full, lambda: counted(of.full, k, c), none)
    return Open(
        xp.where(of.live, x, -math.inf),
        xp.where(rows > 0, k - taken[0], 0.0),
        xp.where(columns > 0, c - taken[1], 0.0),
        t,
        columns,
    )


def counted(flags: Array, k: Array, c: Array) -> tuple[Array, ...]:
    """Return how many of each row, and of each column, are set."""
    xp = namespace(k)
    found = xp.sum(flags, axis=-1), xp.sum(flags, axis=-2)
    return cast(found[0], k.dtype), cast(found[1], c.dtype)


def _impossible(k: Array, c: Array, of_rows: Array, of_columns: Array) -> Array:
    """Return whether a margin of a matrix is NaN, or out of range by more than rounding."""
    xp = namespace(k)
    return xp.any(_beyond(k, of_rows), axis=-1) | xp.any(_beyond(c, of_columns), axis=-1)


def _beyond(margin: Array, most: Array) -> Array:
    rounding = TOLERANCE * (1 + most)
    return ~((margin >= -rounding) & (margin <= most + rounding))

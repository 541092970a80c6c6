"""Numbers of rows by their rank in Triton, or thresholds, and what lies between two of them.

A NaN is the largest number, and no number is out of play here. (Tests: test_kernels_gpu.py.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kofn.kernels.gpu.choice.programs import LAST
from kofn.kernels.gpu.rows.answers import put
from kofn.kernels.gpu.rows.formulas import INF
from kofn.kernels.gpu.rows.loops import Stretch, entries
from kofn.kernels.gpu.rows.one_program import row_of, rows_here
from kofn.kernels.gpu.rows.words import number_at, place_of


class Ranks(NamedTuple):
    """The rows, the ranks of two numbers, and where the answers go."""

    x_at: Any  # numbers, (count, n); for the way back a cotangent per row
    out_at: Any  # a number per row; for the way back one per entry
    slopes_at: Any  # its slopes in the two, (2, count), NaN in rows with one
    places_at: Any  # where these are, (2, count)
    low: Any
    high: Any  # the same, or the next one
    share: Any  # of the second
    count: Any
    n: Any


@triton.jit
def _keys(stretch, at, BLOCK: tl.constexpr):
    x, filled = entries(stretch.x, stretch, at, 0.0, BLOCK)
    key = place_of(tl.where(x == 0.0, 0.0, x))
    return tl.where(filled, tl.where(x != x, LAST, key), LAST), filled


@triton.jit
def _between(a, b, share):
    """Return the number at a share of the way from a to b, its slopes; an infinite one wins."""
    usual = (tl.abs(a) < INF) & (tl.abs(b) < INF)
    both = (share > 0.0) & (a != b)
    low, high = tl.where(usual, a, 0.0), tl.where(usual, b, 0.0)
    inside = low + share * (high - low)
    inside = tl.where(tl.abs(high - low) < INF, inside, low * (1.0 - share) + high * share)
    between = tl.where(usual, inside, tl.where(both, a + b, a))
    one, two = tl.where(usual, 1.0 - share, 1.0), tl.where(usual, share, both.to(tl.float32))
    return between, one, two


@triton.jit
def ranked(given: Ranks, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the number at the given share of the way from one rank's number to the other's."""
    rows, here, stretch = rows_here(given, ROWS)
    first, bit = rows * 0, 31
    while bit >= 0:
        tried = first | (rows * 0 + 1 << bit)
        number = tl.zeros((ROWS, BLOCK), tl.int32)
        for at in range(0, given.n, BLOCK):
            key, filled = _keys(stretch, at, BLOCK)
            number += (filled & (key < (tried ^ ~LAST)[:, None])).to(tl.int32)
        first = tl.where(tl.sum(number, axis=1) <= given.low, tried, first)
        bit -= 1
    first = first ^ ~LAST
    less, equal = tl.zeros((ROWS, BLOCK), tl.int32), tl.zeros((ROWS, BLOCK), tl.int32)
    above, bad = less + LAST, less
    for at in range(0, given.n, BLOCK):
        key, filled = _keys(stretch, at, BLOCK)
        less += (filled & (key < first[:, None])).to(tl.int32)
        equal += (filled & (key == first[:, None])).to(tl.int32)
        above = tl.minimum(above, tl.where(key > first[:, None], key, LAST))
        bad += (filled & (key == LAST)).to(tl.int32)
    before = tl.sum(less, axis=1)
    is_next = given.high >= before + tl.sum(equal, axis=1)
    second = tl.where(is_next, tl.min(above, axis=1), first)
    own, other = given.low - before, tl.where(is_next, 0, given.high - before)
    seen, met, place, next_place = rows * 0, rows * 0, rows * 0, rows * 0
    for at in range(0, given.n, BLOCK):
        key, filled = _keys(stretch, at, BLOCK)
        columns = (at + tl.arange(0, BLOCK))[None, :]
        tie = (filled & (key == first[:, None])).to(tl.int32)
        which = seen[:, None] + tl.cumsum(tie, axis=1) - 1
        place += tl.sum(tl.where((tie > 0) & (which == own[:, None]), columns, 0), axis=1)
        seen += tl.sum(tie, axis=1)
        tie = (filled & (key == second[:, None])).to(tl.int32)
        which = met[:, None] + tl.cumsum(tie, axis=1) - 1
        next_place += tl.sum(tl.where((tie > 0) & (which == other[:, None]), columns, 0), axis=1)
        met += tl.sum(tie, axis=1)
    between, one, two = _between(number_at(first), number_at(second), rows * 0.0 + given.share)
    has_nan = tl.sum(bad, axis=1) > 0
    tl.store(given.out_at + rows, tl.where(has_nan, float("nan"), between), mask=here)
    tl.store(given.slopes_at + rows, tl.where(has_nan, float("nan"), one), mask=here)
    tl.store(given.slopes_at + given.count + rows, tl.where(has_nan, float("nan"), two), mask=here)
    tl.store(given.places_at + rows, place.to(tl.int64), mask=here)
    tl.store(given.places_at + given.count + rows, next_place.to(tl.int64), mask=here)


@triton.jit
def ranked_back(given: Ranks, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the cotangents of all numbers: two of each row may move the answer."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = rows < given.count
    stretch = Stretch(row_of(given.out_at, rows, given), here, 0, given.n)
    g = tl.load(given.x_at + rows, mask=here, other=0.0).to(tl.float32)
    one = tl.load(given.slopes_at + rows, mask=here, other=0.0) * g
    two = tl.load(given.slopes_at + given.count + rows, mask=here, other=0.0) * g
    place = tl.load(given.places_at + rows, mask=here, other=0)
    next_place = tl.load(given.places_at + given.count + rows, mask=here, other=0)
    for at in range(0, given.n, BLOCK):
        columns = (at + tl.arange(0, BLOCK))[None, :]
        out = tl.where(columns == place[:, None], one[:, None], 0.0)
        out += tl.where(columns == next_place[:, None], two[:, None], 0.0)
        out = tl.where((one != one)[:, None], float("nan"), out)
        put(stretch.x, at, out, here[:, None] & (columns < given.n), BLOCK)


class Thresholds(NamedTuple):
    """The rows, two thresholds of each, two floats' worth, and where the answers go."""

    x_at: Any
    first_at: Any  # (2, count)
    second_at: Any
    out_at: Any
    slopes_at: Any  # in the two, (2, count)
    share: Any  # of the second
    count: Any
    n: Any


@triton.jit
def mixed(given: Thresholds, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the number at the given share of the way from one threshold to the other; −inf in a
    row of nothing else.
    """
    rows, here, stretch = rows_here(given, ROWS)
    some = tl.zeros((ROWS, BLOCK), tl.int32)
    for at in range(0, given.n, BLOCK):
        x, filled = entries(stretch.x, stretch, at, -INF, BLOCK)
        some += (filled & (x != -INF)).to(tl.int32)
    is_empty = tl.sum(some, axis=1) == 0
    a = _threshold(given.first_at, given, rows, here, is_empty)
    b = _threshold(given.second_at, given, rows, here, is_empty)
    between, one, two = _between(a, b, rows * 0.0 + given.share)
    tl.store(given.out_at + rows, between, mask=here)
    tl.store(given.slopes_at + rows, one, mask=here)
    tl.store(given.slopes_at + given.count + rows, two, mask=here)


@triton.jit
def _threshold(at, given, rows, here, is_empty):
    hi = tl.load(at + rows, mask=here, other=0.0)
    lo = tl.load(at + given.count + rows, mask=here, other=0.0)
    return tl.where(is_empty, -INF, tl.where(tl.abs(hi) < INF, hi + lo, hi))

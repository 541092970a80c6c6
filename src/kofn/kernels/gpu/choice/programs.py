"""Hard choices in Triton: scores as integers in their order, and counts of those from one on.

A program takes whole rows, as in rows/one_program.py. NaN and scores out of play are −∞.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kofn.kernels.gpu.rows.formulas import DELETED, INF
from kofn.kernels.gpu.rows.loops import scores
from kofn.kernels.gpu.rows.one_program import per_row, row_of, rows_here
from kofn.kernels.gpu.rows.words import order_of

LAST = tl.constexpr(0x7FFFFFFF)


class Choices(NamedTuple):
    """The rows as these kernels see them."""

    x_at: Any  # scores, (count, n)
    k: Any  # one number, or the address of one per row; an integer for `largest`
    count: Any
    n: Any


@triton.jit
def keys(stretch, at, BLOCK: tl.constexpr):
    """Return (keys in the order of the scores, which entries there are, the scores)."""
    x, filled = scores(stretch, at, -INF, BLOCK)
    known = tl.where((x <= DELETED) | (x != x), -INF, tl.where(x == 0.0, 0.0, x))
    return order_of(known.to(tl.int32, bitcast=True)), filled, x


@triton.jit
def hard(given: Choices, out_at, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write ones at the k largest scores of each row, ties to the lowest index.

    The ⌈k⌉-th largest key is found bit by bit, or sooner a lower one with no other in between.
    """
    rows, here, stretch = rows_here(given, ROWS)
    k = per_row(given.k, rows, here, 0.0)
    whole = tl.minimum(tl.maximum(tl.ceil(k), 1.0), given.n * 1.0)
    nothing = tl.zeros((ROWS, BLOCK), tl.float32)
    # With the first bit flipped, keys are in the order of integers without a sign.
    last, left, bit = rows * 0, here, 31
    bad = nothing
    for at in range(0, given.n, BLOCK):
        _, _, x = keys(stretch, at, BLOCK)
        bad += tl.where(x != x, 1.0, 0.0)
    while (bit >= 0) & (tl.max(left.to(tl.int32)) > 0):
        tried = last | (rows * 0 + 1 << bit)
        number = nothing
        for at in range(0, given.n, BLOCK):
            key, filled, _ = keys(stretch, at, BLOCK)
            number += tl.where((key >= (tried ^ ~LAST)[:, None]) & filled, 1.0, 0.0)
        counted = tl.sum(number, axis=1)
        last = tl.where(left & (counted >= whole), tried, last)
        left = left & ((counted != whole) | (whole != k))
        bit -= 1
    last = last ^ ~LAST
    number = nothing
    for at in range(0, given.n, BLOCK):
        key, filled, _ = keys(stretch, at, BLOCK)
        number += tl.where((key > last[:, None]) & filled, 1.0, 0.0)
    rest, before = k - tl.sum(number, axis=1), rows * 0.0
    out = row_of(out_at, rows, given)
    is_bad = tl.sum(bad, axis=1) > 0.0
    for at in range(0, given.n, BLOCK):
        key, filled, x = keys(stretch, at, BLOCK)
        tie = tl.where((key == last[:, None]) & filled, 1.0, 0.0)
        place = before[:, None] + tl.cumsum(tie, axis=1) - 1.0
        share = tl.minimum(tl.maximum(rest[:, None] - place, 0.0), 1.0)
        chosen = tl.where(key > last[:, None], 1.0, tie * share)
        unknown = (is_bad[:, None] & (x != INF)) | (k != k)[:, None]
        chosen = tl.where(x <= DELETED, 0.0, tl.where(unknown, float("nan"), chosen))
        tl.store(out[:, None] + (at + tl.arange(0, BLOCK))[None, :], chosen, mask=filled)
        before += tl.sum(tie, axis=1)


@triton.jit
def tally(
    given: Choices,
    indices_at,
    counts_at,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add to each array of counts how often the k indices of rows without a NaN name each."""
    rows, here, stretch = rows_here(given, ROWS)
    bad = tl.zeros((ROWS, BLOCK), tl.float32)
    for at in range(0, given.n, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        bad += tl.where(x != x, 1.0, 0.0)
    columns, counts = tl.arange(0, WIDTH)[None, :], here & (tl.sum(bad, axis=1) == 0.0)
    there = counts[:, None] & (columns < given.k)
    chosen = tl.load(
        indices_at + rows.to(tl.int64)[:, None] * given.k + columns, mask=there, other=0
    )
    for i in tl.static_range(len(counts_at)):
        tl.atomic_add(counts_at[i] + chosen, chosen * 0 + 1, mask=there, sem="relaxed")


@triton.jit
def largest(given: Choices, out_at, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the indices of the k largest scores, largest first, ties to the lowest index."""
    rows, here, stretch = rows_here(given, ROWS)
    none = tl.full((ROWS, BLOCK), -0x8000000000000000, tl.int64)
    before = tl.full((ROWS,), 0x7FFFFFFFFFFFFFFF, tl.int64)
    for i in range(given.k):
        best = none
        for at in range(0, given.n, BLOCK):
            key, filled, _ = keys(stretch, at, BLOCK)
            place = (tl.arange(0, BLOCK) * -1 + (LAST - at)).to(tl.int64)[None, :]
            each = (key.to(tl.int64) << 32) + place
            best = tl.maximum(best, tl.where(filled & (each < before[:, None]), each, none))
        before = tl.max(best, axis=1)
        index = (before & 0xFFFFFFFF) * -1 + LAST
        tl.store(out_at + rows.to(tl.int64) * given.k + i, index, mask=here)

"""The search for the prices of matrices' columns, pass by pass: what becomes of each matrix, and
Newton's equations, between the rows' weights and PyTorch's product and solution.

A program has some rows of one kind: of all matrices, of all S, or the numbers of some matrices.
What a launch reads of a matrix's numbers it writes elsewhere, for other threads may be behind.
(Tests: tests/kernels/gpu/interpreted/prices.py, test_kernels_gpu.py.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kofn.kernels.gpu.doubles.search import LEAST
from kofn.kernels.gpu.rows.formulas import INF
from kofn.kernels.gpu.rows.one_program import row_of
from kofn.kernels.gpu.rows.words import formula_of
from kofn.kernels.prices import Columns, Numbers

BETA, BASE, STEP, KEPT = (tl.constexpr(i) for i in range(len(Columns._fields)))
EXCESS = tl.constexpr(len(Columns._fields))
T, LENGTH, GAIN, ADDED, SPREAD, MOVING, BY_COLUMNS = (
    tl.constexpr(Numbers._fields.index(name))
    for name in ("t", "length", "gain", "added", "spread", "moving", "by_columns")
)


class Entries(NamedTuple):
    """The rows of matrices."""

    x_at: Any  # scores, (count, n)
    p_at: Any  # weights
    w_at: Any  # F′
    columns_at: Any  # of `Columns`, (4, count / per_matrix, n)
    count: Any
    n: Any
    per_matrix: Any


class Matrices(NamedTuple):
    """What is kept of matrices, and their columns, which are the rows here."""

    numbers_at: Any  # of `Numbers`, (…, count)
    columns_at: Any  # of `Columns`, and their excess, (5, count, n)
    fixed_at: Any  # margins, what an error is relative to, how many entries are open, (3, count, n)
    sums_at: Any  # of weights, and of F′, (2, count, n)
    count: Any
    n: Any


@triton.jit
def _here(given, ROWS: tl.constexpr):
    each = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    return each, each < given.count


@triton.jit
def _at(given, each, here, start, BLOCK: tl.constexpr):
    """Return (the columns from `start` on, which of them there are)."""
    columns = (start + tl.arange(0, BLOCK))[None, :]
    return columns, here[:, None] & (columns < given.n)


@triton.jit
def _of(at, given, which, each, columns, filled):
    """Load the `which`-th number of columns."""
    row = row_of(at, each + which * given.count, given)
    return tl.load(row[:, None] + columns, mask=filled, other=0.0)


@triton.jit
def _put(at, given, which, each, columns, filled, values):
    row = row_of(at, each + which * given.count, given)
    tl.store(row[:, None] + columns, values, mask=filled)


@triton.jit
def _number(given, which, each, here):
    return tl.load(given.numbers_at + which * given.count + each, mask=here, other=0.0)


@triton.jit
def rows_seen(given: Entries, part_at, seen_at, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write D_r^−½·W, and of each row its part of stepᵀ·S·step, and the greatest |score| + |price|
    of its entries between 0 and 1, (2, count).
    """
    each, here = _here(given, ROWS)
    x_row, p_row = row_of(given.x_at, each, given), row_of(given.p_at, each, given)
    w_row, part_row = row_of(given.w_at, each, given), row_of(part_at, each, given)
    matrix = each // given.per_matrix
    step = row_of(given.columns_at, matrix + STEP * (given.count // given.per_matrix), given)
    beta = row_of(given.columns_at, matrix + BETA * (given.count // given.per_matrix), given)
    nothing = tl.zeros((ROWS, BLOCK), tl.float64)
    total, product = nothing, nothing
    for start in range(0, given.n, BLOCK):
        columns, filled = _at(given, each, here, start, BLOCK)
        w = tl.load(w_row[:, None] + columns, mask=filled, other=0.0)
        total += w
        product += w * tl.load(step[:, None] + columns, mask=filled, other=0.0)
    size = tl.sum(total, axis=1)
    some = size > LEAST
    inverse = tl.where(some, 1.0 / tl.sqrt(tl.where(some, size, 1.0)), 0.0)
    mean = tl.sum(product, axis=1) / tl.where(size > 0.0, size, 1.0)
    curved, farthest = nothing, nothing
    for start in range(0, given.n, BLOCK):
        columns, filled = _at(given, each, here, start, BLOCK)
        w = tl.load(w_row[:, None] + columns, mask=filled, other=0.0)
        p = tl.load(p_row[:, None] + columns, mask=filled, other=0.0)
        x = tl.load(x_row[:, None] + columns, mask=filled, other=-INF)
        away = tl.load(step[:, None] + columns, mask=filled, other=0.0) - mean[:, None]
        price = tl.load(beta[:, None] + columns, mask=filled, other=0.0)
        curved += w * (away * away)
        inside = (p > 0.0) & (p < 1.0) & (x > -INF)
        farthest = tl.maximum(farthest, tl.where(inside, tl.abs(x) + tl.abs(price), 0.0))
        tl.store(part_row[:, None] + columns, w * inverse[:, None], mask=filled)
    tl.store(seen_at + each, tl.sum(curved, axis=1), mask=here)
    tl.store(seen_at + given.count + each, tl.max(farthest, axis=1), mask=here)


@triton.jit
def judge(
    given: Matrices,
    curved_at,
    farthest_at,
    numbers_at,
    columns_at,
    RULES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write what columns have in excess, and the numbers of matrices and columns that follow."""
    each, here = _here(given, ROWS)
    nothing = tl.zeros((ROWS, BLOCK), tl.float64)
    most, lost, rest = nothing, nothing, nothing
    for start in range(0, given.n, BLOCK):
        columns, filled = _at(given, each, here, start, BLOCK)
        excess = _of(given.sums_at, given, 0, each, columns, filled)
        excess -= _of(given.fixed_at, given, 0, each, columns, filled)
        room = _of(given.fixed_at, given, 1, each, columns, filled)
        error = tl.abs(excess) / tl.where(filled, room, 1.0)
        most = tl.maximum(most, tl.where(error == error, error, 0.0))
        lost += tl.where(error != error, 1.0, 0.0)
        rest += excess * _of(given.columns_at, given, STEP, each, columns, filled)
        _put(columns_at, given, EXCESS, each, columns, filled, excess)
    error = tl.where(tl.sum(lost, axis=1) > 0.0, float("nan"), tl.max(most, axis=1))
    curved = tl.load(curved_at + each, mask=here, other=0.0)
    farthest = tl.load(farthest_at + each, mask=here, other=0.0)
    seen = error, tl.sum(rest, axis=1), curved, farthest
    before, after = given.numbers_at + each, numbers_at + each
    taken = formula_of(RULES, "decide")(before, after, given.count, here, *seen)
    for start in range(0, given.n, BLOCK):
        columns, filled = _at(given, each, here, start, BLOCK)
        beta = _of(given.columns_at, given, BETA, each, columns, filled)
        base = _of(given.columns_at, given, BASE, each, columns, filled)
        step = _of(given.columns_at, given, STEP, each, columns, filled)
        kept = _of(given.columns_at, given, KEPT, each, columns, filled)
        found = formula_of(RULES, "follow")(taken, beta, base, step, kept)
        for i in tl.static_range(4):
            _put(columns_at, given, i, each, columns, filled, found[i])


@triton.jit
def equations(
    given: Matrices,
    matrix_at,
    right_at,
    scale_at,
    LEAST_CURVED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write S, damped and divided by its scale, in the place of WᵀD_r⁻¹W, the right side and the
    scale. Matrices that take no step of Newton's, or have one that is not finite, get 1 for S.

    A row here is a row of some S, and a block has all columns.
    """
    every = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = every < given.count * given.n
    each, own = every // given.n, every % given.n
    columns, filled = _at(given, each, here, 0, BLOCK)
    slopes = _of(given.sums_at, given, 1, each, columns, filled)
    room = _of(given.fixed_at, given, 1, each, columns, filled)
    excess = _of(given.columns_at, given, EXCESS, each, columns, filled)
    size = tl.maximum(slopes, tl.full((), LEAST_CURVED, tl.float64) * room)
    size = tl.where(size > LEAST, size, 1.0)
    scale = tl.sqrt(size)
    level = scale / tl.sqrt(tl.sum(tl.where(filled, size, 0.0), axis=1))[:, None]
    is_own = columns == own[:, None]
    own_scale = tl.sum(tl.where(is_own, scale, 0.0), axis=1)
    own_level = tl.sum(tl.where(is_own, level, 0.0), axis=1)
    own_excess = tl.sum(tl.where(is_own, excess, 0.0), axis=1)
    product = tl.load(row_of(matrix_at, every, given)[:, None] + columns, mask=filled, other=0.0)
    entry = (tl.where(is_own, slopes, 0.0) - product) / own_scale[:, None] / scale
    entry += own_level[:, None] * level
    entry += tl.where(is_own, _number(given, ADDED, each, here)[:, None], 0.0)
    total = tl.sum(slopes, axis=1) + tl.sum(excess, axis=1)
    known = (tl.abs(total) < INF) & (_number(given, MOVING, each, here) != 0.0)
    entry = tl.where(known[:, None], entry, tl.where(is_own, 1.0, 0.0))
    tl.store(row_of(matrix_at, every, given)[:, None] + columns, entry, mask=filled)
    tl.store(right_at + every, own_excess / own_scale, mask=here)
    tl.store(scale_at + every, own_scale, mask=here)


@triton.jit
def _mean(given, at, scale_at, each, here, BLOCK: tl.constexpr):
    """Return the mean of what is at `at`, divided by its scale, over open columns."""
    total = tl.zeros((here.shape[0], BLOCK), tl.float64)
    number = tl.zeros((here.shape[0], BLOCK), tl.float64)
    for start in range(0, given.n, BLOCK):
        columns, filled = _at(given, each, here, start, BLOCK)
        some = _of(given.fixed_at, given, 2, each, columns, filled) > 0.0
        total += tl.where(some, _scaled(given, at, scale_at, each, columns, filled), 0.0)
        number += tl.where(some, 1.0, 0.0)
    return tl.sum(total, axis=1) / tl.maximum(tl.sum(number, axis=1), 1.0)


@triton.jit
def _scaled(given, at, scale_at, each, columns, filled):
    values = _of(at, given, 0, each, columns, filled)
    if scale_at is not None:
        row = row_of(scale_at, each, given)
        values = values / tl.load(row[:, None] + columns, mask=filled, other=1.0)
    return values


@triton.jit
def _newton(given, step_at, scale_at, mean, t, each, columns, filled):
    """Return Newton's step, before it is held to the scores' reach."""
    some = _of(given.fixed_at, given, 2, each, columns, filled) > 0.0
    step = _scaled(given, step_at, scale_at, each, columns, filled) - mean[:, None]
    return tl.where(some, step, 0.0) * t[:, None]


@triton.jit
def advance(
    given: Matrices,
    step_at,
    scale_at,
    prices_at,
    columns_at,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the prices to be looked at next, and where they are measured from; of matrices that
    take Newton's step also that, from the solution for it, and what it gains.

    `prices_at` are those of matrices that take thresholds of the columns.
    """
    each, here = _here(given, ROWS)
    moving = _number(given, MOVING, each, here) != 0.0
    replaced = _number(given, BY_COLUMNS, each, here) != 0.0
    t, length = _number(given, T, each, here), _number(given, LENGTH, each, here)
    mean = _mean(given, step_at, scale_at, each, here & moving, BLOCK)
    middle = _mean(given, prices_at, None, each, here & replaced, BLOCK)
    longest = tl.zeros((ROWS, BLOCK), tl.float64)
    for start in range(0, given.n, BLOCK):
        columns, filled = _at(given, each, here & moving, start, BLOCK)
        step = _newton(given, step_at, scale_at, mean, t, each, columns, filled)
        longest = tl.maximum(longest, tl.abs(step))
    most, reach = tl.max(longest, axis=1), _number(given, SPREAD, each, here) + 2.0 * t
    # On flat ground, where S is nearly singular, it would leap far beyond all prices.
    part = tl.where(most > 0.0, tl.minimum(reach / tl.where(most > 0.0, most, 1.0), 1.0), 1.0)
    gain = tl.zeros((ROWS, BLOCK), tl.float64)
    for start in range(0, given.n, BLOCK):
        columns, filled = _at(given, each, here, start, BLOCK)
        of_moving = filled & moving[:, None]
        new = _newton(given, step_at, scale_at, mean, t, each, columns, of_moving) * part[:, None]
        gain += _of(given.columns_at, given, EXCESS, each, columns, of_moving) * new
        step = _of(given.columns_at, given, STEP, each, columns, filled)
        step = tl.where(moving[:, None], new, step)
        some = _of(given.fixed_at, given, 2, each, columns, filled) > 0.0
        price = _of(prices_at, given, 0, each, columns, filled & replaced[:, None])
        price = tl.where(some, price - middle[:, None], 0.0)
        base = _of(given.columns_at, given, BASE, each, columns, filled)
        base = tl.where(replaced[:, None], price, base)
        kept = _of(given.columns_at, given, KEPT, each, columns, filled)
        _put(columns_at, given, BETA, each, columns, filled, base + length[:, None] * step)
        _put(columns_at, given, BASE, each, columns, filled, base)
        _put(columns_at, given, STEP, each, columns, filled, step)
        _put(columns_at, given, KEPT, each, columns, filled, kept)
    at = given.numbers_at + GAIN * given.count + each
    tl.store(at, tl.sum(gain, axis=1), mask=here & moving)

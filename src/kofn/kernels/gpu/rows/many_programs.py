"""Rows too long for one program: several work on each, a part each, a launch per pass.

What they add up goes to memory, at places that depend on nothing but the part, and is added again
by every program of the next launch, in one order: no answer depends on which program was first. One
program ends a search that the fixed number of evaluations has not ended: see `settle`. SUMS and
NUMBERS say how many of them a part and a row have.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kofn.kernels.gpu.rows import loops, one_program
from kofn.kernels.gpu.rows.formulas import INF, unit
from kofn.kernels.gpu.rows.loops import FullStatistics, Stretch, Sums, Theta
from kofn.kernels.gpu.rows.one_program import (
    Given,
    alpha_of,
    load_theta,
    per_row,
    row_of,
    store_theta,
)
from kofn.kernels.gpu.rows.search import USUAL, Row, Search, advance, end_of, start

SUMS = tl.constexpr(8)
NUMBERS = tl.constexpr(17)  # #finite, #(+inf), #NaN, and a search
FLOATS = tl.constexpr(11)  # of a search; its other fields are integers


class Parts(NamedTuple):
    """Where the parts of each row keep their sums, (count, SUMS, parts), and how many there are."""

    sums_at: Any
    parts: Any


@triton.jit
def _place(given, parts, PART: tl.constexpr):
    """Return (the row of this program, its part, that part's entries)."""
    row = tl.program_id(0) // parts + tl.arange(0, 1)
    part = tl.program_id(0) % parts
    first = part * PART
    last = tl.minimum(first + PART, given.n)
    return row, part, Stretch(row_of(given.x_at, row, given), row >= 0, first, last)


@triton.jit
def _keep(own, row, part, FIRST: tl.constexpr, values):
    """Some sums of a part, from the FIRST on."""
    for i in tl.static_range(len(values)):
        at = (row.to(tl.int64) * SUMS + FIRST + i) * own.parts + part
        tl.store(own.sums_at + at, values[i])


@triton.jit
def _every(own, row, i, other, PARTS: tl.constexpr):
    """One sum of each part, (1, PARTS)."""
    part = tl.arange(0, PARTS)
    at = (row.to(tl.int64) * SUMS + i) * own.parts
    there = (part < own.parts)[None, :]
    return tl.load(own.sums_at + at[:, None] + part[None, :], mask=there, other=other)


@triton.jit
def _totals(own, row, FIRST: tl.constexpr, LAST: tl.constexpr, PARTS: tl.constexpr):
    """Some sums of a row, from the FIRST to before the LAST."""
    totals = ()
    for i in tl.static_range(FIRST, LAST):
        totals += (tl.sum(_every(own, row, i, 0.0, PARTS), axis=1),)
    return totals


@triton.jit
def numbers_of(given, row):
    """Return (k, T) of a row."""
    here = row >= 0
    return per_row(given.k, row, here, 0.0), per_row(given.temperature, row, here, 1.0)


@triton.jit
def _load_row(given, numbers_at, row):
    """Return (the constants of a search, #NaN, the search)."""
    at = numbers_at + row * NUMBERS
    k, t = numbers_of(given, row)
    numbers = ()
    for i in tl.static_range(NUMBERS - 3):
        value = tl.load(at + 3 + i)
        numbers += (value if i < FLOATS else value.to(tl.int32),)
    return Row(k, tl.load(at), tl.load(at + 1), t), tl.load(at + 2), Search(*numbers)


@triton.jit
def _keep_row(numbers_at, row, fixed, bad, search):
    at = numbers_at + row * NUMBERS
    tl.store(at, fixed.live)
    tl.store(at + 1, fixed.top)
    tl.store(at + 2, bad)
    for i in tl.static_range(NUMBERS - 3):
        tl.store(at + 3 + i, search[i].to(tl.float32))


@triton.jit
def _after_sums(KIND: tl.constexpr, fixed, search, own, row, PARTS: tl.constexpr):
    return advance(KIND, fixed, search, Sums(*_totals(own, row, 0, 5, PARTS)))


@triton.jit
def statistics(given: Given, own: Parts, PART: tl.constexpr, BLOCK: tl.constexpr):
    """Store the statistics that a search starts from, part by part."""
    row, part, stretch = _place(given, own.parts, PART)
    full_statistics = loops.full_statistics(stretch, BLOCK)
    pivot = _pivot(stretch, given.n)
    near = loops.moments(stretch, pivot, tl.zeros_like(pivot) + USUAL, BLOCK)
    _keep(own, row, part, 0, full_statistics)
    _keep(own, row, part, 5, near)


@triton.jit
def _pivot(stretch, n):
    pivot = loops.middle(stretch, n)
    return tl.where(tl.abs(pivot) < USUAL, pivot, 0.0)


@triton.jit
def begin(
    given: Given,
    own: Parts,
    numbers_at,
    KIND: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The search of each row before its first evaluation: one program for each."""
    row = tl.program_id(0) + tl.arange(0, 1)
    k, t = numbers_of(given, row)
    stretch = Stretch(row_of(given.x_at, row, given), row >= 0, 0, given.n)
    pivot = _pivot(stretch, given.n)
    least = tl.min(_every(own, row, 0, INF, PARTS), axis=1)
    greatest = tl.max(_every(own, row, 1, -INF, PARTS), axis=1)
    full_statistics = FullStatistics(least, greatest, *_totals(own, row, 2, 5, PARTS))
    near = _totals(own, row, 5, 8, PARTS)
    seen = one_program.statistics_of(stretch, k, t, full_statistics, pivot, near, BLOCK)
    end = end_of(k, seen.live, seen.top, seen.bad, t)
    fixed = Row(k, seen.live, seen.top, t)
    search = start(KIND, fixed, seen, end.closed, alpha_of(given, row, row >= 0))
    _keep_row(numbers_at, row, fixed, seen.bad, search)


@triton.jit
def evaluate(
    given: Given,
    own: Parts,
    numbers_at,
    next_own: Parts,
    next_numbers_at,
    KIND: tl.constexpr,
    FIRST: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Evaluate a part, after the step that the last sums decide, unless this is the FIRST time."""
    row, part, stretch = _place(given, own.parts, PART)
    fixed, bad, search = _load_row(given, numbers_at, row)
    if not FIRST:
        search = _after_sums(KIND, fixed, search, own, row, PARTS)
    if part == 0:
        _keep_row(next_numbers_at, row, fixed, bad, search)
    if tl.max(search.state) == 1:
        alpha = alpha_of(given, row, row >= 0)
        theta = Theta(search.hi, search.lo, unit(KIND, 1.0 / fixed.temperature), alpha)
        _keep(next_own, row, part, 0, loops.evaluate(KIND, stretch, theta, BLOCK))


@triton.jit
def settle(
    given: Given,
    own: Parts,
    numbers_at,
    KIND: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """θ of each row; one program goes on with a search that is not over."""
    row = tl.program_id(0) + tl.arange(0, 1)
    fixed, bad, search = _load_row(given, numbers_at, row)
    search = _after_sums(KIND, fixed, search, own, row, PARTS)
    stretch = Stretch(row_of(given.x_at, row, given), row >= 0, 0, given.n)
    end = end_of(fixed.k, fixed.live, fixed.top, bad, fixed.temperature)
    alpha = alpha_of(given, row, row >= 0)
    hi, lo = one_program.settle(KIND, stretch, fixed, search, end.closed, alpha, BLOCK)
    store_theta(KIND, given, row, row >= 0, hi, lo, fixed.temperature, end)


@triton.jit
def weights(
    given: Given,
    parts,
    numbers_at,
    out_at,
    KIND: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The weights of a part, from θ."""
    row, _, stretch = _place(given, parts, PART)
    fixed, bad, _ = _load_row(given, numbers_at, row)
    end = end_of(fixed.k, fixed.live, fixed.top, bad, fixed.temperature)
    _, _, _, theta = load_theta(KIND, given, row, row >= 0)
    loops.write(KIND, stretch, row_of(out_at, row, given), theta, end, BLOCK)


@triton.jit
def weigh_back(
    given: Given, own: Parts, g_at, KIND: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr
):
    """Backward pass, first: ΣF′, ΣF′g and ΣF′y of a part."""
    row, part, stretch = _place(given, own.parts, PART)
    _, _, _, theta = load_theta(KIND, given, row, row >= 0)
    _keep(own, row, part, 0, loops.weigh(KIND, stretch, row_of(g_at, row, given), theta, BLOCK))


@triton.jit
def slope_back(
    given: Given,
    own: Parts,
    g_at,
    KIND: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Backward pass, then: write the sums of loops.slope of a part after the first launch's."""
    row, part, stretch = _place(given, own.parts, PART)
    _, _, solved, theta = load_theta(KIND, given, row, row >= 0)
    total, product, moment = _totals(own, row, 0, 3, PARTS)
    _, per_total = one_program.slope_of(solved, total)
    g_row, mean = row_of(g_at, row, given), product * per_total
    pivot = one_program.pivot_of(theta, moment * per_total)
    _keep(own, row, part, 3, loops.slope(KIND, stretch, g_row, theta, mean, pivot, BLOCK))


@triton.jit
def gradients(
    given: Given,
    own: Parts,
    g_at,
    out_at,
    in_rows_at,
    KIND: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Backward pass, last: cotangents of a part's scores; from the first part, of k and T too."""
    row, part, stretch = _place(given, own.parts, PART)
    t, answered, solved, theta = load_theta(KIND, given, row, row >= 0)
    total, product = _totals(own, row, 0, 2, PARTS)
    some, per_total = one_program.slope_of(solved, total)
    mean = product * per_total
    sums = _totals(own, row, 3, 5, PARTS)
    rest, in_k, in_t = one_program.row_cotangents(KIND, mean, sums, per_total, t)
    g_row, out_row = row_of(g_at, row, given), row_of(out_at, row, given)
    scale = one_program.scale_of(answered, some, t)
    loops.write_back(KIND, stretch, g_row, out_row, theta, mean, rest, scale, BLOCK)
    if part == 0:
        if tl.max((~some).to(tl.int32)) > 0:
            whole = Stretch(stretch.x, stretch.here, 0, given.n)
            k, _ = numbers_of(given, row)
            in_k, in_t = one_program.degenerate(KIND, whole, g_row, theta, answered, k, t, BLOCK)
        tl.store(in_rows_at + row, in_k)
        tl.store(in_rows_at + given.count + row, in_t)

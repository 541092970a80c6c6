"""Rows too long for one program: several work on each, a part each, a launch per visit.

What they add up goes to memory, at places that depend on nothing but the part, and is added again
by every program of the next visit, in one order: no answer depends on who was first. A search that
the fixed number of looks has not ended is ended by one program, which `settle` is for. SUMS and
NUMBERS say how many of them a part and a row have.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kofn.kernels.gpu.rows.formulas import INF, outside, unit
from kofn.kernels.gpu.rows.loops import census, look, moments, slope, weigh, write, write_back
from kofn.kernels.gpu.rows.one_program import degenerate, inner, row_cotangents, scale_of, slope_of
from kofn.kernels.gpu.rows.one_program import settle as settle_row
from kofn.kernels.gpu.rows.search import (
    NEAR_TOP,
    SPREAD,
    USUAL,
    Row,
    Search,
    advance,
    end_of,
    mean_and_variance,
    start,
    step_to,
)

SUMS = tl.constexpr(8)
NUMBERS = tl.constexpr(17)  # #finite, #(+inf), #NaN, and a search


@triton.jit
def _place(n, parts, PART: tl.constexpr):
    """(the row of this program, its part, where that begins and ends)."""
    row = tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    first = part * PART
    return row + tl.arange(0, 1), part, first, tl.minimum(first + PART, n)


@triton.jit
def _keep(sums_at, row, part, parts, i, value):
    """One sum of a part."""
    tl.store(sums_at + (row.to(tl.int64) * SUMS + i) * parts + part, value)


@triton.jit
def _every(sums_at, row, parts, i, other, PARTS: tl.constexpr):
    """One sum of each part, (1, PARTS)."""
    part = tl.arange(0, PARTS)
    at = (row.to(tl.int64) * SUMS + i) * parts
    return tl.load(sums_at + at[:, None] + part[None, :], mask=(part < parts)[None, :], other=other)


@triton.jit
def _total(sums_at, row, parts, i, PARTS: tl.constexpr):
    return tl.sum(_every(sums_at, row, parts, i, 0.0, PARTS), axis=1)


@triton.jit
def _load_row(numbers_at, k_at, temperature_at, row):
    """(what a search may not change, #NaN, the search)."""
    at = numbers_at + row * NUMBERS
    fixed = Row(tl.load(k_at + row), tl.load(at), tl.load(at + 1), tl.load(temperature_at + row))
    search = Search(
        tl.load(at + 3),
        tl.load(at + 4),
        tl.load(at + 5),
        tl.load(at + 6),
        tl.load(at + 7),
        tl.load(at + 8),
        tl.load(at + 9),
        tl.load(at + 10),
        tl.load(at + 11),
        tl.load(at + 12),
        tl.load(at + 13),
        tl.load(at + 14).to(tl.int32),
        tl.load(at + 15).to(tl.int32),
        tl.load(at + 16).to(tl.int32),
    )
    return fixed, tl.load(at + 2), search


@triton.jit
def _keep_row(numbers_at, row, fixed, bad, search):
    at = numbers_at + row * NUMBERS
    tl.store(at, fixed.live)
    tl.store(at + 1, fixed.top)
    tl.store(at + 2, bad)
    for i in tl.static_range(14):
        tl.store(at + 3 + i, search[i].to(tl.float32))


@triton.jit
def _after_look(KIND: tl.constexpr, fixed, search, sums_at, row, parts, PARTS: tl.constexpr):
    below, above = _total(sums_at, row, parts, 0, PARTS), _total(sums_at, row, parts, 1, PARTS)
    weight, count = _total(sums_at, row, parts, 2, PARTS), _total(sums_at, row, parts, 3, PARTS)
    bend = _total(sums_at, row, parts, 4, PARTS)
    return advance(KIND, fixed, search, below, above, weight, count, bend)


@triton.jit
def survey(x_at, sums_at, n, parts, PART: tl.constexpr, BLOCK: tl.constexpr):
    """What tells where to begin, part by part."""
    row, part, first, last = _place(n, parts, PART)
    here = row >= 0
    x_row = x_at + row.to(tl.int64) * n
    least, greatest, live, top, bad = census(x_row, here, first, last, BLOCK)
    pivot = _pivot(x_row, n)
    most = tl.zeros_like(pivot) + USUAL
    number, total, square = moments(x_row, here, first, last, pivot, most, BLOCK)
    _keep(sums_at, row, part, parts, 0, least)
    _keep(sums_at, row, part, parts, 1, greatest)
    _keep(sums_at, row, part, parts, 2, live)
    _keep(sums_at, row, part, parts, 3, top)
    _keep(sums_at, row, part, parts, 4, bad)
    _keep(sums_at, row, part, parts, 5, number)
    _keep(sums_at, row, part, parts, 6, total)
    _keep(sums_at, row, part, parts, 7, square)


@triton.jit
def _pivot(x_row, n):
    pivot = tl.load(x_row + n // 2).to(tl.float32)
    return tl.where(tl.abs(pivot) < USUAL, pivot, 0.0)


@triton.jit
def begin(
    x_at,
    sums_at,
    numbers_at,
    k_at,
    temperature_at,
    n,
    parts,
    alpha,
    KIND: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Where the search of a row begins: one program for each."""
    row = tl.program_id(0) + tl.arange(0, 1)
    here = row >= 0
    k, t = tl.load(k_at + row), tl.load(temperature_at + row)
    x_row = x_at + row.to(tl.int64) * n
    pivot = _pivot(x_row, n)
    least = tl.min(_every(sums_at, row, parts, 0, INF, PARTS), axis=1)
    greatest = tl.max(_every(sums_at, row, parts, 1, -INF, PARTS), axis=1)
    live, top = _total(sums_at, row, parts, 2, PARTS), _total(sums_at, row, parts, 3, PARTS)
    bad, usual = _total(sums_at, row, parts, 4, PARTS), _total(sums_at, row, parts, 5, PARTS)
    total, square = _total(sums_at, row, parts, 6, PARTS), _total(sums_at, row, parts, 7, PARTS)
    # Where the scores are spread over many temperatures only the greatest matter.
    wide = greatest - least > t * SPREAD
    if tl.max(wide.to(tl.int32)) > 0:
        near = moments(x_row, here, 0, n, greatest, t * NEAR_TOP, BLOCK)
        enough = near[0] > k - top
        pivot, usual = tl.where(enough, greatest, pivot), tl.where(enough, near[0], usual)
        total, square = tl.where(enough, near[1], total), tl.where(enough, near[2], square)
    mean, variance = mean_and_variance(pivot, usual, total, square)
    closed, _, _, _ = end_of(k, live, top, bad, t)
    fixed = Row(k, live, top, t)
    search = start(KIND, fixed, closed, usual, mean, variance, least, greatest, alpha)
    _keep_row(numbers_at, row, fixed, bad, search)


@triton.jit
def look_on(
    x_at,
    sums_at,
    numbers_at,
    next_sums_at,
    next_numbers_at,
    k_at,
    temperature_at,
    n,
    parts,
    alpha,
    KIND: tl.constexpr,
    FIRST: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A look at a part, after what the last look, if this is not the FIRST, has shown."""
    row, part, first, last = _place(n, parts, PART)
    fixed, bad, search = _load_row(numbers_at, k_at, temperature_at, row)
    if not FIRST:
        search = _after_look(KIND, fixed, search, sums_at, row, parts, PARTS)
    if part == 0:
        _keep_row(next_numbers_at, row, fixed, bad, search)
    if tl.max(search.state) == 1:
        here = row >= 0
        x_row = x_at + row.to(tl.int64) * n
        per_unit = unit(KIND, 1.0 / fixed.temperature)
        below, above, weight, count, bend = look(
            KIND, x_row, here, first, last, search.hi, search.lo, per_unit, alpha, BLOCK
        )
        _keep(next_sums_at, row, part, parts, 0, below)
        _keep(next_sums_at, row, part, parts, 1, above)
        _keep(next_sums_at, row, part, parts, 2, weight)
        _keep(next_sums_at, row, part, parts, 3, count)
        _keep(next_sums_at, row, part, parts, 4, bend)


@triton.jit
def settle(
    x_at,
    sums_at,
    numbers_at,
    theta_at,
    k_at,
    temperature_at,
    count,
    n,
    parts,
    alpha,
    KIND: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """θ of each row, by further looks of one program if need be."""
    row = tl.program_id(0) + tl.arange(0, 1)
    fixed, bad, search = _load_row(numbers_at, k_at, temperature_at, row)
    search = _after_look(KIND, fixed, search, sums_at, row, parts, PARTS)
    x_row = x_at + row.to(tl.int64) * n
    closed, _, theta, _ = end_of(fixed.k, fixed.live, fixed.top, bad, fixed.temperature)
    hi, lo = settle_row(KIND, x_row, row >= 0, n, fixed, search, closed, alpha, BLOCK)
    hi, lo = step_to(hi, lo, -fixed.temperature * outside(KIND, alpha))
    tl.store(theta_at + row, tl.where(closed, theta, hi))
    tl.store(theta_at + count + row, tl.where(closed, 0.0, lo))


@triton.jit
def weights(
    x_at,
    out_at,
    numbers_at,
    theta_at,
    k_at,
    temperature_at,
    count,
    n,
    parts,
    alpha,
    KIND: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The weights of a part, from θ."""
    row, _, first, last = _place(n, parts, PART)
    fixed, bad, _ = _load_row(numbers_at, k_at, temperature_at, row)
    t = fixed.temperature
    closed, live_weight, _, top_weight = end_of(fixed.k, fixed.live, fixed.top, bad, t)
    hi, lo, _ = inner(KIND, tl.load(theta_at + row), tl.load(theta_at + count + row), t, alpha)
    write(
        KIND,
        x_at + row.to(tl.int64) * n,
        out_at + row.to(tl.int64) * n,
        row >= 0,
        first,
        last,
        hi,
        lo,
        unit(KIND, 1.0 / t),
        alpha,
        closed,
        live_weight,
        top_weight,
        BLOCK,
    )


@triton.jit
def weigh_back(
    x_at,
    g_at,
    sums_at,
    theta_at,
    temperature_at,
    count,
    n,
    parts,
    alpha,
    KIND: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Way back, first: ΣF′ and ΣF′g of a part."""
    row, part, first, last = _place(n, parts, PART)
    t = tl.load(temperature_at + row)
    hi, lo, _ = inner(KIND, tl.load(theta_at + row), tl.load(theta_at + count + row), t, alpha)
    x_row, g_row = x_at + row.to(tl.int64) * n, g_at + row.to(tl.int64) * n
    per_unit = unit(KIND, 1.0 / t)
    total, product = weigh(
        KIND, x_row, g_row, row >= 0, first, last, hi, lo, per_unit, alpha, BLOCK
    )
    _keep(sums_at, row, part, parts, 0, total)
    _keep(sums_at, row, part, parts, 1, product)


@triton.jit
def slope_back(
    x_at,
    g_at,
    sums_at,
    theta_at,
    temperature_at,
    count,
    n,
    parts,
    alpha,
    KIND: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Way back, then: Σu, Σuy and ΣF′y of a part, beside the sums of the first visit."""
    row, part, first, last = _place(n, parts, PART)
    t = tl.load(temperature_at + row)
    hi, lo, solved = inner(KIND, tl.load(theta_at + row), tl.load(theta_at + count + row), t, alpha)
    _, per_total = slope_of(solved, _total(sums_at, row, parts, 0, PARTS))
    mean = _total(sums_at, row, parts, 1, PARTS) * per_total
    x_row, g_row = x_at + row.to(tl.int64) * n, g_at + row.to(tl.int64) * n
    per_unit = unit(KIND, 1.0 / t)
    total, moment, lever = slope(
        KIND, x_row, g_row, row >= 0, first, last, hi, lo, per_unit, mean, alpha, BLOCK
    )
    _keep(sums_at, row, part, parts, 2, total)
    _keep(sums_at, row, part, parts, 3, moment)
    _keep(sums_at, row, part, parts, 4, lever)


@triton.jit
def gradients(
    x_at,
    g_at,
    sums_at,
    theta_at,
    k_at,
    temperature_at,
    out_at,
    in_rows_at,
    count,
    n,
    parts,
    alpha,
    KIND: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Way back, last: the cotangents of a part's scores; by the first part those of k and T."""
    row, part, first, last = _place(n, parts, PART)
    here = row >= 0
    k, t, theta = tl.load(k_at + row), tl.load(temperature_at + row), tl.load(theta_at + row)
    hi, lo, solved = inner(KIND, theta, tl.load(theta_at + count + row), t, alpha)
    some, per_total = slope_of(solved, _total(sums_at, row, parts, 0, PARTS))
    mean = _total(sums_at, row, parts, 1, PARTS) * per_total
    rest, in_k, in_t = row_cotangents(
        KIND,
        mean,
        _total(sums_at, row, parts, 2, PARTS),
        _total(sums_at, row, parts, 3, PARTS),
        _total(sums_at, row, parts, 4, PARTS),
        per_total,
        t,
    )
    x_row, g_row = x_at + row.to(tl.int64) * n, g_at + row.to(tl.int64) * n
    write_back(
        KIND,
        x_row,
        g_row,
        out_at + row.to(tl.int64) * n,
        here,
        first,
        last,
        hi,
        lo,
        unit(KIND, 1.0 / t),
        mean,
        rest,
        scale_of(theta, some, t),
        alpha,
        BLOCK,
    )
    if part == 0:
        if tl.max((~some).to(tl.int32)) > 0:
            in_k, in_t = degenerate(KIND, x_row, g_row, here, n, hi, lo, theta, k, t, BLOCK)
        tl.store(in_rows_at + row, in_k)
        tl.store(in_rows_at + count + row, in_t)

"""One visit to a stretch of some rows: the only loops over entries on a GPU.

A visit loads BLOCK entries of each of its rows at a time and adds up by lane; lanes are added at
the end. What it has loaded once stays in the processor's cache for the next visit, so that memory
sees one read, and a thread needs few registers whatever the length. `x_row` and the like are the
addresses of the rows' first entries, `here` tells which of them exist.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kofn.kernels.gpu.rows.formulas import (
    DELETED,
    EXPONENTIAL,
    INF,
    LAPLACE,
    LINEAR,
    density,
    distance,
    tail,
    weight,
)


@triton.jit
def entries(row, here, at, last, other, BLOCK: tl.constexpr):
    """(BLOCK entries of each row from `at` on in float32, which of them there are)."""
    columns = at + tl.arange(0, BLOCK)
    filled = here[:, None] & (columns < last)[None, :]
    values = tl.load(row[:, None] + columns[None, :], mask=filled, other=other)
    return values.to(tl.float32), filled


@triton.jit
def survey(x_row, here, first, last, pivot, BLOCK: tl.constexpr):
    """Σd and Σd² with d = x − pivot. Neither is finite where a row holds ±inf or NaN."""
    total = tl.zeros((here.shape[0], BLOCK), tl.float32)
    square = total
    for at in range(first, last, BLOCK):
        x, _ = entries(x_row, here, at, last, pivot[:, None], BLOCK)
        away = x - pivot[:, None]
        total += away
        square += away * away
    return tl.sum(total, axis=1), tl.sum(square, axis=1)


@triton.jit
def census(x_row, here, first, last, BLOCK: tl.constexpr):
    """Least and greatest of the scores in play, how many those are, #(+inf), #NaN."""
    live = tl.zeros((here.shape[0], BLOCK), tl.float32)
    least, greatest, top, bad = live + INF, live - INF, live, live
    for at in range(first, last, BLOCK):
        x, _ = entries(x_row, here, at, last, -INF, BLOCK)
        finite = (tl.abs(x) < INF) & (x > DELETED)
        least = tl.minimum(least, tl.where(finite, x, INF))
        greatest = tl.maximum(greatest, tl.where(finite, x, -INF))
        live += tl.where(finite, 1.0, 0.0)
        top += tl.where(x == INF, 1.0, 0.0)
        bad += tl.where(x != x, 1.0, 0.0)
    return (
        tl.min(least, axis=1),
        tl.max(greatest, axis=1),
        tl.sum(live, axis=1),
        tl.sum(top, axis=1),
        tl.sum(bad, axis=1),
    )


@triton.jit
def moments(x_row, here, first, last, pivot, most, BLOCK: tl.constexpr):
    """#, Σd and Σd² of the scores with |d| < most, d = x − pivot."""
    number = tl.zeros((here.shape[0], BLOCK), tl.float32)
    total, square = number, number
    for at in range(first, last, BLOCK):
        x, _ = entries(x_row, here, at, last, -INF, BLOCK)
        away = x - pivot[:, None]
        near = tl.abs(away) < most[:, None]
        away = tl.where(near, away, 0.0)
        number += tl.where(near, 1.0, 0.0)
        total += away
        square += away * away
    return tl.sum(number, axis=1), tl.sum(total, axis=1), tl.sum(square, axis=1)


@triton.jit
def look(
    KIND: tl.constexpr,
    x_row,
    here,
    first,
    last,
    hi,
    lo,
    per_unit,
    alpha,
    BLOCK: tl.constexpr,
    ASK: tl.constexpr = False,
):
    """Σ_{F≤½} F, Σ_{F>½} (1 − F), ΣF′, #{F > ½}, ΣF″.

    Deleted scores are out of every link's reach but where θ is next to them: there ASK.
    """
    below = tl.zeros((here.shape[0], BLOCK), tl.float32)
    above, slope, count, bend = below, below, below, below
    for at in range(first, last, BLOCK):
        x, _ = entries(x_row, here, at, last, -INF, BLOCK)
        if ASK:
            x = tl.where(x <= DELETED, -INF, x)
        t, upper, one, two = tail(KIND, distance(x, hi, lo, per_unit), alpha)
        below += tl.where(upper, 0.0, t)
        above += tl.where(upper, t, 0.0)
        count += tl.where(upper, 1.0, 0.0)
        if KIND != LAPLACE:
            slope += one
        if KIND != LAPLACE and KIND != LINEAR and KIND != EXPONENTIAL:
            bend += two
    sums = tl.sum(below, axis=1), tl.sum(above, axis=1)
    # Some links' slopes are sums that are there already.
    slopes = sums[0] + sums[1] if KIND == LAPLACE else tl.sum(slope, axis=1)
    if KIND == LAPLACE:
        bends = sums[0] - sums[1]
    elif KIND == EXPONENTIAL:
        bends = slopes
    else:
        bends = tl.sum(bend, axis=1)
    return sums[0], sums[1], slopes, tl.sum(count, axis=1), bends


@triton.jit
def write(
    KIND: tl.constexpr,
    x_row,
    out_row,
    here,
    first,
    last,
    hi,
    lo,
    per_unit,
    alpha,
    closed,
    live_weight,
    top_weight,
    BLOCK: tl.constexpr,
):
    """The weights; of rows that need no equation, what their finite and infinite scores get.

    Once more where θ is so low, at a T of 1e29 or so, that deleted scores are not out of reach.
    """
    low = ((hi - DELETED) + lo) * per_unit < 200.0
    for at in range(first, last, BLOCK):
        x, filled = entries(x_row, here, at, last, -INF, BLOCK)
        p = weight(KIND, distance(x, hi, lo, per_unit), alpha)
        columns = at + tl.arange(0, BLOCK)
        tl.store(out_row[:, None] + columns[None, :], p, mask=filled & ~closed[:, None])
    if tl.max((closed | low).to(tl.int32)) > 0:
        for at in range(first, last, BLOCK):
            x, filled = entries(x_row, here, at, last, -INF, BLOCK)
            given = tl.where(x == INF, top_weight[:, None], live_weight[:, None])
            columns = at + tl.arange(0, BLOCK)
            p = tl.where(x <= DELETED, 0.0, given)
            again = closed[:, None] | (low[:, None] & (x <= DELETED))
            tl.store(out_row[:, None] + columns[None, :], p, mask=filled & again)


@triton.jit
def weigh(
    KIND: tl.constexpr,
    x_row,
    g_row,
    here,
    first,
    last,
    hi,
    lo,
    per_unit,
    alpha,
    BLOCK: tl.constexpr,
):
    """Way back, first: ΣF′ and ΣF′g."""
    total = tl.zeros((here.shape[0], BLOCK), tl.float32)
    product = total
    for at in range(first, last, BLOCK):
        x, _ = entries(x_row, here, at, last, -INF, BLOCK)
        g, _ = entries(g_row, here, at, last, 0.0, BLOCK)
        w = density(KIND, distance(x, hi, lo, per_unit), alpha)
        total += w
        # What is not chosen may carry any cotangent, NaN included.
        product += tl.where(w > 0.0, w * g, 0.0)
    return tl.sum(total, axis=1), tl.sum(product, axis=1)


@triton.jit
def slope(
    KIND: tl.constexpr,
    x_row,
    g_row,
    here,
    first,
    last,
    hi,
    lo,
    per_unit,
    mean,
    alpha,
    BLOCK: tl.constexpr,
):
    """Way back, then: Σu, Σuy, ΣF′y with u = F′(g − mean)."""
    total = tl.zeros((here.shape[0], BLOCK), tl.float32)
    moment, lever = total, total
    for at in range(first, last, BLOCK):
        x, _ = entries(x_row, here, at, last, -INF, BLOCK)
        g, _ = entries(g_row, here, at, last, 0.0, BLOCK)
        y = distance(x, hi, lo, per_unit)
        w = density(KIND, y, alpha)
        chosen = w > 0.0
        u = tl.where(chosen, w * (g - mean[:, None]), 0.0)
        y = tl.where(chosen, y, 0.0)
        total += u
        moment += u * y
        lever += w * y
    return tl.sum(total, axis=1), tl.sum(moment, axis=1), tl.sum(lever, axis=1)


@triton.jit
def write_back(
    KIND: tl.constexpr,
    x_row,
    g_row,
    out_row,
    here,
    first,
    last,
    hi,
    lo,
    per_unit,
    mean,
    rest,
    scale,
    alpha,
    BLOCK: tl.constexpr,
):
    """Way back, last: F′((g − mean) − rest)·scale. A scale of NaN is for all that is in play and
    NaN, one of 0 for all.
    """
    for at in range(first, last, BLOCK):
        x, filled = entries(x_row, here, at, last, -INF, BLOCK)
        g, _ = entries(g_row, here, at, last, 0.0, BLOCK)
        w = density(KIND, distance(x, hi, lo, per_unit), alpha)
        u = w * ((g - mean[:, None]) - rest[:, None]) * scale[:, None]
        u = tl.where((w > 0.0) & (scale[:, None] != 0.0), u, 0.0)
        u = tl.where((scale != scale)[:, None] & ~(x <= DELETED), scale[:, None], u)
        columns = at + tl.arange(0, BLOCK)
        tl.store(out_row[:, None] + columns[None, :], u, mask=filled)

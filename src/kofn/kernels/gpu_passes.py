"""One visit to a stretch of some rows: the only loops over entries on a GPU.

A visit loads BLOCK entries of each of its rows at a time and adds up by lane; lanes are added at
the end. What it has loaded once stays in the processor's cache for the next visit, so that memory
sees one read, and a thread needs few registers whatever the length. `x_row` and the like are the
addresses of the rows' first entries, `here` tells which of them exist.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kofn.kernels.gpu_entries import (
    DELETED,
    EXPONENTIAL,
    INF,
    LAPLACE,
    LINEAR,
    LOG2_E,
    density,
    distance,
    log_density,
    mills,
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
    KIND: tl.constexpr, x_row, here, first, last, hi, lo, per_unit, alpha, BLOCK: tl.constexpr
):
    """Σ_{F≤½} F, Σ_{F>½} (1 − F), ΣF′, #{F > ½}, ΣF″."""
    below = tl.zeros((here.shape[0], BLOCK), tl.float32)
    above, slope, count, bend = below, below, below, below
    for at in range(first, last, BLOCK):
        x, _ = entries(x_row, here, at, last, -INF, BLOCK)
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
    """The weights; of rows that need no equation, what their finite and infinite scores get."""
    for at in range(first, last, BLOCK):
        x, filled = entries(x_row, here, at, last, -INF, BLOCK)
        p = weight(KIND, distance(x, hi, lo, per_unit), alpha)
        columns = at + tl.arange(0, BLOCK)
        tl.store(out_row[:, None] + columns[None, :], p, mask=filled & ~closed[:, None])
    if tl.max(closed.to(tl.int32)) > 0:
        for at in range(first, last, BLOCK):
            x, filled = entries(x_row, here, at, last, -INF, BLOCK)
            given = tl.where(x == INF, top_weight[:, None], live_weight[:, None])
            columns = at + tl.arange(0, BLOCK)
            p = tl.where(x <= DELETED, 0.0, given)
            tl.store(out_row[:, None] + columns[None, :], p, mask=filled & closed[:, None])


@triton.jit
def edges(x_row, here, first, last, hi, lo, BLOCK: tl.constexpr):
    """The greatest finite score up to θ and the least above it."""
    nothing = tl.zeros((here.shape[0], BLOCK), tl.float32)
    left, right = nothing - INF, nothing + INF
    for at in range(first, last, BLOCK):
        x, _ = entries(x_row, here, at, last, -INF, BLOCK)
        upper = (x - hi[:, None]) - lo[:, None] > 0.0
        left = tl.maximum(left, tl.where(upper | (x <= DELETED), -INF, x))
        right = tl.minimum(right, tl.where(upper, x, INF))
    return tl.max(left, axis=1), tl.min(right, axis=1)


@triton.jit
def far_tails(x_row, here, first, last, left, right, per_t, BLOCK: tl.constexpr):
    """Σ e^{−a} over the entries a temperatures below `left`, and over those above `right`."""
    below = tl.zeros((here.shape[0], BLOCK), tl.float32)
    above = below
    for at in range(first, last, BLOCK):
        x, _ = entries(x_row, here, at, last, -INF, BLOCK)
        under, over = (x - left[:, None]) * per_t[:, None], (right[:, None] - x) * per_t[:, None]
        playing = (under <= 0.0) & (x > DELETED)
        below += tl.where(playing, tl.exp2(under * LOG2_E), 0.0)
        above += tl.where(over <= 0.0, tl.exp2(over * LOG2_E), 0.0)
    return tl.sum(below, axis=1), tl.sum(above, axis=1)


@triton.jit
def far_normal_tails(x_row, here, first, last, left, right, u, v, per_t, BLOCK: tl.constexpr):
    """The normal link's tails beyond the edges, u and v temperatures from θ, as gpu_search.py's
    `normal_balance` wants them.
    """
    below = tl.zeros((here.shape[0], BLOCK), tl.float32)
    above, below_slope, above_slope = below, below, below
    for at in range(first, last, BLOCK):
        x, _ = entries(x_row, here, at, last, -INF, BLOCK)
        under, over = (left[:, None] - x) * per_t[:, None], (x - right[:, None]) * per_t[:, None]
        upper = over >= 0.0
        deep = tl.where(upper, over, under)
        near = tl.where(upper, v[:, None], u[:, None])
        slope = tl.exp2(deep * (2.0 * near + deep) * (-0.5 * LOG2_E))
        t = tl.where(slope > 0.0, slope * mills(near + deep), 0.0)
        below += tl.where(upper, 0.0, t)
        above += tl.where(upper, t, 0.0)
        below_slope += tl.where(upper, 0.0, slope)
        above_slope += tl.where(upper, slope, 0.0)
    return (
        tl.sum(below, axis=1),
        tl.sum(above, axis=1),
        tl.sum(below_slope, axis=1),
        tl.sum(above_slope, axis=1),
    )


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


@triton.jit
def faint_share(
    KIND: tl.constexpr,
    x_row,
    g_row,
    here,
    first,
    last,
    hi,
    lo,
    per_unit,
    BLOCK: tl.constexpr,
):
    """(Σ softmax(log F′)·g, what k moves where every F′ has underflowed; #(+inf), their Σg)."""
    peak = tl.zeros((here.shape[0], BLOCK), tl.float32) - INF
    for at in range(first, last, BLOCK):
        x, _ = entries(x_row, here, at, last, -INF, BLOCK)
        log = log_density(KIND, distance(x, hi, lo, per_unit))
        playing = (tl.abs(x) < INF) & (x > DELETED)
        peak = tl.maximum(peak, tl.where(playing, log, -INF))
    greatest = tl.max(peak, axis=1)
    greatest = tl.where(greatest > -INF, greatest, 0.0)
    total = tl.zeros((here.shape[0], BLOCK), tl.float32)
    product, tops, of_tops = total, total, total
    for at in range(first, last, BLOCK):
        x, _ = entries(x_row, here, at, last, -INF, BLOCK)
        g, _ = entries(g_row, here, at, last, 0.0, BLOCK)
        log = log_density(KIND, distance(x, hi, lo, per_unit)) - greatest[:, None]
        share = tl.where((tl.abs(x) < INF) & (x > DELETED), tl.exp2(log), 0.0)
        total += share
        product += tl.where(share > 0.0, share * g, 0.0)
        tops += tl.where(x == INF, 1.0, 0.0)
        of_tops += tl.where(x == INF, g, 0.0)
    whole = tl.sum(total, axis=1)
    shared = tl.sum(product, axis=1) / tl.where(whole > 0.0, whole, 1.0)
    return shared, tl.sum(tops, axis=1), tl.sum(of_tops, axis=1)

"""Passes over a GPU's rows where choice is hard: tails far out, from the scores next to θ."""

from __future__ import annotations

import triton
import triton.language as tl

from kofn.kernels.gpu.rows.formulas import (
    DELETED,
    INF,
    LOG2_E,
    NORMAL,
    is_balanced_by_logs,
    is_capped,
    log_tail,
)
from kofn.kernels.gpu.rows.loops import entries, scores
from kofn.kernels.gpu.rows.words import PER_ROOT_2_PI, between_places, mills, number_at, place_of


@triton.jit
def edges(stretch, hi, lo, BLOCK: tl.constexpr):
    """Return the greatest finite score up to θ and the least above it."""
    nothing = tl.zeros((stretch.here.shape[0], BLOCK), tl.float32)
    left, right = nothing - INF, nothing + INF
    for at in range(stretch.first, stretch.last, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        upper = (x - hi[:, None]) - lo[:, None] > 0.0
        left = tl.maximum(left, tl.where(upper | (x <= DELETED), -INF, x))
        right = tl.minimum(right, tl.where(upper, x, INF))
    return tl.max(left, axis=1), tl.min(right, axis=1)


@triton.jit
def far_tails(stretch, left, right, per_t, BLOCK: tl.constexpr):
    """Σ e^{−a} over the entries a temperatures below `left`, and over those above `right`."""
    below = tl.zeros((stretch.here.shape[0], BLOCK), tl.float32)
    above = below
    for at in range(stretch.first, stretch.last, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        under, over = (x - left[:, None]) * per_t[:, None], (right[:, None] - x) * per_t[:, None]
        playing = (under <= 0.0) & (x > DELETED)
        below += tl.where(playing, tl.exp2(under * LOG2_E), 0.0)
        above += tl.where(over <= 0.0, tl.exp2(over * LOG2_E), 0.0)
    return tl.sum(below, axis=1), tl.sum(above, axis=1)


@triton.jit
def far_normal_tails(stretch, left, right, u, v, per_t, BLOCK: tl.constexpr):
    """Return the normal link's tails beyond the edges, u and v temperatures from θ, as
    `normal_balance` wants them.
    """
    below = tl.zeros((stretch.here.shape[0], BLOCK), tl.float32)
    above, below_slope, above_slope = below, below, below
    for at in range(stretch.first, stretch.last, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
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
def faint_share(KIND: tl.constexpr, stretch, g_row, hi, lo, per_t, BLOCK: tl.constexpr):
    """ΣF′g/ΣF′, the cotangent of k where every F′ has underflowed.

    Each side of θ is divided by its own sum of tails: the two sums are equal, but z far out gives
    neither to a digit. Tails are counted from the score next to θ.
    """
    left, right = edges(stretch, hi, lo, BLOCK)
    near = ((hi - left) + lo) * per_t
    slope, product = _side(KIND, False, stretch, g_row, left, near, per_t, BLOCK)
    if not is_capped(KIND):  # F has no slope beyond its end
        near = ((right - hi) - lo) * per_t
        other, another = _side(KIND, True, stretch, g_row, right, near, per_t, BLOCK)
        slope, product = slope + other, product + another
    return product * _per(slope)


@triton.jit
def _side(
    KIND: tl.constexpr, UPPER: tl.constexpr, stretch, g_row, edge, near, per_t, BLOCK: tl.constexpr
):
    """Return (ΣF′, ΣF′g) of the entries on one side of θ, relative to the sum of their tails.

    `edge` is the score next to θ, `near` temperatures from it.
    """
    near = tl.minimum(near, 1e15)  # no ∞·0
    total = tl.zeros((stretch.here.shape[0], BLOCK), tl.float32)
    slope, product = total, total
    for at in range(stretch.first, stretch.last, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        g, _ = entries(g_row, stretch, at, 0.0, BLOCK)
        depth = x - edge[:, None] if UPPER else edge[:, None] - x
        there = (depth >= 0.0) & (tl.abs(x) < INF) & (x > DELETED)
        deep = tl.where(there, depth, INF) * per_t[:, None]
        if KIND == NORMAL:
            share = tl.exp2(deep * (2.0 * near[:, None] + deep) * (-0.5 * LOG2_E))
            share = tl.where(deep > 0.0, share, 1.0)
            total += tl.where(share > 0.0, share * mills(near[:, None] + deep), 0.0)
        elif is_balanced_by_logs(KIND):
            of_edge, steep = _relative(KIND, UPPER, near[:, None], deep)
            total += of_edge
            share = tl.where(of_edge > 0.0, of_edge * steep, 0.0)
        else:
            share = tl.exp2(deep * -LOG2_E)
            total += share
        slope += share
        product += tl.where(share > 0.0, share * g, 0.0)
    per_total = _per(tl.sum(total, axis=1))
    return tl.sum(slope, axis=1) * per_total, tl.sum(product, axis=1) * per_total


@triton.jit
def _relative(KIND: tl.constexpr, UPPER: tl.constexpr, near, deep):
    """Return (a tail `deep` beyond the score next to θ, relative to its tail; the steepness)."""
    sign = 1.0 if UPPER else -1.0
    log_of_tail, steep = log_tail(KIND, UPPER, (near + deep) * sign)
    of_edge, _ = log_tail(KIND, UPPER, near * sign)
    return tl.exp(log_of_tail - of_edge), steep


@triton.jit
def _more_below(KIND: tl.constexpr, stretch, left, right, u, v, per_t, BLOCK: tl.constexpr):
    """Return whether the tails below θ are more than those above, u and v from the edges."""
    below = tl.zeros((stretch.here.shape[0], BLOCK), tl.float32)
    above = below
    for at in range(stretch.first, stretch.last, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        under, over = (left[:, None] - x) * per_t[:, None], (x - right[:, None]) * per_t[:, None]
        low, _ = _relative(KIND, False, u[:, None], tl.maximum(under, 0.0))
        high, _ = _relative(KIND, True, v[:, None], tl.maximum(over, 0.0))
        below += tl.where((under >= 0.0) & (x > DELETED), low, 0.0)
        above += tl.where((over >= 0.0) & (x < INF), high, 0.0)
    log_below, _ = log_tail(KIND, False, -u)
    log_above, _ = log_tail(KIND, True, v)
    return log_below - log_above + tl.log(tl.sum(below, axis=1) / tl.sum(above, axis=1)) > 0.0


@triton.jit
def log_balance(KIND: tl.constexpr, stretch, left, right, per_t, BLOCK: tl.constexpr):
    """Return (θ's nearer edge, twice, and the temperatures from it to θ) between two edges.

    Nothing is known of a tail but its logarithm, so it halves, in the order of floats.
    """
    width = tl.minimum((right - left) * per_t, 1e30)
    away = 0.5 * width
    upper = _more_below(KIND, stretch, left, right, away, away, per_t, BLOCK)
    low, high = place_of(away) * 0, place_of(away)
    for _ in range(31):
        middle = between_places(low, high)
        away = number_at(middle)
        u, v = tl.where(upper, width - away, away), tl.where(upper, away, width - away)
        more = _more_below(KIND, stretch, left, right, u, v, per_t, BLOCK)
        low, high = tl.where(more == upper, low, middle), tl.where(more == upper, middle, high)
    nearer, away = tl.where(upper, right, left), number_at(high)
    return nearer, nearer, tl.where(upper, -away, away)


@triton.jit
def top_sums(stretch, g_row, BLOCK: tl.constexpr):
    """Return (#(+inf), their Σg)."""
    number = tl.zeros((stretch.here.shape[0], BLOCK), tl.float32)
    product = number
    for at in range(stretch.first, stretch.last, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        g, _ = entries(g_row, stretch, at, 0.0, BLOCK)
        number += tl.where(x == INF, 1.0, 0.0)
        product += tl.where(x == INF, g, 0.0)
    return tl.sum(number, axis=1), tl.sum(product, axis=1)


@triton.jit
def _per(total):
    """1 over a sum, 0 where there is none."""
    return tl.where(total > 0.0, 1.0 / tl.where(total > 0.0, total, 1.0), 0.0)


@triton.jit
def normal_balance(shift, width, below, above, below_slope, above_slope):
    """Return the next shift of θ from the middle of a plateau's edges, by Newton on the log of its
    tails.

    The edges are `width` temperatures apart. below = Σ mills(u + a)·e^{−a(2u+a)/2} over the entries
    a temperatures below the lower edge, u temperatures from θ; below_slope the same without
    `mills`, the slope times √(2π); above likewise.
    """
    ratio = tl.log(below / above) - shift * width
    shift += ratio / (PER_ROOT_2_PI * (below_slope / below + above_slope / above))
    return tl.minimum(tl.maximum(shift, -0.4 * width), 0.4 * width)

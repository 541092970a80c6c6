"""One pass over a stretch of some rows: the only loops over entries on a GPU.

A pass loads BLOCK entries of each of its rows at a time and adds up by lane; lanes are added at
the end. What it has loaded once stays in the processor's cache for the next pass, so that memory
sees one read, and a thread needs few registers whatever the length. `g_row` and `out_row` are the
addresses of the first entries of the rows' cotangents and answers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
    may_be_heavy,
    tail,
    weight,
)
from kofn.kernels.gpu.rows.words import FARTHEST


class Stretch(NamedTuple):
    """The entries of some rows that a pass goes over."""

    x: Any  # the addresses of the rows' first scores
    here: Any  # which of the rows exist
    first: Any  # the first entry
    last: Any  # the one after the last


class Theta(NamedTuple):
    """A threshold per row, in the units of `distance`."""

    hi: Any
    lo: Any
    per_unit: Any
    alpha: Any  # of each, or one number


class FullStatistics(NamedTuple):
    """Counts of the scores of a row; deleted ones, such as −inf, are in none of them."""

    least: Any  # of the finite scores
    greatest: Any
    live: Any  # finite scores
    top: Any  # scores of +inf
    bad: Any  # NaN


class Sums(NamedTuple):
    """The sums of one evaluation of ΣF − k."""

    below: Any  # Σ F of the entries with F ≤ ½
    above: Any  # Σ (1 − F) of the others
    weight: Any  # ΣF′
    count: Any  # how many have F > ½
    slope: Any  # ΣF″


@triton.jit
def entries(row, stretch, at, other, BLOCK: tl.constexpr):
    """Return (BLOCK entries of each row from `at` on in float32, which of them there are)."""
    columns = at + tl.arange(0, BLOCK)
    filled = stretch.here[:, None] & (columns < stretch.last)[None, :]
    values = tl.load(row[:, None] + columns[None, :], mask=filled, other=other)
    return values.to(tl.float32), filled


@triton.jit
def scores(stretch, at, other, BLOCK: tl.constexpr):
    """Return (`entries` of the scores, as `in_play` says, which of them there are)."""
    x, filled = entries(stretch.x, stretch, at, other, BLOCK)
    return in_play(x, stretch.x.dtype.element_ty), filled


@triton.jit
def in_play(x, TYPE: tl.constexpr):
    """Scores that were of this type, −inf where they are deleted in it though not in float32."""
    if TYPE.primitive_bitwidth == 16:
        x = tl.where(x <= deleted_in(TYPE), -INF, x)
    return x


@triton.constexpr_function
def deleted_in(dtype):
    """Half of the least number of a type of 16 bits."""
    return -32752.0 if dtype == tl.float16 else -(2.0 - 2.0**-7) * 2.0**126


@triton.jit
def middle(stretch, n):
    """Return a score from the middle of each row."""
    x = tl.load(stretch.x + n // 2, mask=stretch.here, other=0.0)
    return in_play(x.to(tl.float32), stretch.x.dtype.element_ty)


@triton.jit
def statistics(stretch, pivot, BLOCK: tl.constexpr):
    """Σd and Σd² with d = x − pivot. Neither is finite where a row holds ±inf or NaN."""
    total = tl.zeros((stretch.here.shape[0], BLOCK), tl.float32)
    square = total
    for at in range(stretch.first, stretch.last, BLOCK):
        x, _ = scores(stretch, at, pivot[:, None], BLOCK)
        d = x - pivot[:, None]
        total += d
        square += d * d
    return tl.sum(total, axis=1), tl.sum(square, axis=1)


@triton.jit
def full_statistics(stretch, BLOCK: tl.constexpr):
    """Return the `FullStatistics` of each row."""
    live = tl.zeros((stretch.here.shape[0], BLOCK), tl.float32)
    least, greatest, top, bad = live + INF, live - INF, live, live
    for at in range(stretch.first, stretch.last, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        finite = (tl.abs(x) < INF) & (x > DELETED)
        least = tl.minimum(least, tl.where(finite, x, INF))
        greatest = tl.maximum(greatest, tl.where(finite, x, -INF))
        live += tl.where(finite, 1.0, 0.0)
        top += tl.where(x == INF, 1.0, 0.0)
        bad += tl.where(x != x, 1.0, 0.0)
    ends = tl.min(least, axis=1), tl.max(greatest, axis=1)
    return FullStatistics(*ends, tl.sum(live, axis=1), tl.sum(top, axis=1), tl.sum(bad, axis=1))


@triton.jit
def moments(stretch, pivot, most, BLOCK: tl.constexpr):
    """#, Σd and Σd² of the scores with |d| < most, d = x − pivot."""
    number = tl.zeros((stretch.here.shape[0], BLOCK), tl.float32)
    total, square = number, number
    for at in range(stretch.first, stretch.last, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        d = x - pivot[:, None]
        near = tl.abs(d) < most[:, None]
        d = tl.where(near, d, 0.0)
        number += tl.where(near, 1.0, 0.0)
        total += d
        square += d * d
    return tl.sum(number, axis=1), tl.sum(total, axis=1), tl.sum(square, axis=1)


@triton.jit
def alpha_of_entries(theta):
    """Return α as entries take it: one number, or one per row, which broadcasts with entries."""
    alpha = theta.alpha
    if alpha.type.is_block():
        alpha = alpha[:, None]
    return alpha


@triton.jit
def evaluate(KIND: tl.constexpr, stretch, theta, BLOCK: tl.constexpr, ASK: tl.constexpr = False):
    """Return the `Sums` at θ.

    Every link gives deleted scores 0, unless θ is next to them: for that case ASK.
    """
    below = tl.zeros((stretch.here.shape[0], BLOCK), tl.float32)
    above, slope, count, bend = below, below, below, below
    for at in range(stretch.first, stretch.last, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        if ASK:
            x = tl.where(x <= DELETED, -INF, x)
        t, upper, one, two = tail(KIND, distance(x, theta), alpha_of_entries(theta))
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
    return Sums(sums[0], sums[1], slopes, tl.sum(count, axis=1), bends)


@triton.jit
def write(KIND: tl.constexpr, stretch, out_row, theta, end, BLOCK: tl.constexpr):
    """Write the weights; in rows without an equation those that their `end` says.

    A second loop corrects deleted scores where θ is so low, at a T of 1e29 or so, that F(x) > 0.
    """
    least = FARTHEST if may_be_heavy(KIND) else 200.0
    low = ((theta.hi - DELETED) + theta.lo) * theta.per_unit < least
    for at in range(stretch.first, stretch.last, BLOCK):
        x, filled = scores(stretch, at, -INF, BLOCK)
        p = weight(KIND, distance(x, theta), alpha_of_entries(theta))
        columns = at + tl.arange(0, BLOCK)
        tl.store(out_row[:, None] + columns[None, :], p, mask=filled & ~end.closed[:, None])
    if tl.max((end.closed | low).to(tl.int32)) > 0:
        for at in range(stretch.first, stretch.last, BLOCK):
            x, filled = scores(stretch, at, -INF, BLOCK)
            given = tl.where(x == INF, end.share[:, None], end.weight[:, None])
            columns = at + tl.arange(0, BLOCK)
            p = tl.where(x <= DELETED, 0.0, given)
            again = end.closed[:, None] | (low[:, None] & (x <= DELETED))
            tl.store(out_row[:, None] + columns[None, :], p, mask=filled & again)


@triton.jit
def weigh(KIND: tl.constexpr, stretch, g_row, theta, BLOCK: tl.constexpr):
    """Backward pass, first: ΣF′, ΣF′g and ΣF′y."""
    total = tl.zeros((stretch.here.shape[0], BLOCK), tl.float32)
    product, moment = total, total
    for at in range(stretch.first, stretch.last, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        g, _ = entries(g_row, stretch, at, 0.0, BLOCK)
        y = distance(x, theta)
        w = density(KIND, y, alpha_of_entries(theta))
        total += w
        # An entry that is not chosen may carry any cotangent, NaN included.
        product += tl.where(w > 0.0, w * g, 0.0)
        moment += tl.where(w > 0.0, w * y, 0.0)
    return tl.sum(total, axis=1), tl.sum(product, axis=1), tl.sum(moment, axis=1)


@triton.jit
def slope(KIND: tl.constexpr, stretch, g_row, theta, mean, pivot, BLOCK: tl.constexpr):
    """Backward pass, then: Σu and Σu(x − pivot), in units of y, with u = F′(g − mean).

    As Σu is 0 up to rounding, any number may stand for θ; the pivot is the mean of x by F′.
    """
    total = tl.zeros((stretch.here.shape[0], BLOCK), tl.float32)
    lever = total
    for at in range(stretch.first, stretch.last, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        g, _ = entries(g_row, stretch, at, 0.0, BLOCK)
        w = density(KIND, distance(x, theta), alpha_of_entries(theta))
        chosen = w > 0.0
        u = tl.where(chosen, w * (g - mean[:, None]), 0.0)
        offset = tl.where(chosen, (x - pivot[:, None]) * theta.per_unit[:, None], 0.0)
        total += u
        lever += u * offset
    return tl.sum(total, axis=1), tl.sum(lever, axis=1)


@triton.jit
def write_back(
    KIND: tl.constexpr, stretch, g_row, out_row, theta, mean, rest, scale, BLOCK: tl.constexpr
):
    """Backward pass, last: F′((g − mean) − rest)·scale.

    Where `scale` is NaN so is the answer of every entry but deleted ones; where it is 0, all are 0.
    """
    for at in range(stretch.first, stretch.last, BLOCK):
        x, filled = scores(stretch, at, -INF, BLOCK)
        g, _ = entries(g_row, stretch, at, 0.0, BLOCK)
        w = density(KIND, distance(x, theta), alpha_of_entries(theta))
        u = w * ((g - mean[:, None]) - rest[:, None]) * scale[:, None]
        u = tl.where((w > 0.0) & (scale[:, None] != 0.0), u, 0.0)
        u = tl.where((scale != scale)[:, None] & ~(x <= DELETED), scale[:, None], u)
        columns = at + tl.arange(0, BLOCK)
        tl.store(out_row[:, None] + columns[None, :], u, mask=filled)

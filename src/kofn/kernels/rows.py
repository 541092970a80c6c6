"""One row: its weights, and the way back from cotangents of its weights."""

from __future__ import annotations

import math

import numpy as np

from kofn.kernels.elementary import inline, real, widest_vectors
from kofn.kernels.entries import (
    EXPONENTIAL,
    LAPLACE,
    LOGISTIC,
    NORMAL,
    density,
    far,
    logs,
    moved,
    prepare,
    tail,
)
from kofn.kernels.search import BLOCK, plain, solve, summing, survey


@inline
def _write_block(kind, fresh, x, kept, anchor, per_t, by, inverse, alpha):
    widest_vectors()
    one = real(anchor, 1.0)
    for i in range(x.size):
        a = prepare(kind, (x[i] - anchor) * per_t) if fresh else kept[i]
        t, upper, _, _ = tail(kind, a, by, inverse, alpha)
        kept[i] = one - t if upper else t


@inline
def _closed(x, out, live, top):
    """A row that needs no equation: each finite (or NaN) score gets `live`, each +inf `top`."""
    for i in range(x.size):
        v = x[i]
        out[i] = real(v, top) if v == math.inf else real(v, 0.0 if v == -math.inf else live)


@inline
def weights(kind, x, out, k, temperature, alpha):
    """Write the weights of a row; return its threshold as two floats.

    (0, NaN) says that the search gave up and nothing was written.
    """
    zero = real(x[0], 0.0)
    seen = survey(x, k, temperature)
    _, _, live, top, bad, _, _, _ = seen
    valid = temperature == temperature and alpha == alpha
    share = k if k != k else ((k / top if k <= top else 1.0) if top > 0 else 0.0)
    if bad > 0 or k != k or not valid:
        _closed(x, out, math.nan, share)
        return real(zero, math.nan), zero
    if k <= top:
        _closed(x, out, 0.0, share)
        return real(zero, math.inf), zero
    if k >= top + live:
        _closed(x, out, 1.0, 1.0)
        return real(zero, -math.inf), zero
    anchor, delta, fresh = solve(kind, x, out, k, seen, temperature, alpha)
    if delta != delta:
        return zero, real(zero, delta)
    # Two-sum: what the threshold's float cannot hold goes to a second one.
    moved_by = temperature * delta
    theta = anchor + moved_by
    part = theta - anchor
    rest = (anchor - (theta - part)) + (moved_by - part)
    high = real(zero, theta)
    _write(kind, fresh, x, out, anchor, delta, temperature, alpha)
    return high, real(zero, (theta - high) + rest)


@inline
def _write(kind, fresh, x, out, anchor, delta, temperature, alpha):
    by = real(anchor, moved(kind, delta))
    inverse = real(anchor, 1.0) / by
    _write_block(kind, fresh, x, out, anchor, real(anchor, 1 / temperature), by, inverse, alpha)


@inline
def distance(x, hi, lo, per_t):
    """z = ((x − hi) − lo)/T, apart from the sums: those may regroup it to x − (hi + lo)."""
    return ((x - hi) - lo) * per_t


@summing
def _density_block(kind, x, g, out, hi, lo, per_t, alpha):
    widest_vectors()
    zero = real(hi, 0.0)
    end = far(hi)
    weight, product = zero, zero
    for i in range(x.size):
        z = distance(x[i], hi, lo, per_t)
        w = density(kind, z, alpha) if abs(z) < end else zero
        out[i] = w
        weight += w
        # What is not chosen may carry any cotangent, NaN included.
        product += w * g[i] if w > zero else zero
    return weight, product


@summing
def _slope_block(x, g, out, hi, lo, per_t, mean):
    widest_vectors()
    zero = real(hi, 0.0)
    total, size, in_t = zero, zero, zero
    for i in range(x.size):
        w = out[i]
        u = w * (g[i] - mean) if w > zero else zero
        out[i] = u * per_t
        z = distance(x[i], hi, lo, per_t) if w > zero else zero
        total += u
        size += abs(u)
        in_t += u * z
    return total, size, in_t


@summing
def _centre_block(kind, x, out, hi, lo, per_t, mean, alpha):
    widest_vectors()
    zero = real(hi, 0.0)
    end = far(hi)
    in_t = zero
    for i in range(x.size):
        z = distance(x[i], hi, lo, per_t)
        w = density(kind, z, alpha) if abs(z) < end else zero
        u = w * mean
        out[i] -= u * per_t
        in_t += u * z if w > zero else zero
    return in_t


@inline
def gradients(kind, x, g, out, hi, lo, k, temperature, alpha):
    """Write the cotangent of a row's scores, w∘(g − ḡ)/T with ḡ = Σwg/W; return those of k and T.

    ḡ is taken off in two parts: where one entry holds nearly all of W, g − ḡ is smaller than the
    rounding of ḡ.
    """
    zero = real(hi, 0.0)
    if not abs(hi) < math.inf:
        return _gradients_closed(x, g, out, hi, k), real(zero, hi if hi != hi else 0.0)
    per_t = real(zero, 1 / temperature)
    weight, product = 0.0, 0.0
    for start in range(0, x.size, BLOCK):
        stop = start + BLOCK
        sums = _density_block(
            kind, x[start:stop], g[start:stop], out[start:stop], hi, lo, per_t, alpha
        )
        weight += sums[0]
        product += sums[1]
    if not weight >= (2.0**-126 if x.itemsize == 4 else 2.0**-1022):
        for i in range(out.size):
            out[i] = zero
        return real(zero, _share_of_logs(kind, x, g, hi, lo, temperature)), zero
    mean = real(zero, product / weight)
    total, size, in_t = 0.0, 0.0, 0.0
    for start in range(0, x.size, BLOCK):
        stop = start + BLOCK
        sums = _slope_block(x[start:stop], g[start:stop], out[start:stop], hi, lo, per_t, mean)
        total += sums[0]
        size += sums[1]
        in_t += sums[2]
    rest = total / weight
    if abs(total) > 4 * (2.0**-23 if x.itemsize == 4 else 2.0**-52) * size:
        for start in range(0, x.size, BLOCK):
            stop = start + BLOCK
            in_t -= _centre_block(
                kind, x[start:stop], out[start:stop], hi, lo, per_t, real(zero, rest), alpha
            )
    return real(zero, mean + rest), real(zero, -in_t / temperature)


@inline
def _gradients_closed(x, g, out, hi, k):
    """Of a row without an equation: 0, or NaN with the row; scores of +inf share k's."""
    zero = real(hi, 0.0)
    top, total = 0.0, 0.0
    for i in range(x.size):
        out[i] = hi if hi != hi and x[i] != -math.inf else zero
        if x[i] == math.inf:
            top += 1
            total += g[i]
    if hi != hi:
        return hi
    return real(zero, total / top) if hi > 0 and top > 0 and k <= top else zero


@plain
def _share_of_logs(kind, x, g, hi, lo, temperature):
    """Σ softmax(log F′)·g: what k moves where every F′ has underflowed."""
    peak = -math.inf
    total, product = 0.0, 0.0
    for i in range(x.size):
        z = ((np.float64(x[i]) - hi) - lo) / temperature
        if kind == EXPONENTIAL:
            log_density = z - 1 if z < 1 else -math.inf
        elif kind in (LOGISTIC, LAPLACE, NORMAL):
            log_density = logs(kind, -abs(z))[1]
        else:
            log_density = -math.inf
        if not log_density > -math.inf:
            continue
        if log_density > peak:
            scale = math.exp(peak - log_density)
            total, product, peak = total * scale, product * scale, log_density
        share = math.exp(log_density - peak)
        total += share
        product += share * g[i]
    return product / total if total > 0 else 0.0

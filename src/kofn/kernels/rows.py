"""Rows, one after another: their weights, and the way back from cotangents of those."""

from __future__ import annotations

import math

import numpy as np
from numba import carray

from kofn.kernels.entries import BOUNDED, EXPONENTIAL, LAPLACE, LOGISTIC, NORMAL, logs
from kofn.kernels.native import fetch, fetch_add, pointer
from kofn.kernels.passes import (
    CENTRE,
    CLOSE,
    CLOSE_BACK,
    FIRST_LOOK,
    SLOPE,
    WEIGH,
    WRITE,
)
from kofn.kernels.search import Row, load, solve, store, survey, two_floats, visit, visit_at
from kofn.kernels.team import plain

# A job, the integers that every thread on it is told: the next row, how many are done and how many
# were given up, which all of them count; then the shape, and addresses of visits and arrays.
NEXT, DONE, LOST, COUNT, CHUNK, N, SIZE, KIND, VISITS = range(9)
X, G, OUT, HI, LO, K, TEMPERATURE, IN_K, IN_T = range(9, 18)

# What a thread has of its own: the search's memo, a row's entries as prepared where there is no
# memory of an answer to keep them in, and what it shares with a team.
MEMO = 6


@plain
def team_of(job, own):
    words = carray(pointer(job), IN_T + 1, np.int64)
    return own + 8 * (MEMO + (0 if words[OUT] else words[N]))


def forward(job, own, alpha):
    """Take rows until there are none; write their thresholds, and their weights if wanted."""
    words = carray(pointer(job), IN_T + 1, np.int64)
    size = words[SIZE]
    first = fetch_add(job + 8 * NEXT, words[CHUNK])
    while first < words[COUNT]:
        last = min(first + words[CHUNK], words[COUNT])
        for i in range(first, last):
            k, t = load(words[K], i, size), load(words[TEMPERATURE], i, size)
            hi, lo = _weights(_row(job, words, own, i, alpha), k, t, words[OUT] != 0)
            store(words[HI], i, size, hi)
            store(words[LO], i, size, lo)
            if lo != lo:
                fetch_add(job + 8 * LOST, 1)
        fetch_add(job + 8 * DONE, last - first)
        first = fetch_add(job + 8 * NEXT, words[CHUNK])


def backward(job, own, alpha):
    """Take rows until there are none; write the cotangents of their scores, k and T."""
    words = carray(pointer(job), IN_T + 1, np.int64)
    size = words[SIZE]
    first = fetch_add(job + 8 * NEXT, words[CHUNK])
    while first < words[COUNT]:
        last = min(first + words[CHUNK], words[COUNT])
        for i in range(first, last):
            hi, lo = load(words[HI], i, size), load(words[LO], i, size)
            k, t = load(words[K], i, size), load(words[TEMPERATURE], i, size)
            in_k, in_t = _gradients(_row(job, words, own, i, alpha), hi, lo, k, t)
            store(words[IN_K], i, size, in_k)
            store(words[IN_T], i, size, in_t)
        fetch_add(job + 8 * DONE, last - first)
        first = fetch_add(job + 8 * NEXT, words[CHUNK])


def wait(job):
    """Until the rows that other threads have taken are done too."""
    words = carray(pointer(job), IN_T + 1, np.int64)
    while fetch(job + 8 * DONE) < words[COUNT]:
        pass


@plain
def _row(job, words, own, i, alpha):
    at = i * words[N] * words[SIZE]
    g = words[G] + at if words[G] else 0
    out = words[OUT] + at if words[OUT] else own + 8 * MEMO
    return Row(
        words[VISITS],
        words[KIND],
        words[SIZE],
        words[X] + at,
        g,
        out,
        words[N],
        team_of(job, own),
        own,
        alpha,
    )


@plain
def _weights(row, k, temperature, wanted):
    """Write the weights of a row, if wanted; return its threshold as two numbers.

    (0, NaN) says that the search gave up.
    """
    seen = survey(row, k, temperature)
    top = seen.top
    valid = temperature == temperature
    share = k if k != k else ((k / top if k <= top else 1.0) if top > 0 else 0.0)
    closed, theta = math.inf, 0.0
    if seen.bad > 0 or k != k or not valid:
        closed, theta = math.nan, math.nan
    elif k <= top:
        closed, theta = 0.0, math.inf
    elif k >= top + seen.live:
        closed, theta, share = 1.0, -math.inf, 1.0
    if closed != math.inf:
        if wanted:
            visit(row, CLOSE, closed, share, 0.0, 0.0, 0.0)
        return theta, 0.0
    anchor, delta, fresh = solve(row, k, seen, temperature)
    if delta != delta:
        return 0.0, delta
    if wanted:
        if fresh and row.kind not in BOUNDED:
            visit_at(row, FIRST_LOOK, anchor, temperature, delta)
        total = visit_at(row, WRITE, anchor, temperature, delta)[0]
        if not abs(total - k) <= 1e-4 * k:
            return 0.0, math.nan  # whatever the reason, the reference will do better
    return two_floats(anchor, temperature * delta, row.size)


@plain
def _gradients(row, hi, lo, k, temperature):
    """Write the cotangent of a row's scores, w∘(g − ḡ)/T with ḡ = Σwg/W; return those of k and T.

    ḡ is taken off in two parts: where one entry holds nearly all of W, g − ḡ is smaller than the
    rounding of ḡ.
    """
    if not abs(hi) < math.inf:
        sums = visit(row, CLOSE_BACK, hi if hi != hi else 0.0, 0.0, 0.0, 0.0, 0.0)
        top, total = sums[0], sums[1]
        if hi != hi:
            return hi, hi
        return (total / top if hi > 0 and top > 0 and k <= top else 0.0), 0.0
    single = row.size == 4
    per_t = 1 / temperature
    sums = visit(row, WEIGH, hi, lo, per_t, row.alpha, 0.0)
    weight, product = sums[0], sums[1]
    if not weight >= (2.0**-126 if single else 2.0**-1022):
        visit(row, CLOSE_BACK, 0.0, 0.0, 0.0, 0.0, 0.0)
        return _share_of_logs(row, hi, lo, temperature), 0.0
    mean = product / weight
    mean = np.float64(np.float32(mean)) if single else mean
    sums = visit(row, SLOPE, hi, lo, per_t, mean, 0.0)
    total, size, in_t = sums[0], sums[1], sums[2]
    rest = total / weight
    if abs(total) > 4 * (2.0**-23 if single else 2.0**-52) * size:
        in_t -= visit(row, CENTRE, hi, lo, per_t, row.alpha, rest)[0]
    return mean + rest, -in_t / temperature


@plain
def _share_of_logs(row, hi, lo, temperature):
    """Σ softmax(log F′)·g: what k moves where every F′ has underflowed."""
    kind = row.kind
    peak = -math.inf
    total, product = 0.0, 0.0
    for i in range(row.n):
        z = ((load(row.x, i, row.size) - hi) - lo) / temperature
        if kind == EXPONENTIAL:
            log_density = min(z - 1, 0.0) if z - 1 < 4 * 2.0**-23 else -math.inf
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
        product += share * load(row.g, i, row.size)
    return product / total if total > 0 else 0.0

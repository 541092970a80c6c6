"""Rows, one after another: their weights, and the way back from cotangents of those."""

from __future__ import annotations

import math

import numpy as np
from numba import carray

from kofn.kernels.entries import BOUNDED, EXPONENTIAL, LAPLACE, LOGISTIC, NORMAL, edge, logs
from kofn.kernels.lanes import (
    CLOSED,
    FOUND,
    LANE,
    LANES,
    ODD,
    OPEN,
    Row,
    load,
    store,
    two_floats,
    visit,
)
from kofn.kernels.native import fetch, fetch_add, pointer
from kofn.kernels.passes import (
    CENTRE,
    CLOSE,
    CLOSE_BACK,
    FIRST_LOOK,
    INTEGRATE,
    SLOPE,
    TOTAL,
    WEIGH,
    WRITE,
)
from kofn.kernels.search import advance, look, quantiles, read, softmax, survey, visit_at
from kofn.kernels.team import plain
from kofn.kernels.together import advance_all, aim_all, open_all

# A job, the integers that every thread on it is told: the next row, how many are done and how many
# were given up, which all of them count; then the shape, and addresses of visits and arrays.
NEXT, DONE, GIVEN_UP, COUNT, CHUNK, TOGETHER, N, SIZE, KIND, VISITS = range(10)
X, G, OUT, HI, LO, K, TEMPERATURE, ONE, TWO = range(10, 19)
WORDS = 19

# What a thread has of its own: the lanes of a group of rows, the search's memo, the entries as
# prepared where there is no memory of an answer to keep them in, and what it shares with a team.
_SUMS = LANE.fields["sums"][1]
_MEMO = LANE.itemsize // 8
_HEAD = _MEMO + 6


def together(n: int) -> int:
    """How many rows of n are a group: as many as stay in the nearest cache."""
    return max(1, min(LANES, 4096 // n))


def room(n: int, answers: bool) -> int:
    """Words of memory a thread needs for rows of n."""
    return _HEAD + (0 if answers else together(n) * n)


def forward(job, own, alpha):
    """Take rows until there are none; write their thresholds, and their weights if wanted."""
    words = carray(pointer(job), WORDS, np.int64)
    first = fetch_add(job + 8 * NEXT, words[CHUNK])
    while first < words[COUNT]:
        last = min(first + words[CHUNK], words[COUNT])
        for start in range(first, last, words[TOGETHER]):
            _weights(job, words, own, start, min(words[TOGETHER], last - start), alpha)
        fetch_add(job + 8 * DONE, last - first)
        first = fetch_add(job + 8 * NEXT, words[CHUNK])


def after(job, own, alpha):
    """Take rows whose θ is known until there are none; write two numbers of each.

    With cotangents those of k and T, and of the scores where an answer goes; else S_k and its slope
    in T.
    """
    words = carray(pointer(job), WORDS, np.int64)
    size = words[SIZE]
    first = fetch_add(job + 8 * NEXT, words[CHUNK])
    while first < words[COUNT]:
        last = min(first + words[CHUNK], words[COUNT])
        for i in range(first, last):
            hi, lo = load(words[HI], i, size), load(words[LO], i, size)
            k, t = load(words[K], i, size), load(words[TEMPERATURE], i, size)
            row = _row(job, words, own, i, 0, alpha)
            if words[G]:
                one, two = _gradients(row, hi, lo, k, t)
            else:
                one, two = _value(row, hi, lo, k, t)
            store(words[ONE], i, size, one)
            store(words[TWO], i, size, two)
        fetch_add(job + 8 * DONE, last - first)
        first = fetch_add(job + 8 * NEXT, words[CHUNK])


def wait(job):
    """Until the rows that other threads have taken are done too."""
    words = carray(pointer(job), WORDS, np.int64)
    while fetch(job + 8 * DONE) < words[COUNT]:
        pass


@plain
def _row(job, words, own, i, lane, alpha):
    """Row i, in a lane of its group."""
    n, size = words[N], words[SIZE]
    at = i * n * size
    g = words[G] + at if words[G] else 0
    kept = 0 if words[OUT] else words[TOGETHER] * n
    out = words[OUT] + at if words[OUT] else own + 8 * (_HEAD + lane * n)
    sums = own + _SUMS
    memo, team = own + 8 * _MEMO, own + 8 * (_HEAD + kept)
    x, visits, kind = words[X] + at, words[VISITS], words[KIND]
    return Row(lane, visits, kind, size, x, g, out, n, sums, team, memo, alpha)


@plain
def _weights(job, words, own, first, count, alpha):
    """Write the weights of a group of rows, if wanted, and their thresholds as two numbers.

    (0, NaN) says that the search gave up.
    """
    n, size, kind, wanted = words[N], words[SIZE], words[KIND], words[OUT] != 0
    lanes = carray(pointer(own), 1, LANE)[0]
    for r in range(count):
        lanes.k[r] = load(words[K], first + r, size)
        lanes.temperature[r] = load(words[TEMPERATURE], first + r, size)
        lanes.per_t[r] = 1 / lanes.temperature[r]
    share = lanes.k[0]
    simple = kind == EXPONENTIAL and share == 1
    if simple:
        for r in range(count):
            softmax(_row(job, words, own, first + r, r, alpha), lanes)
    elif 0 < share < n:
        for r in range(count):
            survey(_row(job, words, own, first + r, r, alpha), lanes)
        row = _row(job, words, own, first, 0, alpha)
        bell, own_, end = quantiles(row, share, np.float64(n), np.float64(n))
        open_all(own, n, size, share, bell, own_, end, edge(kind, alpha))
    else:
        for r in range(count):
            lanes.pivot[r], lanes.state[r] = load(words[X], (first + r) * n, size), ODD
    for r in range(count):
        if lanes.state[r] == ODD:
            read(_row(job, words, own, first + r, r, alpha), lanes)
    for round_ in range(16 * size):
        aim_all(own, kind, size)
        still = False
        for r in range(count):
            if lanes.state[r] == OPEN:
                look(_row(job, words, own, first + r, r, alpha), lanes)
                still = True
        if not still:
            break
        advance_all(own, kind, size, round_)
        for r in range(count):
            if lanes.state[r] == ODD:
                advance(_row(job, words, own, first + r, r, alpha), lanes, round_)
    for r in range(count):
        row = _row(job, words, own, first + r, r, alpha)
        if lanes.state[r] == CLOSED:
            hi, lo = _close(row, lanes, wanted)
        else:
            hi, lo = _write(row, lanes, wanted)
        store(words[HI], first + r, size, hi)
        store(words[LO], first + r, size, lo)
        if lo != lo:
            fetch_add(job + 8 * GIVEN_UP, 1)


@plain
def _close(row, lanes, wanted):
    """θ of a row that needs no equation: the share of its scores of +inf, and 0, 1 or NaN."""
    k, top, theta = lanes.k[row.lane], lanes.top[row.lane], lanes.anchor[row.lane]
    if wanted:
        share = k if k != k else ((k / top if k <= top else 1.0) if top > 0 else 0.0)
        others = theta if theta != theta else (0.0 if theta > 0 else 1.0)
        visit(row, CLOSE, others, share if theta != -math.inf else 1.0, 0.0, 0.0, 0.0)
    return theta, 0.0


@plain
def _write(row, lanes, wanted):
    """θ of a row whose search has ended, once its weights are written if wanted."""
    r = row.lane
    if lanes.state[r] != FOUND:
        return 0.0, math.nan
    if wanted:
        if lanes.fresh[r] and row.kind not in BOUNDED:
            visit_at(row, lanes, FIRST_LOOK)
        total, k = visit_at(row, lanes, WRITE)[0], lanes.k[r]
        if not abs(total - k) <= 1e-4 * k:
            return 0.0, math.nan  # whatever the reason, the reference will do better
    return two_floats(lanes.anchor[r], lanes.temperature[r] * lanes.delta[r], row.size)


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
def _value(row, hi, lo, k, temperature):
    """(S_k = kθ + TΣG(z), its slope in T) of a row whose threshold is known.

    Of G = z + rest, far up, z is taken out of the sum: many scores far up and a k that is nearly as
    large would leave a small difference of large numbers.
    """
    if hi != hi:
        return hi, hi
    if abs(hi) < math.inf:
        sums = visit(row, INTEGRATE, hi, lo, 1 / temperature, row.alpha, 0.0)
        theta = hi + lo - temperature * edge(row.kind, row.alpha)
        return (k - sums[1]) * theta + sums[2] + temperature * sums[0], sums[3]
    sums = visit(row, TOTAL, 0.0, 0.0, 0.0, 0.0, 0.0)
    chosen = sums[0] if hi < 0 else 0.0
    return (math.inf if sums[1] > 0 and k > 0 else chosen), 0.0


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

"""The work of one thread: softmax over the largest scores of its rows, its loss, and its gradient.

Those are the k largest scores, of them the nucleus, the fewest with the share p of their weight,
and of it the scores whose weight is not too far below the greatest. The nucleus' least score is
found as in search.py: a bracket, narrowed by adding up weights instead of counting.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.contract import ENTROPY, INFINITE, KEPT, LAST
from kofn.kernels.cpu.choice.sample import SHORTEST, kth_of_row
from kofn.kernels.cpu.choice.search import (
    count_above,
    count_from,
    ends,
    kth_largest,
    least_from,
    middle,
)
from kofn.kernels.cpu.choice.worker import lowest_of
from kofn.kernels.cpu.rows.frame import BLOCK, loop
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.shares import COUNT, plain, served
from kofn.kernels.cpu.runtime.vector_math import (
    inline,
    ordered,
    real,
    unordered,
    widest_vectors,
)
from kofn.kernels.cpu.runtime.words import exponential

# A job, the integers that every thread on it reads: those of shares.py first. LABELS and G are 0
# where there are none, OUT where nobody wants the weights. LEAST has the bits of a float: the
# logarithm of the least weight, as a share of the greatest. WHAT is a number of contract.py.
N, X, T, LABELS, OUT, EACH, G, K, LEAST, WHAT = range(4, 14)
WORDS = 14

HALVE = 3
"""One of so many steps halves the bracket in the order of all floats."""
STEPS = HALVE * 66
"""More than the search for a nucleus may take, as a bracket holds at most 2⁶⁴ floats."""
SETTLE = 4
"""After so many steps, look whether the bracket has one score only, however often."""
FAINT = 720.0
"""Temperatures below the greatest score where e^z is 0, in float64 and float32."""


@inline
def _below(x, greatest, per_t):
    """z, apart from the sums, which may be taken in any order."""
    return (x - greatest) * per_t


@loop
def _raise(x, greatest, per_t, lowest, e):
    """e^((x − greatest)/T) of finite scores in play, 0 of others; the sum."""
    widest_vectors()
    zero, whole = real(lowest, 0.0), 0.0
    for start in range(0, x.size, BLOCK):
        stop, part = start + BLOCK, zero
        xs, es = x[start:stop], e[start:stop]
        for i in range(xs.size):
            v = xs[i]
            raised = exponential(_below(v, greatest, per_t)) if v > lowest else zero
            es[i] = raised
            part += raised
        whole += part
    return whole


@loop
def mass_from(x, e, t):
    """The weight of the scores that are at least t."""
    widest_vectors()
    zero, whole = real(t, 0.0), 0.0
    for start in range(0, x.size, BLOCK):
        stop, part = start + BLOCK, zero
        xs, es = x[start:stop], e[start:stop]
        for i in range(xs.size):
            part += es[i] if xs[i] >= t else zero
        whole += part
    return whole


@loop
def _keep(x, e, t, share):
    """Leave the weights of scores above t, that share of those at t, none below; the sum."""
    widest_vectors()
    zero, whole = real(t, 0.0), 0.0
    for start in range(0, x.size, BLOCK):
        stop, part = start + BLOCK, zero
        xs, es = x[start:stop], e[start:stop]
        for i in range(xs.size):
            v = xs[i]
            kept = es[i] if v > t else (es[i] * share if v == t else zero)
            es[i] = kept
            part += kept
        whole += part
    return whole


@plain
def _scale(e, by):
    widest_vectors()
    for i in range(e.size):
        e[i] *= by


@plain
def _between(low, high, halve):
    """A number between two: their mean, or the middle in the order of all floats."""
    width = high - low
    if not halve and width < real(low, math.inf):
        t = low + width * real(low, 0.5)
        if low < t < high:
            return t
    return unordered(middle(ordered(low), ordered(high)), low)


@plain
def reaching(x, e, wanted, least, greatest):
    """A number with the fewest scores from it on whose weights e are as much as is wanted.

    The sums of fewer of the same numbers in the same order are never greater, so there is a number
    where they pass it, and the bracket around that becomes less with every step.
    """
    low, high = least, greatest
    if mass_from(x, e, high) >= wanted:
        return high
    for step in range(1, STEPS):
        t = _between(low, high, step % HALVE == 0)
        if not low < t < high:  # no float is between them
            break
        if mass_from(x, e, t) >= wanted:
            low = t
        else:
            high = t
        if step % SETTLE == 0:
            low = least_from(x, low)
            if count_above(x, low) == count_from(x, high):
                break
    return low


@plain
def nucleus(x, e, share, least, greatest):
    """The same for that share of all weight."""
    return reaching(x, e, share * mass_from(x, e, least), least, greatest)


@plain
def _kth(x, address, k, least, greatest, lowest, spare):
    if x.size < SHORTEST:
        return kth_largest(x, k, least, greatest)
    t, above, _ = kth_of_row(x, address, k, lowest, spare)
    return t, above


@plain
def _truncate(x, k, last, above, share, log_least, t, shared, greatest, e):
    """Leave the weights e of kept entries, return their sum, and what the least of them reaches.

    (last, above) is as `kth_largest` has it, or the least score if k is 0. Ties for the k-th place
    share the places if `shared`.
    """
    places, one = real(t, 1.0), real(t, 1.0)
    if k > 0:
        if shared and above >= 0:
            places = real(t, (k - above) / (count_from(x, last) - above))
        if above < 0:
            last = least_from(x, last)
    if share < 1:
        low = max(last, greatest - real(t, FAINT) * t)
        last = least_from(x, nucleus(x, e, share, low, greatest))
    if log_least > -math.inf:
        last = max(last, greatest + real(t, log_least) * t)
    return _keep(x, e, last, places if shared else one), last


@loop
def _tilt(x, e, greatest, per_t):
    """The sum of e·z, z = (x − greatest)/T, where e is not 0."""
    widest_vectors()
    zero, whole = real(greatest, 0.0), 0.0
    for start in range(0, x.size, BLOCK):
        stop, part = start + BLOCK, zero
        xs, es = x[start:stop], e[start:stop]
        for i in range(xs.size):
            part += es[i] * _below(xs[i], greatest, per_t) if es[i] != zero else zero
        whole += part
    return whole


@plain
def _turn(x, e, greatest, per_t, mean, by):
    """Write −by·e(z − mean), the slope of the entropy in z."""
    widest_vectors()
    zero = real(greatest, 0.0)
    for i in range(x.size):
        z = _below(x[i], greatest, per_t)
        e[i] = by * e[i] * (mean - z) if e[i] != zero else zero


@plain
def _entropy(x, t, whole, greatest, e, wanted):
    """−Σ p·log p of p = e/whole; the slopes in (x − greatest)/T take the place of e."""
    per_t = real(greatest, 1.0) / t
    mean = _tilt(x, e, greatest, per_t) / whole
    if wanted:
        _turn(x, e, greatest, per_t, real(greatest, mean), real(greatest, 1 / whole))
    return math.log(whole) - mean


@plain
def _special(x, lowest, bad, e):
    """Weights of a row with a NaN, with scores of +inf, which share the weight, or with neither."""
    infinity, count = real(lowest, math.inf), 0
    for i in range(x.size):
        count += x[i] == infinity
    for i in range(x.size):
        v = x[i]
        e[i] = real(lowest, 1.0 / count if v == infinity else 0.0)
        if bad and v != infinity and not v <= lowest:
            e[i] = real(lowest, math.nan)
    return count


@plain
def _still(x, lowest, bad, label, count, e):
    """The answer of a row of `_special`, which does not change with its scores."""
    top = label < 0 or x[label] == real(lowest, math.inf)
    for i in range(x.size):
        e[i] = real(lowest, math.nan) if e[i] != e[i] else real(lowest, 0.0)
    if bad:
        return math.nan
    if label < 0:
        return math.log(max(count, 1))
    return math.log(count) if top else math.inf


@plain
def softmax(x, address, k, share, log_least, t, label, what, lowest, e, wanted):
    """The weights, or with a label ≥ 0 p − 1 for that one and the loss, as the answer.

    With a label and k alone, scores equal to the k-th share the places left; else all are kept.
    """
    least, greatest, bad = ends(x, lowest)
    zero, infinity = real(lowest, 0.0), real(lowest, math.inf)
    if bad or t != t or not least <= greatest or greatest == infinity:
        bad = bad or (t != t and greatest < infinity)
        if what == LAST:
            return math.nan if bad else -math.inf
        count = _special(x, lowest, bad, e)
        if label < 0 and what != ENTROPY:
            return 0.0
        return _still(x, lowest, bad, label, count, e)
    last, above = least, np.int64(0)
    if k > 0:  # before `e`, where scores are copied to, is written
        last, above = _kth(x, address, k, least, greatest, lowest, e)
    whole = _raise(x, greatest, real(lowest, 1.0) / t, lowest, e)
    own = e[label] if label >= 0 else zero
    only_k = share >= 1 and log_least == -math.inf
    if k > 0 or not only_k:
        shared = label >= 0 and only_k
        whole, last = _truncate(x, k, last, above, share, log_least, t, shared, greatest, e)
    if what == LAST:
        return np.float64(last)
    whole = max(whole, 1.0)
    if what == ENTROPY:
        return _entropy(x, t, whole, greatest, e, wanted)
    if label >= 0 and lowest < x[label] < last:
        if what == INFINITE:
            e[:] = zero
            return math.inf
        if what == KEPT:
            e[label] = own
            whole += own
    if wanted:
        _scale(e, real(lowest, 1 / whole))
    if label < 0:
        return 0.0
    if not x[label] > lowest:
        e[:] = zero
        return math.inf
    e[label] -= real(lowest, 1.0)
    return math.log(whole) + (np.float64(greatest) - np.float64(x[label])) / t


def truncated(kind: int, number: Any) -> Any:
    """The work of a thread: the weights of rows, for the nucleus of a share, and their losses."""

    @plain
    def work(job, own, first, last, share):
        words = carray(pointer(job), WORDS, np.int64)
        n, k, rows = words[N], words[K], words[COUNT]
        xs = carray(pointer(words[X]), rows * n, number)
        ts = carray(pointer(words[T]), rows, number)
        answers = carray(pointer(words[EACH]), rows, number)
        wanted, labelled = words[OUT] != 0, words[LABELS] != 0
        outs = carray(pointer(words[OUT] if wanted else own), rows * n if wanted else n, number)
        labels = carray(pointer(words[LABELS] if labelled else own), rows, np.int64)
        log_least, what = carray(pointer(job + 8 * LEAST), 1, np.float64)[0], words[WHAT]
        lowest = lowest_of(xs)
        for r in range(first, last):
            out = outs[r * n : r * n + n] if wanted else outs[:n]
            label = labels[r] if labelled else np.int64(-1)
            x, t, at = xs[r * n : r * n + n], ts[r], words[X] + r * n * xs.itemsize
            answers[r] = number(math.nan)  # of a label out of range
            if label < n and (label >= 0 or not labelled):
                answers[r] = softmax(
                    x, at, k, share, log_least, t, label, what, lowest, out, wanted
                )

    return served(work)


@loop
def _mean(p, g):
    """Σpg where p is not 0."""
    widest_vectors()
    zero, whole = real(p[0], 0.0), 0.0
    for start in range(0, p.size, BLOCK):
        stop, part = start + BLOCK, zero
        ps, gs = p[start:stop], g[start:stop]
        for i in range(ps.size):
            part += ps[i] * gs[i] if ps[i] != zero else zero
        whole += part
    return whole


@loop
def _pull(x, p, g, mean, t, start_at, out):
    """p(g − mean)/T; the answer is −Σ of that times (x − start)/T."""
    widest_vectors()
    zero, infinity, whole = real(t, 0.0), real(t, math.inf), 0.0
    for start in range(0, p.size, BLOCK):
        stop, part = start + BLOCK, zero
        xs, ps, gs, outs = x[start:stop], p[start:stop], g[start:stop], out[start:stop]
        for i in range(ps.size):
            v, moves = xs[i], ps[i] != zero and xs[i] != infinity
            u = ps[i] * (gs[i] - mean) / t if moves else zero
            outs[i] = u
            part += u * ((v - start_at) / t) if moves else zero
        whole += part
    return -whole


def back(kind: int, number: Any) -> Any:
    """The work of a thread: the cotangents of the scores of rows, and of T.

    The weights are where the labels were.
    """

    @plain
    def work(job, own, first, last, _):
        words = carray(pointer(job), WORDS, np.int64)
        n, rows = words[N], words[COUNT]
        xs = carray(pointer(words[X]), rows * n, number)
        gs = carray(pointer(words[G]), rows * n, number)
        ps = carray(pointer(words[LABELS]), rows * n, number)
        outs = carray(pointer(words[OUT]), rows * n, number)
        ts = carray(pointer(words[T]), rows, number)
        in_t = carray(pointer(words[EACH]), rows, number)
        for r in range(first, last):
            at, stop = r * n, r * n + n
            x, p, g, out = xs[at:stop], ps[at:stop], gs[at:stop], outs[at:stop]
            mean, some = number(_mean(p, g)), 0
            while some < n - 1 and p[some] == number(0):
                some += 1
            in_t[r] = _pull(x, p, g, mean, ts[r], x[some], out)

    return served(work)

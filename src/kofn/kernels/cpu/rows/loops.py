"""One pass over a row, or to a part of one.

Each function here makes, for a link's `kind` and a `number` (np.float32 or np.float64), one Python
function: frame.py says what it takes, and has the loop of most of them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.contract import BOUNDED, EXPONENTIAL
from kofn.kernels.cpu.rows.formulas import (
    centred,
    deleted,
    distance,
    evaluated,
    prepare,
    roughly,
    sloped,
    unit,
    weighed,
    written,
)
from kofn.kernels.cpu.rows.frame import BLOCK, Pass, in_loop, pass_of
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.layout import AT_ONCE
from kofn.kernels.cpu.runtime.registers import compress, lowest, ones, reaching, registers_are_wide
from kofn.kernels.cpu.runtime.vector_math import multiply_add, ordered, unordered, widest_vectors
from kofn.kernels.cpu.short.approach import approach as approach


def statistics(kind: int, number: Any) -> Pass:
    """Σd and Σd² with d = x − pivot. Neither is finite where the row holds ±inf or NaN."""

    @in_loop
    def entry(x, g, old, pivot, lo, per_t, alpha, rest):
        d = x - pivot
        return old, (d, d * d)

    return pass_of(number, entry, *[number(0)] * 2)


def full_statistics(kind: int, number: Any) -> Pass:
    """Least, greatest, #in play, #(+inf), #NaN, and #, Σd, Σd² where |d| < most, d = x − pivot."""
    infinity = number(math.inf)

    def one_pass(x, g, out, n, sums, pivot, most, per_t, alpha, rest):
        widest_vectors()
        scores, into = carray(pointer(x), n, number), carray(pointer(sums), 8, np.float64)
        pivot_, most_, zero, one = number(pivot), number(most), number(0), number(1)
        least, greatest = ordered(infinity), ordered(-infinity)
        for start in range(0, n, BLOCK):
            block = scores[start : start + BLOCK]
            live, top, bad, usual, total, squares = zero, zero, zero, zero, zero, zero
            for i in range(block.size):
                v = block[i]
                size = abs(v)
                finite = size < infinity and not deleted(v)
                key = ordered(v)
                least = min(least, key if finite else ordered(infinity))
                greatest = max(greatest, key if finite else ordered(-infinity))
                live += one if finite else zero
                top += one if v == infinity else zero
                bad += zero if v == v else one
                d = v - pivot_
                near = abs(d) < most_
                d = d if near else zero
                usual += one if near else zero
                total += d
                squares += d * d
            into[2] += live
            into[3] += top
            into[4] += bad
            into[5] += usual
            into[6] += total
            into[7] += squares
        into[0], into[1] = unordered(least, pivot_), unordered(greatest, pivot_)

    return one_pass


def peak(kind: int, number: Any) -> Pass:
    """0, the greatest score in play, how many those are, #(+inf or NaN)."""
    infinity = number(math.inf)

    def one_pass(x, g, out, n, sums, hi, lo, per_t, alpha, rest):
        widest_vectors()
        scores, into = carray(pointer(x), n, number), carray(pointer(sums), 8, np.float64)
        zero, one = number(0), number(1)
        greatest = least = ordered(scores[0])
        for i in range(n):
            greatest, least = max(greatest, ordered(scores[i])), min(least, ordered(scores[i]))
        into[1] = unordered(greatest, zero)
        usual = ordered(-infinity) < least and greatest < ordered(infinity)
        if usual and not deleted(unordered(least, zero)):
            into[2] += n  # of finite scores alone
            return
        greatest = ordered(-infinity)
        for start in range(0, n, BLOCK):
            block = scores[start : start + BLOCK]
            live, special = zero, zero
            for i in range(block.size):
                v = block[i]
                finite = abs(v) < infinity and not deleted(v)
                key = ordered(v)  # here, not in the next line: LLVM makes no vectors of a branch
                greatest = max(greatest, key if finite else ordered(-infinity))
                live += one if finite else zero
                special += zero if v < infinity else one
            into[2] += live
            into[3] += special
        into[1] = unordered(greatest, zero)

    return one_pass


def finite_peak(kind: int, number: Any) -> Pass:
    """0, the greatest score, Σd and Σd² with d = x − pivot: of a row whose scores are finite."""

    def one_pass(x, g, out, n, sums, pivot, lo, per_t, alpha, rest):
        widest_vectors()
        scores, into = carray(pointer(x), n, number), carray(pointer(sums), 8, np.float64)
        pivot_, zero = number(pivot), number(0)
        greatest = ordered(number(-math.inf))
        for start in range(0, n, BLOCK):
            block = scores[start : start + BLOCK]
            total, squares = zero, zero
            for i in range(block.size):
                greatest = max(greatest, ordered(block[i]))
                d = block[i] - pivot_
                total += d
                squares += d * d
            into[2] += total
            into[3] += squares
        into[1] = unordered(greatest, zero)

    return one_pass


def first_evaluation(kind: int, number: Any) -> Pass:
    """Prepare each entry for the anchor a and a unit of T = 1/b; then what `evaluate` does."""
    return _evaluate(kind, number, kind not in BOUNDED)


def evaluate(kind: int, number: Any) -> Pass:
    """Σ of the smaller tails, and of those above ½, ΣF′, #{F > ½}, ΣF″; `by` is `shifted(δ)`.

    A bounded link has nothing prepared: θ = a + c there.
    """
    return _evaluate(kind, number, False)


def _evaluate(kind: int, number: Any, fresh: bool) -> Pass:
    afresh = kind in BOUNDED

    @in_loop
    def prepared(x, anchor, per_t, scale, by, inverse, rise):
        return prepare(kind, (x - anchor) * scale)

    @in_loop
    def entry(x, g, kept, anchor, per_t, scale, by, inverse, rise):
        a = distance(x, anchor, by, per_t) if afresh else kept
        return a, evaluated(kind, a, by, inverse, rise)

    moves, first = moves_of(kind, number), prepared if fresh else None
    return pass_of(number, entry, *[number(0)] * 5, numbers=moves, first=first)


def rough(kind: int, number: Any) -> Pass:
    """ΣF, ΣF′ and ΣF″ of a bounded link: an evaluation that rounds F where it is next to 1."""

    @in_loop
    def entry(x, g, kept, anchor, per_t, scale, by, inverse, rise):
        return kept, roughly(kind, multiply_add(x - anchor, per_t, -(by * per_t)))

    return pass_of(number, entry, *[number(0)] * 3, numbers=moves_of(kind, number))


def moves_of(kind: int, number: Any) -> Any:
    """How entries take the numbers of a pass by (a, 1/T, shifted(δ), α), the threshold a + Tδ."""

    @in_loop
    def numbers(anchor, per_t, by, alpha, rest):
        by_, rise = number(by), number(alpha - 1)
        scale = number(unit(kind, per_t))
        return number(anchor), number(per_t), scale, by_, number(1) / by_, rise

    return numbers


def sum_up(kind: int, number: Any) -> Pass:
    """Prepare each entry of a softmax for the greatest, the anchor; their sum."""
    single = number is np.float32

    @in_loop
    def entry(x, g, old, anchor, per_t, scale, by, inverse, rise):
        a = prepare(EXPONENTIAL, (x - anchor) * scale)
        return a, (a,)

    moves = moves_of(EXPONENTIAL, number)
    return pass_of(number, entry, number(0), writes=True, weights=single, numbers=moves)


def write(kind: int, number: Any) -> Pass:
    """F of each entry, of what was prepared in its place, and ΣF; θ as for `evaluate`."""
    afresh, single = kind in BOUNDED, number is np.float32

    @in_loop
    def entry(x, g, kept, anchor, per_t, scale, by, inverse, rise):
        a = distance(x, anchor, by, per_t) if afresh else kept
        p = written(kind, a, by, inverse, rise)
        return p, (p,)

    moves = moves_of(kind, number)
    return pass_of(number, entry, number(0), writes=True, weights=single, numbers=moves)


def mend(kind: int, number: Any) -> Pass:
    """F′·`rest` more of each weight, which stays in [0, 1]; their sum."""
    zero, one = number(0), number(1)

    @in_loop
    def entry(x, g, p, hi, lo, per_t, rise, rest):
        p = min(max(p + centred(kind, x, hi, lo, per_t, rise, rest), zero), one)
        return p, (p,)

    return pass_of(number, entry, zero, writes=True, weights=True)


def close(kind: int, number: Any) -> Pass:
    """Answer a row without an equation: finite (or NaN) scores get `live`, those of +inf `top`."""

    def one_pass(x, g, out, n, sums, live, top, per_t, alpha, rest):
        scores, weights = carray(pointer(x), n, number), carray(pointer(out), n, number)
        live_, top_, zero, infinity = number(live), number(top), number(0), number(math.inf)
        for i in range(n):
            v = scores[i]
            weights[i] = top_ if v == infinity else (zero if deleted(v) else live_)

    return one_pass


def keep(kind: int, number: Any) -> Pass:
    """Copy the entry `label`, unless that is below 0, and those from `least` on to `out`.

    If there is an address of `places`, with room for `most` entries and AT_ONCE, theirs are copied
    there. Their number is added up, and 1 if they are too many. They are copied `together` where a
    register has many, one by one where most have none.
    """
    size = number(0).itemsize

    def one_pass(x, places, out, n, sums, least, most, together, label, e):
        widest_vectors()
        room, own, bound = np.int64(most) + AT_ONCE, np.int64(label), number(least)
        infinity, most = number(math.inf), min(np.int64(most), max(n - AT_ONCE, AT_ONCE))
        scores, kept = carray(pointer(x), n, number), carray(pointer(out), n, number)
        its, placed = carray(pointer(places), room, np.int32), places != 0
        into, count = carray(pointer(sums), 8, np.float64), np.int64(0)
        if own >= 0:
            kept[0], count = scores[own], np.int64(1)
            if placed:
                its[0] = own
        whole, compressed = n // AT_ONCE * AT_ONCE, registers_are_wide() and together
        for start in range(0, whole, AT_ONCE):
            if count > most:
                break
            begin = x + start * size
            if compressed and not start <= own < start + AT_ONCE:
                at = places + 4 * count if placed else 0
                count += compress(begin, bound, infinity, out + count * size, at, start)
                continue
            bits = reaching(begin, bound)
            if start <= own < start + AT_ONCE:
                bits &= ~(np.int64(1) << (own - start))
            end = count + ones(bits)
            for j in range(count, end):
                i = start + lowest(bits)
                kept[j] = scores[i]
                if placed:
                    its[j] = i
                bits &= bits - 1
            count = end
        for i in range(whole if count <= most else n, n):
            if scores[i] >= bound and i != own:
                kept[count] = scores[i]
                if placed:
                    its[count] = i
                count += 1
        into[0] += count
        into[1] += 1 if count > most else 0

    return one_pass


def spread(kind: int, number: Any) -> Pass:
    """Write `count` answers to their `places`, and 0 to all others."""

    def one_pass(own, places, out, n, sums, a, b, c, d, count):
        widest_vectors()
        few, answers = np.int64(count), carray(pointer(out), n, number)
        given, its = carray(pointer(own), few, number), carray(pointer(places), few, np.int32)
        for i in range(n):
            answers[i] = number(0)
        for j in range(few):
            answers[its[j]] = given[j]

    return one_pass


def weigh(kind: int, number: Any) -> Pass:
    """Way back, first: F′ to `out`, ΣF′, ΣF′g and ΣF′z."""

    @in_loop
    def entry(x, g, old, hi, lo, per_t, rise, rest):
        terms = weighed(kind, x, g, hi, lo, per_t, rise)
        return terms[0], terms

    return pass_of(number, entry, *[number(0)] * 3, writes=True)


def slope(kind: int, number: Any) -> Pass:
    """Way back, then: u/T with u = F′(g − mean) to `out`; Σu, Σ|u|, Σu(x − pivot)/T."""
    return _slope(number, True)


def slope_of_scores(kind: int, number: Any) -> Pass:
    """The same without the last sum, which nobody wants of a T that is one number."""
    return _slope(number, False)


def scale(kind: int, number: Any) -> Pass:
    """Multiply what is in `out`; the sum."""

    @in_loop
    def entry(x, g, u, by, lo, per_t, rise, rest):
        return u * by, (u * by,)

    return pass_of(number, entry, number(0), writes=True)


def _slope(number: Any, in_temperature: bool) -> Pass:
    def one_pass(x, g, out, n, sums, pivot, per_t, mean, alpha, rest):
        widest_vectors()
        scores, cotangent = carray(pointer(x), n, number), carray(pointer(g), n, number)
        slopes, into = carray(pointer(out), n, number), carray(pointer(sums), 8, np.float64)
        pivot_, per_t_, mean_ = number(pivot), number(per_t), number(mean)
        zero = number(0)
        for start in range(0, n, BLOCK):
            stop = start + BLOCK
            xs, gs, ws = scores[start:stop], cotangent[start:stop], slopes[start:stop]
            total, size, in_t = zero, zero, zero
            for i in range(xs.size):
                v = xs[i] if in_temperature else zero
                u, uy = sloped(v, gs[i], ws[i], pivot_, per_t_, mean_)
                ws[i] = u * per_t_
                total += u
                size += abs(u)
                in_t += uy if in_temperature else zero
            into[0] += total
            into[1] += size
            into[2] += in_t

    return one_pass


def centre(kind: int, number: Any) -> Pass:
    """Way back, where rounding left Σu ≠ 0: take F′·e/T off."""

    @in_loop
    def entry(x, g, u, hi, lo, per_t, rise, mean):
        return u - centred(kind, x, hi, lo, per_t, rise, mean) * per_t, ()

    return pass_of(number, entry, writes=True)


def close_back(kind: int, number: Any) -> Pass:
    """Way back of a row without an equation: `live` everywhere; #(+inf), and Σg over them."""

    def one_pass(x, g, out, n, sums, live, lo, per_t, alpha, rest):
        scores, cotangent = carray(pointer(x), n, number), carray(pointer(g), n, number)
        slopes, into = carray(pointer(out), n, number), carray(pointer(sums), 8, np.float64)
        live_, zero, infinity = number(live), number(0), number(math.inf)
        for i in range(n):
            slopes[i] = zero if deleted(scores[i]) else live_
            if scores[i] == infinity:
                into[0] += 1
                into[1] += cotangent[i]

    return one_pass

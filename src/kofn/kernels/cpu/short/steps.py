"""The steps to θ from the start of opening.py, and the weights there.

(Tests: test_kernels_short.py.)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.contract import (
    BOUNDED,
    CAPPED,
    EXPONENTIAL,
    LAST_CHECKED,
    LAST_DOUBLE,
    LAST_SINGLE,
    LINEAR,
    OCTAVES,
)
from kofn.kernels.cpu.rows.formulas import distance, evaluated, halley, roughly, written
from kofn.kernels.cpu.rows.frame import Pass
from kofn.kernels.cpu.rows.lanes import two_floats
from kofn.kernels.cpu.rows.layout import (
    COTANGENT,
    HAVE_ROUGH,
    KEPT,
    LANE,
    LANES,
    OF_USUAL,
    PLANES,
    SCORE,
)
from kofn.kernels.cpu.rows.search import ANCHORED
from kofn.kernels.cpu.rows.search_lanes import FEW_KINKS, MISSED_DOUBLE, MISSED_SINGLE
from kofn.kernels.cpu.runtime.intrinsics import (
    VECTORS,
    either,
    never_unroll,
    pointer,
    sums_at_once,
    vectors,
)
from kofn.kernels.cpu.runtime.vector_math import LOG2_E, exp2, inline, log, widest_vectors
from kofn.kernels.cpu.short.opening import (
    ANCHOR,
    BY,
    CAPPED_ROW,
    EVALUATIONS,
    GOING,
    HIGH,
    LOW,
    NEAR,
    OWN,
    PER_T,
    RISE,
    SOLVED,
    STATE,
    TEMPERATURE,
    K,
)

BLOCK = 16  # entries whose sums are in the precision of the scores
FEW = 4  # weights that are added in the precision of the scores: k is held against their sum
AT_FIRST, FEWEST = 2, 16  # rough evaluations, of rows of so many entries
MOST = 6  # evaluations of a row: two to four are usual
LEAST = 2.0**-80  # of ΣF′: with less, tails are next to underflow
UNSEEN = 2.0**-21
"""Temperatures between θ and the next number of the scores' type that entries may pass unseen."""


@inline
def gathered(total, rest, term):
    """Add a term to a sum, and what the sum cannot hold of it to its rest."""
    new = total + term
    return new, rest + (term - (new - total))


@inline
def parted(theta, offset):
    """θ + offset as a number of their type, and what it cannot hold (two-sum)."""
    total = theta + offset
    part = total - theta
    return total, (theta - (total - part)) + (offset - part)


@inline
def limit_of(sure, most, eps, least, tails):
    """By how much Σp may miss k after a step; where kinks may be on its way, by last digits alone.

    These take all that the sum misses, be there few entries between 0 and 1 or many.
    """
    finest = eps * (least if least > tails else tails)
    return most if sure or most < finest else finest


@inline
def excess_of(count, k, total, rest):
    """ΣF − k, of which count − k is exact near θ."""
    return ((count - k) + total) + rest


def usual(kind: int, number: Any) -> Pass:
    """θ of the open rows, and their weights, which add up to k; `usual` says of which."""
    return _by_distance(kind, number) if kind in BOUNDED else _by_prepared(kind, number)


def _by_prepared(kind: int, number: Any) -> Pass:
    """Of a link whose entries are prepared: steps of Halley's, as in `advance_all`."""
    size, octaves, softmax = number(0).itemsize, kind in OCTAVES, kind == EXPONENTIAL
    # Where F ends in a kink, a sum of few weights does not tell that one has come to it on the way.
    checked = 0.0 if kind in CAPPED else LAST_CHECKED[kind] / 8
    enough = max(LAST_SINGLE[kind], checked) if size == 4 else LAST_DOUBLE[kind]
    missed, first_by = MISSED_SINGLE if size == 4 else MISSED_DOUBLE, math.e if softmax else 1.0
    rounding = 2.0**-23 if size == 4 else 2.0**-52

    def one_pass(x, g, out, n, lanes, a, b, c, d, e):
        widest_vectors()
        zero, one, into = number(0), number(1), carray(pointer(lanes), 1, LANE)[0]
        four, eps = number(4), number(rounding)
        going, near, solved = number(GOING), number(NEAR), number(SOLVED)
        entries = carray(pointer(x), (n, PLANES, LANES), number)
        mine = carray(pointer(lanes + OWN), (len(OF_USUAL), LANES), number)
        own = carray(vectors(zero), (VECTORS, LANES), number)
        sums = carray(vectors(zero), (VECTORS, LANES), number)
        place = carray(vectors(zero), (VECTORS, LANES), number)
        row = carray(vectors(zero), (VECTORS, LANES), number)
        for r in range(LANES):
            is_one = softmax & (mine[K, r] <= one)
            row[0, r], row[1, r], row[2, r] = mine[K, r], mine[RISE, r], one if is_one else zero
            place[0, r] = one if is_one or not octaves else number(first_by)
            place[0, r] = place[0, r] if octaves else zero
            place[1, r], place[2, r], place[6, r] = zero, mine[STATE, r], zero
            place[3, r], place[4, r], place[5, r] = number(-ANCHORED), number(ANCHORED), zero
        for _ in range(MOST * MOST):
            for r in range(LANES):
                sums[0, r], sums[1, r], sums[2, r] = zero, zero, zero
                sums[3, r], sums[4, r], sums[5, r] = zero, zero, zero
            for first in range(0, n, BLOCK):
                for r in range(LANES):
                    own[0, r], own[1, r] = zero, zero
                some = entries[first : first + BLOCK]
                for i in range(some.shape[0]):
                    for r in range(LANES):
                        by = place[0, r]
                        t, above, slope, upper, bend = evaluated(
                            kind, some[i, KEPT, r], by, one / by, row[1, r]
                        )
                        own[0, r] += t
                        own[1, r] += above
                        sums[2, r] += slope
                        sums[3, r] += upper
                        sums[4, r] += bend
                for r in range(LANES):
                    # Of those above ½ it is 1 − F that was added up.
                    term = own[0, r] - (own[1, r] + own[1, r])
                    sums[0, r], sums[1, r] = gathered(sums[0, r], sums[1, r], term)
                    sums[5, r] += own[1, r]
            open_ = False
            for r in range(LANES):
                k, by, delta, state = row[0, r], place[0, r], place[1, r], place[2, r]
                excess, weight = excess_of(sums[3, r], k, sums[0, r], sums[1, r]), sums[2, r]
                _, step = halley(kind, k, number(n), excess, weight, sums[4, r])
                low, high = place[3, r], place[4, r]
                low, high = either(excess > zero, delta, low), either(excess > zero, high, delta)
                target = delta + step
                least, tails = weight if weight < k else k, sums[0, r] + (sums[5, r] + sums[5, r])
                tolerance = eps * (least if least > four * tails else four * tails)
                sure = abs(step) * weight <= tolerance
                is_near = sure | (abs(step) <= number(enough))
                held = ((low < target) & (target < high)) | is_near
                held = held & (weight > number(LEAST))
                new = by * exp2(number(LOG2_E) * step) if octaves else by + step
                if softmax:  # to k ≤ 1 no weight is cut to 1, so one sum tells θ
                    ratio = (k + excess) / k
                    sure, is_near = sure | (row[2, r] > zero), is_near | (row[2, r] > zero)
                    held = held | (row[2, r] > zero)
                    new = by * ratio if row[2, r] > zero else new
                moves = state == going
                place[5, r] += one if moves else zero
                limit = limit_of(sure, number(missed) * k, eps, least, tails)
                place[6, r] = either(moves, limit, place[6, r])
                held = held & (place[5, r] <= number(MOST))
                place[0, r] = either(moves & held, new, by)
                place[1, r] = either(moves & held, target, delta)
                place[3, r] = either(moves, low, place[3, r])
                place[4, r] = either(moves, high, place[4, r])
                state_then = (near if is_near else going) if held else zero
                state = either(moves, state_then, state)
                place[2, r] = state
                open_ |= state == going
            if not open_:
                again = 0
                for r in range(LANES):
                    sums[0, r], sums[1, r] = zero, zero
                for first in range(0, n, FEW):
                    for r in range(LANES):
                        own[0, r] = zero
                    some = entries[first : first + FEW]
                    for i in range(some.shape[0]):
                        for r in range(LANES):
                            by = place[0, r]
                            p = written(kind, some[i, KEPT, r], by, one / by, row[1, r])
                            some[i, COTANGENT, r] = p
                            own[0, r] += p
                    for r in range(LANES):
                        sums[0, r], sums[1, r] = gathered(sums[0, r], sums[1, r], own[0, r])
                for r in range(LANES):
                    k, state = row[0, r], place[2, r]
                    missing = excess_of(zero, k, sums[0, r], sums[1, r])
                    off = abs(missing) > place[6, r]
                    after = either(state == near, going if off else solved, state)
                    place[2, r] = after
                    again += 1 if after == going else 0
                if again == 0:
                    break
        for r in range(LANES):
            mine[BY, r], mine[STATE, r], mine[EVALUATIONS, r] = (
                place[0, r],
                place[2, r],
                place[5, r],
            )
        for r in range(LANES):
            by = np.float64(mine[BY, r])
            delta = (log(by) if octaves else by) - (1.0 if softmax else 0.0)
            hi, lo = two_floats(np.float64(mine[ANCHOR, r]), into.temperature[r] * delta, size)
            into.solved[r] = 1.0 if mine[STATE, r] == solved else 0.0
            into.solved_hi[r], into.solved_lo[r] = hi, lo
            into.hi[r], into.lo[r] = hi, lo
        never_unroll()
        sums_at_once()

    return one_pass


def _by_distance(kind: int, number: Any) -> Pass:
    """Of a bounded link: to where a parabola is k, which the linear link's sum is between kinks."""
    straight, size = kind == LINEAR, number(0).itemsize
    missed, enough = (MISSED_SINGLE, LAST_CHECKED[kind]) if size == 4 else (MISSED_DOUBLE, 0.0)
    has_rough = size == 4 and kind in HAVE_ROUGH

    def one_pass(x, g, out, n, lanes, a, b, c, d, e):
        widest_vectors()
        zero, one, into = number(0), number(1), carray(pointer(lanes), 1, LANE)[0]
        half, four, unseen = number(0.5), number(4), number(UNSEEN)
        beyond = number(math.inf)
        going, near, solved = number(GOING), number(NEAR), number(SOLVED)
        eps = number(2.0**-23 if size == 4 else 2.0**-52)
        rough = AT_FIRST if has_rough and n >= FEWEST else 0
        entries = carray(pointer(x), (n, PLANES, LANES), number)
        mine = carray(pointer(lanes + OWN), (len(OF_USUAL), LANES), number)
        own = carray(vectors(zero), (VECTORS, LANES), number)
        sums = carray(vectors(zero), (VECTORS, LANES), number)
        place = carray(vectors(zero), (VECTORS, LANES), number)
        row = carray(vectors(zero), (VECTORS, LANES), number)
        for r in range(LANES):
            row[0, r], row[1, r] = mine[PER_T, r], mine[RISE, r]
            row[2, r], row[3, r] = mine[TEMPERATURE, r], mine[K, r]
            row[4, r], row[5, r] = number(n) - mine[K, r], zero
            place[0, r], place[1, r], place[2, r] = mine[ANCHOR, r], mine[LOW, r], mine[HIGH, r]
            place[3, r], place[4, r], place[5, r] = mine[STATE, r], mine[CAPPED_ROW, r], zero
        for round_ in range(MOST * MOST):
            for r in range(LANES):
                sums[0, r], sums[1, r], sums[2, r] = zero, zero, zero
                sums[3, r], sums[4, r], sums[5, r] = zero, zero, zero
            for first in range(0, n, BLOCK):
                for r in range(LANES):
                    own[0, r], own[1, r] = zero, zero
                some = entries[first : first + BLOCK]
                for i in range(some.shape[0] if round_ < rough else 0):
                    for r in range(LANES):
                        z = (some[i, SCORE, r] - place[0, r]) * row[0, r]
                        p, slope, bend = roughly(kind, z)
                        own[0, r] += p
                        sums[2, r] += slope
                        sums[4, r] += bend
                for i in range(0 if round_ < rough else some.shape[0]):
                    for r in range(LANES):
                        z = (some[i, SCORE, r] - place[0, r]) * row[0, r]
                        t, above, slope, upper, bend = evaluated(kind, z, zero, zero, row[1, r])
                        own[0, r] += t
                        own[1, r] += above
                        sums[2, r] += slope
                        sums[4, r] += bend
                        sums[5, r] += upper
                for r in range(LANES):
                    # Of those above ½ it is 1 − F that was added up.
                    term = own[0, r] - (own[1, r] + own[1, r])
                    sums[0, r], sums[1, r] = gathered(sums[0, r], sums[1, r], term)
                    sums[3, r] += own[1, r]
            open_, exact = False, one if round_ >= rough else zero
            # Of a rough sum, rounding may have the sign, and shut θ out of the bracket.
            from_, up_to = (zero, zero) if round_ >= rough else (beyond, -beyond)
            for r in range(LANES):
                k, theta, above, state = row[3, r], place[0, r], sums[3, r], place[3, r]
                excess = excess_of(sums[5, r], k, sums[0, r], sums[1, r])
                below, weight = sums[0, r] + above, sums[2, r] + place[4, r]
                low = either(excess > from_, theta, place[1, r])
                high = either(excess <= up_to, theta, place[2, r])
                divisor = weight
                if not straight:  # to where a parabola is k
                    square = weight * weight - (sums[4, r] + sums[4, r]) * excess
                    divisor = half * (weight + math.sqrt(square if square > zero else zero))
                step = excess / divisor if excess != zero else zero
                target = theta + row[2, r] * step
                still = target == theta
                held = ((low < target) & (target < high)) | still
                target = target if held else half * (low + high)
                # `most_change` of search.py, and the tolerance of `advance_all`.
                enter = straight & (excess < zero) & (below == zero)
                most = row[4, r] if enter & (row[4, r] > weight) else weight
                least, tails = weight if weight < k else k, four * (below + above)
                tolerance = eps * (least if least > tails else tails)
                far = abs(step)
                change = far * most
                sure = (change <= tolerance) | (still & (far <= unseen))
                soft = (above > zero) | (sums[5, r] != k)
                few_kinks = (change <= number(FEW_KINKS)) & (far * sums[4, r] <= number(FEW_KINKS))
                is_near = (
                    (sure | ((far <= number(enough)) & soft & few_kinks)) & held & (exact > zero)
                )
                right = (soft & (weight > zero)) | ((excess == zero) & (sums[2, r] == zero))
                moves = state == going
                row[5, r] += exact if moves else zero
                state_then = going if row[5, r] <= number(MOST) else zero
                state_then = (near if right else zero) if is_near else state_then
                stays = (exact > zero) & (target == theta)
                state_then = zero if stays & (not is_near) else state_then
                go = moves & (not is_near)
                # Near θ, what is left of a step is not rounded to a number of the scores' type.
                place[5, r] = either(moves, step if is_near else zero, place[5, r])
                limit = limit_of(sure, number(missed) * k, eps, least, below + above)
                row[6, r] = either(moves, limit, row[6, r])
                place[0, r] = either(go, target, theta)
                place[1, r] = either(moves, low, place[1, r])
                place[2, r] = either(moves, high, place[2, r])
                place[4, r] = either(go, zero, place[4, r])
                state = either(moves, state_then, state)
                place[3, r] = state
                open_ |= state == going
            if not open_:
                again = 0
                for r in range(LANES):
                    place[6, r], place[7, r] = parted(place[0, r], row[2, r] * place[5, r])
                    sums[0, r], sums[1, r] = zero, zero
                for first in range(0, n, FEW):
                    for r in range(LANES):
                        own[0, r] = zero
                    some = entries[first : first + FEW]
                    for i in range(some.shape[0]):
                        for r in range(LANES):
                            v = some[i, SCORE, r]
                            z = distance(v, place[6, r], place[7, r], row[0, r])
                            p = written(kind, z, zero, zero, row[1, r])
                            some[i, COTANGENT, r] = p
                            own[0, r] += p
                    for r in range(LANES):
                        sums[0, r], sums[1, r] = gathered(sums[0, r], sums[1, r], own[0, r])
                for r in range(LANES):
                    k, state, theta, moved = row[3, r], place[3, r], place[0, r], place[6, r]
                    missing = excess_of(zero, k, sums[0, r], sums[1, r])
                    off = abs(missing) > row[6, r]
                    after = either(state == near, going if off else solved, state)
                    place[0, r], place[3, r] = either(after == going, moved, theta), after
                    again += 1 if after == going else 0
                if again == 0:
                    break
        for r in range(LANES):
            mine[ANCHOR, r], mine[BY, r], mine[STATE, r] = place[6, r], place[7, r], place[3, r]
            mine[EVALUATIONS, r] = row[5, r]
        for r in range(LANES):
            into.solved[r] = 1.0 if mine[STATE, r] == solved else 0.0
            into.solved_hi[r], into.solved_lo[r] = mine[ANCHOR, r], mine[BY, r]
            into.hi[r], into.lo[r] = mine[ANCHOR, r], mine[BY, r]
        never_unroll()
        sums_at_once()

    return one_pass

"""One visit to a row, or to a part of one: the only loops over entries there are.

Each function here makes, for a link's `kind` and a `number` (np.float32 or np.float64), one Python
function of the signature `native.VISIT`, which launch.py compiles and search.py and worker.py
call by address: (x, g, out, n, sums, a, b, c, d, e) with the scores, the cotangents and the memory
of the answer, n entries each, and up to five numbers. What is added up goes to `sums`: within a
block in the precision of the scores, from block to block in float64. The sum of the weights alone
is that of float64, up to two roundings: k is held against it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.contract import BOUNDED
from kofn.kernels.cpu.rows.formulas import (
    centred,
    deleted,
    distance,
    evaluated,
    integral,
    prepare,
    sloped,
    unit,
    weighed,
    written,
)
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.vector_math import added, ordered, unordered, widest_vectors

BLOCK = 512

Visit = Callable[..., None]

OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz"}}
"""Sums may be taken in any order, so that they become vectors."""


def survey(kind: int, number: Any) -> Visit:
    """Σd and Σd² with d = x − a. Neither is finite where the row holds ±inf or NaN."""

    def visit(x, g, out, n, sums, pivot, b, c, d, e):
        widest_vectors()
        scores, into = carray(pointer(x), n, number), carray(pointer(sums), 8, np.float64)
        pivot_, zero = number(pivot), number(0)
        for start in range(0, n, BLOCK):
            block = scores[start : start + BLOCK]
            total, squares = zero, zero
            for i in range(block.size):
                away = block[i] - pivot_
                total += away
                squares += away * away
            into[0] += total
            into[1] += squares

    return visit


def census(kind: int, number: Any) -> Visit:
    """Least, greatest, #in play, #(+inf), #NaN, and #, Σd, Σd² of those with |d| < b, d = x − a."""
    infinity = number(math.inf)

    def visit(x, g, out, n, sums, pivot, most, c, d, e):
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
                away = v - pivot_
                near = abs(away) < most_
                away = away if near else zero
                usual += one if near else zero
                total += away
                squares += away * away
            into[2] += live
            into[3] += top
            into[4] += bad
            into[5] += usual
            into[6] += total
            into[7] += squares
        into[0], into[1] = unordered(least, pivot_), unordered(greatest, pivot_)

    return visit


def peak(kind: int, number: Any) -> Visit:
    """0, the greatest score in play, how many those are, #(+inf or NaN)."""
    infinity = number(math.inf)

    def visit(x, g, out, n, sums, a, b, c, d, e):
        widest_vectors()
        scores, into = carray(pointer(x), n, number), carray(pointer(sums), 8, np.float64)
        zero, one = number(0), number(1)
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

    return visit


def surveyed_peak(kind: int, number: Any) -> Visit:
    """0, the greatest score, Σd and Σd² with d = x − a: of a row whose survey is finite."""

    def visit(x, g, out, n, sums, pivot, b, c, d, e):
        widest_vectors()
        scores, into = carray(pointer(x), n, number), carray(pointer(sums), 8, np.float64)
        pivot_, zero = number(pivot), number(0)
        greatest = ordered(number(-math.inf))
        for start in range(0, n, BLOCK):
            block = scores[start : start + BLOCK]
            total, squares = zero, zero
            for i in range(block.size):
                greatest = max(greatest, ordered(block[i]))
                away = block[i] - pivot_
                total += away
                squares += away * away
            into[2] += total
            into[3] += squares
        into[1] = unordered(greatest, zero)

    return visit


def first_evaluation(kind: int, number: Any) -> Visit:
    """Prepare each entry for the anchor a and a unit of T = 1/b; then what `evaluate` does."""
    return _evaluate(kind, number, kind not in BOUNDED)


def evaluate(kind: int, number: Any) -> Visit:
    """Σ of the smaller tails, and of those above ½, ΣF′, #{F > ½}, ΣF″; c is `moved(δ)`.

    A bounded link has nothing prepared: θ = a + c there.
    """
    return _evaluate(kind, number, False)


def _evaluate(kind: int, number: Any, fresh: bool) -> Visit:
    afresh = kind in BOUNDED

    def visit(x, g, out, n, sums, anchor, per_t, by, alpha, e):
        widest_vectors()
        scores, kept = carray(pointer(x), n, number), carray(pointer(out), n, number)
        into = carray(pointer(sums), 8, np.float64)
        anchor_, per_t_ = number(anchor), number(per_t)
        scale = number(unit(kind, per_t))
        by_, rise_, zero, one = number(by), number(alpha - 1), number(0), number(1)
        inverse = one / by_
        for start in range(0, n, BLOCK):
            block, keep = scores[start : start + BLOCK], kept[start : start + BLOCK]
            tails, above, weight, count, slope = zero, zero, zero, zero, zero
            for i in range(block.size):
                if afresh:
                    a = distance(block[i], anchor_, by_, per_t_)
                elif fresh:
                    a = prepare(kind, (block[i] - anchor_) * scale)
                    keep[i] = a
                else:
                    a = keep[i]
                t, t_above, first, upper, second = evaluated(kind, a, by_, inverse, rise_)
                tails += t
                above += t_above
                weight += first
                count += upper
                slope += second
            into[0] += tails
            into[1] += above
            into[2] += weight
            into[3] += count
            into[4] += slope

    return visit


def write(kind: int, number: Any) -> Visit:
    """F of each entry, of what was prepared in its place, and ΣF; θ as for `evaluate`."""
    afresh, single = kind in BOUNDED, number is np.float32

    def visit(x, g, out, n, sums, anchor, per_t, by, alpha, e):
        widest_vectors()
        scores, kept = carray(pointer(x), n, number), carray(pointer(out), n, number)
        into = carray(pointer(sums), 8, np.float64)
        anchor_, per_t_ = number(anchor), number(per_t)
        by_, rise_, zero, one = number(by), number(alpha - 1), number(0), number(1)
        inverse = one / by_
        for start in range(0, n, BLOCK):
            block, keep = scores[start : start + BLOCK], kept[start : start + BLOCK]
            total = zero
            for i in range(block.size):
                a = distance(block[i], anchor_, by_, per_t_) if afresh else keep[i]
                p = written(kind, a, by_, inverse, rise_)
                keep[i] = p
                if not single:
                    total += p
            into[0] += added(keep) if single else total

    return visit


def mend(kind: int, number: Any) -> Visit:
    """F′·`rest` more of each weight, which stays in [0, 1]; their sum."""

    def visit(x, g, out, n, sums, hi, lo, per_t, alpha, rest):
        widest_vectors()
        scores, kept = carray(pointer(x), n, number), carray(pointer(out), n, number)
        into = carray(pointer(sums), 8, np.float64)
        hi_, lo_, per_t_, rise_ = number(hi), number(lo), number(per_t), number(alpha - 1)
        rest_, zero, one = number(rest), number(0), number(1)
        for start in range(0, n, BLOCK):
            xs, keep = scores[start : start + BLOCK], kept[start : start + BLOCK]
            for i in range(xs.size):
                p = keep[i] + centred(kind, xs[i], hi_, lo_, per_t_, rise_, rest_)
                keep[i] = min(max(p, zero), one)
            into[0] += added(keep)

    return visit


def close(kind: int, number: Any) -> Visit:
    """A row that needs no equation: each finite (or NaN) score gets a, each of +inf gets b."""

    def visit(x, g, out, n, sums, live, top, c, d, e):
        scores, weights = carray(pointer(x), n, number), carray(pointer(out), n, number)
        live_, top_, zero, infinity = number(live), number(top), number(0), number(math.inf)
        for i in range(n):
            v = scores[i]
            weights[i] = top_ if v == infinity else (zero if deleted(v) else live_)

    return visit


def weigh(kind: int, number: Any) -> Visit:
    """Way back, first: F′ to `out`, ΣF′, ΣF′g and ΣF′z."""

    def visit(x, g, out, n, sums, hi, lo, per_t, alpha, e):
        widest_vectors()
        scores, cotangent = carray(pointer(x), n, number), carray(pointer(g), n, number)
        densities, into = carray(pointer(out), n, number), carray(pointer(sums), 8, np.float64)
        hi_, lo_, per_t_, rise_ = number(hi), number(lo), number(per_t), number(alpha - 1)
        zero = number(0)
        for start in range(0, n, BLOCK):
            stop = start + BLOCK
            xs, gs, ws = scores[start:stop], cotangent[start:stop], densities[start:stop]
            weight, product, moment = zero, zero, zero
            for i in range(xs.size):
                w, wg, wz = weighed(kind, xs[i], gs[i], hi_, lo_, per_t_, rise_)
                ws[i] = w
                weight += w
                product += wg
                moment += wz
            into[0] += weight
            into[1] += product
            into[2] += moment

    return visit


def slope(kind: int, number: Any) -> Visit:
    """Way back, then: u/T with u = F′(g − d) to `out`; Σu, Σ|u|, Σu(x − pivot)/T."""
    return _slope(number, True)


def slope_of_scores(kind: int, number: Any) -> Visit:
    """The same without the last sum, which nobody wants of a T that is one number."""
    return _slope(number, False)


def _slope(number: Any, in_temperature: bool) -> Visit:
    def visit(x, g, out, n, sums, pivot, per_t, mean, d, e):
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

    return visit


def centre(kind: int, number: Any) -> Visit:
    """Way back, where rounding left Σu ≠ 0: take F′·e/T off."""

    def visit(x, g, out, n, sums, hi, lo, per_t, alpha, mean):
        widest_vectors()
        scores, slopes = carray(pointer(x), n, number), carray(pointer(out), n, number)
        hi_, lo_, per_t_, rise_ = number(hi), number(lo), number(per_t), number(alpha - 1)
        mean_ = number(mean)
        for start in range(0, n, BLOCK):
            xs, us = scores[start : start + BLOCK], slopes[start : start + BLOCK]
            for i in range(xs.size):
                us[i] -= centred(kind, xs[i], hi_, lo_, per_t_, rise_, mean_) * per_t_

    return visit


def integrate(kind: int, number: Any) -> Visit:
    """Σ of G less max(z, 0) far up, #far up and the Σ of their scores, Σ(G − zF)."""
    infinity = number(math.inf)

    def visit(x, g, out, n, sums, hi, lo, per_t, alpha, e):
        widest_vectors()
        scores, into = carray(pointer(x), n, number), carray(pointer(sums), 8, np.float64)
        hi_, lo_, per_t_, rise_ = number(hi), number(lo), number(per_t), number(alpha - 1)
        zero, one = number(0), number(1)
        for start in range(0, n, BLOCK):
            block = scores[start : start + BLOCK]
            rest, count, above, entropy = zero, zero, zero, zero
            for i in range(block.size):
                v = block[i]
                z = distance(v, hi_, lo_, per_t_)
                playing = not deleted(v)
                finite = abs(z) < infinity and playing
                part, is_up, change = integral(kind, z if finite else zero, rise_)
                up = is_up if finite else z > zero and playing
                rest += part if finite else zero
                count += one if up else zero
                above += v if up else zero
                entropy += change if finite else zero
            into[0] += rest
            into[1] += count
            into[2] += above
            into[3] += entropy

    return visit


def total(kind: int, number: Any) -> Visit:
    """The sum of the scores in play, #(+inf)."""
    infinity = number(math.inf)

    def visit(x, g, out, n, sums, a, b, c, d, e):
        scores, into = carray(pointer(x), n, number), carray(pointer(sums), 8, np.float64)
        for i in range(n):
            v = scores[i]
            into[0] += np.float64(v) if abs(v) < infinity and not deleted(v) else 0.0
            into[1] += 1.0 if v == infinity else 0.0

    return visit


def close_back(kind: int, number: Any) -> Visit:
    """Way back of a row without an equation: a everywhere; #(+inf) and the Σg of those."""

    def visit(x, g, out, n, sums, live, b, c, d, e):
        scores, cotangent = carray(pointer(x), n, number), carray(pointer(g), n, number)
        slopes, into = carray(pointer(out), n, number), carray(pointer(sums), 8, np.float64)
        live_, zero, infinity = number(live), number(0), number(math.inf)
        for i in range(n):
            slopes[i] = zero if deleted(scores[i]) else live_
            if scores[i] == infinity:
                into[0] += 1
                into[1] += cotangent[i]

    return visit

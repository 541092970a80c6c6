"""One visit to a row for a loss, as in loops.py: `out` holds the weights before it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.contract import LOGISTIC
from kofn.kernels.cpu.rows.formulas import deleted, edge, prepare, unit, written
from kofn.kernels.cpu.rows.loops import BLOCK, Visit
from kofn.kernels.cpu.rows.loss_formulas import compared
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.vector_math import added, quotient, widest_vectors


def gap(kind: int, number: Any) -> Visit:
    """Σ of the terms of a Fenchel–Young loss, #soft, Σw, Σwz; p − t over the weights p.

    g holds the target t, of zeros and ones; other entries are soft, and lack their Ω here.
    """

    def visit(x, g, out, n, sums, hi, lo, per_t, alpha, e):
        widest_vectors()
        scores, targets = carray(pointer(x), n, number), carray(pointer(g), n, number)
        weights, into = carray(pointer(out), n, number), carray(pointer(sums), 8, np.float64)
        hi_, lo_, per_t_, rise_ = number(hi), number(lo), number(per_t), number(alpha - 1)
        edge_, zero, one = number(edge(kind, alpha)), number(0), number(1)
        for start in range(0, n, BLOCK):
            stop = start + BLOCK
            xs, ts, ps = scores[start:stop], targets[start:stop], weights[start:stop]
            total, soft, weight, moment = zero, zero, zero, zero
            for i in range(xs.size):
                t = ts[i]
                term, away, w, wz = compared(
                    kind, xs[i], t, ps[i], hi_, lo_, per_t_, rise_, edge_, False
                )
                ps[i] = away
                total += term
                soft += zero if t == zero else (zero if t == one else one)
                weight += w
                moment += wz
            into[0] += total
            into[1] += soft
            into[2] += weight
            into[3] += moment

    return visit


def soft_gap(kind: int, number: Any) -> Visit:
    """The sum of the terms, with Ω of a soft target, where `out` holds p − t."""

    def visit(x, g, out, n, sums, hi, lo, per_t, alpha, e):
        widest_vectors()
        scores, targets = carray(pointer(x), n, number), carray(pointer(g), n, number)
        aways, into = carray(pointer(out), n, number), carray(pointer(sums), 8, np.float64)
        hi_, lo_, per_t_, rise_ = number(hi), number(lo), number(per_t), number(alpha - 1)
        edge_, zero = number(edge(kind, alpha)), number(0)
        for start in range(0, n, BLOCK):
            stop = start + BLOCK
            xs, ts, ds = scores[start:stop], targets[start:stop], aways[start:stop]
            total = zero
            for i in range(xs.size):
                total += compared(
                    kind, xs[i], ts[i], ds[i] + ts[i], hi_, lo_, per_t_, rise_, edge_, True
                )[0]
            into[0] += total

    return visit


def closely(kind: int, number: Any) -> Visit:
    """F of each entry to `out`, from its distance to a and `moved(δ)`, θ = a + Tδ; ΣF, ΣF(1 − F).

    No digits of e^z are lost to a far greater number that it is added to.
    """

    def visit(x, g, out, n, sums, base, per_t, by, alpha, e):
        widest_vectors()
        scores, weights = carray(pointer(x), n, number), carray(pointer(out), n, number)
        into = carray(pointer(sums), 8, np.float64)
        base_, scale, by_ = number(base), number(unit(kind, per_t)), number(by)
        rise_, zero, one = number(alpha - 1), number(0), number(1)
        inverse = one / by_
        for start in range(0, n, BLOCK):
            xs, ps = scores[start : start + BLOCK], weights[start : start + BLOCK]
            weight = zero
            for i in range(xs.size):
                y = (xs[i] - base_) * scale
                if kind == LOGISTIC:
                    p = quotient(one, one + by_ * prepare(kind, -y))
                    p = zero if deleted(xs[i]) else p
                else:
                    p = written(kind, prepare(kind, y), by_, inverse, rise_)
                ps[i] = p
                weight += p * (one - p)
            into[0] += added(ps)
            into[1] += weight

    return visit


def lever(kind: int, number: Any) -> Visit:
    """Σu(x − pivot)/T of cotangents u in `out`."""

    def visit(x, g, out, n, sums, pivot, per_t, c, d, e):
        widest_vectors()
        scores, cotangents = carray(pointer(x), n, number), carray(pointer(out), n, number)
        into = carray(pointer(sums), 8, np.float64)
        pivot_, per_t_, zero = number(pivot), number(per_t), number(0)
        for start in range(0, n, BLOCK):
            stop = start + BLOCK
            xs, us, total = scores[start:stop], cotangents[start:stop], zero
            for i in range(xs.size):
                u = us[i]
                total += u * ((xs[i] - pivot_) * per_t_) if u != zero else zero
            into[0] += total

    return visit


def tally(kind: int, number: Any) -> Visit:
    """Σg of a target."""

    def visit(x, g, out, n, sums, a, b, c, d, e):
        widest_vectors()
        targets, into = carray(pointer(g), n, number), carray(pointer(sums), 8, np.float64)
        for start in range(0, n, BLOCK):
            ts, total = targets[start : start + BLOCK], number(0)
            for i in range(ts.size):
                total += ts[i]
            into[0] += total

    return visit


def from_bytes(kind: int, number: Any) -> Visit:
    """A target of bytes as numbers to g, and their sum; those from the address b on belong to g.

    A float64 holds an address exactly.
    """
    size = number(0).itemsize

    def visit(x, g, out, n, sums, first, source, c, d, e):
        widest_vectors()
        at = np.int64(source) + (g - np.int64(first)) // size
        marks, targets = carray(pointer(at), n, np.uint8), carray(pointer(g), n, number)
        into = carray(pointer(sums), 8, np.float64)
        for start in range(0, n, BLOCK):
            ms, ts = marks[start : start + BLOCK], targets[start : start + BLOCK]
            total = np.int32(0)
            for i in range(ms.size):
                ts[i] = ms[i]
                total += np.int32(ms[i])
            into[0] += total

    return visit


def label_gap(kind: int, number: Any) -> Visit:
    """What `gap` does for a target of one 1, at the score whose address is `label`.

    A float64 holds an address exactly. The loops around the label know its target as a constant.
    """
    size = number(0).itemsize

    def visit(x, g, out, n, sums, hi, lo, per_t, alpha, label):
        widest_vectors()
        scores, into = carray(pointer(x), n, number), carray(pointer(sums), 8, np.float64)
        weights = carray(pointer(out), n, number)
        hi_, lo_, per_t_, rise_ = number(hi), number(lo), number(per_t), number(alpha - 1)
        edge_, zero, one = number(edge(kind, alpha)), number(0), number(1)
        at = (np.int64(label) - x) // size
        start = 0
        while start < n:
            stop, t = min(start + BLOCK, n), zero
            if start < at < stop:
                stop = at
            if start == at:
                stop, t = at + 1, one
            xs, ps = scores[start:stop], weights[start:stop]
            total, weight, moment = zero, zero, zero
            for i in range(xs.size):
                term, away, w, wz = compared(
                    kind, xs[i], t, ps[i], hi_, lo_, per_t_, rise_, edge_, False
                )
                ps[i] = away
                total += term
                weight += w
                moment += wz
            into[0] += total
            into[2] += weight
            into[3] += moment
            start = stop

    return visit

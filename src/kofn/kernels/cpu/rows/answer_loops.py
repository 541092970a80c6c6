"""One pass over a row for a loss or for logarithms of its weights, as in loops.py.

For a loss `out` holds the weights before it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.contract import LOGISTIC
from kofn.kernels.cpu.rows.answer_formulas import compared, log_weighed, logged
from kofn.kernels.cpu.rows.formulas import deleted, distance, edge, prepare, tail, written
from kofn.kernels.cpu.rows.frame import BLOCK, Pass, in_loop, pass_of
from kofn.kernels.cpu.rows.loops import moves_of
from kofn.kernels.cpu.runtime.intrinsics import add_to, block, plus, pointer
from kofn.kernels.cpu.runtime.vector_math import (
    added,
    log_but,
    quotient,
    where_positive,
    widest_vectors,
)


def loss(kind: int, number: Any) -> Pass:
    """Σ of the terms of a Fenchel–Young loss, #soft, Σw, Σwz; p − t over the weights p.

    g holds the target t, of zeros and ones; other entries are soft, and lack their Ω here.
    """
    zero, one = number(0), number(1)

    @in_loop
    def entry(x, t, p, hi, lo, per_t, rise, edge_):
        term, residual, w, wz = compared(kind, x, t, p, hi, lo, per_t, rise, edge_, False)
        soft = zero if t == zero else (zero if t == one else one)
        return residual, (term, soft, w, wz)

    return pass_of(number, entry, *[zero] * 4, writes=True, numbers=_with_edge(kind, number))


def written_loss(kind: int, number: Any) -> Pass:
    """Do as `write` and then `loss` do of a row of finite scores in play, by what was prepared.

    Σ(p − t), Σ of the terms, #soft, Σw, Σwz, Σ(p − t)(x − pivot)/T. Of eight terms one logarithm
    is taken: G, less z above θ, is −log(1 − tail).
    """
    return _written_loss(kind, number, False, True)


def written_label_loss(kind: int, number: Any) -> Pass:
    """The same for a target of one 1, at the score that is the pivot, given by its address."""
    return _written_loss(kind, number, True, True)


def written_cost(kind: int, number: Any) -> Pass:
    """Do as `written_loss` does, without the last three sums, which are for a T per row."""
    return _written_loss(kind, number, False, False)


def written_label_cost(kind: int, number: Any) -> Pass:
    """The same for a target of one 1."""
    return _written_loss(kind, number, True, False)


def _written_loss(kind: int, number: Any, labelled: bool, in_temperature: bool) -> Pass:
    size = number(0).itemsize

    @in_loop
    def entry(x, t, kept, hi, lo, per_t, by, inverse, pivot):
        zero, one, z = number(0), number(1), distance(x, hi, lo, per_t)
        tail_, upper, w, _ = tail(kind, kept, by, inverse, by)
        residual = (one - tail_ if upper else tail_) - t
        soft = zero if labelled | (t == zero) | (t == one) else one
        missed = (one - t if upper else -t) * z
        if not in_temperature:
            return tail_, residual, (missed, soft, zero, zero, zero)
        return tail_, residual, (missed, soft, w, w * z, residual * ((x - pivot) * per_t))

    def one_pass(x, g, out, n, sums, hi, lo, per_t, by, pivot):
        widest_vectors()
        scores, targets = carray(pointer(x), n, number), carray(pointer(g), n, number)
        answers, zero, one = carray(pointer(out), n, number), number(0), number(1)
        each = carray(pointer(block(zero)), BLOCK, number)
        by_, apart, pivot_, own = number(by), BLOCK // 8, number(pivot), np.int64(-1)
        if labelled:
            pivot_ = carray(pointer(np.int64(pivot)), 1, number)[0]
            own = (np.int64(pivot) - x) // size
        at = number(hi), number(lo), number(per_t), by_, one / by_, pivot_
        for start in range(0, n, BLOCK):
            stop = start + BLOCK
            xs, ts, ps = scores[start:stop], targets[start:stop], answers[start:stop]
            totals = zero, zero, zero, zero, zero
            for i in range(xs.size):
                tail_, residual, terms = entry(xs[i], zero if labelled else ts[i], ps[i], *at)
                each[i], ps[i], totals = tail_, residual, plus(totals, terms)
            if start <= own < stop:  # its distance from the pivot is 0
                ps[own - start] -= one
                totals = plus(totals, (-distance(pivot_, *at[:3]), zero, zero, zero, zero))
            for i in range(xs.size, BLOCK):
                each[i] = zero
            logs = zero
            for i in range(apart):
                within, rest = each[i], one - each[i]
                for j in range(1, 8):
                    tail_ = each[i + j * apart]
                    within += tail_ * (one - within)
                    rest *= one - tail_
                logs -= log_but(within, rest)
            loss_ = np.float64(totals[0]) + np.float64(logs)
            add_to(sums, (added(ps), loss_, *totals[1:]))

    return one_pass


def soft_loss(kind: int, number: Any) -> Pass:
    """The sum of the terms, with Ω of a soft target, where `out` holds p − t."""

    @in_loop
    def entry(x, t, residual, hi, lo, per_t, rise, edge_):
        return residual, compared(kind, x, t, residual + t, hi, lo, per_t, rise, edge_, True)[:1]

    return pass_of(number, entry, number(0), numbers=_with_edge(kind, number))


def _with_edge(kind: int, number: Any) -> Any:
    @in_loop
    def numbers(hi, lo, per_t, alpha, rest):
        end = number(edge(kind, alpha))
        return number(hi), number(lo), number(per_t), number(alpha - 1), end

    return numbers


def closely(kind: int, number: Any) -> Pass:
    """Write F of each entry, from its distance to `base` and `shifted(δ)`, θ = base + Tδ; ΣF,
    ΣF(1 − F).

    No digits of e^z are lost to a far greater number that it is added to.
    """
    zero, one = number(0), number(1)

    @in_loop
    def entry(x, g, old, base, per_t, scale, by, inverse, rise):
        y = (x - base) * scale
        if kind == LOGISTIC:
            p = quotient(one, one + by * prepare(kind, -y))
            p = zero if deleted(x) else p
        else:
            p = written(kind, prepare(kind, y), by, inverse, rise)
        return p, (p, p * (one - p))

    moves = moves_of(kind, number)
    return pass_of(number, entry, zero, zero, writes=True, weights=True, numbers=moves)


def lever(kind: int, number: Any) -> Pass:
    """Σu(x − pivot)/T of cotangents u in `out`."""

    def one_pass(x, g, out, n, sums, pivot, per_t, mean, alpha, rest):
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

    return one_pass


def tally(kind: int, number: Any) -> Pass:
    """Σg of a target."""

    @in_loop
    def entry(x, t, old, hi, lo, per_t, rise, rest):
        return old, (t,)

    return pass_of(number, entry, number(0))


def from_bytes(kind: int, number: Any) -> Pass:
    """Write a target of bytes as numbers to g, and add them up; the bytes at `source` belong to
    the numbers at `first`.

    A float64 holds an address exactly.
    """
    size = number(0).itemsize

    def one_pass(x, g, out, n, sums, first, source, per_t, alpha, rest):
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

    return one_pass


def label_loss(kind: int, number: Any) -> Pass:
    """Do as `loss` does for a target of one 1, at the score whose address is `label`.

    A float64 holds an address exactly. The loops around the label know its target as a constant.
    """
    size = number(0).itemsize

    def one_pass(x, g, out, n, sums, hi, lo, per_t, alpha, label):
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
                term, residual, w, wz = compared(
                    kind, xs[i], t, ps[i], hi_, lo_, per_t_, rise_, edge_, False
                )
                ps[i] = residual
                total += term
                weight += w
                moment += wz
            into[0] += total
            into[2] += weight
            into[3] += moment
            start = stop

    return one_pass


def logs(kind: int, number: Any) -> Pass:
    """Write log F."""

    def one_pass(x, g, out, n, sums, hi, lo, per_t, alpha, rest):
        widest_vectors()
        scores, answers = carray(pointer(x), n, number), carray(pointer(out), n, number)
        hi_, lo_, per_t_, rise_ = number(hi), number(lo), number(per_t), number(alpha - 1)
        for i in range(n):
            answers[i] = logged(kind, scores[i], hi_, lo_, per_t_, rise_)

    return one_pass


def logs_of_weights(kind: int, number: Any) -> Pass:
    """Write log p over the weights p of a row without an equation: these are exact."""

    def one_pass(x, g, out, n, sums, hi, lo, per_t, alpha, rest):
        weights = carray(pointer(out), n, number)
        for i in range(n):
            weights[i] = math.log(np.float64(weights[i]))

    return one_pass


def log_weigh(kind: int, number: Any) -> Pass:
    """Way back, first: ΣF′, Σv with v = g·F′/F, and ΣF′z."""

    @in_loop
    def entry(x, g, old, hi, lo, per_t, rise, rest):
        v, w, z = log_weighed(kind, x, g, hi, lo, per_t, rise)
        return old, (w, v, where_positive(w, w * z))

    return pass_of(number, entry, *[number(0)] * 3)


def log_slope(kind: int, number: Any) -> Pass:
    """Way back, then: u/T with u = v − F′·mean to `out`."""

    def one_pass(x, g, out, n, sums, hi, lo, per_t, alpha, mean):
        widest_vectors()
        scores, cotangent = carray(pointer(x), n, number), carray(pointer(g), n, number)
        slopes, mean_ = carray(pointer(out), n, number), number(mean)
        hi_, lo_, per_t_, rise_ = number(hi), number(lo), number(per_t), number(alpha - 1)
        for i in range(n):
            v, w, _ = log_weighed(kind, scores[i], cotangent[i], hi_, lo_, per_t_, rise_)
            slopes[i] = (v - w * mean_) * per_t_

    return one_pass

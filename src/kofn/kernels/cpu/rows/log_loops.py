"""One visit to a row for logarithms of its weights, as in loops.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.rows.log_formulas import log_weighed, logged
from kofn.kernels.cpu.rows.loops import BLOCK, Visit
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.vector_math import where_positive, widest_vectors


def logs(kind: int, number: Any) -> Visit:
    """Write log F."""

    def visit(x, g, out, n, sums, hi, lo, per_t, alpha, e):
        widest_vectors()
        scores, answers = carray(pointer(x), n, number), carray(pointer(out), n, number)
        hi_, lo_, per_t_, rise_ = number(hi), number(lo), number(per_t), number(alpha - 1)
        for i in range(n):
            answers[i] = logged(kind, scores[i], hi_, lo_, per_t_, rise_)

    return visit


def log_weigh(kind: int, number: Any) -> Visit:
    """Way back, first: ΣF′, Σv with v = g·F′/F, and ΣF′z."""

    def visit(x, g, out, n, sums, hi, lo, per_t, alpha, e):
        widest_vectors()
        scores, cotangent = carray(pointer(x), n, number), carray(pointer(g), n, number)
        into, zero = carray(pointer(sums), 8, np.float64), number(0)
        hi_, lo_, per_t_, rise_ = number(hi), number(lo), number(per_t), number(alpha - 1)
        for start in range(0, n, BLOCK):
            xs, gs = scores[start : start + BLOCK], cotangent[start : start + BLOCK]
            weight, product, moment = zero, zero, zero
            for i in range(xs.size):
                v, w, z = log_weighed(kind, xs[i], gs[i], hi_, lo_, per_t_, rise_)
                weight += w
                product += v
                moment += where_positive(w, w * z)
            into[0] += weight
            into[1] += product
            into[2] += moment

    return visit


def log_slope(kind: int, number: Any) -> Visit:
    """Way back, then: u/T with u = v − F′·mean to `out`."""

    def visit(x, g, out, n, sums, hi, lo, per_t, alpha, mean):
        widest_vectors()
        scores, cotangent = carray(pointer(x), n, number), carray(pointer(g), n, number)
        slopes, mean_ = carray(pointer(out), n, number), number(mean)
        hi_, lo_, per_t_, rise_ = number(hi), number(lo), number(per_t), number(alpha - 1)
        for i in range(n):
            v, w, _ = log_weighed(kind, scores[i], cotangent[i], hi_, lo_, per_t_, rise_)
            slopes[i] = (v - w * mean_) * per_t_

    return visit

"""One pass over a row for the cotangent of α, as in loops.py, and its formulas per entry.

∂F/∂α needs to be known up to a multiple of F′ only, because θ takes that up. With a = α − 1 and
b = F^a, which is linear in the score, it is −F(e^u − 1 − u)/a² with u = −log b; at a = 0 it is
−F·log²F/2. Source: Correia, Niculae & Martins, "Adaptively Sparse Transformers" (2019), for k = 1.

A loss is the least upper bound of linear functions with the offset ΣΩ(t) − ΣΩ(p), which is reached
at the weights p. So its derivative is the offset's at p, with Ω(q) = (q^α − q)/(αa).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.contract import EXPONENTIAL, LINEAR, SQUARE
from kofn.kernels.cpu.rows.formulas import deleted, distance
from kofn.kernels.cpu.rows.frame import BLOCK, Pass, in_loop, pass_of
from kofn.kernels.cpu.rows.interleaved import BLOCK as ABREAST
from kofn.kernels.cpu.rows.layout import COTANGENT, LANE, LANES, PLANES, SCORE
from kofn.kernels.cpu.runtime.intrinsics import VECTORS, never_unroll, pointer, vectors
from kofn.kernels.cpu.runtime.vector_math import (
    LOG2_E,
    exp2,
    inline,
    log,
    power,
    real,
    where_positive,
    widest_vectors,
)
from kofn.kernels.cpu.runtime.words import expm2, exponential, far, farthest


@inline
def bent(kind, x, hi, lo, per_t, rise):
    """(F, −∂F/∂α/F) of a score; zeros outside of the support."""
    zero, half, one = real(x, 0.0), real(x, 0.5), real(x, 1.0)
    playing = abs(x) < real(x, math.inf) and not deleted(x)
    z = distance(x, hi, lo, per_t)
    z = min(max(z if playing else zero, -farthest(x)), farthest(x))
    if kind == EXPONENTIAL:
        u = min(z - one, zero)
        p, bend = exponential(u), half * u * u
        return (p if playing else zero), (bend if playing else zero)
    base = z if kind == LINEAR else (half if kind == SQUARE else rise) * z
    inside = playing and base > zero and base < one
    b = max(base, real(x, 1e-35)) if inside else one
    u = -log(b)
    series = expm2(min(u, real(x, 0.7)))
    bend = one / b - one - u if u > real(x, 0.7) else series
    if kind == SQUARE:
        p, bend = b * b, bend * real(x, 4.0)
    elif kind == LINEAR:
        p = b
    else:
        p, bend = power(b, one / rise), bend / (rise * rise)
    return (p if inside else zero), (bend if inside else zero)


def bend(kind: int, number: Any) -> Pass:
    """−Σ∂F/∂α·(g − mean) and −Σ∂F/∂α."""

    def one_pass(x, g, out, n, sums, hi, lo, per_t, alpha, mean):
        widest_vectors()
        scores, cotangent = carray(pointer(x), n, number), carray(pointer(g), n, number)
        into, zero = carray(pointer(sums), 8, np.float64), number(0)
        hi_, lo_, per_t_, rise_ = number(hi), number(lo), number(per_t), number(alpha - 1)
        mean_ = number(mean)
        for start in range(0, n, BLOCK):
            xs, gs = scores[start : start + BLOCK], cotangent[start : start + BLOCK]
            product, total = zero, zero
            for i in range(xs.size):
                p, bend = bent(kind, xs[i], hi_, lo_, per_t_, rise_)
                w = p * bend
                product += where_positive(w, w * (gs[i] - mean_))
                total += w
            into[0] += product
            into[1] += total

    return one_pass


def bend_abreast(kind: int, number: Any) -> Pass:
    """Do the same for the rows of a group at once, as in interleaved.py: less mean and the rounding
    error of it, to `in_alpha`.
    """

    def one_pass(x, g, out, n, lanes, a, b, c, d, e):
        widest_vectors()
        zero, into = number(0), carray(pointer(lanes), 1, LANE)[0]
        entries = carray(pointer(x), (n, PLANES, LANES), number)
        own = carray(vectors(zero), (VECTORS, LANES), number)
        for r in range(LANES):
            own[2, r], own[3, r], own[4, r] = into.hi[r], into.lo[r], into.per_t[r]
            own[5, r], own[6, r] = into.alpha[r] - 1, into.mean[r]
            into.in_alpha[r] = 0
        for start in range(0, n, ABREAST):
            for r in range(LANES):
                own[0, r], own[1, r] = zero, zero
            for i in range(start, min(start + ABREAST, n)):
                for r in range(LANES):
                    v, hi, lo, per_t = entries[i, SCORE, r], own[2, r], own[3, r], own[4, r]
                    p, bend = bent(kind, v, hi, lo, per_t, own[5, r])
                    w = p * bend
                    u = entries[i, COTANGENT, r] - own[6, r]
                    own[0, r] += where_positive(w, w * u)
                    own[1, r] += w
            for r in range(LANES):
                into.in_alpha[r] += into.rest[r] * own[1, r] - own[0, r]
        never_unroll()

    return one_pass


def log_bend(kind: int, number: Any) -> Pass:
    """−Σ∂log F/∂α·(g − F·mean), for cotangents of logarithms."""

    def one_pass(x, g, out, n, sums, hi, lo, per_t, alpha, mean):
        widest_vectors()
        scores, cotangent = carray(pointer(x), n, number), carray(pointer(g), n, number)
        into, zero = carray(pointer(sums), 8, np.float64), number(0)
        hi_, lo_, per_t_, rise_ = number(hi), number(lo), number(per_t), number(alpha - 1)
        mean_ = number(mean)
        for start in range(0, n, BLOCK):
            xs, gs = scores[start : start + BLOCK], cotangent[start : start + BLOCK]
            product = zero
            for i in range(xs.size):
                p, bend = bent(kind, xs[i], hi_, lo_, per_t_, rise_)
                product += where_positive(bend, bend * (gs[i] - p * mean_))
            into[0] += product

    return one_pass


@inline
def tilted(kind, q, rise):
    """∂Ω(q)/∂α; 0 at 0 and 1."""
    zero, half, one = real(q, 0.0), real(q, 0.5), real(q, 1.0)
    inside = q > zero and q < one
    v = max(q, real(q, 1e-30)) if inside else half
    log_v = log(v)
    if kind == EXPONENTIAL:
        tilt = half * log_v * log_v - log_v
    else:
        y, alpha = rise * log_v, one + rise
        b = exp2(max(y * real(q, LOG2_E), -far(q)))
        tilt = (b * y * alpha - (b - one) * (alpha + rise)) / (alpha * alpha * rise * rise)
    return v * tilt if inside else zero


def tilt(kind: int, number: Any) -> Pass:
    """Σ∂Ω(p)/∂α of the weights p in `out`."""
    return _tilt(kind, number, False)


def target_tilt(kind: int, number: Any) -> Pass:
    """Σ∂Ω(t)/∂α of the target t in `g`."""
    return _tilt(kind, number, True)


def _tilt(kind: int, number: Any, of_target: bool) -> Pass:
    @in_loop
    def entry(x, t, p, hi, lo, per_t, rise, rest):
        return p, (tilted(kind, t if of_target else p, rise),)

    return pass_of(number, entry, number(0))

"""Logarithms of the links per entry and their slopes, for the CPU kernels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from kofn.kernels.contract import (
    EXPONENTIAL,
    LAPLACE,
    LINEAR,
    LOGISTIC,
    NORMAL,
    POWER,
    SQUARE,
)
from kofn.kernels.cpu.rows.formulas import (
    _base,
    deleted,
    density,
    distance,
    exponential,
    kink,
    reach,
)
from kofn.kernels.cpu.runtime.vector_math import (
    _OPTIONS,
    inline,
    log,
    log1p,
    mills,
    quotient,
    real,
)


@inline
def logged(kind, x, hi, lo, per_t, rise):
    """log F(z) of a score; 0 of +inf, −∞ where F is exactly 0."""
    zero, infinity = real(x, 0.0), real(x, math.inf)
    z = distance(x, hi, lo, per_t)
    z = z if z > -infinity else -farthest(z)  # x/T may overflow where x does not
    answer = logarithm(kind, z if abs(z) < infinity else zero, rise)
    answer = answer if z < infinity else zero
    return -infinity if deleted(x) else answer


@inline
def logarithm(kind, z, rise):
    """log F(z)."""
    zero, half, one = real(z, 0.0), real(z, 0.5), real(z, 1.0)
    if kind == LOGISTIC:
        return min(z, zero) - log1p(exponential(-abs(z)))
    if kind == LAPLACE:
        small = half * exponential(-abs(z))
        return log_below(small) if z > zero else z - real(z, math.log(2))
    if kind == NORMAL:
        log_tail, _, tail = far_tail(min(abs(z), farthest(z)))
        return log_below(tail) if z > zero else log_tail
    if kind == EXPONENTIAL:
        return min(z - one, zero)
    base = z if kind == LINEAR else _base(kind, z, rise)
    raised = log(min(max(base, real(z, 1e-35)), one))
    if kind == SQUARE:
        raised = raised + raised
    if kind == POWER:
        raised = raised / rise
    return raised if base > zero else -real(z, math.inf)


@inline
def log_below(small):
    """log(1 − s) for 0 ≤ s ≤ ½: as in `log1p`, the rounding of 1 − s cancels."""
    zero, one = real(small, 0.0), real(small, 1.0)
    u = one - small
    rounded = one - u
    return log(u) * quotient(small, rounded) if rounded > zero else -small


def farthest(z: Any) -> Any:
    """As solver/equation.far: beyond it z is cut, so that its square is finite."""


@overload(farthest, jit_options=_OPTIONS)
def _(z):
    most = np.finfo(np.float32 if z == types.float32 else np.float64).max
    limit = type(most)(math.sqrt(float(most)) / 16)
    return lambda z: limit


def far_tail(z: Any) -> Any:
    """(log(1 − Φ(z)), φ(z)/(1 − Φ(z)), 1 − Φ(z)) for z ≥ 0, of any size."""


@overload(far_tail, jit_options=_OPTIONS)
def _(z):
    number = np.float32 if z == types.float32 else np.float64
    half, bell = number(0.5), number(1 / math.sqrt(2 * math.pi))

    def far(z):
        ratio = mills(z)
        squares = half * z * z
        return log(ratio) - squares, quotient(bell, ratio), ratio * exponential(-squares)

    return far


@inline
def hazard(kind, z, rise):
    """(F′/F, F′) where F > 0; zeros elsewhere."""
    zero, half, one = real(z, 0.0), real(z, 0.5), real(z, 1.0)
    if kind == LOGISTIC:
        e = exponential(-abs(z))
        t = quotient(e, one + e)
        return (t if z > zero else one - t), t - t * t
    if kind == LAPLACE:
        t = half * exponential(-abs(z))
        return (quotient(t, one - t) if z > zero else one), t
    if kind == NORMAL:
        size = min(abs(z), farthest(z))
        _, steep, tail = far_tail(size)
        slope = density(kind, min(size, reach(z)), rise)
        return (slope / (one - tail) if z > zero else steep), slope
    slope = density(kind, max(z, -reach(z)), rise)
    if kind == EXPONENTIAL:
        return (one if z - one < kink(z) else zero), (slope if z > -reach(z) else zero)
    base = z if kind == LINEAR else _base(kind, z, rise)
    inside = slope > zero and base > zero
    return (quotient(one, min(max(base, real(z, 1e-35)), one)) if inside else zero), slope


@inline
def log_weighed(kind, x, g, hi, lo, per_t, rise):
    """(v, F′, z) with v = g·F′/F: zeros where the weight does not move."""
    zero, infinity = real(x, 0.0), real(x, math.inf)
    z = distance(x, hi, lo, per_t)
    moves = abs(x) < infinity and not deleted(x)
    z = z if moves else zero
    steep, slope = hazard(kind, min(max(z, -farthest(z)), farthest(z)), rise)
    moves = moves and steep > zero
    return (g * steep if moves else zero), (slope if moves else zero), z

"""The formulas of losses and logarithms per entry, for the CPU kernels.

A link with none of its own here keeps the array code: for soft targets where `omega` does not know
it, for logarithms where `LOGARITHMS` does not list it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from kofn.kernels.contract import (
    BOUNDED,
    EXPONENTIAL,
    LAPLACE,
    LINEAR,
    LOGISTIC,
    NORMAL,
    POWER,
    SQUARE,
    TWO_TAILS,
)
from kofn.kernels.cpu.rows.formulas import (
    _base,
    deleted,
    density,
    distance,
    exponential,
    integral,
    kink,
    reach,
)
from kofn.kernels.cpu.runtime.vector_math import (
    _OPTIONS,
    inline,
    log,
    log1p,
    mills,
    power,
    quotient,
    real,
    where_positive,
)


@inline
def compared(kind, x, t, p, hi, lo, per_t, rise, edge, soft):
    """(G(z) − tz + Ω(t), p − t, w, wz) of a score with weight p and target t, for w = p(1 − p).

    Ω of a t between 0 and 1 is added where `soft`, a constant. A score of +inf or out of play costs
    ∞ unless its target is 1 or 0, and has no cotangent.
    """
    zero, half, one = real(x, 0.0), real(x, 0.5), real(x, 1.0)
    infinity = real(x, math.inf)
    playing = not deleted(x)
    finite = abs(x) < infinity and playing
    z = distance(x, hi, lo, per_t)
    z = z if finite else zero
    part, is_up, _ = integral(kind, z, rise)
    upper = is_up
    if kind == EXPONENTIAL:
        part = zero if is_up else p  # G is F there
    if kind not in TWO_TAILS:
        upper = p > half
        part = part if is_up else (above(kind, z, part, rise, edge) if upper else part)
    missed = (one - t) if upper else -t
    term = part + (missed * (z + edge) if missed != zero else zero)
    if soft:
        term += omega(kind, t, rise)
    fixed = one if playing else zero
    barred = zero if t == fixed else infinity
    residual = p - t if finite else zero
    w = max(p * (one - p), zero) if finite else zero
    return (term if finite else barred), residual, w, where_positive(w, w * z)


@inline
def above(kind, z, part, rise, edge):
    """G(z) − z where ½ < F < 1 and `part` is G(z): it may be far less than either."""
    one = real(z, 1.0)
    if kind == EXPONENTIAL:
        return expm2(min(max(z - one, real(z, -0.7)), real(z, 0.0)))
    if kind == LINEAR:
        return real(z, 0.5) * (one - z) * (one - z)
    if kind == SQUARE:
        base = real(z, 0.5) * z
        return real(z, 2 / 3) * (one - base) * (one - base) * (base + real(z, 2.0))
    return max(part - (z + edge), real(z, 0.0))


def expm2(u: Any) -> Any:
    """e^u − 1 − u for −0.7 ≤ u ≤ 0, by its series."""


@overload(expm2, jit_options=_OPTIONS)
def _(u):
    number = np.float32 if u == types.float32 else np.float64
    c0, c1, c2, c3, c4, c5, c6, c7, c8 = (number(1 / math.factorial(j + 2)) for j in range(9))
    d0, d1, d2, d3, d4, d5, d6, d7 = (number(1 / math.factorial(j + 11)) for j in range(8))

    def single(u):
        q = c4 + u * (c5 + u * (c6 + u * (c7 + u * c8)))
        return u * u * (c0 + u * (c1 + u * (c2 + u * (c3 + u * q))))

    def double(u):
        q = d0 + u * (d1 + u * (d2 + u * (d3 + u * (d4 + u * (d5 + u * (d6 + u * d7))))))
        q = c4 + u * (c5 + u * (c6 + u * (c7 + u * (c8 + u * q))))
        return u * u * (c0 + u * (c1 + u * (c2 + u * (c3 + u * q))))

    return single if u == types.float32 else double


@inline
def omega(kind, t, rise):
    """Ω(t) = ∫₀ᵗ F⁻¹; 0 at 0 and 1, NaN outside."""
    zero, half, one, tiny = real(t, 0.0), real(t, 0.5), real(t, 1.0), real(t, 1e-30)
    inside = t > zero and t < one
    at_end = zero if t == zero or t == one else real(t, math.nan)
    q = t if inside else half
    if kind == LOGISTIC:
        # log of a subnormal t is not known, but t·log t is 0 to all digits.
        bent = q * log(max(q, tiny)) + (one - q) * log(one - q)
    elif kind == LAPLACE:
        less = min(q, one - q)
        bent = less * (log(max(less + less, tiny)) - one)
    elif kind == EXPONENTIAL:
        bent = q * log(max(q, tiny))
    elif kind == LINEAR:
        bent = half * q * (q - one)
    elif kind in BOUNDED:
        bent = (power(q, one + rise) - q) / (rise * (one + rise))
    else:
        bent = real(t, math.nan)
    return bent if inside else at_end


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

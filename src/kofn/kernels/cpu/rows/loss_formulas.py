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
    SQUARE,
    TWO_TAILS,
)
from kofn.kernels.cpu.rows.formulas import deleted, distance, integral
from kofn.kernels.cpu.runtime.vector_math import (
    _OPTIONS,
    inline,
    log,
    power,
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
    away = p - t if finite else zero
    w = max(p * (one - p), zero) if finite else zero
    return (term if finite else barred), away, w, where_positive(w, w * z)


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

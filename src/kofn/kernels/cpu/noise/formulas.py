"""Φ and φ/Φ of the noise per entry, for the CPU kernels; `links/` defines them."""

from __future__ import annotations

from kofn.kernels.contract import LAPLACE, LINEAR, LOGISTIC, SQUARE
from kofn.kernels.cpu.rows.formulas import exponential
from kofn.kernels.cpu.runtime.vector_math import inline, normal_tail, quotient, real


@inline
def tail_and_hazard(kind, z):
    """(Φ, or Φ − 1 where z > 0; φ/Φ); 0 where Φ is subnormal.

    The first is the smaller tail: 1 − t would lose the sum of many small t.
    """
    zero, one, half = real(z, 0.0), real(z, 1.0), real(z, 0.5)
    size, upper = abs(z), z > zero
    if kind == LOGISTIC:
        e = exponential(-size)
        r = quotient(one, one + e)
        t = e * r
        h = t if upper else r
    elif kind == LAPLACE:
        t = half * exponential(-size)
        h = quotient(t, one - t) if upper else one
    elif kind == LINEAR or kind == SQUARE:
        base = z if kind == LINEAR else half * z
        inside = base > real(z, 1e-35) and base < one
        h = quotient(one, base if inside else one) if inside else zero
        base = min(max(base, zero), one)
        rest = one - base
        upper = (base if kind == LINEAR else base * base) > half
        if kind == LINEAR:
            t = rest if upper else base
        else:
            t = rest * (one + base) if upper else base * base
    else:
        t, density = normal_tail(size)
        cdf = one - t if upper else t
        some = cdf > real(z, 1e-37)
        h = quotient(density, cdf if some else one) if some else zero
    known = z == z
    signed = -max(t, real(z, 1e-37)) if upper else t  # the sign of 0 would be lost
    return signed if known else z, h if known else z


@inline
def cdf_of(tail):
    """Φ, in float64, from the smaller tail of `tail_and_hazard`."""
    wide = real(1.0, tail)
    return 1.0 + wide if wide < 0.0 else wide

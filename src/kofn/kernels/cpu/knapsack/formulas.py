"""The formulas per entry of loops over entries with costs.

θ is a sum of two numbers of the rows' type, for scores and θc may be large where z is not. x − θc
is rounded once for each of them: a fused multiply-add rounds no product.
"""

from __future__ import annotations

import numpy as np
from numba.extending import intrinsic

from kofn.kernels.contract import BOUNDED
from kofn.kernels.cpu.rows.formulas import deleted, density, prepare, shifted, tail, unit
from kofn.kernels.cpu.runtime.vector_math import inline, real
from kofn.kernels.cpu.runtime.words import reach


@intrinsic
def fused(typingctx, a, b, c):
    """a·b + c with one rounding."""

    def codegen(context, builder, signature, arguments):
        return builder.fma(*arguments)

    return a(a, a, a), codegen


@inline
def second(value, first):
    """Return the value less `first`, the value rounded to another type, in that type."""
    return real(first, value - np.float64(first))


@inline
def distance(x, cost, hi, lo):
    """x − θc."""
    return fused(-cost, lo, fused(-cost, hi, x))


@inline
def from_end(x, cost, hi, lo, end):
    """x − end − θc, also to its own size where that is small: x − end as two numbers."""
    shifted = x - end
    part = shifted - x
    rest = (x - (shifted - part)) - (end + part)
    return distance(shifted, cost, hi, lo) + rest


@inline
def place(kind, at, x, cost):
    """z = (x − θc)/T from where the link counts it."""
    if kind in BOUNDED:
        return from_end(x, cost, at.hi, at.lo, at.end) * at.per_t
    return distance(x, cost, at.hi, at.lo) * at.per_t


@inline
def on_grid(cost, magic):
    """The cost rounded to a multiple of the last digit of `magic`."""
    return (cost + magic) - magic


@inline
def tails(kind, z, rise):
    """(F, or 1 − F where F > ½; whether F > ½; F′; F″) at z."""
    zero, one = real(z, 0.0), real(z, 1.0)
    if kind in BOUNDED:
        return tail(kind, z, zero, zero, rise)
    by = real(z, shifted(kind, 0.0))
    return tail(kind, prepare(kind, z * real(z, unit(kind, 1.0))), by, one / by, rise)


@inline
def weight(kind, z, rise):
    """F."""
    t, upper, _, _ = tails(kind, z, rise)
    return real(z, 1.0) - t if upper else t


@inline
def slope_at(kind, x, z, rise):
    """F′ of an entry in play where it is not subnormal, else 0."""
    zero = real(z, 0.0)
    w = density(kind, z, rise)
    w = w if abs(z) < reach(z) else zero
    return zero if deleted(x) else w

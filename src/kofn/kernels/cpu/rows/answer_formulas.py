"""The formulas of losses and logarithms per entry, for the CPU kernels, made of those in `links/`.

A link whose file has no such formula keeps the array code: for soft targets without `omega`, for
logarithms without `logarithm` and `hazard`.
"""

from __future__ import annotations

import math

from kofn.kernels.contract import EXPONENTIAL, TWO_TAILS
from kofn.kernels.cpu.rows.formulas import deleted, distance, integral
from kofn.kernels.cpu.runtime.vector_math import inline, real, where_positive
from kofn.kernels.cpu.runtime.words import OF_ENTRIES, by_kind, farthest

above = by_kind(
    OF_ENTRIES, "above", "z, part, rise, edge", others="max(part - (z + edge), real(z, 0.0))"
)
"""G(z) − z where ½ < F < 1 and `part` is G(z): it may be far less than either."""
bent_of = by_kind(OF_ENTRIES, "omega", "q, rise", others="real(q, math.nan)")
logarithm = by_kind(OF_ENTRIES, "logarithm", "z, rise", others="real(z, math.nan)")
"""log F(z)."""
hazard = by_kind(OF_ENTRIES, "hazard", "z, rise", others="(real(z, math.nan), real(z, math.nan))")
"""(F′/F, F′) where F > 0; zeros elsewhere."""


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
def omega(kind, t, rise):
    """Ω(t) = ∫₀ᵗ F⁻¹; 0 at 0 and 1, NaN outside."""
    zero, half, one = real(t, 0.0), real(t, 0.5), real(t, 1.0)
    inside = t > zero and t < one
    at_end = zero if t == zero or t == one else real(t, math.nan)
    bent = bent_of(kind, t if inside else half, rise)
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
def log_weighed(kind, x, g, hi, lo, per_t, rise):
    """(v, F′, z) with v = g·F′/F: zeros where the weight does not move."""
    zero, infinity = real(x, 0.0), real(x, math.inf)
    z = distance(x, hi, lo, per_t)
    moves = abs(x) < infinity and not deleted(x)
    z = z if moves else zero
    steep, slope = hazard(kind, min(max(z, -farthest(z)), farthest(z)), rise)
    moves = moves and steep > zero
    return (g * steep if moves else zero), (slope if moves else zero), z

"""The formulas of the links per entry, for the CPU kernels; `links/` defines them.

`kind` is a constant wherever these are called, so each call keeps one branch. What an entry costs
is decided here: `prepare` does the exponential once, relative to an anchor near the threshold,
and every further evaluation moves by δ = (θ − anchor)/T with multiplications alone. Links with an
end to their support have nothing to prepare; they are computed afresh, by the `distance` from it.

`rise` is α − 1, in the type of the scores: a rounded α less 1 would be off by more.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from kofn.kernels.constants import HASTINGS, KINK
from kofn.kernels.contract import (
    BOUNDED,
    EXPONENTIAL,
    LAPLACE,
    LINEAR,
    LOGISTIC,
    NORMAL,
    OCTAVES,
    POWER,
    SQUARE,
    TWO_TAILS,
)
from kofn.kernels.cpu.runtime.vector_math import (
    LOG2_E,
    exp2,
    inline,
    log1p,
    normal_tail,
    power,
    quotient,
    real,
    where_positive,
)


@inline
def distance(x, hi, lo, per_t):
    """z = ((x − hi) − lo)/T, apart from the sums: those may regroup it to x − (hi + lo)."""
    return ((x - hi) - lo) * per_t


def far(z: Any) -> Any:
    """The bound of z: 2^±far and their quotient by a moderate 2^δ are normal numbers."""


@overload(far, jit_options={"forceinline": True})
def _(z):
    limit = np.float32(125) if z == types.float32 else 1010.0
    return lambda z: limit


def reach(z: Any) -> Any:
    """Beyond it the exponential links' F′ would be subnormal, and is 0."""


@overload(reach, jit_options={"forceinline": True})
def _(z):
    limit = np.float32(86) if z == types.float32 else 700.0
    return lambda z: limit


def deleted(x: Any) -> Any:
    """Whether a score is out of play: −inf, or no more than half of its type's least number."""


@overload(deleted, jit_options={"forceinline": True})
def _(x):
    most = np.finfo(np.float32 if x == types.float32 else np.float64).min / 2
    return lambda x: x <= most


def kink(z: Any) -> Any:
    """The distance above F = 1 up to which the slope is from below: see `links/safe_math.py`."""


@overload(kink, jit_options={"forceinline": True})
def _(z):
    room = np.float32(KINK * 2.0**-23) if z == types.float32 else KINK * 2.0**-52
    return lambda z: room


@inline
def exponential(z):
    """e^z for z ≤ 0, 0 where it would be subnormal. Octaves are cut to `far`, not z."""
    octaves = z * real(z, LOG2_E)
    return exp2(max(octaves, -far(z))) if octaves > -far(z) else real(z, 0.0)


@inline
def unit(kind, per_t):
    """The factor of differences for `prepare`: 1/T, or octaves per T where it raises 2."""
    return per_t * LOG2_E if kind in OCTAVES else per_t


@inline
def prepare(kind, z):
    """Prepare z = (x − anchor)·unit for evaluations; −inf must come out as weight 0."""
    end = far(z)
    if kind in OCTAVES:
        return exp2(min(z, end)) if z > -end else real(z, 0.0)
    # Differences of clipped values stay finite: no 0·∞ in a slope.
    return min(max(z, -end), end)


@inline
def shifted(kind, delta):
    """Return δ, a float64, as `tail` takes it; the exponential link is e^(z − 1). Never bounded."""
    if kind not in OCTAVES:
        return delta
    return exp2((delta + 1 if kind == EXPONENTIAL else delta) * LOG2_E)


@inline
def tail(kind, a, by, inverse, rise):
    """(F, or 1 − F where F > ½; whether F > ½; F′; F″) at the threshold anchor + Tδ.

    by = shifted(δ), inverse = 1/by; where the link is bounded, a is z and both are 0.
    """
    zero, half, one = real(a, 0.0), real(a, 0.5), real(a, 1.0)
    if kind == LOGISTIC:
        r = quotient(one, a + by)
        low, high = a * r, by * r
        upper = a > by
        density = low * high
        return (high if upper else low), upper, density, density * (high - low)
    if kind == LAPLACE:
        upper = a > by
        t = half * (quotient(by, a if upper else one) if upper else a * inverse)
        return t, upper, t, (-t if upper else t)
    if kind == NORMAL:
        z = a - by
        t, density = normal_tail(abs(z))
        return t, z > zero, density, -z * density
    if kind == EXPONENTIAL:
        p = a * inverse
        upper = p > half
        inside = min(p, one) if p < one + kink(a) else zero
        return (max(one - p, zero) if upper else p), upper, inside, inside
    if kind == LINEAR:
        t = max(min(a, one - a), zero)
        return t, a > half, (one if zero < a < one else zero), zero
    base = min(max(_base(kind, a, rise), zero), one)
    inside = (base > zero) and (base < one)
    if kind == SQUARE:
        p = base * base
        first, second = base, half
    else:
        p = power(base, one / rise) if base > zero else zero
        first = p / (base if inside else one)
        second = (one - rise) * first / (base if inside else one)
    upper = p > half
    return (
        (one - p if upper else p),
        upper,
        (first if inside else zero),
        (second if inside else zero),
    )


@inline
def _base(kind, z, rise):
    """Return the base that entmax raises to the power 1/(α − 1)."""
    return (real(z, 0.5) if kind == SQUARE else rise) * z


@inline
def evaluated(kind, a, by, inverse, rise):
    """The terms of an evaluation: (the smaller tail, the same if F > ½, F′, F > ½, F″)."""
    zero, one = real(a, 0.0), real(a, 1.0)
    t, is_upper, first, second = tail(kind, a, by, inverse, rise)
    upper = one if is_upper else zero
    return t, t * upper, first, upper, second


@inline
def written(kind, a, by, inverse, rise):
    """F."""
    t, upper, _, _ = tail(kind, a, by, inverse, rise)
    return real(a, 1.0) - t if upper else t


@inline
def density(kind, z, rise):
    """F′(z) for |z| < reach(z)."""
    zero, half, one = real(z, 0.0), real(z, 0.5), real(z, 1.0)
    octaves = real(z, LOG2_E)
    if kind == LOGISTIC:
        e = exp2(-abs(z) * octaves)
        t = quotient(e, one + e)
        return t - t * t
    if kind == LAPLACE:
        return half * exp2(-abs(z) * octaves)
    if kind == NORMAL:
        return normal_tail(abs(z))[1]
    if kind == EXPONENTIAL:
        u = z - one
        return exp2(min(u, zero) * octaves) if u < kink(z) else zero
    if kind == LINEAR:
        return one if zero < z <= one else zero  # at the kink the slope below it, as elsewhere
    raw = _base(kind, z, rise)
    base = min(raw, one)
    inside = (base > zero) and (raw < one + kink(z))
    if kind == POWER:
        base = power(base if inside else one, (one - rise) / rise)
    return base if inside else zero


@inline
def weighed(kind, x, g, hi, lo, per_t, rise):
    """(F′, F′g, F′z)."""
    zero = real(x, 0.0)
    z = distance(x, hi, lo, per_t)
    w = density(kind, z, rise)
    w = w if abs(z) < reach(z) else zero
    w = zero if deleted(x) else w
    # An entry that is not chosen may carry any cotangent, NaN included.
    return w, where_positive(w, w * g), where_positive(w, w * z)


@inline
def sloped(x, g, w, pivot, per_t, mean):
    """(u, uy) with u = F′(g − mean) and y = (x − pivot)/T."""
    u = where_positive(w, w * (g - mean))
    return u, u * where_positive(w, (x - pivot) * per_t)


@inline
def centred(kind, x, hi, lo, per_t, rise, mean):
    """F′·mean."""
    zero = real(x, 0.0)
    z = distance(x, hi, lo, per_t)
    w = density(kind, z, rise)
    w = w if abs(z) < reach(z) else zero
    w = zero if deleted(x) else w
    return w * mean


@inline
def integral(kind, z, rise):
    """(G(z), less z where z is far up; whether it is; G(z) − z·F(z) = −Ω(F(z))).

    Far up is above the mean for links with two tails, and where F is 1 for the others. G and the
    last z follow the convention of mean zero.
    """
    zero, half, one = real(z, 0.0), real(z, 0.5), real(z, 1.0)
    if kind == EXPONENTIAL:
        inside = min(z - one, zero)
        p = exponential(inside) if z < one else zero
        return p, z >= one, (-p * inside if p > zero else zero)
    if kind == LINEAR:
        inside = min(max(z, zero), one) if z < one else zero
        return half * inside * inside, z >= one, half * inside * (one - inside)
    if kind in BOUNDED:
        base = _base(kind, z, rise)
        inside = min(max(base, zero), one) if base < one else zero
        p = inside * inside if kind == SQUARE else power(inside, one / rise)
        return p * inside / (one + rise), base >= one, (p - p * inside) / (rise * (one + rise))
    size = min(abs(z), far(z))  # temperatures; at their end every tail is 0
    if kind == NORMAL:
        t, bell = normal_tail(size)
        rest = max(bell - size * t, zero)
    else:
        e = exponential(-size)
        t = half * e if kind == LAPLACE else e / (one + e)
        rest = t if kind == LAPLACE else log1p(e)
    return rest, z > zero, rest + size * t


@inline
def quantile(kind, q, alpha):
    """F⁻¹(q) in float64, for a bracket; the normal one to 5e-4."""
    if kind == LOGISTIC:
        return math.log(q) - math.log1p(-q)
    if kind == LAPLACE:
        return math.log(2 * q) if q < 0.5 else -math.log(2 * (1 - q))
    if kind == NORMAL:
        (a, b, c), (d, e, f) = HASTINGS
        t = math.sqrt(-2 * math.log(min(q, 1 - q)))
        above = a + t * (b + t * c)
        below = 1 + t * (d + t * (e + t * f))
        z = t - above / below
        return -z if q < 0.5 else z
    if kind == EXPONENTIAL:
        return math.log(q) + 1
    return q if kind == LINEAR else q ** (alpha - 1) / (alpha - 1)


@inline
def start_below(bell, own):
    """Return the depth of θ below the mean, by the quantiles of normal scores and of the link
    itself: a sum of links at such scores is close to one wide link.
    """
    depth = math.sqrt(bell * bell + own * own)
    return depth if bell + own > 0 else -depth


@inline
def edge(kind, alpha):
    """The origin of z in the convention of mean zero, by which starts are guessed."""
    if kind == LINEAR:
        return -0.5
    return -1 / (alpha * (alpha - 1)) if kind in BOUNDED else 0.0


@inline
def side_logs(kind, z, upper):
    """`logs` of an entry on that side of θ; (−∞, 1) of others, and where F has no such tail."""
    if kind == EXPONENTIAL:
        return (min(z - 1, 0.0) if not upper and z - 1 < KINK * 2.0**-23 else -math.inf), 1.0
    if kind in TWO_TAILS and (z > 0) == upper:
        return logs(kind, z, upper)
    return -math.inf, 1.0


@inline
def logs(kind, z, upper):
    """(log F(z), its slope F′/F) far below θ, or the same of 1 − F far above, of links with two
    infinite tails; in float64.
    """
    z = -z if upper else z  # what follows is symmetric
    if kind == LOGISTIC:
        e = math.exp(z)
        return z - math.log1p(e), 1 / (1 + e)
    if kind == LAPLACE:
        return z - math.log(2), 1.0
    log_density = -0.5 * z * z - 0.5 * math.log(2 * math.pi)
    if z > -30:
        log_tail = math.log(0.5 * math.erfc(-z * math.sqrt(0.5)))
        return log_tail, math.exp(log_density - log_tail)
    # The asymptotic series of Mills' ratio, good to 2e-12 from here on.
    s = 1 / (z * z)
    series = 1 - s * (1 - 3 * s * (1 - 5 * s * (1 - 7 * s * (1 - 9 * s))))
    return log_density - math.log(-z) + math.log(series), -z / series

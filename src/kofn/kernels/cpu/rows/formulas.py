"""The formulas of the links per entry, for the CPU kernels, made of those in `links/`.

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

from kofn.kernels.contract import (
    BOUNDED,
    CAPPED,
    EDGES,
    EXPONENTIAL,
    LINEAR,
    OCTAVES,
    POWER,
    SQUARE,
    TWO_TAILS,
)
from kofn.kernels.cpu.runtime.vector_math import LOG2_E, exp2, inline, log, real, where_positive
from kofn.kernels.cpu.runtime.words import OF_ENTRIES, OF_ROWS, by_kind, far, farthest, reach

tail = by_kind(OF_ENTRIES, "tail", "a, b, per_b, rise", z="a - b")
"""(F, or 1 − F where F > ½; whether F > ½; F′; F″) at the threshold anchor + Tδ.

b = shifted(δ), per_b = 1/b; where the link is bounded, a is z and both are 0.
"""
density = by_kind(OF_ENTRIES, "density", "z, rise")
"""F′(z) for |z| < reach(z)."""
integral = by_kind(OF_ENTRIES, "integral", "z, rise")
"""(G(z), less z where z is far up; whether it is; G(z) − z·F(z) = −Ω(F(z))).

Far up is above the mean for links with two tails, and where F is 1 for the others. G and the last z
follow the convention of mean zero.
"""
quantile = by_kind(OF_ROWS, "quantile", "q, alpha")
"""F⁻¹(q) in float64, for a bracket; the normal one to 5e-4."""
log_below = by_kind(OF_ROWS, "log_below", "z", others="(-math.inf, 1.0)")
log_above = by_kind(OF_ROWS, "log_above", "z", others="low(kind, -z)", low=log_below)
"""(log F, F′/F) far below θ, (log(1 − F), F′/(1 − F)) far above, of a symmetric link the same."""


@inline
def distance(x, hi, lo, per_t):
    """z = ((x − hi) − lo)/T, apart from the sums: those may regroup it to x − (hi + lo)."""
    return ((x - hi) - lo) * per_t


def deleted(x: Any) -> Any:
    """Whether a score is out of play: −inf, or no more than half of its type's least number."""


@overload(deleted, jit_options={"forceinline": True})
def _(x):
    most = np.finfo(np.float32 if x == types.float32 else np.float64).min / 2
    return lambda x: x <= most


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


def nothing_beyond(tail: Any) -> Any:
    """Return a tail that is 0 where z was cut, as that of scores out of play has to be."""

    @inline
    def within(kind, a, b, per_b, rise):
        t, upper, first, second = tail(kind, a, b, per_b, rise)
        return t if abs(a) < farthest(a) else real(a, 0.0), upper, first, second

    return within


@inline
def evaluated(kind, a, by, inverse, rise):
    """The terms of an evaluation: (the smaller tail, the same if F > ½, F′, F > ½, F″)."""
    zero, one = real(a, 0.0), real(a, 1.0)
    t, is_upper, first, second = tail(kind, a, by, inverse, rise)
    upper = one if is_upper else zero
    return t, t if is_upper else zero, first, upper, second


@inline
def roughly(kind, z):
    """(F, F′, F″) of a linear or square link where 1 − F is not wanted; at a kink the larger F′."""
    zero, half, one = real(z, 0.0), real(z, 0.5), real(z, 1.0)
    raw = half * z if kind == SQUARE else z
    base = min(max(raw, zero), one)
    inside = base == raw
    if kind == SQUARE:
        return base * base, base if inside else zero, half if inside else zero
    return base, one if inside else zero, zero


@inline
def written(kind, a, by, inverse, rise):
    """F."""
    if kind == LINEAR:  # as the lines below, which round no number from ½ to 1
        return min(max(a, real(a, 0.0)), real(a, 1.0))
    t, upper, _, _ = tail(kind, a, by, inverse, rise)
    return real(a, 1.0) - t if upper else t


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
def start_below(bell, own):
    """Return the depth of θ below the mean, by the quantiles of normal scores and of the link
    itself: a sum of links at such scores is close to one wide link.
    """
    depth = math.sqrt(bell * bell + own * own)
    return depth if bell + own > 0 else -depth


@inline
def halley(kind, k, n, excess, weight, slope):
    """(log-odds of ΣF/n less the log-odds of k/n, the step in units of T that would close them).

    For links with an end, which are pieces of polynomials, the step to where their parabola is k.

    Where ΣF is 0 or n, as far as its digits tell, there is no such step: it is NaN.
    """
    zero, half, one = real(excess, 0.0), real(excess, 0.5), real(excess, 1.0)
    two, lowest, most = real(excess, 2.0), real(excess, -1 + 1e-12), real(excess, 700.0)
    total, rest = k + excess, (n - k) - excess
    solvable = (total > zero) & (rest > zero)
    each = one / (k * total * rest)  # few divisions: each is waited for
    per_all = one / (n * weight)
    per_weight = per_all * n
    ratio = excess * n * total * each
    ratio = ratio if ratio > lowest else lowest
    # log(1 + r) by Padé's quotient, to 3e-4.
    a, b, c, d = real(excess, 30.0), real(excess, 21.0), real(excess, 36.0), real(excess, 9.0)
    pade = ratio * (a + ratio * (b + ratio)) / (a + ratio * (c + d * ratio))
    beyond = log(one + ratio if ratio >= one else two)
    log_odds = pade if ratio < one else beyond
    newton = log_odds * total * rest * per_all
    bend = slope * per_weight + weight * (total - rest) * k * each
    bend = one - newton * bend * half
    step = newton / (bend if (half < bend) & (bend < two) else (two if bend >= two else half))
    # Linear and square links are where they bend no more: there the next evaluation is the last.
    square = weight * weight - two * slope * excess
    parabola = two * excess / (weight + math.sqrt(square if square > zero else zero))
    step = parabola if kind in BOUNDED else step
    saturated = most if excess > zero else -most
    return log_odds if solvable else saturated, step if solvable else real(excess, math.nan)


@inline
def edge(kind, alpha):
    """The origin of z in the convention of mean zero, by which starts are guessed."""
    return edge_beside(kind, EDGES[kind], alpha)


@inline
def edge_of(kind, alpha):
    """The same for all alphas, looked up before a loop: what may raise keeps it from vectors."""
    return EDGES[kind]


@inline
def edge_beside(kind, edge_of_kind, alpha):
    """`edge`, by `edge_of`."""
    return -1 / (alpha * (alpha - 1)) if kind == SQUARE or kind == POWER else edge_of_kind


@inline
def side_logs(kind, z, upper, alpha):
    """`logs` of an entry on that side of θ; (−∞, 1) of others, and where F has no such tail."""
    if kind in CAPPED and not upper:
        return log_below(kind, z)
    if kind in TWO_TAILS and (z > 0) == upper:
        return logs(kind, z, upper, alpha)
    return -math.inf, 1.0


@inline
def logs(kind, z, upper, alpha):
    """(log F(z), its slope F′/F) far below θ, or the same of 1 − F far above; in float64."""
    return log_above(kind, z) if upper else log_below(kind, z)

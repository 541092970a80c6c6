"""The formulas of the links, entry by entry, in Triton's language, made of those in kofn/links.

`KIND` is a constant wherever these are called, so that one branch of each is compiled. An entry
comes as y = (x − hi)·unit − lo·unit, measured from the place where its link is simplest: the lower
end of the support of linear and entmax (small weights then keep their digits), the upper one of
exponential. `edge` is that place. Scores of ±inf need no case of their own: they come out as
weights of 1 and 0 without slope.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from kofn.kernels import contract
from kofn.kernels.gpu.rows.own import Own
from kofn.kernels.gpu.rows.words import (
    FARTHEST,
    LOG2_E,
    between_places,
    by_kind,
    log_rest,
    number_at,
    place_of,
)

LAPLACE = tl.constexpr(contract.LAPLACE)
NORMAL = tl.constexpr(contract.NORMAL)
EXPONENTIAL = tl.constexpr(contract.EXPONENTIAL)
LINEAR = tl.constexpr(contract.LINEAR)
SQUARE = tl.constexpr(contract.SQUARE)
POWER = tl.constexpr(contract.POWER)

SERVED = tuple(
    number
    for number in contract.with_formula("tail", "quantile")
    if number not in contract.TWO_TAILS
    or contract.KINDS[number].kind.exponential_tails
    or number == contract.NORMAL
    or "log_below" in contract.KINDS[number].kind.formulas
)
"""The links whose tails far.py knows: others are for array code."""
_WITH_LOGARITHMS = contract.with_formula("logarithm", "hazard")
LOGARITHMS = tuple(each for each in SERVED if each in _WITH_LOGARITHMS)

EPS = tl.constexpr(2.0**-23)
TINY = tl.constexpr(2.0**-126)
INF = tl.constexpr(math.inf)
DELETED = tl.constexpr(float(-(2.0 - 2.0**-23) * 2.0**126))
"""Half of the least float: a score there or below is out of play, as one of −inf is."""

# The contract's table as constants of Triton: they are part of its cache's key.
TWO_TAILS = tl.constexpr(contract.TWO_TAILS)
BOUNDED = tl.constexpr(contract.BOUNDED)
CAPPED = tl.constexpr(contract.CAPPED)
OCTAVES = tl.constexpr(contract.OCTAVES)


# All but a user's own, whose number tells.
BY_LOGS = tl.constexpr(
    tuple(
        number
        for number in contract.TWO_TAILS
        if not contract.KINDS[number].kind.exponential_tails and number != contract.NORMAL
    )
)


@triton.constexpr_function
def has_two_tails(kind):
    """Return whether 0 < F < 1 everywhere."""
    return kind.traits.two_tails if isinstance(kind, Own) else kind in TWO_TAILS.value


@triton.constexpr_function
def is_bounded(kind):
    """Return whether F is 0 up to an end."""
    return kind.traits.bounded if isinstance(kind, Own) else kind in BOUNDED.value


@triton.constexpr_function
def is_capped(kind):
    """Return whether F is 1 from an end on, and 0 by underflow alone."""
    return kind in CAPPED.value


@triton.constexpr_function
def is_in_octaves(kind):
    """Return whether distances are powers of 2."""
    return kind.traits.kind.octaves if isinstance(kind, Own) else kind in OCTAVES.value


@triton.constexpr_function
def edge_of(kind):
    """Return where z is counted from by a link without an alpha."""
    return kind.edge if isinstance(kind, Own) else contract.EDGES[kind]


@triton.constexpr_function
def is_balanced_by_logs(kind):
    """Return whether nothing is known of the tails but their logarithms."""
    return kind.traits.two_tails if isinstance(kind, Own) else kind in BY_LOGS.value


@triton.constexpr_function
def may_be_heavy(kind):
    """Return whether F may be more than nothing where z is cut."""
    return isinstance(kind, Own) and kind.traits.two_tails and not kind.traits.kind.octaves


@triton.constexpr_function
def has_quantile(kind):
    """Return whether a link has a formula of F⁻¹."""
    return not isinstance(kind, Own) or "quantile" in kind.traits.kind.formulas


@triton.jit
def edge(KIND: tl.constexpr, alpha):
    """Where y = 0 is for a link of mean zero."""
    where = outside(KIND, alpha)
    if KIND == SQUARE or KIND == POWER:
        where += 1.0 / alpha - 1.0 / (alpha - 1.0)
    else:
        where += edge_of(KIND)
    return where


@triton.jit
def outside(KIND: tl.constexpr, alpha):
    """Where y = 0 is for the thresholds that come from and go to the rest of the library.

    Inner links have them too: from the end of the support as here, but for exponential.
    """
    where = alpha * 0.0
    if KIND == EXPONENTIAL:
        where += 1.0
    return where


@triton.jit
def unit(KIND: tl.constexpr, per_t):
    """Return the factor of distances: 1/T, or octaves per T for the links that raise 2."""
    if is_in_octaves(KIND):
        per_t *= LOG2_E
    return per_t


@triton.jit
def distance(x, theta):
    """y of each entry: hi is taken off first, which is what makes two floats of θ worth having."""
    rest = tl.minimum(tl.maximum(theta.lo * theta.per_unit, -1e38), 1e38)  # no ∞ − ∞
    return (x - theta.hi[:, None]) * theta.per_unit[:, None] - rest[:, None]


tail = by_kind("tail", "y, alpha")
"""Return (the smaller of F and 1 − F, whether F > ½, F′, F″)."""
_density = by_kind("density", "y, alpha")
_quantile = by_kind("quantile", "q, rest, alpha")


_log_below, _log_above = by_kind("log_below", "z", z="z"), by_kind("log_above", "z", z="z")


@triton.jit
def log_tail(KIND: tl.constexpr, UPPER: tl.constexpr, z):
    """Return (log F, F′/F) below θ, or (log(1 − F), F′/(1 − F)) above."""
    z = tl.minimum(tl.maximum(z, -FARTHEST), FARTHEST)
    if UPPER:
        log_of_tail, steep = _log_above(KIND, z)
    else:
        log_of_tail, steep = _log_below(KIND, z)
    return tl.maximum(log_of_tail, -3e38), steep  # no ∞ − ∞


@triton.jit
def by_logs(KIND: tl.constexpr, z, alpha):
    """Return (log F, F′/F, log F′) by the logarithms of both tails, so that none underflows."""
    t, upper, slope, _ = tail(KIND, z * unit(KIND, 1.0), alpha)
    low, steep = log_tail(KIND, False, z)
    high, fall = log_tail(KIND, True, z)
    t = tl.where(upper, t, 0.0)
    logs = tl.where(upper, high + tl.log(fall), low + tl.log(steep))
    return tl.where(upper, log_rest(t), low), tl.where(upper, slope / (1.0 - t), steep), logs


@triton.jit
def weight(KIND: tl.constexpr, y, alpha):
    """F."""
    t, upper, _, _ = tail(KIND, y, alpha)
    p = tl.where(upper, 1.0 - t, t)
    if may_be_heavy(KIND):
        p = tl.where(y > -FARTHEST, p, 0.0)
    return p


@triton.jit
def density(KIND: tl.constexpr, y, alpha):
    """F′, at a kink the one below."""
    if is_bounded(KIND):
        first = _density(KIND, y, alpha)
    else:
        _, _, first, _ = tail(KIND, y, alpha)
    if may_be_heavy(KIND):
        first = tl.where(tl.abs(y) < FARTHEST, first, 0.0)
    return first


@triton.jit
def quantile(KIND: tl.constexpr, q, rest, alpha):
    """Return the y at which F = q, roughly (the normal one to 5e-4); rest = 1 − q."""
    q, rest = tl.maximum(q, TINY), tl.maximum(rest, TINY)
    if has_quantile(KIND):
        y = _quantile(KIND, q, rest, alpha) - outside(KIND, alpha)
    else:
        # By halving in the order of floats, to 2⁻¹¹ of it.
        low, high = place_of(q * 0.0 - FARTHEST), place_of(q * 0.0 + FARTHEST)
        for _ in range(21):
            middle = between_places(low, high)
            t, upper, _, _ = tail(KIND, number_at(middle) * unit(KIND, 1.0), alpha)
            below = tl.where(upper, t > rest, t < q)
            low, high = tl.where(below, middle, low), tl.where(below, high, middle)
        y = number_at(high)
    return y

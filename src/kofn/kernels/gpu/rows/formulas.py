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
from kofn.kernels.gpu.rows.words import LOG2_E, by_kind

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
)
"""The links whose tails far.py and `_balance` of one_program.py know: others are for array code."""

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


@triton.constexpr_function
def has_two_tails(kind):
    """Return whether 0 < F < 1 everywhere."""
    return kind in TWO_TAILS.value


@triton.constexpr_function
def is_bounded(kind):
    """Return whether F is 0 up to an end."""
    return kind in BOUNDED.value


@triton.constexpr_function
def is_capped(kind):
    """Return whether F is 1 from an end on, and 0 by underflow alone."""
    return kind in CAPPED.value


@triton.constexpr_function
def is_in_octaves(kind):
    """Return whether distances are powers of 2."""
    return kind in OCTAVES.value


@triton.constexpr_function
def edge_of(kind):
    """Return where z is counted from by a link without an alpha."""
    return contract.EDGES[kind]


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


@triton.jit
def weight(KIND: tl.constexpr, y, alpha):
    """F."""
    t, upper, _, _ = tail(KIND, y, alpha)
    return tl.where(upper, 1.0 - t, t)


@triton.jit
def density(KIND: tl.constexpr, y, alpha):
    """F′, at a kink the one below."""
    if is_bounded(KIND):
        first = _density(KIND, y, alpha)
    else:
        _, _, first, _ = tail(KIND, y, alpha)
    return first


@triton.jit
def quantile(KIND: tl.constexpr, q, rest, alpha):
    """Return the y at which F = q, roughly (the normal one to 5e-4); rest = 1 − q."""
    q, rest = tl.maximum(q, TINY), tl.maximum(rest, TINY)
    return _quantile(KIND, q, rest, alpha) - outside(KIND, alpha)

"""The links once more, entry by entry, in Triton's language: kofn/links says what they are.

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

from kofn.kernels import constants, contract

LOGISTIC = tl.constexpr(contract.LOGISTIC)
LAPLACE = tl.constexpr(contract.LAPLACE)
NORMAL = tl.constexpr(contract.NORMAL)
EXPONENTIAL = tl.constexpr(contract.EXPONENTIAL)
LINEAR = tl.constexpr(contract.LINEAR)
SQUARE = tl.constexpr(contract.SQUARE)
POWER = tl.constexpr(contract.POWER)

SERVED = tuple(
    kind.value for kind in (LOGISTIC, LAPLACE, NORMAL, EXPONENTIAL, LINEAR, SQUARE, POWER)
)
"""The links that have a branch in each function here, and, with tails other than e^−|z|, in far.py
and in `_balance` of one_program.py.
"""

EPS = tl.constexpr(2.0**-23)
TINY = tl.constexpr(2.0**-126)
INF = tl.constexpr(math.inf)
LOG2_E = tl.constexpr(1 / math.log(2))
MILLS = tl.constexpr(constants.MILLS)
ABOVE = tl.constexpr(constants.HASTINGS[0])
BELOW = tl.constexpr(constants.HASTINGS[1])
PER_ROOT_2_PI = tl.constexpr(1 / math.sqrt(2 * math.pi))
DELETED = tl.constexpr(float(-(2.0 - 2.0**-23) * 2.0**126))
"""Half of the least float: a score there or below is out of play, as one of −inf is."""
# How far above the place where F reaches 1 its slope is still the one below: _pieces.up_to_1.
KINK = tl.constexpr(constants.KINK * 2.0**-23)

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


@triton.jit
def edge(KIND: tl.constexpr, alpha):
    """Where y = 0 is for a link of mean zero."""
    where = alpha * 0.0
    if KIND == EXPONENTIAL:
        where += 1.0
    elif KIND == LINEAR:
        where -= 0.5
    elif KIND == SQUARE or KIND == POWER:
        where += 1.0 / alpha - 1.0 / (alpha - 1.0)
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


@triton.jit
def inverse(x):
    """1/x of a positive normal number, to 3e-7: a division would be eight instructions, not two."""
    root = tl.rsqrt(x)
    return root * root


@triton.jit
def mills(z):
    """Return (1 − Φ)/φ/√(2π) for z ≥ 0."""
    r = inverse(z + 3.0)
    q = (z - 3.0) * r
    p = q * MILLS[11] + MILLS[10]
    p = p * q + MILLS[9]
    p = p * q + MILLS[8]
    p = p * q + MILLS[7]
    p = p * q + MILLS[6]
    p = p * q + MILLS[5]
    p = p * q + MILLS[4]
    p = p * q + MILLS[3]
    p = p * q + MILLS[2]
    p = p * q + MILLS[1]
    p = p * q + MILLS[0]
    return p * r


@triton.jit
def bell(z):
    """e^{−z²/2} for z ≥ 0, 0 where it would be subnormal."""
    return tl.where(z < 13.0, tl.exp2(z * z * (-0.5 * LOG2_E)), 0.0)


@triton.jit
def tail(KIND: tl.constexpr, y, alpha):
    """Return (the smaller of F and 1 − F, whether F > ½, F′, F″)."""
    if KIND == LOGISTIC:
        e = tl.exp2(-tl.abs(y))
        r = inverse(1.0 + e)
        t = e * r
        upper = y > 0.0
        first = t * r
        bend = first * (r - t)
        second = tl.where(upper, -bend, bend)
    elif KIND == LAPLACE:
        t = tl.exp2(-tl.abs(y) - 1.0)
        upper = y > 0.0
        first = t
        second = tl.where(upper, -t, t)
    elif KIND == NORMAL:
        z = tl.minimum(tl.abs(y), 13.0)
        height = bell(z)
        t = height * mills(z)
        upper = y > 0.0
        first = height * PER_ROOT_2_PI
        second = first * tl.where(upper, -z, z)
    elif KIND == EXPONENTIAL:
        p = tl.exp2(tl.minimum(y, 0.0))
        upper = p > 0.5
        t = tl.where(upper, 1.0 - p, p)
        first = tl.where(y < KINK * LOG2_E, p, 0.0)
        second = first
    elif KIND == LINEAR:
        upper = y > 0.5
        t = tl.maximum(tl.minimum(y, 1.0 - y), 0.0)
        first = tl.where((y > 0.0) & (y < 1.0), 1.0, 0.0)
        second = tl.zeros_like(first)
    else:
        base = tl.minimum(tl.maximum(_base(KIND, y, alpha), 0.0), 1.0)
        inside = (base > 0.0) & (base < 1.0)
        if KIND == SQUARE:
            p = base * base
            first = tl.where(inside, base, 0.0)
            second = tl.where(inside, 0.5, 0.0)
        else:
            p = _power(base, 1.0 / (alpha - 1.0))
            per_base = inverse(tl.where(inside, base, 1.0))
            first = tl.where(inside, p * per_base, 0.0)
            second = (2.0 - alpha) * first * per_base
        upper = p > 0.5
        t = tl.where(upper, 1.0 - p, p)
    return t, upper, first, second


@triton.jit
def weight(KIND: tl.constexpr, y, alpha):
    """F."""
    t, upper, _, _ = tail(KIND, y, alpha)
    return tl.where(upper, 1.0 - t, t)


@triton.jit
def density(KIND: tl.constexpr, y, alpha):
    """F′, at a kink the one below."""
    if KIND == SQUARE or KIND == POWER:
        base = _base(KIND, y, alpha)
        inside = (base > 0.0) & (base < 1.0 + KINK)
        base = tl.minimum(base, 1.0)
        if KIND == POWER:
            base = _power(tl.maximum(base, 0.0), (2.0 - alpha) / (alpha - 1.0))
        first = tl.where(inside, base, 0.0)
    else:
        _, _, first, _ = tail(KIND, y, alpha)
    return first


@triton.jit
def _base(KIND: tl.constexpr, y, alpha):
    """Return the base that entmax raises to the power 1/(α − 1)."""
    return y * 0.5 if KIND == SQUARE else y * (alpha - 1.0)


@triton.jit
def _power(base, exponent):
    """base to a positive power for 0 ≤ base ≤ 1; 0 where it would be subnormal."""
    octaves = exponent * tl.log2(tl.maximum(base, 1e-30))
    return tl.where((octaves > -125.0) & (base > 0.0), tl.exp2(octaves), 0.0)


@triton.jit
def quantile(KIND: tl.constexpr, q, rest, alpha):
    """Return the y at which F = q, roughly (the normal one to 5e-4); rest = 1 − q."""
    q, rest = tl.maximum(q, TINY), tl.maximum(rest, TINY)
    if KIND == LOGISTIC:
        y = tl.log(q) - tl.log(rest)
    elif KIND == LAPLACE:
        y = tl.where(q < 0.5, tl.log(2.0 * q), -tl.log(2.0 * rest))
    elif KIND == NORMAL:
        t = tl.sqrt(-2.0 * tl.log(tl.minimum(q, rest)))
        above = t * (t * ABOVE[2] + ABOVE[1]) + ABOVE[0]
        below = t * (t * (t * BELOW[2] + BELOW[1]) + BELOW[0]) + 1.0
        size = t - above / below
        y = tl.where(q < 0.5, -size, size)
    elif KIND == EXPONENTIAL:
        y = tl.log(q)
    elif KIND == LINEAR:
        y = q
    else:
        y = tl.exp((alpha - 1.0) * tl.log(q)) / (alpha - 1.0)
    return y

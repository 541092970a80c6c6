"""The words of links' formulas in float64, and the formulas of all links by `KIND`.

z is in units of T, and y is z measured from where a link is simplest, as in `rows/formulas.py`.
(Tests: tests/kernels/gpu/interpreted/doubles.py, test_kernels_gpu.py.)
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from kofn.kernels import constants
from kofn.kernels.gpu.rows import words
from kofn.kernels.gpu.rows.words import PER_ROOT_2_PI, ROOT_2, by_kind, quotient
from kofn.links.targets import Target

MILLS = tl.constexpr(constants.MILLS_DOUBLE)
PER_FACTORIAL = tl.constexpr(tuple(1 / math.factorial(j + 2) for j in range(17)))
FARTHEST = tl.constexpr(1e153)  # its square is finite
FAR = tl.constexpr(700.0)  # e^−FAR is a normal number
KINK = tl.constexpr(words.ROUNDINGS * 2.0**-52)


@triton.jit
def mills(z):
    """Return (1 − Φ)/φ/√(2π) for z ≥ 0."""
    r = 1.0 / (z + 4.0)
    q = (z - 4.0) * r
    p = q * MILLS[22] + MILLS[21]
    for i in tl.static_range(21):
        p = p * q + MILLS[20 - i]
    return p * r


@triton.jit
def normal_tail(z):
    """(1 − Φ, φ) at z ≥ 0."""
    height = tl.where(z < 37.0, tl.exp(z * z * -0.5), 0.0)
    return height * mills(z), height * PER_ROOT_2_PI


@triton.jit
def erfc(z):
    t, _ = normal_tail(tl.abs(z) * ROOT_2)
    return tl.where(z < 0.0, 2.0 - 2.0 * t, 2.0 * t)


@triton.jit
def apart(y):
    """Return (a, b) with a/b = e^y, the greater of them 1."""
    e, upper = falling(y), y > 0.0
    return tl.where(upper, 1.0, e), tl.where(upper, e, 1.0)


@triton.jit
def falling(y):
    """e^−|y|, 0 where it would be subnormal."""
    return tl.where(tl.abs(y) < FAR, tl.exp(-tl.minimum(tl.abs(y), FAR)), 0.0)


@triton.jit
def rising(y):
    """e^y of a y that may be large."""
    return tl.where(y > -FAR, tl.exp(tl.minimum(y, FAR)), 0.0)


@triton.jit
def power(base, exponent):
    """base to a positive power for 0 ≤ base ≤ 1; 0 where it would be subnormal."""
    logs = exponent * tl.log(tl.where(base > 0.0, base, 1.0))
    return tl.where((logs > -FAR) & (base > 0.0), tl.exp(logs), 0.0)


@triton.jit
def rounding(z):
    # Triton compares with a number as with one of float32, to which 1 + KINK is 1.
    return tl.zeros_like(z) + KINK


@triton.jit
def expm2(u):
    """e^u − 1 − u for −0.7 ≤ u ≤ 0, by its series."""
    q = u * PER_FACTORIAL[16] + PER_FACTORIAL[15]
    for i in tl.static_range(15):
        q = q * u + PER_FACTORIAL[14 - i]
    return u * u * q


@triton.jit
def expm1(u):
    """e^u − 1 for −0.71 ≤ u ≤ 0.71."""
    below = -tl.abs(u)
    change = expm2(below) + below
    return tl.where(u < 0.0, change, -change / (change + 1.0))


@triton.jit
def far(z):
    return FAR


@triton.jit
def farthest(z):
    return FARTHEST


@triton.jit
def far_tail(z):
    """(log(1 − Φ), φ/(1 − Φ), 1 − Φ) at z ≥ 0 of any size."""
    ratio = mills(z)
    t, _ = normal_tail(z)
    return tl.log(ratio) - 0.5 * z * z, (1.0 / ratio) * PER_ROOT_2_PI, t


OF_DOUBLES = Target(
    words.OF_ENTRIES.words
    | {
        "apart": apart,
        "divided": quotient,
        "erfc": erfc,
        "expm1": expm1,
        "expm2": expm2,
        "falling": falling,
        "far": far,
        "far_tail": far_tail,
        "farthest": farthest,
        "normal_tail": normal_tail,
        "over": quotient,
        "power": power,
        "reach": far,
        "rising": rising,
        "rounding": rounding,
    },
    words.compiled,
)

tail = by_kind("tail", "y, alpha", OF_DOUBLES)
"""Return (the smaller of F and 1 − F, whether F > ½, F′, F″)."""
density = by_kind("density", "y, alpha", OF_DOUBLES)
"""Return F′ of a bounded link, at a kink the one below."""
quantile = by_kind("quantile", "q, rest, alpha", OF_DOUBLES)
"""Return the z at which F = q = 1 − rest, to a few digits."""
log_below = by_kind("log_below", "z", OF_DOUBLES, z="z")
log_above = by_kind("log_above", "z", OF_DOUBLES, z="z")
"""Return (log F, F′/F) below θ, and (log(1 − F), F′/(1 − F)) above."""

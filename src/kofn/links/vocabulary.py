"""The words that links' formulas are written with, and what they mean for arrays.

A formula is a plain function of one entry, in these words, comparisons and arithmetic. Array code
calls it as it is. Compiled code gives the same formula its own words, by `targets.py`: those of
`kernels/cpu/runtime/words.py` and `kernels/gpu/rows/words.py`. (Tests: test_kernels_formulas.py.)
"""

from __future__ import annotations

import math
from typing import Any

from kofn.arrays.kinds import namespace, special

__all__ = [
    "KINK",
    "Real",
    "divided",
    "erfc",
    "exp",
    "exp_in_reach",
    "expm1",
    "expm2",
    "far",
    "far_tail",
    "farthest",
    "greatest",
    "least",
    "like",
    "log",
    "log1p",
    "log_chance",
    "log_of_any",
    "log_rest",
    "normal_tail",
    "over",
    "power",
    "raised",
    "reach",
    "rounding",
    "size",
    "sqrt",
    "where",
]

Real = Any
"""A number of one entry: an array, or what a compiler makes of it."""
KINK = 4
"""Roundings above the place where F reaches 1 up to which its slope is still the one below."""


def exp(z: Real) -> Real:
    """e^z for z ≤ 0; compiled code gives 0 where it would be subnormal."""
    return namespace(z).exp(z)


def exp_in_reach(z: Real) -> Real:
    """e^z where the caller knows that it is not subnormal."""
    return namespace(z).exp(z)


def log(z: Real) -> Real:
    return namespace(z).log(z)


def log_chance(q: Real) -> Real:
    """log q for a factor q; compiled code cuts q at 1e-30, as q·log q is 0 to all digits there."""
    return namespace(q).log(q)


def log_of_any(z: Real) -> Real:
    """log z of any z > 0, which compiled code's `log` has of normal numbers; NaN for z < 0."""
    return namespace(z).log(z)


def log1p(z: Real) -> Real:
    return namespace(z).log1p(z)


def sqrt(z: Real) -> Real:
    return namespace(z).sqrt(z)


def over(a: Real, b: Real) -> Real:
    """a/b of a normal number b, where compiled code may round once more."""
    return a / b


def power(base: Real, exponent: Real) -> Real:
    """base^exponent for base ≥ 0 and a positive exponent."""
    some = base > 0
    return where(some, exp(exponent * log(where(some, base, 1.0))), 0.0)


def raised(base: Real, log_base: Real, exponent: Real) -> Real:
    """base^exponent for base > 0; compiled code takes the logarithm of it."""
    return base**exponent


def where(condition: Real, a: Real, b: Real) -> Real:
    return namespace(condition).where(condition, a, b)


def least(a: Real, b: Real) -> Real:
    """The lesser, with b's slope at a tie; a NaN in the first stays."""
    return where(~(a >= b), a, b)


def greatest(a: Real, b: Real) -> Real:
    """The greater, with b's slope at a tie; a NaN in the first stays."""
    return where(~(a <= b), a, b)


def size(z: Real) -> Real:
    """|z|, whose slope at 0 is one of the two sides', so that second derivatives are right."""
    return where(z > 0, z, -z)


def like(z: Real, value: float) -> Real:
    """A number in the type of z, or an array like it."""
    return namespace(z).full_like(z, value)


def rounding(z: Real) -> Real:
    """How far above the end the slope is the one below: see `safe_math.up_to_1`."""
    return KINK * float(namespace(z).finfo(z.dtype).eps)


def log_rest(s: Real) -> Real:
    """log(1 − s) for 0 ≤ s ≤ ½."""
    return namespace(s).log1p(-s)


def divided(a: Real, b: Real) -> Real:
    """a/b, which a CPU rounds once."""
    return a / b


def far(z: Real) -> float:
    """The z at which compiled code has 0 for e^−z, so that z·e^−z is no ∞·0."""
    return math.inf


def reach(z: Real) -> float:
    """The z beyond which compiled code takes exponential links' F′ for 0: it would be subnormal."""
    return math.inf


def farthest(z: Real) -> float:
    """The z at which compiled code cuts, so that its square is finite."""
    return math.inf


def erfc(z: Real) -> Real:
    return special(z).erfc(z)


def expm1(u: Real) -> Real:
    """e^u − 1 for −0.71 ≤ u ≤ 0.71."""
    return namespace(u).expm1(u)


def expm2(u: Real) -> Real:
    """e^u − 1 − u for −0.7 ≤ u ≤ 0."""
    return namespace(u).expm1(u) - u


def normal_tail(z: Real) -> tuple[Real, Real]:
    """(1 − Φ, φ) at z ≥ 0."""
    return erfc(z * math.sqrt(0.5)) / 2, exp(-z * z / 2) / math.sqrt(2 * math.pi)


def far_tail(z: Real) -> tuple[Real, Real, Real]:
    """(log(1 − Φ), φ/(1 − Φ), 1 − Φ) at z ≥ 0; compiled code has it of any size."""
    t, slope = normal_tail(z)
    return log(t), slope / t, t

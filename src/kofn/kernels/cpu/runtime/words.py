"""The words of links' formulas in compiled code, and the formulas of all links by `kind`.

`kofn/links` has the formulas, in the words of `links/vocabulary.py`. `by_kind` makes one function
of those of a name; `kind` is a constant wherever it is called, so each call keeps one branch.
(Tests: test_kernels.py.)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from kofn.kernels.contract import KINDS, Traits
from kofn.kernels.cpu.runtime.vector_math import (
    _EXP2_SINGLE,
    _OPTIONS,
    LOG2_E,
    _bits,
    _times_two_to,
    exp2,
    inline,
    log,
    log1p,
    mills,
    multiply_add,
    normal_tail,
    power,
    quotient,
    real,
)
from kofn.links.targets import Chosen, Target, restated
from kofn.links.vocabulary import KINK


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


def exponential_in_reach(z: Any) -> Any:
    """e^z to two units in the last place, where it is a normal number."""


@overload(exponential_in_reach, jit_options=_OPTIONS)
def _(z):
    # As `exp2`, with z·log₂e and its rest taken at once, and the polynomial in pairs.
    magic, octave, one = np.float32(1.5 * 2.0**23), np.float32(LOG2_E), np.float32(1)
    a0, a1, a2, a3, a4, a5 = (np.float32(c) for c in _EXP2_SINGLE)

    def single(z):
        rounded = multiply_add(z, octave, magic)
        r = multiply_add(z, octave, magic - rounded)
        square = r * r
        q = (a0 + a1 * r) + square * ((a2 + a3 * r) + square * (a4 + a5 * r))
        return _times_two_to(one + r * q, _bits(rounded))

    return single if z == types.float32 else lambda z: exp2(z * LOG2_E)


@inline
def log_chance(q):
    """log q: that of a subnormal q is not known."""
    return log(max(q, real(q, 1e-30)))


FAINT, LIFT, LOG_LIFT = 1e-30, 2.0**100, 100 * math.log(2)
"""What is less is multiplied before its logarithm is taken: it may be subnormal."""


@inline
def log_of_any(z):
    faint, infinity = z < real(z, FAINT), real(z, math.inf)
    found = log(z * real(z, LIFT) if faint else z)
    found -= real(z, LOG_LIFT) if faint else real(z, 0.0)
    found = found if z < infinity else z
    return found if z > real(z, 0.0) else real(z, math.nan)


FAR, E_FAR, PER_E_FAR = 50.0, math.exp(50.0), math.exp(-50.0)
"""A power beyond e^±far is the product of two, which may be infinite, or subnormal."""


@inline
def raised(base, log_base, exponent):
    z, far_, most, one = exponent * log_base, real(log_base, FAR), reach(log_base), real(base, 1.0)
    rest = z - far_ if z > far_ else (z + far_ if z < -far_ else z)
    other = real(z, E_FAR) if z > far_ else (real(z, PER_E_FAR) if z < -far_ else one)
    found = exponential(rest if rest < most else most) * other
    return found if z == z else z


@inline
def log_rest(small):
    """log(1 − s) for 0 ≤ s ≤ ½: as in `log1p`, the rounding of 1 − s cancels."""
    zero, one = real(small, 0.0), real(small, 1.0)
    u = one - small
    rounded = one - u
    return log(u) * quotient(small, rounded) if rounded > zero else -small


def expm2(u: Any) -> Any:
    """e^u − 1 − u for −0.7 ≤ u ≤ 0, by its series."""


@overload(expm2, jit_options=_OPTIONS)
def _(u):
    number = np.float32 if u == types.float32 else np.float64
    c0, c1, c2, c3, c4, c5, c6, c7, c8 = (number(1 / math.factorial(j + 2)) for j in range(9))
    d0, d1, d2, d3, d4, d5, d6, d7 = (number(1 / math.factorial(j + 11)) for j in range(8))

    def single(u):
        q = c4 + u * (c5 + u * (c6 + u * (c7 + u * c8)))
        return u * u * (c0 + u * (c1 + u * (c2 + u * (c3 + u * q))))

    def double(u):
        q = d0 + u * (d1 + u * (d2 + u * (d3 + u * (d4 + u * (d5 + u * (d6 + u * d7))))))
        q = c4 + u * (c5 + u * (c6 + u * (c7 + u * (c8 + u * q))))
        return u * u * (c0 + u * (c1 + u * (c2 + u * (c3 + u * q))))

    return single if u == types.float32 else double


@inline
def expm1(u):
    below = -abs(u)
    change = expm2(below) + below
    return change if u < real(u, 0.0) else -change / (real(u, 1.0) + change)


def farthest(z: Any) -> Any:
    """As solver/equation.far: beyond it z is cut, so that its square is finite."""


@overload(farthest, jit_options=_OPTIONS)
def _(z):
    most = np.finfo(np.float32 if z == types.float32 else np.float64).max
    limit = type(most)(math.sqrt(float(most)) / 16)
    return lambda z: limit


def far_tail(z: Any) -> Any:
    """(log(1 − Φ(z)), φ(z)/(1 − Φ(z)), 1 − Φ(z)) for z ≥ 0, of any size."""


@overload(far_tail, jit_options=_OPTIONS)
def _(z):
    number = np.float32 if z == types.float32 else np.float64
    half, bell = number(0.5), number(1 / math.sqrt(2 * math.pi))

    def far(z):
        ratio = mills(z)
        squares = half * z * z
        return log(ratio) - squares, quotient(bell, ratio), ratio * exponential(-squares)

    return far


_SHARED = {"like": real, "least": min, "greatest": max, "size": abs}
_OF_ENTRIES = _SHARED | {
    "exp": exponential,
    "exp_in_reach": exponential_in_reach,
    "expm1": expm1,
    "expm2": expm2,
    "far": far,
    "far_tail": far_tail,
    "farthest": farthest,
    "log": log,
    "log1p": log1p,
    "log_chance": log_chance,
    "log_of_any": log_of_any,
    "log_rest": log_rest,
    "normal_tail": normal_tail,
    "over": quotient,
    "power": power,
    "raised": raised,
    "reach": reach,
    "rounding": kink,
    "sqrt": math.sqrt,
}
_OF_ROWS = _OF_ENTRIES | {
    name: getattr(math, name) for name in ("exp", "log", "log1p", "sqrt", "erfc")
}


def _compiled(function: Any, names: dict[str, Any]) -> Any:
    return inline(restated(function, names | {"real": real, "__name__": __name__}, typed=True))


OF_ENTRIES, OF_ROWS = Target(_OF_ENTRIES, _compiled), Target(_OF_ROWS, _compiled)
"""Vector code in the type of the scores; libm's functions in float64, for one number of a row."""


MADE: list[tuple[Any, tuple[Any, ...]]] = []
"""What `by_kind` has made, and of what."""


def by_kind(
    target: Target, name: str, takes: str, others: str = "", z: str = "", **more: Any
) -> Any:
    """Return the function (kind, *takes) of the formula of this name that each link has.

    A formula takes those arguments that it names; `z` says what a link that is not bounded gets
    for that. Links without the formula return `others`, which may call what `more` names.
    """
    made = of_kinds(KINDS, target, name, takes, others, z, more)
    MADE.append((made, (target, name, takes, others, z, more)))
    return made


def of_kinds(
    kinds: tuple[Traits, ...], target: Target, name: str, takes: str, others: str, z: str,
    more: dict[str, Any], first: int = 0,
) -> Any:  # fmt: skip
    """Return the same of these links, whose numbers begin with `first`."""
    names = {"real": real, "math": math, "__name__": __name__} | more
    chosen = Chosen(target, name, takes, names)
    for number, traits in enumerate(kinds, first):
        if name in traits.kind.formulas:
            given = {"rest": "1 - q"} | ({"z": "a" if traits.bounded else z} if z else {})
            chosen.add(number, traits.kind.formulas[name], given)
    return inline(chosen.made(others))

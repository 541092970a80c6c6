"""The words of links' formulas in Triton's language, and the formulas of all links by `KIND`.

`kofn/links` has the formulas, in the words of `links/vocabulary.py`. (Tests: test_kernels_gpu.py.)
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import triton
import triton.language as tl

from kofn.kernels import constants
from kofn.kernels.contract import KINDS
from kofn.links.targets import Target, arguments_of, restated, written
from kofn.links.vocabulary import KINK as ROUNDINGS

LOG2_E = tl.constexpr(1 / math.log(2))
MILLS = tl.constexpr(constants.MILLS)
PER_ROOT_2_PI = tl.constexpr(1 / math.sqrt(2 * math.pi))
PER_FACTORIAL = tl.constexpr(tuple(1 / math.factorial(j + 2) for j in range(9)))
# How far above the place where F reaches 1 its slope is still the one below: _pieces.up_to_1.
KINK = tl.constexpr(ROUNDINGS * 2.0**-23)


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
def normal_tail(z):
    """(1 − Φ, φ) at z ≥ 0."""
    height = bell(z)
    return height * mills(z), height * PER_ROOT_2_PI


@triton.jit
def apart(y):
    """(a, b) with a/b = 2^y, of which the greater is 1."""
    e, upper = tl.exp2(-tl.abs(y)), y > 0.0
    return tl.where(upper, 1.0, e), tl.where(upper, e, 1.0)


@triton.jit
def power(base, exponent):
    """base to a positive power for 0 ≤ base ≤ 1; 0 where it would be subnormal."""
    octaves = exponent * tl.log2(tl.maximum(base, 1e-30))
    return tl.where((octaves > -125.0) & (base > 0.0), tl.exp2(octaves), 0.0)


@triton.jit
def over(a, b):
    return a * inverse(b)


@triton.jit
def rounding(z):
    return KINK


@triton.jit
def where(condition, a, b):
    return tl.where(condition, a, b)


@triton.jit
def least(a, b):
    return tl.minimum(a, b)


@triton.jit
def greatest(a, b):
    return tl.maximum(a, b)


@triton.jit
def size(z):
    return tl.abs(z)


@triton.jit
def like(z, value):
    return tl.zeros_like(z) + value


@triton.jit
def exp(z):
    return tl.exp(z)


@triton.jit
def log(z):
    return tl.log(z)


@triton.jit
def sqrt(z):
    return tl.sqrt(z)


@triton.jit
def log1p(e):
    """log(1 + e) for 0 ≤ e ≤ 1: the rounding of 1 + e cancels."""
    u = 1.0 + e
    return tl.where(u > 1.0, tl.log(u) * (e / tl.where(u > 1.0, u - 1.0, 1.0)), e)


@triton.jit
def log_rest(s):
    """log(1 − s) for 0 ≤ s ≤ ½, likewise."""
    u = 1.0 - s
    return tl.where(u < 1.0, tl.log(u) * (s / tl.where(u < 1.0, 1.0 - u, 1.0)), -s)


@triton.jit
def log_chance(q):
    return tl.log(tl.maximum(q, 1e-30))


@triton.jit
def expm2(u):
    """e^u − 1 − u for −0.7 ≤ u ≤ 0, by its series."""
    q = u * PER_FACTORIAL[8] + PER_FACTORIAL[7]
    for i in tl.static_range(7):
        q = q * u + PER_FACTORIAL[6 - i]
    return u * u * q


@triton.jit
def far(z):
    return 125.0


@triton.jit
def reach(z):
    return 86.0


@triton.jit
def farthest(z):
    return 1e18


@triton.jit
def far_tail(z):
    """(log(1 − Φ), φ/(1 − Φ), 1 − Φ) at z ≥ 0 of any size."""
    ratio = mills(z)
    return tl.log(ratio) - 0.5 * z * z, PER_ROOT_2_PI / ratio, ratio * bell(z)


# Each is a function of this file: Triton's interpreter does not call its own through a name.
_WORDS = {
    "divided": over,
    "exp": exp,
    "exp_in_reach": exp,
    "expm2": expm2,
    "far": far,
    "far_tail": far_tail,
    "farthest": farthest,
    "greatest": greatest,
    "least": least,
    "like": like,
    "log": log,
    "log1p": log1p,
    "log_chance": log_chance,
    "log_rest": log_rest,
    "normal_tail": normal_tail,
    "over": over,
    "power": power,
    "reach": reach,
    "rounding": rounding,
    "size": size,
    "sqrt": sqrt,
    "where": where,
}


_place = itertools.count()


def _compiled(function: Any, names: dict[str, Any]) -> Any:
    # Triton tells functions apart by their modules and names, and links have some of one name.
    here = {"__name__": f"{__name__}.of_{next(_place)}", "tl": tl}
    return triton.jit(restated(function, names | here))


OF_ENTRIES = Target(_WORDS, _compiled, tl.constexpr)


def by_kind(name: str, takes: str, **of: str) -> Any:
    """Return the function (KIND, *takes) of the formula of this name that each link has.

    A formula takes those arguments that it names, or what `of` says for a name. `gpu_` before a
    formula's name makes it the GPU's own.
    """
    names: dict[str, Any] = {"tl": tl, "apart": apart, "__name__": __name__}
    lines = [f"def {name}(KIND: tl.constexpr, {takes}):"]
    for number, traits in enumerate(KINDS):
        formulas = traits.kind.formulas
        formula = formulas.get(f"gpu_{name}", formulas.get(name))
        formula = formulas.get("tail_of_size", formula) if name == "tail" else formula
        if formula is None or not (traits.bounded or name != "density"):
            continue
        names[f"{name}_{number}"] = OF_ENTRIES(formula)
        wanted = arguments_of(formula)
        lines.append(f"    {'elif' if len(lines) > 1 else 'if'} KIND == {number}:")
        if "a" in wanted:
            lines.append(f"        a, b = {'apart(y)' if traits.two_tails else 'tl.exp2(y), 1.0'}")
        if "e" in wanted:
            lines.append("        e, upper = tl.exp2(-tl.abs(y)), y > 0.0")
        z = "tl.minimum(tl.maximum(y, -125.0), 125.0)" if traits.two_tails else "y"
        mine = {"z": z, "per_b": "1.0", "rise": "alpha - 1.0"} | of
        called = ", ".join(mine.get(each, each) for each in wanted)
        lines.append(f"        found = {name}_{number}({called})")
    lines.append("    return found")
    return triton.jit(written("\n".join(lines) + "\n", name, names))

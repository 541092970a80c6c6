"""The words of links' formulas in Triton's language, and the formulas of all links by `KIND`.

`kofn/links` has the formulas, in the words of `links/vocabulary.py`. (Tests: test_kernels_gpu.py.)
"""

from __future__ import annotations

import ast
import itertools
import math
from typing import Any

import triton
import triton.language as tl

from kofn.kernels import constants
from kofn.kernels.contract import KINDS, Traits
from kofn.links.targets import Target, arguments_of, parsed, written
from kofn.links.vocabulary import KINK as ROUNDINGS

LOG2_E = tl.constexpr(1 / math.log(2))
MILLS = tl.constexpr(constants.MILLS)
PER_ROOT_2_PI = tl.constexpr(1 / math.sqrt(2 * math.pi))
ROOT_2 = tl.constexpr(math.sqrt(2))
FARTHEST = tl.constexpr(1e18)  # its square is finite
PER_FACTORIAL = tl.constexpr(tuple(1 / math.factorial(j + 2) for j in range(9)))
# How far above the place where F reaches 1 its slope is still the one below: _pieces.up_to_1.
KINK = tl.constexpr(2 * ROUNDINGS * 2.0**-23)  # half for θ, which a search in float32 has found


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
    """Return (a, b) with a/b = 2^y, the greater of them 1."""
    e, upper = falling(y), y > 0.0
    return tl.where(upper, 1.0, e), tl.where(upper, e, 1.0)


@triton.jit
def falling(y):
    return tl.exp2(-tl.abs(y))


@triton.jit
def rising(y):
    return tl.exp2(y)


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
    """log(1 + e) for e > −1: the rounding of 1 + e cancels."""
    u = 1.0 + e
    return tl.where(u != 1.0, tl.log(u) * (e / tl.where(u != 1.0, u - 1.0, 1.0)), e)


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
def expm1(u):
    """e^u − 1 for −0.71 ≤ u ≤ 0.71."""
    below = -tl.abs(u)
    change = expm2(below) + below
    return tl.where(u < 0.0, change, -change / (change + 1.0))


@triton.jit
def erfc(z):
    t, _ = normal_tail(tl.abs(z) * ROOT_2)
    return tl.where(z < 0.0, 2.0 - 2.0 * t, 2.0 * t)


@triton.jit
def raised_to(base, exponent):
    """base^exponent, where that is a normal number."""
    return tl.exp2(tl.log2(base) * exponent)


@triton.jit
def quotient(a, b):
    return a / b


@triton.jit
def far(z):
    return 125.0


@triton.jit
def reach(z):
    return 86.0


@triton.jit
def farthest(z):
    return FARTHEST


@triton.jit
def far_tail(z):
    """(log(1 − Φ), φ/(1 − Φ), 1 − Φ) at z ≥ 0 of any size."""
    ratio = mills(z)
    return tl.log(ratio) - 0.5 * z * z, PER_ROOT_2_PI / ratio, ratio * bell(z)


@triton.jit
def order_of(value):
    """Return a float's place in the order of all, and back: from the bits of either."""
    return tl.where(value < 0, value ^ 0x7FFFFFFF, value)


@triton.jit
def place_of(value):
    return order_of(value.to(tl.int32, bitcast=True))


@triton.jit
def number_at(place):
    return order_of(place).to(tl.float32, bitcast=True)


@triton.jit
def between_places(low, high):
    """Return the place between two, without overflow."""
    return (low & high) + ((low ^ high) >> 1)


# Each is a function of this file: Triton's interpreter does not call its own through a name.
_WORDS = {
    "apart": apart,
    "divided": over,
    "erfc": erfc,
    "exp": exp,
    "exp_in_reach": exp,
    "expm1": expm1,
    "expm2": expm2,
    "falling": falling,
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
    "rising": rising,
    "rounding": rounding,
    "size": size,
    "sqrt": sqrt,
    "where": where,
}


class _Numbered(ast.NodeTransformer):
    """Writes numbers in the place of their names, for Triton's interpreter takes a constant times
    a block for a constant; and powers by a word.
    """

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        value = self.names.get(node.id)
        return ast.Constant(value) if isinstance(value, float) else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Pow):
            return node
        if not (isinstance(node.right, ast.Constant) and node.right.value in range(1, 9)):
            return ast.Call(ast.Name("raised_to"), [node.left, node.right], [])
        product = node.left
        for _ in range(1, node.right.value):
            product = ast.BinOp(product, ast.Mult(), node.left)
        return product


_place = itertools.count()


def compiled(function: Any, names: dict[str, Any]) -> Any:
    # Triton tells functions apart by their modules and names, and links have some of one name.
    names |= {"__name__": f"{__name__}.of_{next(_place)}", "tl": tl, "raised_to": raised_to}
    tree = _Numbered(names).visit(parsed(function))
    text = ast.unparse(ast.fix_missing_locations(tree))
    return triton.jit(written(text, function.__name__, names))


OF_ENTRIES = Target(_WORDS, compiled)
OF_OWN = Target(_WORDS | {"divided": quotient, "over": quotient}, compiled)
"""Formulas of users' own links may divide by a number below 0."""

_TAKES: dict[str, tuple[str, dict[str, str]]] = {}


@triton.constexpr_function
def formula_of(kind, name):
    """Return a formula of a user's own link, as `of_link` makes it."""
    return kind.formula(name)


def by_kind(name: str, takes: str, target: Target = OF_ENTRIES, **of: str) -> Any:
    """Return the function (KIND, *takes) of the formula of this name that each link has.

    A formula takes those arguments that it names, or what `of` says for a name. `gpu_` before a
    formula's name makes it the GPU's own.
    """
    _TAKES[name] = takes, of
    names: dict[str, Any] = {"formula_of": formula_of, **_names_of(target)}
    lines = [f"def {name}(KIND: tl.constexpr, {takes}):"]
    for number, traits in enumerate(KINDS):
        called = _called(name, traits, target, names)
        if called and (traits.bounded or name != "density"):
            lines += [f"    {'elif' if len(lines) > 1 else 'if'} KIND == {number}:", *called]
    lines += [
        "    else:",
        f'        found = formula_of(KIND, "{name}")({takes})',
        "    return found",
    ]
    return triton.jit(written("\n".join(lines) + "\n", name, names))


def of_link(traits: Traits, name: str) -> Any:
    """Return the function that `by_kind` makes, of one link, and without KIND."""
    names = _names_of(OF_OWN)
    lines = [f"def own_{name}({_TAKES[name][0]}):", *_called(name, traits, OF_OWN, names)]
    text = "\n".join((*lines, "        return found\n"))
    return triton.jit(written(text, f"own_{name}", names))


def _names_of(target: Target) -> dict[str, Any]:
    """Return what the functions made of a target's formulas name."""
    names = {name: target.words[name] for name in ("apart", "falling", "far", "rising")}
    return names | {"tl": tl, "FARTHEST": FARTHEST, "__name__": __name__}


def _called(name: str, traits: Traits, target: Target, names: dict[str, Any]) -> list[str]:
    """Return the lines that call a link's formula, which goes to the names; none without it."""
    formulas, of = traits.kind.formulas, dict(_TAKES[name][1])
    formula = formulas.get(f"gpu_{name}", formulas.get(name))
    formula = formulas.get("tail_of_size", formula) if name == "tail" else formula
    if formula is None and name == "log_above":  # of a symmetric link
        formula, of["z"] = formulas.get("log_below"), "-z"
    if formula is None:
        of_own = target is OF_OWN and name == "above"
        return ["        found = tl.maximum(part - (z + edge), 0.0)"] if of_own else []
    names[f"{name}_{traits.kind.number}"] = target(formula)
    wanted, lines = arguments_of(formula), []
    if "a" in wanted:
        lines.append(f"        a, b = {'apart(y)' if traits.two_tails else 'rising(y), 1.0'}")
    if "e" in wanted:
        lines.append("        e, upper = falling(y), y > 0.0")
    far = "FARTHEST" if target is OF_OWN else "far(y)"
    z = f"tl.minimum(tl.maximum(y, -{far}), {far})" if traits.two_tails else "y"
    mine = {"z": z, "per_b": "1.0", "rise": "alpha - 1.0"} | of
    called = ", ".join(mine.get(each, each) for each in wanted)
    return [*lines, f"        found = {name}_{traits.kind.number}({called})"]

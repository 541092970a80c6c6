"""Interpolation by polynomials through points in a row, and its transpose, as code of vectors.

A number x of a bin, −½ ≤ x < ½, lies between the middle two of eight points, which are 1 apart.
Vectors of eight float64 are what each function takes from an address, and leaves there. (Tests:
test_kernels_lattice.py.)
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

POINTS = 8

_NUMBER = ir.DoubleType()
_VECTOR = ir.VectorType(_NUMBER, POINTS)
_FLAGS = ("contract", "reassoc", "nsz")


def _basis(point: int) -> list[float]:
    """Return the coefficients of the polynomial that is 1 at this point and 0 at the others."""
    places = [i - (POINTS - 1) / 2 for i in range(POINTS)]
    found, scale = [1.0], 1.0
    for i, place in enumerate(places):
        if i != point:
            found = [a - place * b for a, b in zip([0.0, *found], [*found, 0.0], strict=True)]
            scale *= places[point] - place
    return [each / scale for each in found]


BASIS = tuple(tuple(_basis(point)) for point in range(POINTS))


def _at(builder: Any, address: Any, step: int = 0) -> Any:
    place = builder.add(address, ir.IntType(64)(8 * step))
    return builder.inttoptr(place, _VECTOR.as_pointer())


def _loaded(builder: Any, address: Any, step: int = 0) -> Any:
    return builder.load(_at(builder, address, step), align=8)


def _everywhere(builder: Any, x: Any) -> Any:
    first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), x, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), POINTS), [0] * POINTS)
    return builder.shuffle_vector(first, first, zeros)


def _powers(builder: Any, x: Any) -> Any:
    """1, x, x², … x⁷: a product of three vectors, which have x, x² and x⁴ or 1."""
    ones, found, bit = ir.Constant(_VECTOR, [1.0] * POINTS), None, 1
    while bit < POINTS:
        has = [int(i & bit > 0) for i in range(POINTS)]
        chosen = ir.Constant(ir.VectorType(ir.IntType(1), POINTS), has)
        factor = builder.select(chosen, _everywhere(builder, x), ones)
        found = factor if found is None else builder.fmul(found, factor)
        x, bit = builder.fmul(x, x), 2 * bit
    return found


def _sum(builder: Any, vector: Any) -> Any:
    """The sum of a vector's numbers, halves upon halves."""
    half = POINTS // 2
    while half:
        kind = ir.VectorType(ir.IntType(32), half)
        low, high = (
            builder.shuffle_vector(vector, vector, ir.Constant(kind, [*places]))
            for places in (range(half), range(half, 2 * half))
        )
        vector, half = builder.fadd(low, high), half // 2
    return builder.extract_element(vector, ir.IntType(32)(0))


@intrinsic
def add_powers(typingctx, address, x, weight):
    """Add weight·(1, x, … x⁷)."""

    def codegen(context, builder, signature, arguments):
        address, x, weight = arguments
        term = builder.fmul(_powers(builder, x), _everywhere(builder, weight), flags=_FLAGS)
        total = builder.fadd(_loaded(builder, address), term, flags=_FLAGS)
        builder.store(total, _at(builder, address), align=8)
        return context.get_dummy_value()

    return types.none(address, types.float64, types.float64), codegen


@intrinsic
def polynomial(typingctx, address, x):
    """The value at x of the polynomial with these coefficients."""

    def codegen(context, builder, signature, arguments):
        address, x = arguments  # one number after another: a sum of a vector's would take longer
        found = ir.Constant(_NUMBER, 0.0)
        for i in reversed(range(POINTS)):
            place = builder.inttoptr(
                builder.add(address, ir.IntType(64)(8 * i)), _NUMBER.as_pointer()
            )
            term = builder.fmul(found, x, flags=("contract",))
            found = builder.fadd(builder.load(place), term, flags=("contract",))
        return found

    return types.float64(address, types.float64), codegen


@intrinsic
def at_point(typingctx, address):
    """What a point has of the sums of `add_powers` of eight bins, which stand one after another.

    It is the last point of the first bin and the first of the last.
    """

    def codegen(context, builder, signature, arguments):
        total = ir.Constant(_VECTOR, [0.0] * POINTS)
        for i, row in enumerate(reversed(BASIS)):
            moments = _loaded(builder, arguments[0], POINTS * i)
            term = builder.fmul(moments, ir.Constant(_VECTOR, row), flags=_FLAGS)
            total = builder.fadd(total, term, flags=_FLAGS)
        return _sum(builder, total)

    return types.float64(address), codegen


@intrinsic
def through_points(typingctx, into, address):
    """Leave the coefficients of the polynomial through the values of eight points."""

    def codegen(context, builder, signature, arguments):
        into, address = arguments
        total, values = ir.Constant(_VECTOR, [0.0] * POINTS), _loaded(builder, address)
        for i, row in enumerate(BASIS):
            value = builder.extract_element(values, ir.IntType(32)(i))
            factor = _everywhere(builder, value)
            term = builder.fmul(factor, ir.Constant(_VECTOR, row), flags=_FLAGS)
            total = builder.fadd(total, term, flags=_FLAGS)
        builder.store(total, _at(builder, into), align=8)
        return context.get_dummy_value()

    return types.none(into, address), codegen

"""Rows of 16-bit numbers: some at a time are converted to float32 in a thread's own memory, worked
on there while they are in its cache, and their answers are rounded back.

What works on them is a function for float32 rows, called by its address. It gets a job of its own
for each block.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from kofn.arrays.kinds import LEAST_IN_PLAY
from kofn.kernels.cpu.runtime import layout
from kofn.kernels.cpu.runtime.intrinsics import asked, call, fetch_add, pointer, run
from kofn.kernels.cpu.runtime.shares import CHUNK, COUNT, DONE, NEXT, served
from kofn.kernels.cpu.runtime.split_row import leaving, pass_over_parts, plain
from kofn.kernels.cpu.runtime.vector_math import widest_vectors

_I32, _I16, _FLOAT = ir.IntType(32), ir.IntType(16), ir.FloatType()
_INFINITE = 0x7F800000  # the bits of infinity in float32


def _single_from_float16(builder: Any, bits: Any) -> Any:
    """Shift fraction and exponent to their places; subtract 2⁻¹⁴ for subnormal numbers."""
    unsigned = builder.shl(builder.and_(bits, _I32(0x7FFF)), _I32(13))
    exponent = builder.and_(unsigned, _I32(31 << 23))
    normal = builder.add(unsigned, _I32(112 << 23))
    beyond = builder.add(unsigned, _I32(224 << 23))
    raised = builder.bitcast(builder.add(unsigned, _I32(113 << 23)), _FLOAT)
    small = builder.bitcast(builder.fsub(raised, _FLOAT(2.0**-14)), _I32)
    finite = builder.select(builder.icmp_unsigned("==", exponent, _I32(0)), small, normal)
    is_beyond = builder.icmp_unsigned("==", exponent, _I32(31 << 23))
    sign = builder.shl(builder.and_(bits, _I32(0x8000)), _I32(16))
    return builder.or_(builder.select(is_beyond, beyond, finite), sign)


def _float16_from_single(builder: Any, bits: Any) -> Any:
    """Round to the nearest, ties to even; NaN stays NaN."""
    sign = builder.and_(bits, _I32(1 << 31))
    unsigned = builder.xor(bits, sign)
    odd = builder.and_(builder.lshr(unsigned, _I32(13)), _I32(1))
    rebased = builder.add(builder.sub(unsigned, _I32((112 << 23) - 0xFFF)), odd)
    normal = builder.lshr(rebased, _I32(13))
    # Adding ½ rounds a number below 2⁻¹⁴ to a multiple of 2⁻²⁴.
    raised = builder.fadd(builder.bitcast(unsigned, _FLOAT), _FLOAT(0.5))
    small = builder.sub(builder.bitcast(raised, _I32), _I32(126 << 23))
    is_nan = builder.icmp_unsigned(">", unsigned, _I32(_INFINITE))
    beyond = builder.select(is_nan, _I32(0x7E00), _I32(0x7C00))
    is_small = builder.icmp_unsigned("<", unsigned, _I32(113 << 23))
    is_beyond = builder.icmp_unsigned(">=", unsigned, _I32(143 << 23))
    magnitude = builder.select(is_beyond, beyond, builder.select(is_small, small, normal))
    return builder.or_(magnitude, builder.lshr(sign, _I32(16)))


def _single_from_bfloat16(builder: Any, bits: Any) -> Any:
    return builder.shl(bits, _I32(16))


def _bfloat16_from_single(builder: Any, bits: Any) -> Any:
    """Round to the nearest, ties to even; NaN stays NaN."""
    high = builder.lshr(bits, _I32(16))
    odd = builder.and_(high, _I32(1))
    rounded = builder.lshr(builder.add(builder.add(bits, _I32(0x7FFF)), odd), _I32(16))
    unsigned = builder.and_(bits, _I32((1 << 31) - 1))
    is_nan = builder.icmp_unsigned(">", unsigned, _I32(_INFINITE))
    return builder.select(is_nan, builder.or_(high, _I32(0x40)), rounded)


_CONVERSIONS = (  # by the places in layout.HALF_TYPES
    (_single_from_float16, _float16_from_single),
    (_single_from_bfloat16, _bfloat16_from_single),
)


def _widened(kind: int) -> Any:
    """Make the function of one pattern of 16 bits, as the float32 that it is."""

    @intrinsic
    def widened(typingctx, pattern):
        def codegen(context, builder, signature, arguments):
            bits = _CONVERSIONS[kind][0](builder, builder.zext(arguments[0], _I32))
            value = builder.bitcast(bits, _FLOAT)
            if layout.HALF_TYPES[kind] != "float16":
                return value
            at_once = builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), _FLOAT)
            return builder.select(asked(builder, "kofn_converts_halves"), at_once, value)

        return types.float32(types.uint16), codegen

    return widened


def _narrowed(kind: int) -> Any:
    """Make the function of one float32, rounded to a pattern of 16 bits."""

    @intrinsic
    def narrowed(typingctx, x):
        def codegen(context, builder, signature, arguments):
            bits = _CONVERSIONS[kind][1](builder, builder.bitcast(arguments[0], _I32))
            pattern = builder.trunc(bits, _I16)
            if layout.HALF_TYPES[kind] != "float16":
                return pattern
            at_once = builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), _I16)
            return builder.select(asked(builder, "kofn_converts_halves"), at_once, pattern)

        return types.uint16(types.float32), codegen

    return narrowed


def widen(kind: int, number: Any) -> Any:
    """Convert numbers at x to float32; where `scores` > 0, those out of play become −inf.

    The numbers from the address `base` on go to `into`. (A float64 holds an address exactly.)
    """
    single = _widened(kind)
    lowest, none = number(LEAST_IN_PLAY[layout.HALF_TYPES[kind]]), number(-math.inf)

    def one_pass(x, g, out, n, sums, scores, base, into, d, e):
        widest_vectors()
        place = np.int64(into) + 2 * (x - np.int64(base))
        patterns, converted = carray(pointer(x), n, np.uint16), carray(pointer(place), n, number)
        least = lowest if scores > 0 else none
        for i in range(n):
            v = single(patterns[i])
            converted[i] = none if v <= least else v

    return one_pass


def narrow(kind: int, number: Any) -> Any:
    """Round float32 numbers at x; the ones from the address `base` on go to `into`."""
    half = _narrowed(kind)

    def one_pass(x, g, out, n, sums, a, base, into, d, e):
        widest_vectors()
        place = np.int64(into) + (x - np.int64(base)) // 2
        numbers, converted = carray(pointer(x), n, number), carray(pointer(place), n, np.uint16)
        for i in range(n):
            converted[i] = half(numbers[i])

    return one_pass


@plain
def _in_singles(job, own, first, last, number):
    """Have a block of rows of 16-bit numbers worked on."""
    words, count = carray(pointer(job), layout.HALF_WORDS, np.int64), last - first
    _convert_to(words, own, layout.SCORES, first, count)
    _convert_to(words, own, layout.COTANGENTS, first, count)
    _work(words, own, first, count, number, job + 8 * layout.HALF_GIVEN_UP)
    _convert_back(words, own, first, count)


in_singles = served(_in_singles, leaving(layout.TEAM))


@plain
def _slot(words, own, array):
    """The address of a converted array."""
    first = own + words[layout.MADE] + words[layout.CONVERTED]
    return first + words[layout.SLOT] * (array - layout.SCORES)


@plain
def _convert_to(words, own, array, first, count):
    if words[array]:
        source, into = words[array] + 2 * words[layout.ENTRIES] * first, _slot(words, own, array)
        scores = 1.0 if array == layout.SCORES else 0.0
        _convert(words, own, words[layout.WIDEN], source, into, count, 2, scores)


@plain
def _convert_back(words, own, first, count):
    if words[layout.ANSWERS]:
        source = _slot(words, own, layout.ANSWERS)
        into = words[layout.ANSWERS] + 2 * words[layout.ENTRIES] * first
        _convert(words, own, words[layout.NARROW], source, into, count, 4, 0.0)


@plain
def _convert(words, own, address, source, into, count, size, a):
    """Convert some rows; a long one with whoever helps."""
    n, sums, team = words[layout.ENTRIES], own + words[layout.MADE], own + words[layout.TEAM_AT]
    b, c, zero = np.float64(source), np.float64(into), 0.0
    if n > layout.PART:
        pass_over_parts(team, address, source, 0, 0, n, sums, size, False, a, b, c, zero, zero)
    else:
        call(address, source, 0, 0, n * count, sums, a, b, c, zero, zero)


@plain
def _work(words, own, first, count, number, given_up):
    """Make the jobs of some rows, one after another, and have them done."""
    job = own + words[layout.MADE] + 8 * layout.SUMS
    table = carray(pointer(words[layout.TABLE]), (words[layout.STEPS], layout.STEP), np.int64)
    for i in range(words[layout.STEPS]):
        length, given = table[i, layout.LENGTH], table[i, layout.GIVEN_UP_AT]
        made = carray(pointer(job), length, np.int64)
        start = carray(pointer(table[i, layout.START]), length, np.int64)
        modes = carray(pointer(table[i, layout.MODES]), length, np.int64)
        for j in range(length):
            value, mode = start[j], modes[j]
            if value != 0 and mode > 0:
                value += mode * first
            elif value != 0 and mode < 0:
                value = _slot(words, own, layout.SCORES - 1 - mode)
            made[j] = value
        made[NEXT], made[DONE], made[COUNT], made[CHUNK] = 0, 0, count, count
        run(table[i, layout.RUN], job, own, number, 1)
        if given:
            fetch_add(given_up, made[given])

"""exp2, log and the normal tail as LLVM can turn them into vector code, in their argument's type.

No libm: one call per element is what keeps a loop scalar. No fast-math beyond fused
multiply-adds: −inf and NaN pass through as IEEE says. Only a sum may be taken in any order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

from kofn.kernels.constants import MILLS, MILLS_DOUBLE

LOG2_E = 1 / math.log(2)

_OPTIONS: dict[str, Any] = {
    "forceinline": True,
    "error_model": "numpy",
    "fastmath": {"contract"},
}
inline = njit(**_OPTIONS)
"""For functions of one entry: they disappear into the loop that calls them."""


@intrinsic
def real(typingctx, like, value):
    """`value` in the type of `like`: a float64 constant would widen a float32 loop."""

    def codegen(context, builder, signature, arguments):
        return context.cast(builder, arguments[1], signature.args[1], signature.return_type)

    return like(like, value), codegen


@intrinsic
def widest_vectors(typingctx):
    """Compile the calling function for the processor's widest registers.

    LLVM chooses 256 bits where there are 512, which makes these loops a third slower. It is lost
    where the function is inlined, so it is not. llvmlite knows only some attributes by name and
    refuses others in `add`, but prints what it holds.
    """

    def codegen(context, builder, signature, arguments):
        builder.function.attributes.add("noinline")
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic
def quotient(typingctx, a, b):
    """a/b of floats where both and the answer are finite; b is a normal number.

    To the last place but one: in single precision a processor's estimate of 1/b and a step of
    Newton's take a quarter of the time of a division. LLVM does so only without infinities.
    """

    def codegen(context, builder, signature, arguments):
        return builder.fdiv(*arguments, flags=("arcp", "ninf", "contract"))

    return a(a, a), codegen


def _layout(number: types.Float) -> tuple[ir.IntType, int, int]:
    """The integer of the same size, its bits of fraction, and the bias of the exponent."""
    return (ir.IntType(32), 23, 127) if number == types.float32 else (ir.IntType(64), 52, 1023)


@intrinsic
def _bits(typingctx, x):
    """The bits of a float as an integer."""
    integer, _, _ = _layout(x)
    answer = types.int32 if x == types.float32 else types.int64
    return answer(x), lambda context, builder, signature, arguments: builder.bitcast(
        arguments[0], integer
    )


@intrinsic
def _times_two_to(typingctx, p, bits):
    """p·2ⁿ, n in the lowest bits of `bits`, both it and p normal: added to p's exponent."""
    integer, fraction, _ = _layout(p)

    def codegen(context, builder, signature, arguments):
        raised = builder.shl(arguments[1], ir.Constant(integer, fraction))
        sum_ = builder.add(builder.bitcast(arguments[0], integer), raised)
        return builder.bitcast(sum_, context.get_value_type(p))

    return p(p, bits), codegen


@intrinsic
def where_positive(typingctx, w, v):
    """v where w > 0, and 0 where w = 0, of any v, NaN included; w is not negative.

    By bits: of an `if`, or of a comparison, LLVM makes a load of v under a mask, which waits for w,
    and rows that are not in the cache take twice as long.
    """
    integer, _, _ = _layout(v)

    def codegen(context, builder, signature, arguments):
        bits, value = (builder.bitcast(each, integer) for each in arguments)
        sign = ir.Constant(integer, integer.width - 1)
        mask = builder.ashr(builder.sub(ir.Constant(integer, 0), bits), sign)
        return builder.bitcast(builder.and_(value, mask), arguments[1].type)

    return v(w, v), codegen


@intrinsic
def ordered(typingctx, x):
    """An integer in the order of the floats: LLVM vectorises its minimum, not theirs."""
    integer, _, _ = _layout(x)
    answer = types.int32 if x == types.float32 else types.int64

    def codegen(context, builder, signature, arguments):
        bits = builder.bitcast(arguments[0], integer)
        sign = builder.ashr(bits, ir.Constant(integer, integer.width - 1))
        flip = builder.lshr(sign, ir.Constant(integer, 1))
        return builder.xor(bits, flip)

    return answer(x), codegen


@intrinsic
def unordered(typingctx, key, like):
    """The float whose `ordered` is `key`."""
    integer, _, _ = _layout(like)

    def codegen(context, builder, signature, arguments):
        sign = builder.ashr(arguments[0], ir.Constant(integer, integer.width - 1))
        bits = builder.xor(arguments[0], builder.lshr(sign, ir.Constant(integer, 1)))
        return builder.bitcast(bits, context.get_value_type(like))

    return like(key, like), codegen


def exp2(y: Any) -> Any:
    """2^y to two units in the last place, for a y where it is a normal number."""


@overload(exp2, jit_options=_OPTIONS)
def _(y):
    # Adding 1.5·2^fraction rounds to a whole number n and leaves it in the lowest bits.
    magic = np.float32(1.5 * 2.0**23) if y == types.float32 else 1.5 * 2.0**52
    # 2^r = 1 + r·q(r) for |r| ≤ ½: q interpolated at Chebyshev's nodes, to 5e-9 and 8e-18.
    a0, a1, a2, a3, a4, a5 = (np.float32(c) for c in _EXP2_SINGLE)
    c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10 = _EXP2_DOUBLE
    one = np.float32(1)

    def single(y):
        rounded = y + magic
        r = y - (rounded - magic)
        q = a0 + r * (a1 + r * (a2 + r * (a3 + r * (a4 + r * a5))))
        return _times_two_to(one + r * q, _bits(rounded))

    def double(y):
        rounded = y + magic
        r = y - (rounded - magic)
        q = c5 + r * (c6 + r * (c7 + r * (c8 + r * (c9 + r * c10))))
        q = c0 + r * (c1 + r * (c2 + r * (c3 + r * (c4 + r * q))))
        return _times_two_to(1.0 + r * q, _bits(rounded))

    return single if y == types.float32 else double


@intrinsic
def multiply_add(typingctx, a, b, c):
    """a·b + c, rounded once where a processor can: LLVM does so unasked where a·b has one use."""

    def codegen(context, builder, signature, arguments):
        number = arguments[0].type
        takes = ir.FunctionType(number, [number] * 3)
        fused = builder.module.declare_intrinsic("llvm.fmuladd", [number], takes)
        return builder.call(fused, arguments)

    return a(a, a, a), codegen


@intrinsic
def _mantissa(typingctx, x):
    """(m, n) with x = m·2ⁿ and √½ ≤ m < √2, both floats, for a normal x > 0."""
    integer, fraction, _ = _layout(x)

    def codegen(context, builder, signature, arguments):
        number = context.get_value_type(x)
        half = builder.bitcast(ir.Constant(number, math.sqrt(0.5)), integer)
        bits = builder.bitcast(arguments[0], integer)
        n = builder.ashr(builder.sub(bits, half), ir.Constant(integer, fraction))
        m = builder.sub(bits, builder.shl(n, ir.Constant(integer, fraction)))
        pair = builder.bitcast(m, number), builder.sitofp(n, number)
        return context.make_tuple(builder, signature.return_type, pair)

    return types.UniTuple(x, 2)(x), codegen


def log(x: Any) -> Any:
    """log x to two units in the last place, for a normal x > 0."""


@overload(log, jit_options=_OPTIONS)
def _(x):
    number = np.float32 if x == types.float32 else np.float64
    high = number(0.693359375 if x == types.float32 else 0.6931471803691238)
    low = number(math.log(2) - 0.693359375 if x == types.float32 else 1.9082149292705877e-10)
    # log m = 2·artanh(s), s = (m − 1)/(m + 1), |s| < 0.172: s³/3 + s⁵/5 + …
    c1, c2, c3, c4, c5, c6, c7, c8, c9, c10 = (number(2 / (2 * i + 1)) for i in range(1, 11))
    one, two = number(1), number(2)

    def single(x):
        m, n = _mantissa(x)
        s = quotient(m - one, m + one)
        y = s * s
        series = y * (c1 + y * (c2 + y * (c3 + y * c4)))
        return n * high + (n * low + s * (two + series))

    def double(x):
        m, n = _mantissa(x)
        s = quotient(m - one, m + one)
        y = s * s
        series = c5 + y * (c6 + y * (c7 + y * (c8 + y * (c9 + y * c10))))
        series = y * (c1 + y * (c2 + y * (c3 + y * (c4 + y * series))))
        return n * high + (n * low + s * (two + series))

    return single if x == types.float32 else double


def log1p(e: Any) -> Any:
    """log(1 + e) for 0 ≤ e ≤ 1 to three units in the last place."""


@overload(log1p, jit_options=_OPTIONS)
def _(e):
    # 2·artanh(s) = s·q(s²), s = e/(2 + e): q interpolated at Chebyshev's nodes, to 4e-9 and 5e-17.
    a0, a1, a2, a3, a4 = (np.float32(c) for c in _LOG1P_SINGLE)
    c0, c1, c2, c3, c4, c5, c6, c7, c8, c9 = _LOG1P_DOUBLE
    two = np.float32(2)

    def single(e):
        s = quotient(e, two + e)
        y = s * s
        return s * (a0 + y * (a1 + y * (a2 + y * (a3 + y * a4))))

    def double(e):
        s = e / (2.0 + e)
        y = s * s
        q = c5 + y * (c6 + y * (c7 + y * (c8 + y * c9)))
        return s * (c0 + y * (c1 + y * (c2 + y * (c3 + y * (c4 + y * q)))))

    return single if e == types.float32 else double


@inline
def log_but(e, rest):
    """log(1 − e) for 0 ≤ e < 1, where `rest` is 1 − e to its last digit: which e has, if it is
    small. The rounding of 1 − e cancels.
    """
    near, one = e < real(e, 0.5), real(e, 1.0)
    whole = one - e if near else rest
    rounded = one - whole
    answer = log(whole)
    close = answer * quotient(e, rounded) if rounded > real(e, 0.0) else -e
    return close if near else answer


@inline
def power(base, exponent):
    """base to a positive power for 0 < base ≤ 1; 0 where it would be subnormal."""
    zero, tiny = real(base, 0.0), real(base, 1e-30)
    y = exponent * log(base if base > tiny else tiny) * real(base, LOG2_E)
    end = real(base, -125.0)
    return exp2(y if y > end else end) if y > end else zero


_EXP2_SINGLE = (
    0.6931471880262288,
    0.24022650760568126,
    0.05550357114219078,
    0.009618082557277852,
    0.0013390863364671234,
    0.0001545316294512069,
)
_EXP2_DOUBLE = (
    0.6931471805599453,
    0.24022650695910097,
    0.0555041086648216,
    0.009618129107606888,
    0.0013333558146416936,
    0.0001540353044173605,
    1.525273382983612e-05,
    1.321544258792169e-06,
    1.0178062445845774e-07,
    7.072585949269223e-09,
    4.4549605981865186e-10,
)
_LOG1P_SINGLE = (
    2.000000007681759,
    0.6666632164137777,
    0.40024595230703747,
    0.27965157745197267,
    0.2815777836310908,
)
_LOG1P_DOUBLE = (
    2.0,
    0.6666666666668257,
    0.399999999952876,
    0.2857142911165716,
    0.22222190861346283,
    0.1818285980047391,
    0.15363676248891633,
    0.13591305485579894,
    0.09880789048764786,
    0.17780763826113302,
)


@intrinsic
def _mills_polynomial(typingctx, q):
    """The polynomial for the type of q, unrolled: a loop in a loop is not always made vectors."""
    terms = MILLS if q == types.float32 else MILLS_DOUBLE

    def codegen(context, builder, signature, arguments):
        number, flags = context.get_value_type(q), ("contract",)
        p = ir.Constant(number, terms[-1])
        for term in reversed(terms[:-1]):
            p = builder.fmul(p, arguments[0], flags=flags)
            p = builder.fadd(p, ir.Constant(number, term), flags=flags)
        return p

    return q(q), codegen


def mills(z: Any) -> Any:
    """Mills' ratio (1 − Φ)/φ/√(2π) for z ≥ 0 of any size."""


@overload(mills, jit_options=_OPTIONS)
def _(z):
    number, centre = (np.float32, 3) if z == types.float32 else (np.float64, 4)
    one, centre = number(1), number(centre)

    def ratio(z):
        r = quotient(one, z + centre)
        return _mills_polynomial((z - centre) * r) * r

    return ratio


def normal_tail(z: Any) -> Any:
    """(1 − Φ(z), φ(z)) for z ≥ 0; both 0 where they would be subnormal."""


@overload(normal_tail, jit_options=_OPTIONS)
def _(z):
    number, far = (np.float32, 13) if z == types.float32 else (np.float64, 37.5)
    zero, far = number(0), number(far)
    height, square = number(1 / math.sqrt(2 * math.pi)), number(-0.5 * LOG2_E)

    def both(z):
        y = z if z < far else far
        bell = exp2(square * y * y)
        bell = bell if z < far else zero
        return bell * mills(y), bell * height

    return both


@njit(**_OPTIONS | {"fastmath": {"contract", "reassoc", "nsz"}})
def added(numbers):
    """Σ in float64, of four numbers at a time: that takes a quarter of the conversions."""
    quarter, total = numbers.size // 4, 0.0
    first, second = numbers[:quarter], numbers[quarter : 2 * quarter]
    third, fourth = numbers[2 * quarter : 3 * quarter], numbers[3 * quarter : 4 * quarter]
    for i in range(quarter):
        total += np.float64((first[i] + second[i]) + (third[i] + fourth[i]))
    for i in range(4 * quarter, numbers.size):
        total += np.float64(numbers[i])
    return total

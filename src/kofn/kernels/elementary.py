"""exp and the normal tail as LLVM can turn them into vector code, in their argument's type.

No libm: one call per element is what keeps a loop scalar. No fast-math beyond fused
multiply-adds: −inf and NaN pass through as IEEE says.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

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
    """Let LLVM use 512-bit registers in the calling function, where the processor has them.

    LLVM's own choice of 256 bits makes these loops a third slower. llvmlite knows only some
    attributes by name and refuses others in `add`, but prints what it holds.
    """

    def codegen(context, builder, signature, arguments):
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.none(), codegen


def _layout(number: types.Float) -> tuple[ir.IntType, int, int]:
    """The integer of the same size, its bits of fraction, and the bias of the exponent."""
    return (ir.IntType(32), 23, 127) if number == types.float32 else (ir.IntType(64), 52, 1023)


@intrinsic
def _two_to(typingctx, n):
    """2ⁿ for a whole number n (as a float) in the range of normal exponents."""
    integer, fraction, bias = _layout(n)

    def codegen(context, builder, signature, arguments):
        biased = builder.add(builder.fptosi(arguments[0], integer), ir.Constant(integer, bias))
        bits = builder.shl(biased, ir.Constant(integer, fraction))
        return builder.bitcast(bits, context.get_value_type(n))

    return n(n), codegen


@intrinsic
def ordered(typingctx, x):
    """An integer in the order of the floats: LLVM vectorises its minimum, not that of floats."""
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


def _reduced(x: Any) -> Any:
    """(2ⁿ, eʳ − 1) with x = n ln 2 + r and |r| ≤ ½ ln 2."""


@overload(_reduced, jit_options=_OPTIONS)
def _(x):
    number = np.float32 if x == types.float32 else np.float64
    log2_e = number(1 / math.log(2))
    # Adding and taking away 1.5·2^fraction rounds to a whole number.
    magic = number(1.5 * 2.0 ** (23 if x == types.float32 else 52))
    # ln 2 in two parts; n times the first is exact.
    high = number(0.693359375) if x == types.float32 else number(0.6931471803691238)
    low = (
        number(math.log(2) - 0.693359375) if x == types.float32 else number(1.9082149292705877e-10)
    )
    c2, c3, c4, c5, c6, c7 = (number(1 / math.factorial(i)) for i in range(2, 8))

    def single(x):
        n = (x * log2_e + magic) - magic
        r = (x - n * high) - n * low
        tail = c2 + r * (c3 + r * (c4 + r * (c5 + r * (c6 + r * c7))))
        return _two_to(n), r + r * r * tail

    c8, c9, c10, c11, c12, c13 = (number(1 / math.factorial(i)) for i in range(8, 14))

    def double(x):
        n = (x * log2_e + magic) - magic
        r = (x - n * high) - n * low
        tail = c8 + r * (c9 + r * (c10 + r * (c11 + r * (c12 + r * c13))))
        tail = c2 + r * (c3 + r * (c4 + r * (c5 + r * (c6 + r * (c7 + r * tail)))))
        return _two_to(n), r + r * r * tail

    return single if x == types.float32 else double


@inline
def exp(x):
    """eˣ to one unit in the last place, for an x where it is a normal number."""
    scale, q = _reduced(x)
    return scale + scale * q


# Mills' ratio (1 − Φ)/φ/√(2π) times 3 + z as a polynomial of (z − 3)/(z + 3), to 6e-9 for z ≥ 0:
# its Chebyshev series, cut after the eleventh power.
_MILLS = (
    0.7290836952763959,
    -0.5093319842802195,
    0.23001734143636943,
    -0.04726296448279625,
    -0.010458312674553726,
    0.006972202861710224,
    0.0010072475409343442,
    -0.0010447769949248063,
    -0.00021427745369258908,
    0.0001538663342389877,
    3.545063826442842e-05,
    -1.5203482770964945e-05,
)


def normal_tail(z: Any) -> Any:
    """(1 − Φ(z), φ(z)) for z ≥ 0; both 0 where they would be subnormal."""


@overload(normal_tail, jit_options=_OPTIONS)
def _(z):
    scale = 1 / math.sqrt(2 * math.pi)
    if z != types.float32:

        def double(z):
            return 0.5 * math.erfc(z * math.sqrt(0.5)), scale * math.exp(-0.5 * z * z)

        return double

    c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11 = (np.float32(c) for c in _MILLS)
    zero, half, one, three, far = (np.float32(v) for v in (0, 0.5, 1, 3, 13))
    height = np.float32(scale)

    def single(z):
        y = z if z < far else far
        bell = exp(-half * y * y)
        bell = bell if z < far else zero
        r = one / (y + three)
        q = (y - three) * r
        p = c6 + q * (c7 + q * (c8 + q * (c9 + q * (c10 + q * c11))))
        p = c0 + q * (c1 + q * (c2 + q * (c3 + q * (c4 + q * (c5 + q * p)))))
        return bell * p * r, bell * height

    return single

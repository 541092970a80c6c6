"""What Numba has no word for: memory at an address, calls through one, counters threads share."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

VISIT = types.void(*(types.int64,) * 5, *(types.float64,) * 5)
"""The one signature of all that visits a row: (x, g, out, n, sums, a, b, c, d, e)."""


@intrinsic
def pointer(typingctx, address):
    """An integer as the address it is."""

    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(address), codegen


@intrinsic
def call(typingctx, address, x, g, out, n, sums, a, b, c, d, e):
    """Call the `VISIT` compiled at `address`.

    Known by its address alone, it is compiled once, not again inside each of its callers.
    """

    def codegen(context, builder, signature, arguments):
        kinds = [context.get_value_type(t) for t in VISIT.args]
        function = ir.FunctionType(ir.VoidType(), kinds).as_pointer()
        builder.call(builder.inttoptr(arguments[0], function), arguments[1:])
        return context.get_dummy_value()

    return types.none(types.int64, *VISIT.args), codegen


def _integer_at(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, ir.IntType(64).as_pointer())


@intrinsic
def fetch_add(typingctx, address, amount):
    """Add to the integer at `address` as one indivisible step; return what it was."""

    def codegen(context, builder, signature, arguments):
        at = _integer_at(builder, arguments[0])
        return builder.atomic_rmw("add", at, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def fetch(typingctx, address):
    """The integer at `address`, as other threads have left it by now."""

    def codegen(context, builder, signature, arguments):
        return builder.load_atomic(_integer_at(builder, arguments[0]), "seq_cst", 8)

    return types.int64(types.int64), codegen


@intrinsic
def exchange(typingctx, address, value):
    """Put an integer at `address`; return what was there."""

    def codegen(context, builder, signature, arguments):
        at = _integer_at(builder, arguments[0])
        return builder.atomic_rmw("xchg", at, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen

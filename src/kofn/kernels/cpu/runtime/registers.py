"""Vectors in registers: squares turned, numbers compared with a bound, those beyond it copied.

(Tests: test_kernels_abreast.py, test_kernels_few.py.)
"""

from __future__ import annotations

import itertools
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kofn.kernels.cpu.compiler.private import cgutils
from kofn.kernels.cpu.runtime.intrinsics import asked
from kofn.kernels.cpu.runtime.layout import AT_ONCE, REGISTER


def _turning(register: int) -> Any:
    """Return an intrinsic that copies a square of numbers, as wide as a vector of so many bytes,
    rows becoming columns.

    Numbers are of the type of `like`, rows so many bytes apart; none after the `last` is read, nor,
    in the copy, written: those are the last once more, or get lost. In registers: four rounds of
    exchanges where memory would be passed over 256 times; where a vector of REGISTER bytes is two
    registers, by quarters, which stay in these.
    """

    @intrinsic
    def turn(typingctx, like, source, step, last, into, into_step, into_last):
        size = like.bitwidth // 8
        width = register // size

        def codegen(context, builder, signature, arguments):
            number = context.get_value_type(signature.args[0])
            _, source, step, last, into, into_step, into_last = arguments

            def part(width: int, row: int = 0, column: int = 0) -> None:
                """Copy the square of that width whose first row and column these are."""

                def beyond(address: Any, by: Any, row: int, column: int) -> Any:
                    rows = builder.mul(ir.Constant(by.type, row), by)
                    return builder.add(address, builder.add(rows, by.type(column * size)))

                of, to = beyond(source, step, row, column), beyond(into, into_step, column, row)
                left, room = (
                    builder.sub(each, each.type(by))
                    for each, by in ((last, row), (into_last, column))
                )
                _turned(builder, number, width, size, (of, step, left), (to, into_step, room))

            if register < REGISTER:
                part(width)
                return context.get_dummy_value()
            with builder.if_else(asked(builder, "kofn_wide_registers")) as (wide, others):
                with wide:
                    part(width)
                with others:  # the last row after what takes its place for want of one
                    for row, column in itertools.product((0, width // 2), (width // 2, 0)):
                        part(width // 2, row, column)
            return context.get_dummy_value()

        return types.none(like, *(types.int64,) * 6), codegen

    return turn


def _turned(builder: Any, number: Any, width: int, size: int, of: Any, to: Any) -> None:
    """Turn a square in registers; `of` and `to` are an address, a step and the last row each."""
    vector, align = ir.VectorType(number, width), size

    def places(first: Any, step: Any, last: Any) -> Any:
        for i in map(ir.IntType(64), range(width)):
            row = builder.select(builder.icmp_signed("<", i, last), i, last)
            yield builder.inttoptr(builder.add(first, builder.mul(row, step)), vector.as_pointer())

    rows = [builder.load(at, align=align) for at in places(*of)]
    apart = width // 2
    while apart:
        # Exchange the entries that are out of place by one bit of row and column.
        low = [j if j & apart == 0 else j - apart + width for j in range(width)]
        high = [j + apart if j & apart == 0 else j + width for j in range(width)]
        masks = [ir.Constant(ir.VectorType(ir.IntType(32), width), mask) for mask in (low, high)]
        for i in range(width):
            if i & apart == 0:
                pair = rows[i], rows[i + apart]
                rows[i], rows[i + apart] = (builder.shuffle_vector(*pair, mask) for mask in masks)
        apart //= 2
    # The last row itself comes after what has its place for want of one.
    for row, at in reversed([*zip(rows, places(*to), strict=True)]):
        builder.store(row, at, align=align)


turn, turn_half = _turning(REGISTER), _turning(REGISTER // 2)


def _compared(how: str) -> Any:
    """Return an intrinsic that compares AT_ONCE numbers, from an address on, with a bound of their
    type: a bit for each.
    """

    @intrinsic
    def bits(typingctx, address, bound):
        def codegen(context, builder, signature, arguments):
            number, word = arguments[1].type, ir.IntType(32)
            vector = ir.VectorType(number, AT_ONCE)
            at = builder.inttoptr(arguments[0], vector.as_pointer())
            keys = builder.load(at, align=signature.args[1].bitwidth // 8)
            none = ir.Constant(vector, ir.Undefined)
            one = builder.insert_element(none, arguments[1], word(0))
            first = ir.Constant(ir.VectorType(word, AT_ONCE), [0] * AT_ONCE)
            are_integers = isinstance(number, ir.IntType)
            compare = builder.icmp_signed if are_integers else builder.fcmp_ordered
            flags = compare(how, keys, builder.shuffle_vector(one, none, first))
            return builder.bitcast(flags, ir.IntType(AT_ONCE))

        return types.int64(types.int64, bound), codegen

    return bits


reaching, above = _compared(">="), _compared(">")


@intrinsic
def ones(typingctx, bits):
    """Count the bits that are set."""

    def codegen(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), codegen


@intrinsic
def lowest(typingctx, bits):
    """The place of the lowest bit that is set, or AT_ONCE if none is."""

    def codegen(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.IntType(1)(0))

    return types.int64(types.int64), codegen


@intrinsic
def registers_are_wide(typingctx):
    """Whether a register holds a vector of REGISTER bytes."""

    def codegen(context, builder, signature, arguments):
        return asked(builder, "kofn_wide_registers")

    return types.boolean(), codegen


@intrinsic
def compress(typingctx, source, least, most, into, places, first):
    """Copy those of AT_ONCE numbers, from `source` on, that are from `least` to `most`, one beside
    the other; return how many they are.

    Where there is an address of `places`, theirs, counted from `first`, are copied there. From
    `into`, and from `places`, on there is room for AT_ONCE, all of which may be written. For wide
    registers, which have an operation for it: where they are not, the bits of `reaching` are gone
    through in less time.
    """
    size = least.bitwidth // 8
    width = REGISTER // size

    def codegen(context, builder, signature, arguments):
        source, least, most, into, places, first = arguments
        word, flag = ir.IntType(32), ir.IntType(1)
        vector, indices = ir.VectorType(least.type, width), ir.VectorType(word, width)
        flags, zero = ir.VectorType(flag, width), ir.IntType(64)(0)

        def everywhere(value: Any) -> Any:
            none = ir.Constant(ir.VectorType(value.type, width), ir.Undefined)
            one = builder.insert_element(none, value, word(0))
            return builder.shuffle_vector(one, none, ir.Constant(indices, [0] * width))

        def put(values: Any, which: Any, at: Any, count: Any, size: int) -> None:
            kind = values.type
            name = f"llvm.experimental.vector.compress.v{width}{kind.element.intrinsic_name}"
            takes = ir.FunctionType(kind, [kind, flags, kind])
            function = cgutils.get_or_insert_function(builder.module, takes, name)
            copied = builder.call(function, [values, which, ir.Constant(kind, ir.Undefined)])
            place = builder.add(at, builder.mul(count, count.type(size)))
            builder.store(copied, builder.inttoptr(place, kind.as_pointer()), align=4)

        low, high = everywhere(least), everywhere(most)
        base = everywhere(builder.trunc(first, word))
        starts = range(0, AT_ONCE, width)
        places_of = [builder.add(source, source.type(i * size)) for i in starts]
        loaded = [
            builder.load(builder.inttoptr(each, vector.as_pointer()), align=size)
            for each in places_of
        ]
        chosen = [
            builder.and_(
                builder.fcmp_ordered(">=", values, low), builder.fcmp_ordered("<=", values, high)
            )
            for values in loaded
        ]
        any_ = chosen[0]
        for which in chosen[1:]:
            any_ = builder.or_(any_, which)
        some = builder.icmp_signed(
            "!=", builder.bitcast(any_, ir.IntType(width)), ir.IntType(width)(0)
        )
        with builder.if_else(some) as (then, otherwise):
            with then:
                count = zero
                for start, values, which in zip(starts, loaded, chosen, strict=True):
                    put(values, which, into, count, size)
                    with builder.if_then(builder.icmp_signed("!=", places, zero)):
                        its = builder.add(
                            base, ir.Constant(indices, [*range(start, start + width)])
                        )
                        put(its, which, places, count, 4)
                    here = builder.zext(builder.bitcast(which, ir.IntType(width)), zero.type)
                    count = builder.add(count, builder.ctpop(here))
                end = builder.block
            with otherwise:
                none = builder.block
        found = builder.phi(zero.type)
        found.add_incoming(count, end)
        found.add_incoming(zero, none)
        return found

    return types.int64(types.int64, least, least, *(types.int64,) * 3), codegen

"""Operations that Numba lacks: on addresses, counters, tuples of sums, and vectors in registers."""

from __future__ import annotations

import itertools
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kofn.kernels.cpu.compiler.private import cgutils
from kofn.kernels.cpu.runtime.layout import AT_ONCE, BLOCK, REGISTER, WIDTH_IF_WIDE

PASS = types.void(*(types.int64,) * 5, *(types.float64,) * 5)
"""The one signature of all passes over a row: (x, g, out, n, sums, hi, lo, per_t, alpha, rest)."""


@intrinsic
def pointer(typingctx, address):
    """An integer as the address it is."""

    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(address), codegen


@intrinsic
def either(typingctx, condition, a, b):
    """a where the condition holds, else b, as one operation on both.

    Of an `if` whose other side is what a place holds already, LLVM makes a store under a mask, as
    machine.without_masks says.
    """

    def codegen(context, builder, signature, arguments):
        return builder.select(*arguments)

    return a(types.boolean, a, a), codegen


def asked(builder: Any, name: str) -> Any:
    """Ask about the processor that code is compiled for: see layout.ASKED."""
    kind = ir.FunctionType(ir.IntType(1), [])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])


@intrinsic
def call(typingctx, address, x, g, out, n, sums, hi, lo, per_t, alpha, rest):
    """Call the `PASS` compiled at `address`.

    Known by its address alone, it is compiled once, not again inside each of its callers.
    """

    def codegen(context, builder, signature, arguments):
        kinds = [context.get_value_type(t) for t in PASS.args]
        function = ir.FunctionType(ir.VoidType(), kinds).as_pointer()
        builder.call(builder.inttoptr(arguments[0], function), arguments[1:])
        return context.get_dummy_value()

    return types.none(types.int64, *PASS.args), codegen


@intrinsic
def ask(typingctx, address, which, z):
    """The answer to a question about a number, by the function at `address`, a float64."""

    def codegen(context, builder, signature, arguments):
        takes = [context.get_value_type(t) for t in (types.int64, types.float64)]
        function = ir.FunctionType(ir.DoubleType(), takes).as_pointer()
        at = builder.fptosi(arguments[0], ir.IntType(64))
        return builder.call(builder.inttoptr(at, function), arguments[1:])

    return types.float64(types.float64, types.int64, types.float64), codegen


@intrinsic
def run(typingctx, address, job, own, number, leads):
    """Call the work of a thread, compiled at `address`."""
    takes = types.int64, types.int64, types.float64, types.int64

    def codegen(context, builder, signature, arguments):
        kinds = [context.get_value_type(t) for t in takes]
        function = ir.FunctionType(ir.VoidType(), kinds).as_pointer()
        builder.call(builder.inttoptr(arguments[0], function), arguments[1:])
        return context.get_dummy_value()

    return types.none(types.int64, *takes), codegen


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


@intrinsic
def plus(typingctx, totals, terms):
    """Two tuples of floats added place by place; over a loop, in any order."""

    def codegen(context, builder, signature, arguments):
        pairs = zip(*(cgutils.unpack_tuple(builder, each) for each in arguments), strict=True)
        sums = [builder.fadd(*pair, flags=("contract", "reassoc", "nsz")) for pair in pairs]
        return context.make_tuple(builder, totals, sums)

    return totals(totals, terms), codegen


@intrinsic
def add_to(typingctx, address, terms):
    """Add each of a tuple of floats to the float64 in its place from `address` on."""

    def codegen(context, builder, signature, arguments):
        first = builder.inttoptr(arguments[0], ir.DoubleType().as_pointer())
        for i, term in enumerate(cgutils.unpack_tuple(builder, arguments[1])):
            at = builder.gep(first, [ir.IntType(64)(i)])
            wide = context.cast(builder, term, terms[i], types.float64)
            builder.store(builder.fadd(builder.load(at), wide), at)
        return context.get_dummy_value()

    return types.none(types.int64, terms), codegen


VECTORS = 8  # what `vectors` has room for


def _memory_for(count: int) -> Any:
    @intrinsic
    def memory_for(typingctx, like):
        def codegen(context, builder, signature, arguments):
            number = context.get_value_type(signature.args[0])
            memory = cgutils.alloca_once(builder, ir.ArrayType(number, count))
            memory.align = REGISTER
            return builder.bitcast(memory, context.get_value_type(types.voidptr))

        return types.voidptr(like), codegen

    return memory_for


vectors, block = _memory_for(VECTORS * 16), _memory_for(BLOCK)
"""Memory for 8 × 16 numbers, or for a block of a row, of the type of an argument, whose address
nobody else can hold.

So sums kept there become registers for the length of a loop, however many lanes they have.
"""


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


def _loops(function: Any) -> dict[Any, set[Any]]:
    """Return the loops of a function: the last block of each, and all of its blocks.

    Blocks without an end yet are passed over: the first one, and where a `continue` goes, so that
    a loop that has one is not found.
    """
    follow: dict[Any, list[Any]] = {}
    before: dict[Any, list[Any]] = {each: [] for each in function.blocks}
    for each in function.blocks:
        ways = each.terminator.operands if each.is_terminated else []
        follow[each] = [other for other in ways if isinstance(other, ir.Block)]
        for other in follow[each]:
            before[other].append(each)
    found, entered = {}, set()
    for root in function.blocks:
        path, left = [root] * (root not in entered), [iter(follow[root])] * (root not in entered)
        while path:
            entered.add(path[-1])
            other = next(left[-1], None)
            if other is None:
                path.pop(), left.pop()
            elif other in path:  # back to where one is inside of
                found[path[-1]] = _between(other, path[-1], before)
            elif other not in entered:
                path.append(other)
                left.append(iter(follow[other]))
    return found


def _between(first: Any, last: Any, before: dict[Any, list[Any]]) -> set[Any]:
    """Return the blocks on the ways from one to another, both included."""
    found, left = {first}, [last]
    while left:
        each = left.pop()
        if each not in found:
            found.add(each)
            left += before[each]
    return found


@intrinsic
def never_unroll(typingctx):
    """Called last in a function: its loops stay loops until they are made vectors.

    A short loop over a constant number of lanes is unrolled before LLVM searches for vectors, and
    found again in part if at all.
    """

    def codegen(context, builder, signature, arguments):
        module = builder.module
        hint = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
        for last in _loops(builder.function):
            # A loop is known by a list that begins with itself.
            name = str(len(module.metadata))
            itself = ir.MDValue(module, [hint], name)
            itself.operands = (itself, hint)
            last.terminator.set_metadata("llvm.loop", itself)
        return context.get_dummy_value()

    return types.none(), codegen


def _at_once(within: int) -> Any:
    """Return an intrinsic that is called after `never_unroll` where all innermost loops are over 16
    lanes: each becomes operations on one vector, whatever registers that takes, and sums stay in
    these.

    Otherwise a loop remains where a register does not hold all lanes, which stores every sum and
    loads it again. Not where there are so many sums that they do not stay in registers either. Nor,
    unless a register holds all lanes, in fewer than so many other loops, where rows take steps:
    conditions on two registers would be packed into one, and unpacked.
    """

    @intrinsic
    def hinting(typingctx):
        def codegen(context, builder, signature, arguments):
            module, loops = builder.module, _loops(builder.function)
            names = "llvm.loop.vectorize.width", WIDTH_IF_WIDE
            width = ir.IntType(32)(16)
            hints = [module.add_metadata([ir.MetaDataString(module, n), width]) for n in names]
            for last, blocks in loops.items():
                inside = sum(other in blocks for other in loops) - 1
                outside = sum(last in others for others in loops.values()) - 1
                if inside == 0:
                    loop = last.terminator.metadata["llvm.loop"]
                    loop.operands = (*loop.operands, hints[outside < within])
            return context.get_dummy_value()

        return types.none(), codegen

    return hinting


at_once, sums_at_once = _at_once(0), _at_once(2)


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

"""Operations that Numba lacks: memory at an address, calls through one, counters threads share,
tuples of sums, and a few vectors that stay in registers or are turned over there.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kofn.kernels.cpu.compiler.private import cgutils
from kofn.kernels.cpu.runtime.layout import AT_ONCE, BLOCK, REGISTER

PASS = types.void(*(types.int64,) * 5, *(types.float64,) * 5)
"""The one signature of all passes over a row: (x, g, out, n, sums, hi, lo, per_t, alpha, rest)."""


@intrinsic
def pointer(typingctx, address):
    """An integer as the address it is."""

    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(address), codegen


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
    exchanges where memory would be passed over 256 times.
    """

    @intrinsic
    def turn(typingctx, like, source, step, last, into, into_step, into_last):
        def codegen(context, builder, signature, arguments):
            number = context.get_value_type(signature.args[0])
            width = 8 * register // signature.args[0].bitwidth
            vector, word = ir.VectorType(number, width), ir.IntType(64)
            align = register // width

            def places(first, step, last):
                for i in map(word, range(width)):
                    row = builder.select(builder.icmp_signed("<", i, last), i, last)
                    place = builder.add(first, builder.mul(row, step))
                    yield builder.inttoptr(place, vector.as_pointer())

            _, source, step, last, into, into_step, into_last = arguments
            rows = [builder.load(at, align=align) for at in places(source, step, last)]
            apart = width // 2
            while apart:
                # Exchange the entries that are out of place by one bit of row and column.
                low = [j if j & apart == 0 else j - apart + width for j in range(width)]
                high = [j + apart if j & apart == 0 else j + width for j in range(width)]
                masks = [
                    ir.Constant(ir.VectorType(ir.IntType(32), width), mask) for mask in (low, high)
                ]
                for i in range(width):
                    if i & apart == 0:
                        pair = rows[i], rows[i + apart]
                        rows[i], rows[i + apart] = (
                            builder.shuffle_vector(*pair, mask) for mask in masks
                        )
                apart //= 2
            # The last row itself comes after what has its place for want of one.
            for row, at in reversed([*zip(rows, places(into, into_step, into_last), strict=True)]):
                builder.store(row, at, align=align)
            return context.get_dummy_value()

        return types.none(like, *(types.int64,) * 6), codegen

    return turn


turn, turn_half = _turning(REGISTER), _turning(REGISTER // 2)


@intrinsic
def never_unroll(typingctx):
    """Called last in a function: its loops stay loops until they are made vectors.

    A short loop over a constant number of lanes is unrolled before LLVM searches for vectors, and
    found again in part if at all.
    """

    def codegen(context, builder, signature, arguments):
        module, seen = builder.module, set()
        hint = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
        for block in builder.function.blocks:
            seen.add(block)
            if isinstance(block.terminator, ir.Branch) and seen & {*block.terminator.operands}:
                # A loop is known by a list that begins with itself.
                name = str(len(module.metadata))
                itself = ir.MDValue(module, [hint], name)
                itself.operands = (itself, hint)
                block.terminator.set_metadata("llvm.loop", itself)
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic
def at_once(typingctx):
    """Called after `never_unroll` where all innermost loops are over 16 lanes: each becomes
    operations on one vector, whatever registers that takes, and sums stay in these.

    Otherwise a loop remains where a register does not hold all lanes, which stores every sum and
    loads it again. Not where there are so many sums that they do not stay in registers either.
    """

    def codegen(context, builder, signature, arguments):
        module, blocks, ends = builder.module, builder.function.blocks, {}
        width = ir.MetaDataString(module, "llvm.loop.vectorize.width"), ir.IntType(32)(16)
        hint, places = module.add_metadata(width), {each: i for i, each in enumerate(blocks)}
        for place, block in enumerate(blocks):
            if block.is_terminated and "llvm.loop" in block.terminator.metadata:
                to = block.terminator.operands
                ends[place] = min(places[each] for each in to if each in places)
        for end, begin in ends.items():
            if not any(begin < other and last < end for last, other in ends.items()):
                loop = blocks[end].terminator.metadata["llvm.loop"]
                loop.operands = (*loop.operands, hint)
        return context.get_dummy_value()

    return types.none(), codegen


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

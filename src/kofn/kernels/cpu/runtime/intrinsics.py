"""Operations that Numba lacks: on addresses, counters and tuples of sums; hints for loops."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kofn.kernels.cpu.compiler.private import cgutils
from kofn.kernels.cpu.runtime.layout import BLOCK, REGISTER, WIDTH_IF_WIDE

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

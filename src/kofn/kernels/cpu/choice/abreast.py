"""The k-th largest scores of a few short rows at once, one row per SIMD lane.

Entry i of every row is one vector, a column. Sorting networks, which compare the same columns
whatever the scores, sort 16 columns in registers; runs of them are merged in memory. Of a row
no more is sorted than the first k, or the last n − k + 1 where these are fewer: columns come in
parts as long as that, of each of which the larger ones of what was kept and of it are kept.

NaN spoils the order of its row alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from kofn.kernels.cpu.choice.layout import BLOCK, ROWS
from kofn.kernels.cpu.runtime.intrinsics import never_unroll, pointer
from kofn.kernels.cpu.runtime.layout import REGISTER
from kofn.kernels.cpu.runtime.registers import turn
from kofn.kernels.cpu.runtime.shares import plain
from kofn.kernels.cpu.runtime.vector_math import widest_vectors


def _batcher(count: int) -> list[tuple[int, int]]:
    """Return what Batcher's odd-even merge sort of 2^j numbers compares."""
    pairs: list[tuple[int, int]] = []
    run = 1
    while run < count:
        step = run
        while step:
            for first in range(step % run, count - step, 2 * step):
                some = range(first, min(first + step, count - step))
                in_run = (i for i in some if i // (2 * run) == (i + step) // (2 * run))
                pairs += ((i, i + step) for i in in_run)
            step //= 2
        run *= 2
    return pairs


def _bitonic(count: int) -> list[tuple[int, int]]:
    """Return what sorts numbers that rise once and fall once, from anywhere on."""
    pairs: list[tuple[int, int]] = []
    step = count // 2
    while step:
        pairs += ((i, i + step) for i in range(count) if i & step == 0)
        step //= 2
    return pairs


def _columns(pairs: list[tuple[int, int]]) -> Any:
    """Return an intrinsic that has a network compare BLOCK columns from an address on."""

    @intrinsic
    def compare(typingctx, like, address):
        def codegen(context, builder, signature, arguments):
            places = [_place(context, builder, signature, arguments[1], i) for i in range(BLOCK)]
            columns = [builder.load(at, align=REGISTER) for at in places]
            for i, j in pairs:
                columns[i], columns[j] = _in_order(builder, columns[i], columns[j])
            for column, at in zip(columns, places, strict=True):
                builder.store(column, at, align=REGISTER)
            return context.get_dummy_value()

        return types.none(like, types.int64), codegen

    return compare


def _place(context: Any, builder: Any, signature: Any, address: Any, i: int) -> Any:
    """The address of the column that stands i columns behind another."""
    number, size = signature.args[0], signature.args[0].bitwidth // 8
    vector = ir.VectorType(context.get_value_type(number), ROWS)
    place = builder.add(address, ir.Constant(address.type, i * ROWS * size))
    return builder.inttoptr(place, vector.as_pointer())


def _in_order(builder: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """The larger numbers of two columns, and the smaller ones: both, NaN or not."""
    less, more = builder.fcmp_ordered("<", a, b), builder.fcmp_ordered(">", a, b)
    return builder.select(more, a, b), builder.select(less, a, b)


def _pair(larger: bool, smaller: bool) -> Any:
    """Return an intrinsic that puts the larger, or the smaller, of two columns in the first's
    place; if both, the smaller in the second's.
    """

    @intrinsic
    def order(typingctx, like, first, second):
        def codegen(context, builder, signature, arguments):
            places = [_place(context, builder, signature, at, 0) for at in arguments[1:]]
            both = _in_order(builder, *(builder.load(at, align=REGISTER) for at in places))
            if larger:
                builder.store(both[0], places[0], align=REGISTER)
            if smaller:
                builder.store(both[1], places[int(larger)], align=REGISTER)
            return context.get_dummy_value()

        return types.none(like, types.int64, types.int64), codegen

    return order


_sort_block, _merge_block = _columns(_batcher(BLOCK)), _columns(_bitonic(BLOCK))
_exchange, _keep_larger, _keep_smaller = _pair(True, True), _pair(True, False), _pair(False, True)


def kth_of(number: Any) -> Any:
    """Return the function that finds the k-th largest of each of a few rows of numbers."""
    size = np.dtype(number).itemsize
    wide, step = REGISTER // size, ROWS * size

    @plain
    def bring(x, n, last, start, into):
        """Columns from `start` on, as many as a vector has places; −∞ behind those of the rows."""
        zero, i = number(0), max(min(start, n - wide), 0)
        columns = carray(pointer(into), (wide, ROWS), number)
        if n >= wide:
            for r in range(0, ROWS, wide):
                turn(zero, x + (r * n + i) * size, n * size, last - r, into + r * size, step, wide)
        else:
            rows = carray(pointer(x), (last + 1, n), number)
            for j in range(n):
                for r in range(ROWS):
                    columns[j, r] = rows[min(r, last), j]
        by = start - i
        left = max(min(n - start, wide), 0)
        if by:
            for j in range(left):
                for r in range(ROWS):
                    columns[j, r] = columns[j + by, r]
        for j in range(left, wide):
            for r in range(ROWS):
                columns[j, r] = -math.inf
        never_unroll()

    @plain
    def turn_over(at, count):
        columns = carray(pointer(at), count * ROWS, number)
        for i in range(count * ROWS):
            columns[i] = -columns[i]

    @plain
    def sort(at, count):
        """Sort so many columns, BLOCK times a power of 2, the largest first."""
        like = number(0)
        for block in range(0, count, BLOCK):
            _sort_block(like, at + block * step)
        run = BLOCK
        while run < count:
            for first in range(0, count, 2 * run):
                start = at + first * step
                for i in range(run):
                    _exchange(like, start + i * step, start + (2 * run - 1 - i) * step)
                merge(start, run)
                merge(start + run * step, run)
            run *= 2

    @plain
    def merge(at, count):
        """Sort columns that rise once and fall once."""
        like, apart = number(0), count // 2
        while apart >= BLOCK:
            for first in range(0, count, 2 * apart):
                for i in range(first, first + apart):
                    _exchange(like, at + i * step, at + (i + apart) * step)
            apart //= 2
        for block in range(0, count, BLOCK):
            _merge_block(like, at + block * step)

    @plain
    def ranked(at, count, rank):
        """The column of that rank, from 0 on, of columns that rise once and fall once."""
        like, apart = number(0), count // 2
        while apart >= BLOCK:
            for i in range(apart):
                if rank < apart:
                    _keep_larger(like, at + i * step, at + (i + apart) * step)
                else:
                    _keep_smaller(like, at + i * step, at + (i + apart) * step)
            rank -= apart if rank >= apart else 0
            apart //= 2
        _merge_block(like, at)
        return at + rank * step

    @plain
    def kth(x, n, last, k, kept, own):
        """The address of the k-th largest scores of rows, the first at x; 1 ≤ k ≤ n, and as many
        columns are `kept` as layout.py says.
        """
        widest_vectors()
        like, flipped = number(0), 2 * k > n + 1
        rank = n - k if flipped else k - 1
        part = own + kept * step
        for start in range(0, n, kept):
            at = own if start == 0 else part
            for i in range(0, kept, wide):
                bring(x, n, last, start + i, at + i * step)
            if flipped:
                turn_over(at, min(kept, n - start))
            sort(at, kept)
            if start:
                for i in range(kept):
                    _keep_larger(like, own + i * step, part + (kept - 1 - i) * step)
                if start + kept < n:
                    merge(own, kept)
        found = own + rank * step if n <= kept else ranked(own, kept, rank)
        if flipped:
            turn_over(found, 1)
        return found

    return kth

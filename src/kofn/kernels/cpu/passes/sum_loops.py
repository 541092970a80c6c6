"""Passes over weights by a `Sum`: Σ f(p), and its way back, Σ of f′(p) times cotangents of the row.

(Tests: test_operations_sums.py.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.passes import layout
from kofn.kernels.cpu.rows.frame import Pass, in_loop, pass_of
from kofn.kernels.cpu.rows.passes import Sum
from kofn.kernels.cpu.runtime.intrinsics import call, pointer
from kofn.kernels.cpu.runtime.layout import PART, SUMS
from kofn.kernels.cpu.runtime.shares import COUNT, plain, served
from kofn.kernels.cpu.runtime.words import OF_ENTRIES


def terms(of: Sum, kind: int, number: Any) -> Pass:
    """Σ of each f."""
    formula = OF_ENTRIES(of.terms)

    @in_loop
    def entry(p, g, old, *numbers):
        return old, formula(p, *numbers)

    zeros = [number(0)] * of.count
    return pass_of(number, entry, *zeros, numbers=_first(of.numbers, number))


def slopes(of: Sum, kind: int, number: Any) -> Pass:
    """Σ of each f′ times its cotangent, which is the same for all entries of a row."""
    formula, weighed, count = OF_ENTRIES(of.slopes), _WEIGHED[of.count - 1], of.count

    @in_loop
    def entry(p, g, old, *given):
        return weighed(formula(p, *given[count:]), given), ()

    return pass_of(number, entry, writes=True, numbers=_first(count + of.numbers, number))


def _first(count: int, number: Any) -> Any:
    """Return what makes so many numbers of the five that a pass takes."""

    @in_loop
    def numbers(a, b, c, d, e):
        return (number(a), number(b), number(c), number(d), number(e))[:count]

    return numbers


@in_loop
def _one(slopes, g):
    return g[0] * slopes[0]


@in_loop
def _two(slopes, g):
    return g[0] * slopes[0] + g[1] * slopes[1]


_WEIGHED = _one, _two


@plain
def _work(job, own, first, last, number):
    """Have the pass done on some items, which are rows or parts of long ones."""
    words, sums = (
        carray(pointer(job), layout.WORDS, np.int64),
        carray(pointer(own), SUMS, np.float64),
    )
    given = carray(pointer(words[layout.GIVEN]), layout.FIVE, np.float64)
    at = carray(pointer(own + 8 * SUMS), layout.FIVE, np.float64)
    n, size, parts, count = (
        words[layout.N],
        words[layout.SIZE],
        words[layout.PARTS],
        words[layout.SUMS],
    )
    items, x, g, out = words[COUNT], words[layout.X], words[layout.G], words[layout.OUT]
    for item in range(first, last):
        row, start = item // parts, item % parts * PART
        sums[:] = 0
        for i in range(layout.FIVE):
            leads = g != 0 and i < count
            each = _read(g, i * (items // parts) + row, size) if leads else 0.0
            at[i] = each if leads else given[i - (count if g else 0)]
        place, many = (row * n + start) * size, min(n - start, PART)
        answer = out + place if g else 0
        call(words[layout.RUN], x + place, 0, answer, many, own, at[0], at[1], at[2], at[3], at[4])
        for i in range(0 if g else count):
            _write(out, i * items + item, size, sums[i])


work = served(_work)


@plain
def _read(address, i, size):
    if size == 4:
        return np.float64(carray(pointer(address), i + 1, np.float32)[i])
    return carray(pointer(address), i + 1, np.float64)[i]


@plain
def _write(address, i, size, value):
    if size == 4:
        carray(pointer(address), i + 1, np.float32)[i] = np.float32(value)
    else:
        carray(pointer(address), i + 1, np.float64)[i] = value

"""The loops of all passes over a row with costs, or to a part of one.

A pass is made of what it does with one entry, in loops.py and back_loops.py. As in rows/loops.py
it has the signature `native.PASS`; here `g` are the costs, and `a` is the address of the STATE.
"""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.knapsack.formulas import second
from kofn.kernels.cpu.knapsack.layout import STATE
from kofn.kernels.cpu.rows.frame import BLOCK, Pass
from kofn.kernels.cpu.runtime.intrinsics import add_to, plus, pointer
from kofn.kernels.cpu.runtime.vector_math import (
    inline,
    ordered,
    real,
    unordered,
    widest_vectors,
)

Parameters = namedtuple(
    "Parameters", "hi lo per_t edge end rise magic unit mean rest pivot left quantile"
)
"""The numbers of its row that an entry sees: some of STATE; T times `edge`; `hi`, `mean` and
`pivot`, whose rounding errors are `lo`, `rest` and `left`.
"""


@inline
def _parameters(state, like):
    """Numbers of the type of `like`."""
    hi, mean, pivot = real(like, state.hi), real(like, state.mean), real(like, state.pivot)
    return Parameters(
        hi,
        second(state.hi, hi) + real(like, state.lo),
        real(like, state.per_t),
        real(like, state.edge),
        real(like, state.edge / state.per_t),
        real(like, state.alpha - 1),
        real(like, state.magic),
        real(like, state.unit),
        mean,
        second(state.mean, mean),
        pivot,
        second(state.pivot, pivot),
        real(like, state.quantile),
    )


def pass_of(number: Any, kept: Any, entry: Any, *zeros: Any, writes: bool = True) -> Pass:
    """Pass over entries of type `number`: (at, x, c, given, old) -> (new, terms to add up).

    x, c and `at` are of type `kept`; the answer's place holds `old`, then `new`.
    The terms begin as `zeros`; they are added up in their own type within a block. Of the numbers
    of a pass, `a` is the address of the row's STATE; the others are unused.
    """

    def one_pass(x, g, out, n, sums, a, b, c, d, e):
        widest_vectors()
        scores, costs = carray(pointer(x), n, number), carray(pointer(g), n, number)
        state, answer = carray(pointer(np.int64(a)), 1, STATE)[0], carray(pointer(out), n, number)
        given, at = carray(pointer(x + state.given), n, number), _parameters(state, kept(0))
        for start in range(0, n, BLOCK):
            stop = start + BLOCK
            xs, cs, gs = scores[start:stop], costs[start:stop], given[start:stop]
            ps, totals = answer[start:stop], zeros
            for i in range(xs.size):
                new, terms = entry(at, kept(xs[i]), kept(cs[i]), gs[i], ps[i])
                if writes:
                    ps[i] = new
                totals = plus(totals, terms)
            add_to(sums, totals)

    return one_pass


def extremes_of(number: Any, kept: Any, entry: Any, *zeros: Any) -> Pass:
    """Pass over entries for the least and the greatest of something, of type `kept`, and then sums:
    (at, x, c) -> (the entry's number, whether it counts, terms to add up), all but x and c float64.
    """

    def one_pass(x, g, out, n, sums, a, b, c, d, e):
        widest_vectors()
        scores, costs = carray(pointer(x), n, number), carray(pointer(g), n, number)
        into = carray(pointer(sums), 2, np.float64)
        at = _parameters(carray(pointer(np.int64(a)), 1, STATE)[0], 0.0)
        none, top, totals = kept(0), ordered(kept(math.inf)), zeros
        bottom = ordered(kept(-math.inf))
        least, greatest = top, bottom
        for i in range(n):
            value, counts, terms = entry(at, scores[i], costs[i])
            key = ordered(value)
            least = min(least, key if counts else top)
            greatest = max(greatest, key if counts else bottom)
            totals = plus(totals, terms)
        into[0], into[1] = unordered(least, none), unordered(greatest, none)
        add_to(sums + 16, totals)

    return one_pass

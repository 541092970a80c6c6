"""The loop of most passes over a row, or to a part of one.

A pass is made of what it does with one entry: loops.py, answer_loops.py and alpha_loops.py say
that. It has the signature `native.PASS`, is compiled by launch.py and called by its address:
(x, g, out, n, sums, hi, lo, per_t, alpha, rest) with the scores, the cotangents and the memory of
the answer, n entries each, and five numbers, which some passes call otherwise. Terms are added to
`sums`: within a block in the precision of the scores, from block to block in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import carray, njit

from kofn.kernels.cpu.runtime.intrinsics import add_to, plus, pointer
from kofn.kernels.cpu.runtime.layout import BLOCK as BLOCK
from kofn.kernels.cpu.runtime.vector_math import added, widest_vectors

Pass = Callable[..., None]

OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz"}}
"""Sums may be taken in any order, so that they become vectors."""

loop = njit(nogil=True, **OPTIONS)

in_loop = njit(forceinline=True, **OPTIONS)
"""For what a loop does with one entry, as if it stood there."""


def pass_of(
    number: Any, entry: Any, *zeros: Any,
    writes: bool = False, weights: bool = False, numbers: Any = None, first: Any = None,
) -> Pass:  # fmt: skip
    """Pass over entries of type `number`: (x, g, old, *numbers) -> (new, terms to add up).

    The answer's place holds `old`; `new` is stored there if the pass `writes`. The sums of the
    terms begin as `zeros`. If the first term is one of the `weights` that are written, its sum is
    as in float64, up to two roundings: k is held against it. `numbers` makes the numbers that an
    entry takes of (hi, lo, per_t, alpha, rest): by default these in the type of the scores, with
    α − 1 for α. `first` is (x, *numbers) -> old where that is made here, by a loop of its own: of
    two short chains of operations a processor has more entries under way than of a long one.
    """
    numbers = numbers or _rounded(number)

    def one_pass(x, g, out, n, sums, hi, lo, per_t, alpha, rest):
        widest_vectors()
        scores, given = carray(pointer(x), n, number), carray(pointer(g), n, number)
        answer, at = carray(pointer(out), n, number), numbers(hi, lo, per_t, alpha, rest)
        for start in range(0, n, BLOCK):
            stop = start + BLOCK
            xs, gs, ps, totals = scores[start:stop], given[start:stop], answer[start:stop], zeros
            if first is not None:
                for i in range(xs.size):
                    ps[i] = first(xs[i], *at)
            for i in range(xs.size):
                new, terms = entry(xs[i], gs[i], ps[i], *at)
                if writes:
                    ps[i] = new
                totals = plus(totals, terms)
            if weights:
                add_to(sums, (added(ps), *totals[1:]))
            else:
                add_to(sums, totals)

    return one_pass


def _rounded(number: Any) -> Any:
    @in_loop
    def numbers(hi, lo, per_t, alpha, rest):
        return number(hi), number(lo), number(per_t), number(alpha - 1), number(rest)

    return numbers

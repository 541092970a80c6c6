"""The work of one thread on rows with costs: one row after another."""

from __future__ import annotations

import math

import numpy as np
from numba import carray

from kofn.kernels.cpu.knapsack.back_search import cotangents, value
from kofn.kernels.cpu.knapsack.layout import APART, COSTS, HEAD, IN_COSTS, STATE, WORDS
from kofn.kernels.cpu.knapsack.search import Row, solve, state_of
from kofn.kernels.cpu.rows import layout as rows
from kofn.kernels.cpu.rows.formulas import edge
from kofn.kernels.cpu.rows.lanes import load, rounded, store
from kofn.kernels.cpu.rows.worker import on_rows
from kofn.kernels.cpu.runtime.intrinsics import fetch_add, pointer
from kofn.kernels.cpu.runtime.split_row import plain

LARGEST = 2.0**28
"""θc in units of T, of which two float32 leave an error of 2⁻²⁰."""

_SUMS = STATE.fields["sums"][1]


@on_rows
def forward(job, own, first, last, alpha):
    """Write thresholds, and weights if wanted."""
    words = carray(pointer(job), WORDS, np.int64)
    for r in range(first, last):
        row = _row(words, own, r, words[rows.OUT], alpha)
        state, size = state_of(row), words[rows.SIZE]
        is_solved = solve(row, words[rows.OUT] != 0)
        if is_solved and not _is_kept(state, size):
            state.hi, state.lo, is_solved = 0.0, math.nan, False
        if not is_solved:
            fetch_add(job + 8 * rows.GIVEN_UP, 1)
        high = rounded(state.hi, size)
        store(words[rows.HI], r, size, high)
        store(words[rows.LO], r, size, (state.hi - high) + state.lo if high - high == 0 else 0.0)


@on_rows
def backward(job, own, first, last, alpha):
    """From a known θ, write the cotangents of the scores, of the costs if wanted, and of
    budget and T, or without cotangents the value and its slope in T.
    """
    words = carray(pointer(job), WORDS, np.int64)
    for r in range(first, last):
        row = _row(words, own, r, words[rows.OUT], alpha)
        state, size = state_of(row), words[rows.SIZE]
        state.hi, state.lo = load(words[rows.HI], r, size), load(words[rows.LO], r, size)
        state.given = words[rows.G] - words[rows.X]
        if words[rows.G] == 0:
            value(row, state)
        elif not cotangents(row, _row(words, own, r, words[IN_COSTS], alpha), state):
            fetch_add(job + 8 * rows.GIVEN_UP, 1)
        store(words[rows.ONE], r, size, state.in_budget)
        store(words[rows.TWO], r, size, state.in_t)


@plain
def _is_kept(state, size):
    """Whether θ, as two numbers of the row's type, tells (x − θc)/T to 2⁻²⁰."""
    if size == 8 or not abs(state.hi) < math.inf:
        return True
    return abs(state.hi) * state.costliest * state.per_t < LARGEST


@plain
def _row(words, own, r, out, alpha):
    """A row whose answer is among those from `out` on."""
    n, size, kind = words[rows.N], words[rows.SIZE], words[rows.KIND]
    at = r * n * size
    x, costs = words[rows.X] + at, words[COSTS] + r * words[APART]
    state = carray(pointer(own), 1, STATE)[0]
    state.budget = load(words[rows.K], r, size)
    state.temperature, state.alpha = load(words[rows.TEMPERATURE], r, size), alpha
    state.per_t, state.edge = 1 / state.temperature, edge(kind, alpha)
    out = out + at if out else 0
    return Row(words[rows.PASSES], kind, size, x, costs, out, n, own, own + _SUMS, own + 8 * HEAD)

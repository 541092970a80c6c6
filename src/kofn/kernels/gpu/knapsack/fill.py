"""Hard choices of rows with costs: by density x/c, up to the first entry that does not fit.

The density of that one is found bit by bit. Sums of costs are of two parts, the first exact.
(Tests: tests/kernels/gpu/interpreted/knapsacks.py.)
"""

from __future__ import annotations

import triton
import triton.language as tl

from kofn.kernels.gpu.knapsack.entries import cost_of, on_grid, power_below
from kofn.kernels.gpu.knapsack.given import Given
from kofn.kernels.gpu.rows.answers import put
from kofn.kernels.gpu.rows.formulas import DELETED, INF
from kofn.kernels.gpu.rows.loops import entries, scores
from kofn.kernels.gpu.rows.one_program import row_of, rows_here

LAST = tl.constexpr(0x7FFFFFFFFFFFFFFF)


@triton.jit
def _key(x, c):
    """The place of x/c in the order of floats; the lowest of entries that pay nothing, or NaN."""
    pays = c > 0.0
    density = x.to(tl.float64) / tl.where(pays, c, 1.0)
    density = tl.where(pays & (x == x), density, -INF)
    bits = tl.where(density == 0.0, 0.0, density).to(tl.int64, bitcast=True)
    return tl.where(bits < 0, bits ^ LAST, bits)


@triton.jit
def fill(given: Given, out_at, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write 1 where an entry is bought, else 0. Equal ones are bought from the lowest index on."""
    rows, here, stretch = rows_here(given, ROWS)
    c_row, out_row = row_of(given.costs_at, rows, given), row_of(out_at, rows, given)
    budget = tl.load(given.budget_at + rows, mask=here, other=0.0).to(tl.float64)
    t = tl.load(given.temperature_at + rows, mask=here, other=1.0)
    most = tl.zeros((ROWS, BLOCK), tl.float32)
    wrong, unpriced = most, most
    for at in range(0, given.n, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        c, _ = entries(c_row, stretch, at, 0.0, BLOCK)
        plays, is_cost = ~(x <= DELETED), (c >= 0.0) & (c < INF)
        most = tl.maximum(most, tl.where(plays & is_cost, c, 0.0))
        wrong += tl.where(x != x, 1.0, 0.0)
        unpriced += tl.where(plays & ~is_cost, 1.0, 0.0)
    unknown = (budget != budget) | (tl.sum(unpriced, axis=1) > 0.0)
    bad = unknown | (t != t) | (tl.sum(wrong, axis=1) > 0.0)
    costliest = tl.max(most, axis=1).to(tl.float64)
    scale = power_below(tl.where(costliest > 0.0, costliest, 1.0))
    limit = tl.where(unknown, 0.0, tl.minimum(budget * scale, 4.0 * given.n))
    coarse = on_grid(limit)
    fine = limit - coarse
    # The greatest density from which on entries cost more than the budget; the lowest if none does.
    last, bit = rows.to(tl.int64) * 0, 63
    one = last + 1
    while bit >= 0:
        tried = last | (one << bit)
        large, small = tl.zeros((ROWS, BLOCK), tl.float64), tl.zeros((ROWS, BLOCK), tl.float64)
        for at in range(0, given.n, BLOCK):
            x, _ = scores(stretch, at, -INF, BLOCK)
            c = cost_of(c_row, stretch, at, x, scale, BLOCK)
            part = tl.where(_key(x, c) >= (tried ^ ~LAST)[:, None], c, 0.0)
            whole = on_grid(part)
            large += whole
            small += part - whole
        beyond = (tl.sum(large, axis=1) - coarse) + (tl.sum(small, axis=1) - fine) > 0.0
        last = tl.where(beyond, tried, last)
        bit -= 1
    last = last ^ ~LAST
    large, small = tl.zeros((ROWS, BLOCK), tl.float64), tl.zeros((ROWS, BLOCK), tl.float64)
    for at in range(0, given.n, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        c = cost_of(c_row, stretch, at, x, scale, BLOCK)
        part = tl.where(_key(x, c) > last[:, None], c, 0.0)
        whole = on_grid(part)
        large += whole
        small += part - whole
    spent, spent_rest = tl.sum(large, axis=1), tl.sum(small, axis=1)
    for at in range(0, given.n, BLOCK):
        x, filled = scores(stretch, at, -INF, BLOCK)
        c = cost_of(c_row, stretch, at, x, scale, BLOCK)
        key = _key(x, c)
        part = tl.where((key == last[:, None]) & (c > 0.0), c, 0.0)
        whole = on_grid(part)
        up_to = spent[:, None] + tl.cumsum(whole, axis=1)
        rest_up_to = spent_rest[:, None] + tl.cumsum(part - whole, axis=1)
        fits = (up_to - coarse[:, None]) + (rest_up_to - fine[:, None]) <= 0.0
        bought = (c > 0.0) & ((key > last[:, None]) | ((part > 0.0) & fits))
        out = tl.where((c > 0.0), tl.where(bought, 1.0, 0.0), tl.where(x > 0.0, 1.0, 0.0))
        out = tl.where((x == INF) & unknown[:, None] & (c > 0.0), float("nan"), out)
        out = tl.where(bad[:, None] & (x != INF), float("nan"), out)
        put(out_row, at, tl.where(x <= DELETED, 0.0, out), filled, BLOCK)
        spent += tl.sum(whole, axis=1)
        spent_rest += tl.sum(part - whole, axis=1)

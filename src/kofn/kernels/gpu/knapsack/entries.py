"""Rows with costs on a GPU: their numbers, and the place of an entry.

Costs are in units of a power of two per row, and sums of costs in two parts, the first of them
exact. (Tests: tests/kernels/gpu/interpreted/knapsacks.py.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kofn.kernels.gpu.rows.formulas import DELETED, INF, edge, unit
from kofn.kernels.gpu.rows.loops import entries, scores
from kofn.kernels.gpu.rows.words import FARTHEST

MAGIC = tl.constexpr(1.5 * 2.0**26)  # adding it rounds to multiples of 2⁻²⁶
LOW_BITS = tl.constexpr(-(1 << 24))  # leaves 29 digits, whose product with a cost is exact


class Price(NamedTuple):
    """θ of rows in three parts, and what else an entry sees."""

    first: Any
    second: Any
    rest: Any
    end: Any  # T times where the link counts z from
    per_t: Any


class Row(NamedTuple):
    """The numbers of rows."""

    scale: Any  # the unit of costs, by which they are multiplied
    coarse: Any  # the budget less the costs of scores of +inf, in two parts
    fine: Any
    total: Any  # of the costs
    tops: Any  # the cost of scores of +inf
    budget: Any  # all of it
    t: Any
    none: Any  # nothing is bought
    every: Any  # all is
    bad: Any  # there is a NaN
    unpriced: Any  # in a cost: one that is none
    unknown: Any  # in a cost or the budget
    playing: Any  # there is an entry


@triton.jit
def cost_of(row_at, stretch, at, x, scale, BLOCK: tl.constexpr):
    """Costs of entries in play in units of their row, else 0, with those that are no costs."""
    c, _ = entries(row_at, stretch, at, 0.0, BLOCK)
    good = (c >= 0.0) & (c < INF) & ~(x <= DELETED)
    return tl.where(good, c, 0.0).to(tl.float64) * scale[:, None]


@triton.jit
def on_grid(c):
    return (c + MAGIC) - MAGIC


@triton.jit
def power_below(x):
    """1 over the greatest power of two that is no more than a positive x."""
    return 1.0 / (x.to(tl.int64, bitcast=True) & 0x7FF0000000000000).to(tl.float64, bitcast=True)


@triton.jit
def numbers_of(given, rows, here, stretch, c_row, BLOCK: tl.constexpr):
    """Return the `Row` of each row."""
    budget = tl.load(given.budget_at + rows, mask=here, other=0.0).to(tl.float64)
    t = tl.load(given.temperature_at + rows, mask=here, other=1.0).to(tl.float64)
    most = tl.zeros((stretch.here.shape[0], BLOCK), tl.float32)
    wrong, unpriced, playing = most, most, most
    for at in range(0, given.n, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        c, _ = entries(c_row, stretch, at, 0.0, BLOCK)
        plays = ~(x <= DELETED)
        is_cost = (c >= 0.0) & (c < INF)
        most = tl.maximum(most, tl.where(plays & is_cost, c, 0.0))
        wrong += tl.where(x != x, 1.0, 0.0)
        unpriced += tl.where(plays & ~is_cost, 1.0, 0.0)
        playing += tl.where(plays, 1.0, 0.0)
    costliest = tl.max(most, axis=1).to(tl.float64)
    scale = power_below(tl.where(costliest > 0.0, costliest, 1.0))
    coarse, fine = tl.zeros_like(most).to(tl.float64), tl.zeros_like(most).to(tl.float64)
    top_coarse, top_fine = coarse, coarse
    for at in range(0, given.n, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        c = cost_of(c_row, stretch, at, x, scale, BLOCK)
        large, top = on_grid(c), x == INF
        coarse += tl.where(top, 0.0, large)
        fine += tl.where(top, 0.0, c - large)
        top_coarse += tl.where(top, large, 0.0)
        top_fine += tl.where(top, c - large, 0.0)
    paid, paid_rest = tl.sum(top_coarse, axis=1), tl.sum(top_fine, axis=1)
    all_coarse, all_fine = tl.sum(coarse, axis=1), tl.sum(fine, axis=1)
    no_costs = tl.sum(unpriced, axis=1) > 0.0
    unknown = (budget != budget) | no_costs
    # A budget beyond all costs is as good as one of so much more.
    most_of_all = 2.0 * (all_coarse + paid + 1.0)
    whole = tl.where(unknown, 0.0, tl.minimum(budget * scale, most_of_all))
    large = on_grid(whole)
    left, left_rest = large - paid, (whole - large) - paid_rest
    some = tl.sum(playing, axis=1) > 0.0
    bad = some & (unknown | (tl.sum(wrong, axis=1) > 0.0) | (t != t))
    none = ~bad & (left + left_rest <= 0.0)
    every = ~(bad | none) & ((all_coarse - left) + (all_fine - left_rest) <= 0.0)
    tops, total = paid + paid_rest, all_coarse + all_fine
    flags = none, every, bad, no_costs, unknown, some
    return Row(scale, left, left_rest, total, tops, whole, t, *flags)


@triton.jit
def price(KIND: tl.constexpr, hi, lo, t, alpha):
    """θ as entries take it: two parts whose products with a cost are exact, and the rest."""
    first = (hi.to(tl.int64, bitcast=True) & LOW_BITS).to(tl.float64, bitcast=True)
    return Price(first, hi - first, lo, t * edge(KIND, alpha.to(tl.float64)), 1.0 / t)


@triton.jit
def distance(x, c, theta):
    """x − θc."""
    far = (x - c * theta.first[:, None]) - c * theta.second[:, None]
    return far - c * theta.rest[:, None]


@triton.jit
def place(KIND: tl.constexpr, x, c, theta):
    """y as formulas take it, where its square is finite."""
    z = (distance(x, c, theta) - theta.end[:, None]) * unit(KIND, theta.per_t)[:, None]
    return tl.minimum(tl.maximum(z, -FARTHEST), FARTHEST).to(tl.float32)


@triton.jit
def paying(stretch, c_row, at, scale, BLOCK: tl.constexpr):
    """Return (scores, costs, which entries pay): 0 of others, and of scores of +inf."""
    x, _ = scores(stretch, at, -INF, BLOCK)
    c = cost_of(c_row, stretch, at, x, scale, BLOCK)
    pays = (c > 0.0) & (tl.abs(x) < INF)
    return tl.where(pays, x, 0.0).to(tl.float64), tl.where(pays, c, 0.0), pays

"""Weights, prices and values of rows whose entries have costs."""

from __future__ import annotations

import math

from kofn.arrays.autodiff import has_gradients, stop_gradient, with_gradients_of
from kofn.arrays.kinds import Array, namespace, scalar
from kofn.rows.priced import Placed, place
from kofn.rows.priced_choice import fill
from kofn.rows.priced_given import PricedGiven, PricedRows, priced_rows
from kofn.solver.equation import split
from kofn.solver.price import Price
from kofn.solver.reductions import DENSE, Reductions


def weights(given: PricedGiven, over: Reductions = DENSE, found: Price | None = None) -> Array:
    """Return p = F(z), with 0, 1 and the scores of +inf filled in."""
    rows = priced_rows(given, over)
    p = place(rows, over, found)
    xp, expand = namespace(p.z), over.expand
    upper, low, high = split(p.link, p.z, rows.live)
    chosen = xp.where(upper, 1 - high, low) + p.correction
    if has_gradients(p.z, p.terms.costs, p.terms.budget):
        chosen = chosen + with_gradients_of(p.equation.remainder, p.z, *p.terms)
    chosen = xp.where(p.closed, xp.where(expand(p.every), scalar(p.z, 1.0), 0.0), chosen)
    chosen = xp.where(expand(p.spoiled), math.nan, chosen)
    gratis = rows.costs == 0
    share = xp.where(gratis & ~expand(p.spoiled), 1.0, expand(rows.top_weight))
    return xp.where(rows.live, chosen, xp.where(rows.top, share, 0.0))


def hard_weights(given: PricedGiven) -> Array:
    """Return the entries that `fill` buys, as 0 and 1, with the gradient of the weights."""
    soft = weights(given)
    return fill(given) + (soft - stop_gradient(soft))


def theta(given: PricedGiven, over: Reductions = DENSE) -> Array:
    """Return θ per row: ±inf if nothing or everything is bought, NaN if no entry is available."""
    rows = priced_rows(given, over)
    p = place(rows, over)
    xp = namespace(p.z)
    answer = xp.where(p.none, math.inf, xp.where(p.every, -math.inf, p.theta))
    playing = over.count(rows.live | rows.top) > 0
    return xp.where(p.spoiled | ~playing, math.nan, answer)


def value(given: PricedGiven, over: Reductions = DENSE) -> Array:
    """Return S = θB + T Σ G(z), as (B − Σ_upper c)θ + Σ_upper x + T Σ (∫ of the smaller tail)."""
    rows = priced_rows(given, over)
    p = place(rows, over)
    xp = namespace(p.z)
    open_ = rows.live & ~p.closed
    tails = xp.where(p.upper, p.link.upper_integral(p.z), p.link.integral(p.z))
    inside = over.sum(xp.where(open_, tails, 0.0))
    above = over.sum(xp.where(open_ & p.upper, rows.scores, 0.0))
    bought = p.closed & over.expand(p.every)
    everything = over.sum(xp.where(bought, rows.scores, 0.0))
    answer = above + everything + rows.temperature * inside + _unspent(rows, p, open_, over)
    answer = xp.where(p.spoiled, math.nan, answer)
    answer = xp.where(over.count(rows.live) > 0, answer, 0.0)
    free = rows.top & (rows.costs == 0)
    chosen = (over.count(rows.top) > 0) & (rows.top_weight > 0)
    infinite = chosen | (over.count(free) > 0)
    return answer + xp.where(infinite, scalar(answer, math.inf), 0.0)


def _unspent(rows: PricedRows, p: Placed, open_: Array, over: Reductions) -> Array:
    """Return (B − Σ_upper c)θ, 0 in rows that take nothing or everything."""
    xp = namespace(p.z)
    settled = p.none | p.every | p.spoiled
    costs = over.sum(xp.where(open_ & p.upper, rows.costs, 0.0))
    missing = xp.where(settled, 0.0, rows.budget) - costs
    return xp.where(settled, 0.0, missing) * p.theta

"""Rows with costs in several processes: their weights, and the cotangents of these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn.adapters.theta import theta_of
from kofn.arrays.autodiff import nan_where
from kofn.arrays.operations import in_parts
from kofn.formulas import answers
from kofn.formulas.implicit import place
from kofn.rows.given import Given
from kofn.rows.settled import rows_of
from kofn.rows.shards.reductions import GroupRows
from kofn.solver.costs import less_product
from kofn.solver.equation import least_weight
from kofn.solver.price import Price


class Kept(NamedTuple):
    """What a derivative needs to know of the rows, but the arguments."""

    z: Tensor  # (x − θc)/T of the inner link, as a constant
    theta: Tensor  # for links of mean zero; 0 where it is infinite
    scale: Tensor  # the power of two by which costs are divided
    open: Tensor  # rows whose weights move
    over_budget: Tensor  # rows that spend all on scores of +inf
    price: Tensor  # what these cost; 1 elsewhere


def weights(given: Given, over: GroupRows) -> tuple[Tensor, Kept]:
    """Return this rank's entries of the weights, without a gradient."""
    given = given._replace(link=given.link.map_alpha(torch.Tensor.detach))
    rows = rows_of(given, over)
    theta: Any = Price(*theta_of(rows, over))
    p: Any = place(rows, over, theta)
    high = theta.high.masked_fill(p.none | p.every, 0.0).double() + theta.low.double()
    over_budget, cost = _over_budget(rows, given, over)
    kept = Kept(p.z, high / theta.scale, theta.scale, ~p.settled, over_budget, cost)
    own: Any = answers.weights(rows, over, theta=theta)
    return own, kept


def _over_budget(rows: Any, given: Given, over: GroupRows) -> tuple[Tensor, Tensor]:
    (cost,) = over.wide_sums(torch.where(rows.top, rows.costs, 0.0))
    over_budget = cost > given.k
    return over_budget, torch.where(over_budget, cost, 1.0)


def cotangents(
    v: Tensor, given: Given[Tensor], kept: Kept, over: GroupRows
) -> Sequence[Tensor] | None:
    """Return the cotangents of scores, costs, budget and T; None where slopes have underflowed.

    With c in units of the scale: u = w(v − c·m), m = Σcwv/Σc²w, in B: m, in c: −θu/T − mp.
    """
    x: Tensor = given.scores
    t: Tensor = given.temperature
    costs: Tensor = given.costs
    top, excluded = x == math.inf, x == -math.inf
    live = ~(top | excluded)
    c = torch.where(live, costs, 0.0) / kept.scale[..., None]
    link: Any = given.link.map_alpha(lambda alpha: alpha.detach()[..., None])
    moves = live & (kept.open[..., None] | (c == 0))
    w = torch.where(moves, link.pdf(kept.z), 0.0)
    v = torch.where(live | top, v, 0.0)
    p = torch.where(
        live, torch.where(link.above_half(kept.z), 1 - link.sf(kept.z), link.cdf(kept.z)), 0.0
    )
    weighted = torch.where(w == 0, 0.0, w * v)
    charged = top & (costs > 0)
    moved = torch.where(w == 0, 0.0, c * w * (kept.z + link.edge))
    sums = c * c * w, c * weighted, moved, torch.where(charged, v, 0.0)
    total, mean, moment, of_top = over.wide_sums(*sums)
    solvable = kept.open & (total >= least_weight(w))
    if bool((kept.open & ~solvable).any()):
        return None
    divisor = torch.where(solvable, total, 1.0)
    mean = torch.where(solvable, mean / divisor, 0.0)
    u = torch.where(w == 0, 0.0, w * (v - c * mean.to(v.dtype)[..., None]))
    pivot = kept.theta * kept.scale + t * torch.where(solvable, moment / divisor, 0.0)
    parts = in_parts(torch.where(w == 0, 0.0, c))
    distance: Any = less_product(torch.where(w == 0, 0.0, x), parts, pivot.to(x.dtype), over)
    rest, lever = over.wide_sums(c * u, torch.where(w == 0, 0.0, u * (distance / t[..., None])))
    change = torch.where(solvable, rest / divisor, 0.0)
    u = u - c * w * change.to(w.dtype)[..., None]
    in_x = u / t[..., None]
    mean = (mean + change) / kept.scale
    in_t = -lever / t
    share = torch.where(kept.over_budget, of_top / kept.price, 0.0)
    in_costs = -kept.theta.to(x.dtype)[..., None] * in_x - mean.to(x.dtype)[..., None] * (p + top)
    bought = (share * given.k / kept.price).to(x.dtype)[..., None]
    in_costs = torch.where(excluded, 0.0, in_costs - torch.where(top, bought, 0.0))
    has_nan = kept.theta.isnan()
    inside = has_nan[..., None] & ~excluded
    in_budget, in_t = (nan_where(one, has_nan) for one in (mean + share, in_t))
    return nan_where(in_x, inside), nan_where(in_costs, inside), in_budget, in_t

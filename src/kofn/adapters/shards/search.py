"""The search for θ of rows in several processes: one sum of five numbers per row and step.

The rules are as in `solver/threshold.py`. Entries are computed in their own dtype; the numbers
of a row are float64, so that a row may have more entries than float32 can count.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kofn.arrays.kinds import quiet, scalar
from kofn.links.link import Link
from kofn.rows.settled import Rows
from kofn.rows.shards.reductions import GroupRows
from kofn.rows.shards.statistics import Statistics, statistics_of
from kofn.solver import threshold
from kofn.solver.bracket import bracket_of
from kofn.solver.equation import Problem, far, split
from kofn.solver.neighbours import Place, between_neighbours
from kofn.solver.plateau import at_end
from kofn.solver.threshold import Newton, Search, Sums, newton_of, newton_search

ROUNDS = 64
"""Looks after which Newton's steps are given up: another search takes three messages a look."""


class GroupProblem(NamedTuple):
    """The equations to solve: `solver.equation.Problem` with numbers per row in float64.

    There are no costs: a budget has a search of its own.
    """

    x: Tensor
    live: Tensor
    k: Tensor
    n: Tensor
    temperature: Tensor
    link: Link  # with its parameter per entry, in the dtype of x
    row_link: Link
    over: GroupRows
    costs: None = None

    def z(self, anchor: Tensor, offset: Tensor) -> Tensor:
        hi, lo = in_dtype(anchor, offset, self.x.dtype)
        limit = far(torch.finfo(self.x.dtype))
        z = (self.x - hi[..., None]).sub_(lo[..., None])
        return z.div_(self.temperature.to(self.x.dtype)[..., None]).clamp_(-limit, limit)

    def narrow(self) -> Problem:
        """Return the problem with all numbers in the dtype of the entries."""
        k, n, t = (one.to(self.x.dtype) for one in (self.k, self.n, self.temperature))
        row_link = self.row_link.map_alpha(lambda alpha: alpha.to(self.x.dtype))
        return _Narrow(self.x, self.live, k, n, t, self.link, row_link, self.over)


class _Narrow(Problem):
    """The equations in the dtype of the entries, with one message for an excess."""

    def excess(self, anchor: Tensor, offset: Tensor) -> Tensor:
        upper, low, high = split(self.link, self.z(anchor, offset), self.live)
        parts = upper.sum(-1), low.sum(-1), high.sum(-1)
        message = torch.stack([part.double() for part in parts])
        count, below, above = self.over.ranks.sum(message)
        return ((count - self.k) + (below - above)).to(self.x.dtype)


def in_dtype(anchor: Tensor, offset: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return anchor + offset as two numbers of this dtype."""
    if dtype == anchor.dtype:
        return anchor, offset
    hi = anchor.to(dtype)
    return hi, ((anchor - hi.to(anchor.dtype)) + offset).to(dtype)


class Looks:
    """A look at all rows: the sums by which a Newton step is decided, from one all-reduce."""

    def __init__(self) -> None:
        self.hard: Tensor | None = None  # rows in which just k entries are above ½ so far
        self.ended: Tensor | None = None  # rows at the end of a support; see `_to_end`

    def balance(self, p: GroupProblem, z: Tensor) -> Newton:
        upper, tail, density = p.link.tails(z)
        upper = upper & p.live
        tail = torch.where(p.live & (tail > 0), tail, 0.0)
        density = torch.where(p.live, density, 0.0)
        low = ~upper
        parts = (
            upper.sum(-1),
            (tail * low).sum(-1),
            (tail * upper).sum(-1),
            density.sum(-1),
            (density * low).sum(-1),
        )
        message = torch.stack([part.double() for part in parts])
        above, *others, of_lower = p.over.ranks.sum(message)
        missing = above - p.k
        self.hard = (missing == 0) if self.hard is None else self.hard | (missing == 0)
        sums = Sums(missing, *others)
        newton = newton_of(p, z, sums, lambda: of_lower)
        return self._to_end(p, z, upper, sums, newton) if p.row_link.capped is True else newton

    def _to_end(
        self, p: GroupProblem, z: Tensor, upper: Tensor, sums: Sums, newton: Newton
    ) -> Newton:
        """Step to where the least of k entries with F = 1 has as much less as the others have.

        Of the excess, only the others' tail is left, on which Newton's step is T long.
        """
        tail = sums.below
        there = (sums.missing == 0) & (sums.above == 0) & (tail > 0) & (tail < 0.5)
        if self.ended is not None:
            there = there & ~self.ended
        if not bool(there.any()):
            return newton
        least = -p.over.ranks.max(-torch.where(upper, z, math.inf).amin(-1).double())
        step = least - p.row_link.quantile(torch.ones_like(least)) - torch.log1p(-tail)
        ended = there & (step.abs() <= newton.tolerance)
        self.ended = ended if self.ended is None else self.ended | ended
        step, last = torch.where(there, step, newton.step), torch.where(ended, 1.0, newton.last)
        return newton._replace(step=step, last=last)


def solve(statistics: Statistics, rows: Rows, over: GroupRows) -> tuple[Tensor, Tensor]:
    """Return θ as `solver.threshold.solve` does: two numbers per row, in the dtype of x."""
    x = rows.scores.detach()
    row_link = rows.link.map_alpha(lambda alpha: alpha.detach().double())
    link = rows.link.map_alpha(lambda alpha: alpha.detach()[..., None])
    k, t = rows.k.detach().double(), rows.temperature.detach().double()
    p = GroupProblem(x, rows.live, k, statistics.live, t, link, row_link, over)
    with quiet(x), torch.no_grad():
        open_ = (k > 0) & (k < p.n)
        start, low, high = bracket_of(p, statistics, open_)
        has_nan = k.isnan() | statistics.has_nan | ((p.n > 0) & (t.isnan() | low.isnan()))
        search, hard = _searched(p, open_ & ~has_nan, start, low, high)
        closed = torch.where(k >= p.n, scalar(k, -math.inf), math.nan)
        closed = torch.where(k <= 0, math.inf, closed)
        hi = torch.where(has_nan, math.nan, torch.where(open_, search.at.anchor, closed))
        lo = torch.where(open_ & ~has_nan, search.at.offset, 0.0)
        hi, lo = in_dtype(hi, torch.where(hi.isfinite(), lo, 0.0), x.dtype)
        lo = torch.where(hi.isfinite(), lo, 0.0)
        return _at_ends(p, hi, lo, hard & open_ & ~has_nan)


def threshold_of(
    x: Tensor, k: Tensor, temperature: Tensor, link: Link, over: GroupRows
) -> tuple[Tensor, Tensor]:
    """Return `solver.threshold.solve` of rows in several processes, from arrays alone."""
    live = x != -math.inf
    none = torch.zeros_like(live)
    statistics = statistics_of(x.detach(), live, none, temperature, over.ranks, 0)
    rows = Rows(x, live, none, k, torch.zeros_like(k), temperature, link)
    return solve(statistics, rows, over)


def _searched(
    p: GroupProblem, active: Tensor, start: Tensor, low: Tensor, high: Tensor
) -> tuple[Search, Tensor]:
    """Return the end of the search, and rows in which a look found k entries above ½."""
    zero, none = torch.zeros_like(start), torch.zeros_like(active)
    begin = Search(
        at=Place(start, zero),
        low=Place(low, zero),
        high=Place(high, zero),
        last=zero + math.inf,
        active=active,
        converged=none,
        flat=none,
    )
    looks = Looks()
    search = newton_search(p, begin, looks.balance, ROUNDS)
    lost = active & ~search.converged
    if bool(lost.any()):
        place = between_neighbours(p.narrow(), lost)
        at = Place(place.anchor.double(), place.offset.double())
        flat = looks.balance(p, p.z(*at)).flat
        search = search._replace(
            at=at.where(lost, search.at), flat=torch.where(lost, flat, search.flat)
        )
    if bool(search.flat.any()):
        search = threshold.between(p, search)
    return search, none if looks.hard is None else looks.hard


def _at_ends(p: GroupProblem, hi: Tensor, lo: Tensor, hard: Tensor) -> tuple[Tensor, Tensor]:
    """Return θ at the end of a support where nothing else determines it; see `plateau.at_end`."""
    if p.row_link.capped is False or not bool(hard.any()):
        return hi, lo
    narrow, zero = p.narrow(), torch.zeros_like(hi)
    at = torch.where(hard, hi, zero), torch.where(hard, lo, zero)
    moved = at_end(p.x, narrow.k, narrow.temperature, narrow.row_link, *at, p.over)
    return torch.where(hard, moved[0], hi), torch.where(hard, moved[1], lo)

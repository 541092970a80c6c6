"""The choice of the weights to keep: one row over several tensors, or n of every m."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kofn.arrays.tracing import is_compiling
from kofn.distributions.k_subset import KSubset
from kofn.links.link import Link
from kofn.maps.topk import hard_topk, soft_topk
from kofn.nn.pruning.layout import Blocks, Channels, Groups
from kofn.nn.pruning.schedule import PruningSchedule
from kofn.nn.pruning.targets import refuse_mapped
from kofn.nn.pruning.weight import PrunedWeight
from kofn.streaming import tensor_gradient as gradient
from kofn.streaming.equation import Equation
from kofn.streaming.tensor_choice import choose
from kofn.streaming.tensors import ALONE, Over, Pieces


class Clock:
    """The schedule, at the step that the model has reached (a buffer of one of its tensors)."""

    def __init__(self, schedule: PruningSchedule, owner: PrunedWeight) -> None:
        self.schedule, self.owner = schedule, owner

    def now(self) -> Any:
        """Return the step: a number, or a tensor where a program is compiled."""
        steps = self.owner.steps
        if is_compiling():
            return steps.double()
        refuse_mapped([steps])
        return int(steps)


class SharedRow:
    """One soft top-k over the scores of all members, which are never put together.

    `total` and `kept` are sums of costs, per score.
    """

    over: Over = ALONE

    def __init__(
        self, members: list[PrunedWeight], total: float, kept: float, link: Link, clock: Clock
    ) -> None:
        self.members, self.total, self.kept = members, total, kept
        self.costs = [member.cost for member in members]
        self.link, self.clock = link, clock
        # (step, θ) of the last two steps: where the search starts, so part of the state that a run
        # is resumed from. They are kept as bits, which no cast of the model rounds.
        members[0].register_buffer("trail", _bits(((math.nan,) * 2,) * 2, members[0].original))
        self.current: gradient.Placed | None = None

    def open(self) -> None:
        self.current = self._place()

    def close(self) -> None:
        self.current = None

    def apply(self, member: PrunedWeight, weight: Tensor) -> Tensor:
        layout = member.layout
        if isinstance(layout, Channels) or (isinstance(layout, Blocks) and layout.size > 1):
            p = self.weights(member, weight)
            return weight * layout.spread(p, weight.shape).to(weight.dtype)
        cost = self.costs[self.members.index(member)]
        return gradient.chosen(weight, member.score(weight), cost, self.current or self._place())

    def weights(self, member: PrunedWeight, weight: Tensor | None = None) -> Tensor:
        """Return the soft mask, one number per score."""
        cost = self.costs[self.members.index(member)]
        x = member.score(member.original if weight is None else weight)
        return gradient.weights(x, cost, self.current or self._place())

    def _place(self) -> gradient.Placed:
        scores = [each.score(each.original) for each in self.members]
        if is_compiling():
            budget, temperature = self._now()
            like = torch.zeros((), dtype=torch.float64, device=scores[0].device)
            budget, temperature = like + budget, like + temperature
            pieces = Pieces(scores, self.costs)
            return gradient.place_traced(pieces, budget, self.total, temperature, self.link)
        trail = self.members[0].trail
        refuse_mapped([trail, *scores])
        step = self.clock.now()
        (last, theta), (_, earlier) = trail.cpu().view(torch.float64).tolist()
        # θ as it would be if it went on as in the last two steps.
        ahead = step > last and math.isfinite(earlier)
        placed = gradient.place(self.equation(scores), 2 * theta - earlier if ahead else theta)
        if placed.number is not None and step != last:
            trail.copy_(_bits(((step, placed.number), (last, theta)), trail))
        return placed

    def _now(self) -> tuple[Any, Any]:
        """Return the budget and the temperature of the present step."""
        schedule, step = self.clock.schedule, self.clock.now()
        return schedule.kept(step, self.total, self.kept), schedule.temperature_at(step)

    def equation(self, scores: list[Tensor]) -> Equation:
        """Return what θ solves for these scores at the present step."""
        budget, temperature = map(float, self._now())
        pieces = Pieces(scores, self.costs, self.over)
        return Equation(pieces, budget, self.total, temperature, self.link)

    def choose(self) -> list[Tensor]:
        with torch.no_grad():
            scores = [each.score(each.original) for each in self.members]
        layout = self.members[0].layout
        if isinstance(layout, Channels):
            scores = [layout.with_the_best(*each) for each in zip(scores, self.costs, strict=True)]
        return choose(Pieces(scores, self.costs, self.over), self.kept)


class GroupChoice:
    """n of every m neighbours, by soft top-k or by the distribution over subsets of size n."""

    def __init__(self, member: PrunedWeight, way: str, link: Link, clock: Clock) -> None:
        self.members, self.way, self.link, self.clock = [member], way, link, clock

    def open(self) -> None:
        """Do nothing: groups do not depend on each other."""

    def close(self) -> None:
        """Do nothing."""

    def apply(self, member: PrunedWeight, weight: Tensor) -> Tensor:
        x = _layout(member).grouped(member.score(weight))
        return weight * self._mask(x, member).view_as(weight).to(weight.dtype)

    def _mask(self, x: Tensor, member: PrunedWeight) -> Tensor:
        layout, step = _layout(member), self.clock.now()
        temperature = self.clock.schedule.temperature_at(step)
        if self.way == "soft_topk":
            kept = self.clock.schedule.kept(step, layout.m, layout.n)
            k, t = (
                each.to(x.dtype) if isinstance(each, Tensor) else each
                for each in (kept, temperature)
            )
            return soft_topk(x, k, temperature=t, link=self.link)
        subsets = KSubset(x / temperature, layout.n)
        marginals: Tensor = subsets.marginals()
        if self.way == "k_subset" or not member.training:
            return marginals
        sample: Tensor = subsets.sample()
        return sample + (marginals - marginals.detach())

    @torch.no_grad()
    def entropy(self) -> Tensor:
        """Return the entropy of each group's distribution over subsets, in nats."""
        (member,) = self.members
        x = _layout(member).grouped(member.score(member.original))
        temperature = self.clock.schedule.temperature_at(int(self.clock.owner.steps))
        return KSubset(x / temperature, _layout(member).n).entropy()

    def choose(self) -> list[Tensor]:
        (member,) = self.members
        layout = _layout(member)
        with torch.no_grad():
            scores = member.score(member.original)
            return [(hard_topk(layout.grouped(scores), layout.n) > 0).view_as(scores)]


def _bits(numbers: Any, like: Tensor) -> Tensor:
    bits = torch.tensor(numbers, dtype=torch.float64, device="cpu").view(torch.int64)
    return bits.to(like.device)


def _layout(member: PrunedWeight) -> Groups:
    assert isinstance(member.layout, Groups)
    return member.layout

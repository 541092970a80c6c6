"""The ways in which a router's scores become weights and indices of experts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kofn.arrays.tracing import is_at_hand
from kofn.maps import routing
from kofn.maps.assignment.weights import soft_assignment, soft_assignment_prices
from kofn.maps.balance import Groups, largest_indices, without_closed_groups
from kofn.maps.routing import Gating
from kofn.maps.topk import soft_topk
from kofn.nn.routing.processes import Processes
from kofn.nn.routing.state import RunningThreshold


class Settings(NamedTuple):
    """What a selection needs to know of a router."""

    k: float
    gating: Gating
    width: int
    bias: Tensor | None
    running: RunningThreshold | None
    learns: bool
    """Whether the running thresholds are updated."""
    alone: bool
    """Whether a token is chosen by the running thresholds, without the others."""
    others: Processes | None = None
    """Who has more of the tokens."""
    groups: Groups | None = None
    """The groups of experts that limit a token's choice."""
    levels: bool = False
    """Whether "budget" takes scores above 0 with the bias, once there is one."""

    replay: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    """A function of scores and choices that returns a replay's choices, and for which tokens."""

    def compared(self, scores: Tensor) -> Tensor:
        """Return what a bias is added to, in float32 for half types: scores, or their sigmoids.

        It is −∞ where the score is that, or at or below half of the least number of its dtype; a
        bias could lift a sigmoid of 0.
        """
        scores = scores.detach()
        excluded = scores <= torch.finfo(scores.dtype).min / 2
        if self.gating.sigmoid:
            return routing.sigmoids(scores).masked_fill_(excluded, -math.inf)
        wide = torch.promote_types(scores.dtype, torch.float32)
        return scores.to(wide).masked_fill(excluded, -math.inf)


class Routed(NamedTuple):
    weights: Tensor
    indices: Tensor
    taken: Tensor | None
    """Which entries are choices; all, if None. The others are padding, with weight 0."""
    replayed: Tensor | None = None
    """Which tokens go where another has sent them, [T]."""
    counted: bool = False
    """Whether the load has the choices."""


Selection = Callable[[Tensor, Tensor | None, Settings], Routed]


def hard(scores: Tensor, mask: Tensor | None, how: Settings) -> Routed:
    """Each token chooses k experts."""
    k, limited = int(how.k), how.groups is not None or how.gating.sigmoid
    chosen = replayed = None
    if limited or how.replay is not None:
        biased = how.compared(scores) if how.bias is None else how.compared(scores) + how.bias
        chosen = largest_indices(without_closed_groups(biased, how.groups), k)
        if how.replay is not None:
            chosen, replayed = how.replay(scores, chosen)
    gates, indices = routing.token_choice(scores, k, how.gating, how.bias, mask, chosen)
    taken = None if mask is None else mask[:, None].expand_as(indices)
    return Routed(gates, indices, taken, replayed)


def at_once(scores: Tensor, how: Settings, counts: Sequence[Tensor]) -> Routed | None:
    """Return what `hard` does of usual tokens, if none is bad, by one call that may count, too; or
    None.
    """
    gating = how.gating
    if how.groups is not None or how.replay is not None or not gating.softly:
        return None
    answer = routing.choice_at_once(scores, int(how.k), gating, how.bias, counts)
    if answer is None:
        return None
    gates, indices, counted = answer
    return Routed(gates, indices, None, None, counted)


def soft(scores: Tensor, mask: Tensor | None, how: Settings) -> Routed:
    """All experts serve every token; the k largest weights count as choices."""
    rows = None if mask is None else mask[:, None]
    weights = soft_topk(scores, how.k, mask=rows, **how.gating.soft)
    weights = weights / how.k if how.gating.normalize else weights
    indices = torch.arange(scores.shape[-1], device=scores.device).expand_as(scores)
    among = torch.zeros_like(scores, dtype=torch.bool)
    among = among.scatter(-1, scores.detach().topk(math.ceil(how.k), -1).indices, 1)
    return Routed(weights, indices.contiguous(), among if rows is None else among & rows)


def bad_tokens(scores: Tensor) -> Tensor | None:
    """Return which tokens have a NaN, [T]; None if none has, as far as a look waits for nothing."""
    if is_at_hand(scores) and _has_no_nan(scores):
        return None
    return scores.isnan().any(-1)


def _has_no_nan(scores: Tensor) -> bool:
    """Return whether it is sure that none is NaN, by the cheapest look."""
    if scores.numel() <= 4096:
        return scores.equal(scores)
    return not math.isnan(scores.detach().sum().item())  # it is NaN for ∞ − ∞, too


def known_tokens(bad: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """Return which tokens count, [T]: those that play and are not bad. All, if None."""
    if bad is None:
        return mask
    return ~bad if mask is None else mask & ~bad


def select(
    name: str,
    scores: Tensor,
    mask: Tensor | None,
    bad: Tensor | None,
    known: Tensor | None,
    how: Settings,
) -> Routed:
    """Return what a selection chooses; `taken` leaves out tokens that are not known.

    Where tokens meet, a bad one counts as masked for the others; and its own weights are NaN.
    """
    choose = SELECTIONS[name]
    if bad is None or known is None:
        return choose(scores, mask, how)
    if name in ALONE:
        choice = choose(scores, mask, how)
        taken = choice.taken
        return choice._replace(taken=known[:, None] if taken is None else known[:, None] & taken)
    choice = choose(scores.masked_fill(bad[:, None], 0.0), known, how)
    own = torch.where((bad if mask is None else bad & mask)[:, None], scores, 0.0)
    nan = own.sum(-1, keepdim=True)
    return choice._replace(weights=choice.weights + nan * nan)  # 0 of the others; so is its slope


def assignment(scores: Tensor, mask: Tensor | None, how: Settings) -> Routed:
    """Each token chooses k experts by logits less prices, at which all experts get their share."""
    if how.running is not None and _is_alone(how):
        return hard(scores, mask, how._replace(bias=-how.running.threshold.to(scores.dtype)))
    rows = None if mask is None else mask[:, None]
    own = dict(mask=rows, **how.gating.soft)
    whole = soft_assignment(scores, how.k, hard=True, **own)
    if how.learns and how.running is not None and len(scores):
        prices = soft_assignment_prices(scores.detach(), how.k, **own)[1]
        how.running.update(prices, prices)
    weights = whole if how.gating.mixture else soft_assignment(scores, how.k, **own)
    gates, indices = routing.assigned(scores, weights, whole > 0, int(how.k), how.gating, rows)
    return Routed(gates, indices, None if rows is None else rows.expand_as(indices))


def expert_choice(scores: Tensor, mask: Tensor | None, how: Settings) -> Routed:
    """Each expert chooses its share, k/num_experts, of the tokens."""
    tokens = _live_tokens(scores, mask, how)
    capacity = (tokens * (how.k / scores.shape[-1])).ceil().minimum(tokens)
    rows = None if mask is None else mask[:, None]
    return _jointly(scores, capacity, 0, rows, how)


def budget(scores: Tensor, mask: Tensor | None, how: Settings) -> Routed:
    """The k·tokens largest of all scores are chosen, whichever token they belong to."""
    total = (_live_tokens(scores, mask, how) * how.k).floor()
    rows = None if mask is None else mask[:, None].expand_as(scores).flatten()
    return _jointly(scores, total, None, rows, how)


def _live_tokens(scores: Tensor, mask: Tensor | None, how: Settings) -> Tensor:
    """Return the number of tokens as a tensor; a number would fix it in a compiled program."""
    if mask is None:
        here = scores.new_ones(scores.shape[:1], dtype=torch.float32).sum()
    else:
        here = mask.sum().to(torch.float32)
    return here if how.others is None or _is_alone(how) else how.others.sum(here)


def _is_alone(how: Settings) -> bool:
    return how.alone and how.running is not None


def _jointly(
    scores: Tensor, k: Tensor, dim: int | None, entries: Tensor | None, how: Settings
) -> Routed:
    """Choose along `dim`, or among all entries; `entries` is the mask of candidates."""
    flat = scores.flatten() if dim is None else scores
    along = -1 if dim is None else dim
    biased = how.compared(scores).reshape(flat.shape) if how.gating.sigmoid else flat
    if how.bias is not None:
        biased = (how.compared(scores) + how.bias).reshape(flat.shape)
    if how.running is not None and _is_alone(how):
        weights = routing.weights_above(flat, how.running.threshold, how.gating)
        chosen = _above(biased, biased > how.running.cut, how)
    else:
        over = how.others or routing
        weights, chosen = over.joint_choice(flat, biased, k, along, how.gating, entries)
        chosen = _above(biased, chosen, how)
        if how.learns and how.running is not None and (how.others or flat.shape[along]):
            fixed = flat.detach()
            theta = over.threshold_of(fixed, k, along, how.gating, entries)
            how.running.update(_cut(biased.detach(), chosen, along, entries, how.others), theta)
    if entries is not None:
        chosen = chosen & entries
    weights, chosen = weights.reshape(scores.shape), chosen.reshape(scores.shape)
    gates, taken, indices = routing.packed(scores, weights, chosen, how.width, how.gating)
    return Routed(gates, indices, taken)


def _above(biased: Tensor, chosen: Tensor, how: Settings) -> Tensor:
    """Return whether a score is above its expert's level, or `chosen` while there is none."""
    if not how.levels or how.bias is None:
        return chosen
    return torch.where(how.bias.any(), biased > 0, chosen)


def _cut(
    scores: Tensor, chosen: Tensor, dim: int, entries: Tensor | None, processes: Processes | None
) -> Tensor:
    """Return the middle between the least chosen score and the greatest other one."""
    others = ~chosen if entries is None else ~chosen & entries
    if not scores.shape[dim]:
        scores, chosen, others = (_with_one(each, dim) for each in (scores, chosen, others))
    least = scores.masked_fill(~chosen, math.inf).amin(dim)
    greatest = scores.masked_fill(~others, -math.inf).amax(dim)
    if processes is not None:
        least, greatest = processes.ends(least, greatest)
    return (least + greatest) / 2


def _with_one(values: Tensor, dim: int) -> Tensor:
    """Return values with a first entry of 0, or False: this process has no token."""
    shape = list(values.shape)
    shape[dim] = 1
    return values.new_zeros(shape)


SELECTIONS: dict[str, Selection] = {
    "hard": hard,
    "soft": soft,
    "expert_choice": expert_choice,
    "budget": budget,
    "assignment": assignment,
}

ALONE = ("hard", "soft")
"""Those in which no token depends on another."""

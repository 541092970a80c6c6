"""Answers of rows in several processes: the array code of whole rows at a θ found by messages.

A call surveys the rows, searches for θ, and sums once more if its answer is a number per row. First
derivatives are those of `rows/pullbacks.py`, by two sums at most; further ones, and those in alpha,
are those of the array code, at the θ that is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn.arrays.torch_rule import Rule, by_rule
from kofn.arrays.torch_state import is_eager
from kofn.rows import answers, implicit, pullbacks, sloped
from kofn.rows.given import Given
from kofn.rows.group.given import Shards
from kofn.rows.group.reductions import GroupRows
from kofn.rows.group.search import solve
from kofn.rows.group.survey import Survey, rows_of, surveyed
from kofn.rows.settled import Rows

Theta = tuple[Tensor, Tensor]
"""θ as two numbers per row, as it is used; ±inf or NaN where `solver.threshold.solve` says so."""

Kept = tuple[Tensor, ...]
"""Numbers per row that a derivative needs, and that only a message tells."""

Grads = Sequence[Tensor | None]


class At(NamedTuple):
    """Rows whose θ is known."""

    shards: Shards  # k is NaN where it is more than there are entries
    rows: Rows
    found: Theta
    kept: Kept = ()

    @property
    def over(self) -> GroupRows:
        return self.shards.over


class Operation(NamedTuple):
    """What is computed of rows. `entries` are further arrays, without derivatives."""

    plain: Callable[..., Tensor]
    """plain(at, *entries) is the answer, as array code that can be differentiated twice."""

    back: Callable[..., Grads]
    """back(v, at, wanted, *entries) are the cotangents of scores, k and T."""

    value: Callable[..., tuple[Tensor, Theta, Kept]] | None = None
    """value(survey, rows, over, with_t, *entries) is the answer, θ, and what is kept; `with_t`, of
    the slope in T, too. None if it is `plain` at θ."""


def evaluate(operation: Operation, shards: Shards, *entries: Tensor) -> Tensor:
    """Return the answer of an operation, with derivatives in scores, k, T and alpha."""
    # Tensors go through the rule; what its functions close over would keep their graphs.
    nothing: Any = None
    numbers = shards._replace(scores=nothing, k=nothing, temperature=nothing)
    tensors = shards.scores, shards.k, shards.temperature
    wanted = [tensor.requires_grad for tensor in tensors]
    over = shards.over

    def given(tensors: Sequence[Tensor]) -> Shards:
        x, k, t = tensors[:3]
        return numbers._replace(scores=x, k=k, temperature=t)

    def value(*tensors: Tensor) -> tuple[Tensor, Kept]:
        asked = given([one.detach() for one in tensors[:3]])
        survey, rows = surveyed(asked)
        kept: Kept = ()
        if operation.value is None:
            found = solve(survey, rows, over)
            answer = operation.plain(At(asked, rows, found))
        else:
            answer, found, kept = operation.value(survey, rows, over, wanted[2], *tensors[3:])
        return answer, (*found, rows.k, survey.live, survey.top, *kept)

    def pullback(v: Tensor, tensors: Sequence[Tensor], kept: Sequence[Tensor]) -> Grads:
        twice = torch.is_grad_enabled() or not is_eager(v)
        asked = given(tensors if twice else [one.detach() for one in tensors[:3]])
        hi, lo, fewer, live, top, *rest = kept
        with torch.set_grad_enabled(twice):
            asked = asked._replace(k=torch.where(fewer.isnan(), math.nan, asked.k))
            at = At(asked, rows_of(asked, live, top), (hi, lo), tuple(rest))
        if twice:
            return _by_graph(lambda: operation.plain(at, *tensors[3:]), v, tensors)
        found = operation.back(v, at, wanted, *tensors[3:])
        pairs = zip(found, tensors[:3], wanted, strict=True)
        slopes = [one.to(a.dtype) if w and one is not None else None for one, a, w in pairs]
        return *slopes, *(None for _ in tensors[3:])

    _, alpha = shards.link.static_and_array_alpha()
    if alpha is not None and alpha.requires_grad and torch.is_grad_enabled():
        survey, rows = surveyed(shards)
        return operation.plain(At(shards, rows, solve(survey, rows, over)), *entries)
    return by_rule(Rule(value, pullback), *tensors, *entries)


def _by_graph(plain: Callable[[], Tensor], v: Tensor, tensors: Sequence[Tensor]) -> Grads:
    """Return the cotangents of array code, which can be differentiated again."""
    some = [one for one in tensors if one.requires_grad]
    with torch.enable_grad():
        slopes = torch.autograd.grad(plain(), some, v, create_graph=True, allow_unused=True)
    found = iter(slopes)
    return [next(found) if one.requires_grad else None for one in tensors]


def _of_weights(v: Tensor, at: At, wanted: Sequence[bool]) -> Grads:
    x, k, t = at.shards.scores, at.shards.k, at.shards.temperature
    given, (_, tops) = Given(x, k, t, at.shards.link), at.rows.counts
    return pullbacks.of_weights(v, given, at.found, at.over, tops, wanted[1])


def _value_of_sum(
    survey: Survey, rows: Rows, over: GroupRows, with_t: bool
) -> tuple[Tensor, Theta, Kept]:
    found = solve(survey, rows, over)
    if with_t:
        answer, slope = answers.value_and_slope(rows, over, found)
        return answer, found, (slope,)
    return answers.value(rows, over, found), found, (torch.zeros_like(rows.k),)


def _value_of_softmax(
    survey: Survey, rows: Rows, over: GroupRows, with_t: bool
) -> tuple[Tensor, Theta, Kept]:
    answer, total = answers.shares(rows, over, _greatest(survey, rows))
    return answer, _theta_of_softmax(survey, rows, total.log()), ()


def _greatest(survey: Survey, rows: Rows) -> Tensor:
    """Return the largest available score, 0 if there is none, NaN if one is NaN."""
    found = torch.where(survey.greatest.isfinite(), survey.greatest, 0.0).to(rows.scores.dtype)
    return found.masked_fill(survey.spoiled, math.nan)


def _theta_of_softmax(survey: Survey, rows: Rows, log_total: Tensor) -> Theta:
    """Return θ with e^{z − 1} = softmax, from log Σe^{(x − greatest)/T}.

    It stays two numbers in float64 too: next to a great score their sum would lose the second.
    """
    greatest = torch.where(rows.k > 0, _greatest(survey, rows), math.inf)
    greatest = greatest.masked_fill(survey.spoiled, math.nan)
    offset = rows.temperature.double() * (log_total - 1)
    offset = torch.where(greatest.isfinite(), offset, 0.0)
    return greatest, offset.to(greatest.dtype)


def _value_of_gap(
    survey: Survey, rows: Rows, over: GroupRows, with_t: bool, target: Tensor
) -> tuple[Tensor, Theta, Kept]:
    found = hi, _ = solve(survey, rows, over)
    theta = torch.where(hi.isfinite(), hi, 0.0) - rows.temperature * rows.link.edge
    near = torch.minimum(torch.maximum(theta.double(), survey.least), survey.greatest)
    near = torch.where(near.isfinite(), near, theta).to(theta.dtype)
    answer = sloped.gap(rows, target, over, found, near)
    return answer.loss, found, answer[1:4]


def _value_of_likelihood(
    survey: Survey, rows: Rows, over: GroupRows, with_t: bool, target: Tensor, *idle: Tensor
) -> tuple[Tensor, Theta, Kept]:
    answer = sloped.likelihood(rows, target, over, _greatest(survey, rows), *idle)
    return answer.loss, _theta_of_softmax(survey, rows, answer.log_total), answer[1:4]


def _of_loss(v: Tensor, at: At, wanted: Sequence[bool], target: Tensor, *_: Tensor) -> Grads:
    """Return the cotangents for (whole·p − t)/T."""
    slope, still, whole = at.kept
    v = torch.where(still, 0.0, v)
    placed = implicit.place(at.rows, at.over, at.found)
    off = sloped.compared(placed, at.rows, target, whole.to(target.dtype)[..., None])
    in_x = off * (v / at.rows.temperature)[..., None]
    return in_x, None, torch.where(still, 0.0, slope * v)


def _gap(at: At, target: Tensor) -> Tensor:
    loss = answers.gap(at.rows, target, at.over, at.found)
    if at.kept:
        still = at.kept[1]
    else:
        wrong = at.over.count(sloped.out_of_play(at.rows, target))
        still = sloped.impossible(at.rows, loss.detach(), wrong, at.over)
    return torch.where(still, math.inf, loss)


def _likelihood(at: At, target: Tensor, *_: Tensor) -> Tensor:
    log_p = answers.log_softmax(at.rows, over=at.over)
    some = target != 0
    loss = -at.over.sum(torch.where(some, target * torch.where(some, log_p, 0.0), 0.0))
    return torch.where(at.kept[1], math.inf, loss)


WEIGHTS = Operation(lambda at: answers.weights(at.rows, at.over, at.found), _of_weights)
THETA = Operation(
    lambda at: implicit.theta(at.rows, at.over, at.found),
    lambda v, at, _: pullbacks.of_thresholds(v, at.rows, at.found, at.over),
)
SUM = Operation(
    lambda at: answers.value(at.rows, at.over, at.found),
    lambda v, at, _: pullbacks.of_values(v, at.rows, at.found, at.kept[0], at.over),
    _value_of_sum,
)
SOFTMAX = Operation(lambda at: answers.softmax(at.rows, at.over), _of_weights, _value_of_softmax)
GAP = Operation(_gap, _of_loss, _value_of_gap)
"""A Fenchel–Young loss of a target of weights; k is the target's sum."""
LIKELIHOOD = Operation(_likelihood, _of_loss, _value_of_likelihood)
"""Cross-entropy −Σ t·log softmax; k is 1."""

"""First derivatives of what is computed from rows in several processes, by two sums at most.

What differs between ranks is the cotangent of entries; of what there is per row they have the same.
Second derivatives use the array code of `rows/implicit.py` with the reductions of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn.arrays.torch_rule import Rule, by_rule
from kofn.rows import answers, implicit
from kofn.rows.group.given import Shards
from kofn.rows.group.placed import Placed, Theta, placed, slopes_at, weights_at
from kofn.rows.group.reductions import GroupRows
from kofn.rows.group.search import solve
from kofn.rows.group.survey import Survey, surveyed
from kofn.rows.implicit import least_weight
from kofn.rows.pivot import pivot_at
from kofn.rows.settled import Rows
from kofn.solver.plateau import Entries

Grads = Sequence[Tensor | None]


class Kept(NamedTuple):
    """What a derivative needs to know of rows, without another survey; numbers per row."""

    hi: Tensor
    lo: Tensor
    k: Tensor  # of the available entries
    top_weight: Tensor
    top: Tensor  # how many scores are +inf
    slope: Tensor  # of a value in T


class Given(NamedTuple):
    """The arguments of a rule that are tensors: what `Shards` has, with a gradient or not."""

    scores: Tensor
    k: Tensor
    temperature: Tensor


def of_shards(
    shards: Shards,
    value: Callable[[Survey, Rows], tuple[Tensor, Kept]],
    pullback: Callable[[Tensor, Rows, Kept, GroupRows, Sequence[bool]], Grads],
    plain: Callable[[Rows, Theta], Tensor],
) -> Tensor:
    """Return value(survey, rows)[0], with the first derivative `pullback` and those of `plain`.

    A learned alpha has the derivatives of `plain` alone.
    """
    # Tensors go through the rule; what its functions close over would keep their graphs.
    nothing: Any = None
    numbers = shards._replace(scores=nothing, k=nothing, temperature=nothing)
    wanted = [tensor.requires_grad for tensor in (shards.scores, shards.k, shards.temperature)]

    def again(x: Tensor, k: Tensor, t: Tensor) -> tuple[Survey, Rows]:
        return surveyed(numbers._replace(scores=x, k=k, temperature=t), check=False)

    def of_rule(x: Tensor, k: Tensor, t: Tensor) -> tuple[Tensor, Kept]:
        return value(*surveyed(numbers._replace(scores=x, k=k, temperature=t)))

    def of_cotangent(v: Tensor, tensors: Sequence[Tensor], kept: Sequence[Tensor]) -> Grads:
        found = Kept(*kept)
        rows = rows_again(Given(*tensors), found, numbers)
        gradients = pullback(v, rows, found, shards.over, wanted)
        pairs = zip(gradients, tensors, wanted, strict=True)
        return [one.to(like.dtype) if w and one is not None else None for one, like, w in pairs]

    def of_array_code(x: Tensor, k: Tensor, t: Tensor) -> Tensor:
        survey, rows = again(x, k, t)
        return plain(rows, solve(survey, rows, shards.over))

    tensors = shards.scores, shards.k, shards.temperature
    _, alpha = shards.link.static_and_array_alpha()
    if alpha is not None and alpha.requires_grad and torch.is_grad_enabled():
        return of_array_code(*tensors)
    return by_rule(Rule(of_rule, of_cotangent, of_array_code), *tensors)


def rows_again(given: Given, kept: Kept, shards: Shards) -> Rows:
    """Return the rows that a survey found, as constants."""
    x = given.scores.detach()
    top = x == torch.inf
    live = ~(top | (x == -torch.inf))
    return Rows(
        scores=torch.where(live, x, -torch.inf),
        live=live,
        top=top,
        k=kept.k,
        top_weight=kept.top_weight,
        temperature=given.temperature.detach(),
        link=shards.link,
    )


def kept_of(survey: Survey, rows: Rows, theta: Theta) -> Kept:
    k, weight = rows.k.detach(), rows.top_weight.detach()
    return Kept(*theta, k, weight, survey.top.to(k.dtype), torch.zeros_like(k))


def weights(shards: Shards) -> Tensor:
    """Return this rank's entries of p = F((x − θ)/T), with derivatives in x, k, T and alpha."""
    over = shards.over

    def value(survey: Survey, rows: Rows) -> tuple[Tensor, Kept]:
        theta = solve(survey, rows, over)
        return weights_at(rows, theta), kept_of(survey, rows, theta)

    def plain(rows: Rows, theta: Theta) -> Tensor:
        return answers.weights(rows, over, theta)

    return of_shards(shards, value, of_weights, plain)


def of_weights(v: Tensor, rows: Rows, kept: Kept, over: GroupRows, wanted: Sequence[bool]) -> Grads:
    """Return the cotangents of scores, k and T, for the one of this rank's weights.

    ∂p/∂x = [diag(w) − w wᵀ/Σw]/T, ∂p/∂k = w/Σw. The mean of v by w is improved once: where one
    entry has nearly all of Σw, its rounding would be as large as the others' derivatives.
    """
    at = placed(rows, (kept.hi, kept.lo))
    w = slopes_at(rows, at)
    v = torch.where(rows.live | rows.top, v, 0.0)
    of_top = torch.where(rows.top, v, 0.0)
    moved = torch.where(w == 0, 0.0, w * v)
    z = torch.where(w == 0, 0.0, at.z)
    total, mean, moment, top = summed(over, w, moved, w * z, of_top)
    solvable = at.open & (total >= least_weight(w))
    divisor = torch.where(solvable, total, 1.0)
    mean = torch.where(solvable | at.spoiled, mean / divisor, 0.0)

    t = rows.temperature
    pivot = pivot_at(moment / divisor, torch.where(at.open, kept.hi, 0.0), kept.lo, t)
    pivot = pivot.to(v.dtype)[..., None]
    u = torch.where(w == 0, 0.0, w * (v - mean.to(v.dtype)[..., None]))
    away = (torch.where(w == 0, pivot, rows.scores) - pivot) / t[..., None]
    rest, lever = summed(over, u, u * away)
    change = torch.where(solvable, rest / divisor, 0.0)
    u = u - w * change.to(w.dtype)[..., None]
    in_t = -lever / t

    in_k = mean + change
    if wanted[1]:
        in_k = in_k + _of_hard_rows(v, rows, at, at.open & ~solvable, over)
        sharing = (kept.top > 0) & (kept.k <= 0)
        in_k = in_k + torch.where(sharing, top / kept.top.clamp(min=1), 0.0)
    return u / t[..., None], in_k, in_t


def summed(over: GroupRows, *values: Tensor) -> Tensor:
    """Return the sums over whole rows in float64, by one message."""
    return over.ranks.sum(torch.stack([one.sum(-1).double() for one in values]))


def _of_hard_rows(
    v: Tensor, rows: Rows, at: Placed, hard: Tensor, over: GroupRows
) -> Tensor | float:
    """Return Σ v·w/Σw in rows where Σw has underflowed and the ratios have not."""
    if not bool(hard.any()):
        return 0.0
    entries = Entries(at.z, rows.scores, rows.temperature, rows.live, over)
    return over.sum(implicit.shares(at.link, entries, hard) * v)

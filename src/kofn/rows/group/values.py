"""θ, the value and softmax of rows in several processes, with first derivatives."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kofn.rows import answers, implicit
from kofn.rows.group.given import Shards
from kofn.rows.group.placed import Placed, Theta, placed, slopes_at, weights_at
from kofn.rows.group.reductions import GroupRows
from kofn.rows.group.rules import Grads, Kept, kept_of, of_shards, of_weights, summed
from kofn.rows.group.search import solve
from kofn.rows.group.survey import Survey
from kofn.rows.implicit import least_weight
from kofn.rows.settled import Rows
from kofn.solver.plateau import Entries, balance


def theta(shards: Shards) -> Tensor:
    """Return θ per row, as `implicit.theta`, with derivatives in x, k, T and alpha."""
    over = shards.over

    def value(survey: Survey, rows: Rows) -> tuple[Tensor, Kept]:
        hi, lo = solve(survey, rows, over)
        edge = rows.link.map_alpha(torch.Tensor.detach).edge
        found = torch.where(hi.isfinite(), hi + lo - rows.temperature.detach() * edge, hi)
        some = survey.live + survey.top > 0
        return torch.where(some, found, math.nan), kept_of(survey, rows, (hi, lo))

    def plain(rows: Rows, _: Theta) -> Tensor:
        return implicit.theta(rows, over)

    return of_shards(shards, value, of_theta, plain)


def of_theta(g: Tensor, rows: Rows, kept: Kept, over: GroupRows, wanted: Sequence[bool]) -> Grads:
    """Return the cotangents of scores, k and T, for the one of θ: ∂θ/∂x = w/Σw, ∂θ/∂k = −T/Σw."""
    at = placed(rows, (kept.hi, kept.lo))
    w = slopes_at(rows, at)
    total, lever = summed(over, w, w * torch.where(w == 0, 0.0, at.z))
    solvable = at.open & (total >= least_weight(w))
    divisor = torch.where(solvable, total, 1.0).masked_fill(at.spoiled, math.nan)
    solvable = solvable | at.spoiled
    moves = solvable[..., None] & (w != 0)
    share = torch.where(moves, w / divisor.to(w.dtype)[..., None], 0.0)
    lever = torch.where(solvable, lever / divisor, 0.0)
    hard = at.open & ~solvable
    if at.link.has_infinite_tails(at.z) is not False and bool(hard.any()):
        share, lever = _balanced(rows, at, hard, share, lever, over)
    edge = rows.link.map_alpha(torch.Tensor.detach).edge
    in_t = torch.where(at.none | at.every, 0.0, -g * (lever + edge))
    return share * g[..., None], torch.where(solvable, -g * rows.temperature / divisor, 0.0), in_t


def _balanced(
    rows: Rows, at: Placed, hard: Tensor, share: Tensor, lever: Tensor, over: GroupRows
) -> tuple[Tensor, Tensor]:
    """Return the shares and their mean of z where the logarithms of the tails determine θ."""
    entries = Entries(at.z, rows.scores, rows.temperature, rows.live, over)
    flat = balance(at.link, entries, hard)
    some = (hard & flat.usable)[..., None]
    share = torch.where(some, flat.slopes / flat.slope[..., None], share)
    moved = torch.where(some & (share != 0), share * at.z, 0.0)
    return share, lever + summed(over, moved)[0]


def value(shards: Shards) -> Tensor:
    """Return S_k per row, as `answers.value`, with derivatives in x, k, T and alpha.

    ∂S/∂x = p, ∂S/∂k = θ and ∂S/∂T = −ΣΩ(p), so that they need no message.
    """
    over, with_t = shards.over, shards.temperature.requires_grad

    def of(survey: Survey, rows: Rows) -> tuple[Tensor, Kept]:
        found = solve(survey, rows, over)
        answer, in_t = _value(survey, rows, found, over, with_t)
        return answer, kept_of(survey, rows, found)._replace(slope=in_t)

    def plain(rows: Rows, _: Theta) -> Tensor:
        return answers.value(rows, over)

    return of_shards(shards, of, _of_value, plain)


def _value(
    survey: Survey, rows: Rows, found: Theta, over: GroupRows, with_t: bool
) -> tuple[Tensor, Tensor]:
    """Return S_k, and its derivative in T if it is wanted."""
    at = placed(rows, found)
    link, x, t = at.link, rows.scores.detach(), rows.temperature.detach()
    upper = rows.live & link.above_half(at.z)
    tails = torch.where(upper, link.upper_integral(at.z), link.integral(at.z))
    parts = [
        torch.where(upper, x, 0.0),
        upper,
        torch.where(rows.live, tails, 0.0),
        torch.where(rows.live, x, 0.0),
    ]
    if with_t:
        inside = rows.live & at.open[..., None]
        p = torch.where(inside, weights_at(rows, found), 0.0)
        inner = torch.where(inside, link.omega(p), 0.0)
        parts.append(inner.masked_fill(at.spoiled[..., None], math.nan))
    above, count, tails, everything, *omega = summed(over, *parts)
    edge = rows.link.map_alpha(torch.Tensor.detach).edge
    hi, lo = (torch.where(at.open, one, 0.0) for one in found)
    theta = hi.double() + lo.double() - t.double() * edge
    answer = (rows.k.detach().double() - count) * theta + above + t * tails
    answer = torch.where(at.every, everything, torch.where(at.none, 0.0, answer))
    answer = torch.where(at.spoiled, math.nan, answer)
    answer = torch.where(survey.live > 0, answer, 0.0)
    infinite = (survey.top > 0) & (rows.top_weight.detach() > 0)
    answer = answer + torch.where(infinite, math.inf, 0.0)
    in_t = -omega[0] if with_t else torch.zeros_like(answer)
    return answer.to(x.dtype), in_t


def _of_value(g: Tensor, rows: Rows, kept: Kept, over: GroupRows, wanted: Sequence[bool]) -> Grads:
    found = kept.hi, kept.lo
    edge = rows.link.map_alpha(torch.Tensor.detach).edge
    theta = kept.hi + kept.lo - rows.temperature * edge
    in_k = torch.where(theta.isfinite() | theta.isnan(), theta, 0.0)
    return weights_at(rows, found) * g[..., None], in_k * g, kept.slope * g


def of_softmax(survey: Survey, rows: Rows, log_total: Tensor) -> Theta:
    """Return θ with e^{z − 1} = softmax, from log Σe^{(x − greatest)/T}.

    It stays two numbers in float64 too: next to a great score their sum would lose the second.
    """
    greatest = torch.where(survey.greatest.isfinite(), survey.greatest, 0.0)
    greatest = torch.where(rows.k > 0, greatest, math.inf).masked_fill(survey.spoiled, math.nan)
    offset = rows.temperature.detach().double() * (log_total - 1)
    offset = torch.where(greatest.isfinite(), offset, 0.0)
    return greatest.to(rows.scores.dtype), offset.to(rows.scores.dtype)


def softmax(shards: Shards) -> Tensor:
    """Return this rank's entries of softmax, as `answers.softmax`, by two messages."""
    over = shards.over

    def of(survey: Survey, rows: Rows) -> tuple[Tensor, Kept]:
        x, t = rows.scores.detach(), rows.temperature.detach()[..., None]
        greatest = torch.where(survey.greatest.isfinite(), survey.greatest, 0.0)
        z = (x - greatest.to(x.dtype)[..., None]) / t
        raised = torch.where(rows.live, z.exp(), 0.0)
        (total,) = summed(over, raised)
        share = raised / torch.where(total == 0, 1.0, total).to(x.dtype)[..., None]
        share = torch.where((rows.k > 0)[..., None], share, 0.0)
        p = torch.where(rows.top, rows.top_weight.detach()[..., None], share)
        p = torch.where(rows.live & survey.spoiled[..., None], math.nan, p)
        return p, kept_of(survey, rows, of_softmax(survey, rows, total.log()))

    def plain(rows: Rows, _: Theta) -> Tensor:
        return answers.softmax(rows, over)

    return of_shards(shards, of, of_weights, plain)

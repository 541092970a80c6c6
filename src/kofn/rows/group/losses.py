"""Losses of rows in several processes, one number per row, with first derivatives in closed form.

A target is this rank's weights, without a gradient. What is summed over the ranks are terms that
are ≥ 0, and with them the derivative in the temperature, so that `backward` sends nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kofn.rows import answers
from kofn.rows.group.given import Shards
from kofn.rows.group.placed import Theta, placed
from kofn.rows.group.reductions import GroupRows
from kofn.rows.group.rules import Grads, Kept, kept_of, of_shards, summed
from kofn.rows.group.search import solve
from kofn.rows.group.survey import Survey
from kofn.rows.group.values import of_softmax
from kofn.rows.settled import Rows
from kofn.solver.equation import far, split


def cross_entropy(
    shards: Shards, target: Tensor, idle: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return −Σ t·log softmax per row, which rows have an available entry, and which a bar.

    k is 1. A bar, which may make a target impossible, is weight on an excluded entry, or +inf.
    """
    over = shards.over
    seen: list[Any] = []

    def of(survey: Survey, rows: Rows) -> tuple[Tensor, Kept]:
        loss, whole, in_t, log_total, wrong = _likelihood(survey, rows, target, over, idle)
        seen[:] = [survey, whole, wrong]
        found = of_softmax(survey, rows, log_total)
        return loss, kept_of(survey, rows, found)._replace(slope=in_t.to(found[0].dtype))

    def pullback(
        g: Tensor, rows: Rows, kept: Kept, over: GroupRows, wanted: Sequence[bool]
    ) -> Grads:
        whole = seen[1].to(rows.scores.dtype)[..., None]
        return _of_loss(g, rows, kept, target, whole)

    def plain(rows: Rows, _: Theta) -> Tensor:
        log_p = answers.log_softmax(rows, over=over)
        some = target != 0
        return -over.sum(torch.where(some, target * torch.where(some, log_p, 0.0), 0.0))

    loss, survey = of_shards(shards, of, pullback, plain), seen[0]
    return loss, _available(survey), (seen[2] > 0) | (survey.top > 0)


def _likelihood(
    survey: Survey, rows: Rows, target: Tensor, over: GroupRows, idle: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the loss, Σt, its derivative in T, log Σe^z, and how many excluded entries weigh.

    z is (x − greatest)/T.

    `idle` are entries whose share of the smoothing has the weight 0; of an infinite loss that is
    NaN, as in PyTorch.
    """
    x, t = rows.scores.detach(), rows.temperature.detach()
    greatest = torch.where(survey.greatest.isfinite(), survey.greatest, 0.0).to(x.dtype)
    z = torch.where(rows.live, (x - greatest[..., None]) / t[..., None], 0.0)
    raised = torch.where(rows.live, z.exp(), 0.0)
    own = torch.where(rows.live, target, 0.0)
    wrong = (target != 0) & ~rows.live & ~rows.top
    at_top = torch.where(rows.top, target, 0.0)
    if idle is not None:
        at_top = torch.where(idle & rows.live, math.nan, at_top)
    parts = raised, own, torch.where(own == 0, 0.0, own * z), raised * z, wrong, at_top
    total, whole, chosen, lever, wrong, at_top = summed(over, *parts)
    total = torch.where(total == 0, 1.0, total)
    answer = whole * total.log() - chosen
    at_idle = (survey.top > 0) & at_top.isnan() & ~whole.isnan()
    some = survey.top > 0  # scores of +inf share all the weight
    among = torch.where(some, rows.top_weight.detach().double(), 1.0)
    answer = torch.where(some, at_top * -among.log(), answer)
    answer = torch.where((wrong > 0) | (some & (whole > 0)), math.inf, answer)
    # A row without weight has no loss, whatever its scores.
    answer = torch.where(survey.spoiled, torch.where(whole == 0, 0.0, math.nan), answer)
    answer = torch.where(at_idle, math.nan, answer)
    in_t = torch.where(some, 0.0, -(whole * lever / total - chosen) / t)
    return answer.to(x.dtype), whole, in_t, total.log(), wrong


def gap(shards: Shards, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σ [G(z) + Ω(t) − t·z] per row, as `answers.gap`, and rows as `cross_entropy` does.

    k is the sum of the target.
    """
    over = shards.over
    seen: list[Any] = []

    def of(survey: Survey, rows: Rows) -> tuple[Tensor, Kept]:
        found = solve(survey, rows, over)
        loss, in_t, wrong = _gap(survey, rows, found, target, over)
        seen[:] = [_available(survey), (wrong > 0) | (survey.top > 0)]
        return loss, kept_of(survey, rows, found)._replace(slope=in_t)

    def pullback(
        g: Tensor, rows: Rows, kept: Kept, over: GroupRows, wanted: Sequence[bool]
    ) -> Grads:
        return _of_loss(g, rows, kept, target, torch.ones_like(rows.scores[..., :1]))

    def plain(rows: Rows, found: Theta) -> Tensor:
        if not seen:  # of a learned alpha: `of` was not called
            wrong = ~rows.live & ~rows.top & (target != 0)
            available, bars = summed(over, rows.live | rows.top, wrong | rows.top)
            seen[:] = [available > 0, bars > 0]
        return answers.gap(rows, target, over, found)

    loss = of_shards(shards, of, pullback, plain)
    return loss, *seen


def _gap(
    survey: Survey, rows: Rows, found: Theta, target: Tensor, over: GroupRows
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, its derivative in T, and how many excluded entries have weight.

    The second is a sum of (x − θ)(p − t), where Σ(p − t) = 0: any number may stand for θ, as in
    pivot.py. A score near it does until all sums are known, and with them the mean of x in the
    weights p(1 − p), which are F′ or close to it.
    """
    at = placed(rows, found)
    link, x, t = at.link, rows.scores.detach(), rows.temperature.detach()[..., None]
    edge = rows.link.map_alpha(torch.Tensor.detach).edge
    hi = torch.where(at.open, found[0], 0.0) - t[..., 0] * edge
    beyond = rows.live & (at.z.abs() >= far(torch.finfo(x.dtype)))
    z = torch.where(beyond, (x - hi[..., None]) / t, at.z + link.edge)
    upper, low, high = split(link, at.z, rows.live)
    missed = torch.where(upper, 1 - target, -target)
    straight = torch.where(missed == 0, 0.0, missed * z)
    terms = torch.where(upper, link.upper_integral(at.z), link.integral(at.z)) + straight
    terms = torch.where(at.open[..., None], terms, 0.0) + link.omega(target)
    possible = target == torch.where(rows.top, 1.0, 0.0)
    terms = torch.where(rows.live, terms, torch.where(possible, 0.0, math.inf))
    off = torch.where(upper, missed - high, low + missed)
    moves = rows.live & at.open[..., None]
    off, w = torch.where(moves, off, 0.0), torch.where(moves, (low + high) * (1 - low - high), 0.0)
    near = torch.minimum(torch.maximum(hi.double(), survey.least), survey.greatest).to(x.dtype)
    near = torch.where(near.isfinite(), near, hi)[..., None]
    away = (torch.where(moves, x, near) - near) / t
    off_away = torch.where(off == 0, 0.0, off * away)
    w_away = torch.where(w == 0, 0.0, w * away)
    wrong = ~rows.live & ~rows.top & (target != 0)
    sums = summed(over, terms, off_away, off, w, w_away, wrong)
    loss, lever, rest, weight, moment, wrong = sums
    mean = torch.where(weight > 0, moment / torch.where(weight > 0, weight, 1.0), 0.0)
    tilt = (lever - torch.where(rest == 0, 0.0, rest * mean)).masked_fill(at.spoiled, math.nan)
    loss = torch.where(at.spoiled, math.nan, loss)
    return loss.to(x.dtype), (-tilt / t[..., 0]).to(x.dtype), wrong


def _of_loss(g: Tensor, rows: Rows, kept: Kept, target: Tensor, whole: Tensor) -> Grads:
    """Return the cotangents for (whole·p − t)/T; 0 where scores of +inf leave nothing."""
    at = placed(rows, (kept.hi, kept.lo))
    upper, low, high = split(at.link, at.z, rows.live)
    off = torch.where(upper, (whole - target) - whole * high, whole * low - target)
    moves = rows.live & at.open[..., None]
    off = torch.where(moves, off, torch.where(rows.live & at.spoiled[..., None], math.nan, 0.0))
    return off * (g / rows.temperature)[..., None], None, kept.slope * g


def _available(survey: Survey) -> Tensor:
    return survey.live + survey.top > 0

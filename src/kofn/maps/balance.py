"""Quantiles that even the load of experts: the bias at which each expert gets its share of tokens.

A token takes its k largest scores + bias. The bias that it requires of an expert is cutoff − score:
with a larger one, the expert is taken. An expert gets its share, k/E of the tokens, where that
share of them requires less than its bias. Only numbers are computed here, no gradients.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kofn.adapters import route
from kofn.arrays.kinds import (
    Array,
    cast,
    is_torch,
    most_precise_dtype,
    move_axis,
    namespace,
    scalar,
)
from kofn.arrays.operations import arange, as_numbers, take_along_last
from kofn.arrays.tracing import is_at_hand
from kofn.arrays.typing import ArrayT
from kofn.maps.ordered.quantiles import DenseRows
from kofn.operations.choice import LARGEST


class Groups(NamedTuple):
    """Groups of experts that lie together; a token may use `chosen` of them, as in DeepSeek-V3.

    A group's score is the sum of its two largest scores + bias.
    """

    number: int
    chosen: int


def largest_indices(scores: ArrayT, k: int) -> ArrayT:
    """Return the indices of the k largest scores of each row, largest first, NaN last."""
    return route.answer(LARGEST, scores, settings=(k,))


def without_closed_groups(biased: ArrayT, groups: Groups | None) -> ArrayT:
    """Return scores with −inf for the experts of groups that a token may not use."""
    if groups is None or groups.chosen == groups.number:
        return biased
    xp = namespace(biased)
    _, which = _group_scores(biased, groups)
    return xp.where(_opened(which, biased, groups), biased, -math.inf)


def required_bias(scores: ArrayT, biased: ArrayT, k: int, groups: Groups | None = None) -> ArrayT:
    """Return, per token and expert, the bias above which the token takes the expert, [T, E].

    It is the (k + 1)-th largest of the token's scores + bias, less the expert's score. With groups,
    it is at least the expert's bias, raised by what all experts of its group would have to be
    raised by for the group to be chosen. `biased` is scores + bias; there are more than k experts.

    It is +∞ for an expert that the token may not use, with a score of −∞ or in a group without two
    other scores; and −∞ for the experts of a token that may use k or fewer.
    """
    xp = namespace(scores)
    if groups is None or groups.chosen == groups.number:
        cutoff = _kth_largest(biased, k + 1)
    else:
        score, which = _group_scores(biased, groups)
        opened = _opened(which, biased, groups)
        rival = take_along_last(score, which)[..., -1:]  # the first group that is not chosen
        # Between sums of −∞, the order of the groups decides, whatever the bias.
        never = xp.where(opened, scalar(biased, -math.inf), math.inf)
        lacks = _of_members((rival - score) / 2, biased)
        lost = _of_members((rival == -math.inf) & (score == -math.inf), biased)
        cutoff = biased + xp.where(lost, never, lacks)
        size = biased.shape[-1] // groups.number
        if k < groups.chosen * size:  # otherwise a token takes all experts of its groups
            of_opened = xp.where(opened, biased, -math.inf)
            cutoff = xp.maximum(cutoff, _kth_largest(of_opened, k + 1))
    needed = cutoff - scores
    return needed if are_finite(scores) else xp.where(scores == -math.inf, math.inf, needed)


def _group_scores(biased: ArrayT, groups: Groups) -> tuple[ArrayT, ArrayT]:
    """Return the groups' scores [T, G], and the indices of those chosen and of the next one."""
    size = biased.shape[-1] // groups.number
    members = biased.reshape((*biased.shape[:-1], groups.number, size))
    best = take_along_last(members, largest_indices(members, 2))
    score = best[..., 0] + best[..., 1]
    return score, largest_indices(score, groups.chosen + 1)  # type: ignore[return-value]  # of its kind


def _opened(which: Array, biased: Array, groups: Groups) -> Any:
    """Return whether the token may use the expert, [T, E]."""
    places = arange(which, groups.number)
    chosen: Any = places[:, None] == which[..., None, : groups.chosen]
    return _of_members(chosen.any(-1), biased)


def _of_members(of_groups: Array, like: Array) -> Any:
    """Return numbers of groups [T, G] for each of their experts."""
    xp, number = namespace(like), of_groups.shape[-1]
    shape = (*like.shape[:-1], number, like.shape[-1] // number)
    return xp.broadcast_to(of_groups[..., None], shape).reshape(tuple(like.shape))


def _kth_largest(scores: ArrayT, k: int) -> ArrayT:
    return take_along_last(scores, largest_indices(scores, k)[..., k - 1 :])


def bias_of_share(required: ArrayT, k: float, playing: ArrayT | None) -> tuple[ArrayT, ArrayT]:
    """Return (bias [..., E], tokens [..., 1]): with it, each expert gets k/E of the tokens.

    It is the number at the place m·k/E of the m tokens' requirements of the expert, in rising order
    from place 0 on; between two places, it is interpolated. So m·k/E tokens require less, if that
    is a whole number and none are equal. `required` is [..., T, E]; tokens with a NaN do not count,
    nor tokens where `playing` [..., T] is False. If fewer may use an expert, or more must, it gets
    these, and the others the rest: see `even_places`. The bias is NaN if no finite number is
    known.
    """
    xp, experts = namespace(required), required.shape[-1]
    if playing is None and 0 < k < experts and are_finite(required):
        return _even_bias(required, k)
    known = known_tokens(required, playing)
    shape = (*required.shape[:-2], experts, required.shape[-2])
    by_expert = move_axis(required, -1, -2)
    rows = DenseRows(by_expert, xp.broadcast_to(known[..., None, :], shape))
    tokens: Any = rows.counts[..., :1, 0]
    forced, usable = (
        xp.sum(as_numbers(which & known[..., None, :], tokens.dtype), axis=-1)
        for which in (by_expert == -math.inf, by_expert < math.inf)
    )
    place = even_places(forced, usable, tokens, k)
    last = xp.maximum(usable - 1, xp.zeros_like(usable))
    ranks = [
        xp.minimum(xp.maximum(each, forced), last) for each in (xp.floor(place), xp.ceil(place))
    ]
    low_high = xp.stack(ranks, axis=-1)
    ends: Any = rows.ranked(xp.broadcast_to(low_high, (*required.shape[:-2], experts, 2)))
    low, high, between = ends[..., 0], ends[..., 1], cast(place - ranks[0], ends.dtype)
    bias = xp.where(low == high, low, low + (high - low) * between)
    return xp.where(usable > forced, bias, math.nan), tokens


def _even_bias(required: ArrayT, k: float) -> tuple[ArrayT, ArrayT]:
    """Return `bias_of_share` of finite numbers where all tokens count: places are the same."""
    x: Any = required
    *batch, count, experts = x.shape
    place = count * k / experts
    low, high = (min(each, count - 1) for each in (math.floor(place), math.ceil(place)))
    ranks = x.new_tensor([low, high], dtype=namespace(x).int64)
    ends: Any = DenseRows(move_axis(x, -1, -2), None).ranked(ranks)
    first, last = ends[..., 0], ends[..., 1]
    tokens = x.new_full((*batch, 1), count, dtype=most_precise_dtype(x))
    return first + (last - first) * (place - low), tokens


def are_finite(x: Array) -> bool:
    """Return whether it is sure that numbers are finite, by a look that waits for no device."""
    return is_torch(x) and is_at_hand(x) and math.isfinite(x.detach().sum().item())


def even_places(forced: Array, usable: Array, tokens: Array, k: float) -> Any:
    """Return how many tokens each expert gets where they are even: a level in its limits, [..., E].

    The sum over experts is k·tokens, if they can have as many. `forced` and `usable` [..., E] say
    how many tokens take an expert whatever its bias, and how many may; `tokens` [..., 1], how many
    there are. If all may use each, and none must, the level is tokens·k/E.
    """
    xp, whole = namespace(usable), tokens * k
    points = xp.concat([forced, usable], axis=-1)
    # The sum rises with the level, and is linear from one of the limits to the next.
    sums = xp.sum(_clipped(points[..., None], forced, usable), axis=-1)
    reached = xp.max(xp.where(sums <= whole, points, 0), axis=-1)[..., None]
    rising = as_numbers((forced <= reached) & (reached < usable), usable.dtype)
    lacking = whole - xp.sum(_clipped(reached, forced, usable), axis=-1)[..., None]
    count = xp.sum(rising, axis=-1)[..., None]
    level = reached + lacking / xp.maximum(count, xp.ones_like(count))
    return _clipped(level, forced, usable)


def _clipped(level: Any, forced: Any, usable: Any) -> Any:
    """Return the level, or the nearest number in the limits, which all levels share."""
    if level.ndim > forced.ndim:
        forced, usable = forced[..., None, :], usable[..., None, :]
    xp = namespace(level)
    return xp.minimum(xp.maximum(level, forced), usable)


def known_tokens(required: ArrayT, playing: ArrayT | None) -> ArrayT:
    """Return which tokens count, [..., T]: those that play and have no NaN."""
    unknown = required != required
    known = ~unknown.any(-1)
    return known if playing is None else known & playing

"""Quantiles that even the load of experts: the bias at which each expert gets its share of tokens.

A token takes its k largest scores + bias. The bias that it requires of an expert is cutoff − score:
with a larger one, the expert is taken. An expert gets its share, k/E of the tokens, where that
share of them requires less than its bias. Only numbers are computed here, no gradients.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kofn.adapters import route
from kofn.arrays.kinds import Array, cast, move_axis, namespace
from kofn.arrays.operations import arange, take_along_last
from kofn.arrays.typing import ArrayT
from kofn.maps.ordered.quantiles import DenseRows
from kofn.operations.choice import LARGEST


class Groups(NamedTuple):
    """Groups of experts that lie together, of which a token may use `chosen`, as in DeepSeek-V3.

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
    """
    xp = namespace(scores)
    if groups is None or groups.chosen == groups.number:
        return _kth_largest(biased, k + 1) - scores
    score, which = _group_scores(biased, groups)
    rival = take_along_last(score, which)[..., -1:]  # the first group that is not chosen
    cutoff = biased + _of_members((rival - score) / 2, biased)
    size = biased.shape[-1] // groups.number
    if k < groups.chosen * size:  # otherwise a token takes all experts of its groups
        opened = xp.where(_opened(which, biased, groups), biased, -math.inf)
        cutoff = xp.maximum(cutoff, _kth_largest(opened, k + 1))
    return cutoff - scores


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

    It is the number at the place m·k/E of what the m tokens require of the expert, in rising order
    from place 0 on; between two places, it is interpolated. So m·k/E tokens require less, if that
    is a whole number and none are equal. `required` is [..., T, E]; tokens with a NaN do not count,
    nor those where `playing` [..., T] is False. Without tokens the bias is NaN or any number.
    """
    xp, experts = namespace(required), required.shape[-1]
    known = known_tokens(required, playing)
    shape = (*required.shape[:-2], experts, required.shape[-2])
    rows = DenseRows(move_axis(required, -1, -2), xp.broadcast_to(known[..., None, :], shape))
    tokens: Any = rows.counts[..., :1, 0]
    place = tokens * k / experts
    last = xp.maximum(tokens - 1, xp.zeros_like(tokens))
    low, high = xp.minimum(xp.floor(place), last), xp.minimum(xp.ceil(place), last)
    ranks = xp.stack([low, high], axis=-1)
    found: Any = rows.ranked(xp.broadcast_to(ranks, (*required.shape[:-2], experts, 2)))
    low, high, between = found[..., 0], found[..., 1], cast(place - low, found.dtype)
    return xp.where(low == high, low, low + (high - low) * between), tokens


def known_tokens(required: ArrayT, playing: ArrayT | None) -> ArrayT:
    """Return which tokens count, [..., T]: those that play and have no NaN."""
    unknown: Any = required != required
    known = ~unknown.any(-1)
    return known if playing is None else known & playing

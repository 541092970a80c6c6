"""Balance within a sequence: a bias for its later tokens by what its earlier ones require."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kofn.maps.balance import Groups, bias_of_share, required_bias
from kofn.nn.routing.quantile import moved_bias

TOKENS_PER_EXPERT = 16
"""How many tokens an expert has got, in the mean, before a sequence has a bias of its own."""


@torch.no_grad()
def biases_of_sequences(
    scores: Tensor,
    bias: Tensor,
    k: int,
    length: int,
    known: Tensor | None,
    groups: Groups | None = None,
) -> Tensor:
    """Return a bias per token, [T, E]; sequences of `length` tokens lie in `scores`, [T, E].

    Only tokens count where `known` [T], if given, is true; padding may stand anywhere. The first
    part of a sequence has the bias of all, [E]. A part has as many tokens as all before it, and the
    bias that these require, so no token is chosen by itself or by a later one.
    """
    experts = scores.shape[-1]
    start = math.ceil(TOKENS_PER_EXPERT * experts / k)
    if start >= length or not len(scores) or k == experts:
        return bias.expand_as(scores)
    rows, playing, order = scores.reshape(-1, length, experts), None, None
    if known is not None:  # what does not count comes last
        playing = known.reshape(-1, length)
        order = (~playing).to(torch.uint8).argsort(dim=-1, stable=True)
        rows, playing = rows.gather(1, _each(order, rows)), playing.gather(1, order)
    own = bias.expand(len(rows), 1, experts)
    parts = [own.expand(-1, start, -1)]
    while start < length:
        before = rows[:, :start]
        required = required_bias(before, before + own, k, groups)
        counted = None if playing is None else playing[:, :start]
        level = bias_of_share(required, k, counted)[0][:, None]
        own = moved_bias(level, own, own.dtype, centred=True)
        stop = min(2 * start, length)
        parts.append(own.expand(-1, stop - start, -1))
        start = stop
    whole = torch.cat(parts, 1)
    if order is None:
        return whole.reshape(-1, experts)
    return whole.gather(1, _each(order.argsort(-1), whole)).reshape(-1, experts)


def _each(order: Tensor, rows: Tensor) -> Tensor:
    """Return the order of tokens for each of their numbers."""
    return order[..., None].expand_as(rows)

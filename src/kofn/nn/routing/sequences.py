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
    mask: Tensor | None = None,
    groups: Groups | None = None,
) -> Tensor:
    """Return a bias per token, [T, E]; sequences of `length` tokens lie in `scores`, [T, E].

    The first part of a sequence has the bias of all, [E]. A part is as long as all before it, and
    has the bias that these require, so no token is chosen by itself or by a later one. As long as
    a sequence has fewer tokens than the first part without padding, it keeps the bias of all.
    """
    experts = scores.shape[-1]
    start = math.ceil(TOKENS_PER_EXPERT * experts / k)
    if start >= length or not len(scores) or k == experts:
        return bias.expand_as(scores)
    rows = scores.reshape(-1, length, experts)
    playing = None if mask is None else mask.reshape(-1, length)
    own = bias.expand(len(rows), 1, experts)
    parts = [own.expand(-1, start, -1)]
    while start < length:
        before = rows[:, :start]
        counted = None if playing is None else playing[:, :start]
        required = required_bias(before, before + own, k, groups)
        found, tokens = (each[:, None] for each in bias_of_share(required, k, counted))
        enough = tokens * k >= TOKENS_PER_EXPERT * experts  # without padding
        own = torch.where(enough, moved_bias(found, own, own.dtype, centred=True), own)
        stop = min(2 * start, length)
        parts.append(own.expand(-1, stop - start, -1))
        start = stop
    return torch.cat(parts, 1).reshape(-1, experts)

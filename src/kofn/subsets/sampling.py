"""Exact samples of coins given the number of heads, by a divide-and-conquer tree.

Up: the distribution of the number of heads in each group of 1, 2, 4, … coins, by convolution.
Down: if a group has c heads, its first half has j of them with probability ∝ Pr(j)·Pr′(c − j).
All numbers are sums and products of probabilities, so impossible outcomes have probability 0. A
distribution is stored on a window around its mean that covers the largest relevant deviation:
shapes depend on n only, and no loop depends on the data. The work is O(n log n).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from kofn.arrays.kinds import Array, cast, contiguous, dtype_name, namespace
from kofn.arrays.operations import arange, convolved, take_along_first
from kofn.kernels.contract import window_of
from kofn.subsets import quadrature


class Groups(NamedTuple):
    """Coins in groups: group i has start + a heads with the a-th probability."""

    probability: Array  # (window, …, groups)
    start: Array  # (…, groups), whole numbers
    mean: Array


def draw(z: Array, k: Array, uniforms: Array) -> Array:
    """Return booleans (…, n), k of each row True, from `uniforms` (…, splits(n))."""
    xp = namespace(z)
    samples = tuple(uniforms.shape[:-1])
    count, used = xp.broadcast_to(k, samples)[..., None], 0
    for level in reversed(_levels(z)):
        half = level.mean.shape[-1] // 2
        count = count[..., :half]  # without what `_even` added
        first = _first(level, count, uniforms[..., used : used + half])
        count = xp.concat([first, count - first], axis=-1)
        used += half
    return count[..., : z.shape[-1]] == 1


def _levels(z: Array) -> list[Groups]:
    """Return groups of 1, 2, 4, … coins, up to the two halves of a row."""
    xp = namespace(z)
    coin = quadrature.coins(z)
    other = 1 - coin.tail
    p = xp.where(coin.sign > 0, coin.tail, other)
    q = xp.where(coin.sign > 0, other, coin.tail)
    level = Groups(_without_dust(xp.stack([q, p])), xp.zeros_like(p), p)
    levels: list[Groups] = []
    while level.mean.shape[-1] > 1:
        levels.append(_even(level))
        if level.mean.shape[-1] <= 2:
            break
        level = _joined(levels[-1], 2 ** len(levels))
    return levels


def _even(level: Groups) -> Groups:
    """Return an even number of groups; add an empty group if necessary."""
    if level.mean.shape[-1] % 2 == 0:
        return level
    xp = namespace(level.mean)
    probability, start, mean = level
    window, none = probability.shape[0], xp.zeros_like(mean[..., :1])
    sure = cast(arange(mean, window) == 0, mean.dtype).reshape((window,) + (1,) * mean.ndim)
    sure = sure + xp.zeros_like(probability[..., :1])  # on the mesh of the others
    return Groups(
        xp.concat([probability, sure], axis=-1),
        xp.concat([start, none], axis=-1),
        xp.concat([mean, none], axis=-1),
    )


def _joined(level: Groups, size: int) -> Groups:
    """Join each group of the first half with one of the second: `size` coins per group."""
    xp = namespace(level.mean)
    half = level.mean.shape[-1] // 2
    probability, start, mean = level
    probability = _without_dust(convolved(probability[..., :half], probability[..., half:]))
    start = start[..., :half] + start[..., half:]
    mean = mean[..., :half] + mean[..., half:]
    window = window_of(size, dtype_name(mean) == "float64")
    if window >= size + 1:
        return Groups(probability, start, mean)
    shifted = xp.clip(xp.round(mean) - window // 2, 0, size + 1 - window)
    at = (shifted - start) + arange(mean, window).reshape((window,) + (1,) * mean.ndim)
    inside = (at >= 0) & (at < probability.shape[0])
    parts = take_along_first(probability, xp.where(inside, at, 0.0))
    return Groups(xp.where(inside, parts, 0.0), shifted, mean)


def _without_dust(probability: Array) -> Array:
    """Set values to 0 whose products could be subnormal, which are slow on processors."""
    xp = namespace(probability)
    dust = math.sqrt(float(xp.finfo(probability.dtype).smallest_normal))
    return xp.where(probability < dust, 0.0, probability)


def _first(level: Groups, count: Array, uniform: Array) -> Array:
    """Draw how many heads of each pair of groups are in the first of the two."""
    xp = namespace(count)
    half, window = count.shape[-1], level.probability.shape[0]
    one = contiguous(level.probability[..., :half])
    two = contiguous(level.probability[..., half:])
    first, second = level.start[..., :half], level.start[..., half:]
    axes = (window,) + (1,) * (count.ndim - first.ndim) + tuple(first.shape)
    at = (count - first - second) - arange(count, window).reshape((window,) + (1,) * count.ndim)
    inside = (at >= 0) & (at < window)
    two = xp.broadcast_to(two.reshape(axes), (window, *count.shape))
    other = take_along_first(two, xp.where(inside, at, 0.0))
    likely = xp.cumulative_sum(one.reshape(axes) * xp.where(inside, other, 0.0), axis=0)
    total = likely[-1]
    # The product may round up to the total: then the last that is possible.
    below = (likely <= uniform * total) & (likely < total)
    return first + cast(xp.sum(below, axis=0), count.dtype)

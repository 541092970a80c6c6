"""Taylor softmax in attention, in time and memory that grow with the length, not its square.

f(s) = 1 + s + s²/2 is a product of features: f(q·k) = φ(q)·φ(k) with φ(x) = (1, x, x⊗x/√2). So
Σ f(q·k)·v = φ(q)·Σ φ(k)·v, whose sum is the same for all queries.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

CHUNK = 256
"""Queries that see each other's keys by their scores, in causal attention."""


def is_linear(query: Tensor, key: Tensor) -> bool:
    """Return whether features take fewer multiplications than scores."""
    rows, columns, features = query.shape[-2], key.shape[-2], query.shape[-1]
    number = 1 + features + features * (features + 1) // 2
    return rows * columns > (rows + columns) * number


def taylor_attention(
    query: Tensor, key: Tensor, value: Tensor, live: Tensor | None, is_causal: bool, groups: int
) -> Tensor:
    """Return Σ f(q·k)·v/Σ f(q·k), zeros where a query sees no key.

    Args:
        query: [..., Hq, L, D], with its scale. key, value: [..., H, S, D or Dv].
        live: boolean, broadcasts to [..., H, S]: the keys that take part; or None.
        is_causal: the last query sees all keys, the one before it all but the last, and so on.
        groups: Hq/H.
    """
    dtype = torch.promote_types(query.dtype, value.dtype)
    with torch.autocast(query.device.type, enabled=False):
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        query, key, value = query.to(wide), key.to(wide), value.to(wide)
        value = torch.cat([value, torch.ones_like(value[..., :1])], -1)  # for Σ f
        if live is not None:
            key, value = (torch.where(live[..., None], each, 0.0) for each in (key, value))
        grouped = query.reshape(*query.shape[:-3], key.shape[-3], groups, *query.shape[-2:])
        key, value = key.unsqueeze(-3), value.unsqueeze(-3)
        sums = _causal(grouped, key, value) if is_causal else _all(grouped, key, value)
        sums = sums.flatten(-4, -3)
        total = sums[..., -1:]
        return (sums[..., :-1] / torch.where(total == 0, 1.0, total)).to(dtype)


def _all(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return _features(query) @ (_features(key).mT @ value)


def _causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return the sums of each query over the keys up to its own, a chunk of queries at a time."""
    earlier = key.shape[-2] - query.shape[-2]
    blind = query[..., : max(-earlier, 0), :]  # they see no key
    parts = [blind.new_zeros(*blind.shape[:-1], value.shape[-1])]
    query, earlier = query[..., blind.shape[-2] :, :], max(earlier, 0)
    state = _features(key[..., :earlier, :]).mT @ value[..., :earlier, :]
    key, value = key[..., earlier:, :], value[..., earlier:, :]
    for q, k, v in zip(
        *(torch.split(each, CHUNK, -2) for each in (query, key, value)), strict=True
    ):
        s = q @ k.mT
        parts.append(_features(q) @ state + (1 + s + s * s / 2).tril() @ v)
        state = state + _features(k).mT @ v
    return torch.cat(parts, -2)


def _features(x: Tensor) -> Tensor:
    """Return φ(x), with each pair of two entries once: (1, x, x_i·x_j, x_i²/√2)."""
    size = x.shape[-1]
    i, j = torch.triu_indices(size, size, dtype=torch.int64, device=x.device)
    once = torch.ones_like(i, dtype=x.dtype).masked_fill(i == j, 1 / math.sqrt(2))
    return torch.cat([torch.ones_like(x[..., :1]), x, x[..., i] * x[..., j] * once], -1)

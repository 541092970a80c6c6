"""Sharding rules of the operators for DTensor; imported after torch.distributed.tensor.

One process solves a whole row: scores may be sharded over batch dimensions, and DTensor gathers
scores that are sharded along a row first.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from kofn.rows import torch_fused, torch_threshold


def placements(batch: int) -> list[Any]:
    """Return the allowed placements of a batch with this number of dimensions."""
    return [Replicate(), *(Shard(dim) for dim in range(batch))]


@register_sharding(torch_threshold.threshold._opoverload)
def _(x: Any, k: Any, temperature: Any, alpha: Any, link: Any, number: Any) -> Any:
    ways = placements(x.ndim - 1)
    return [([way, way], [way, way, way, alpha and way, None, None]) for way in ways]


@register_sharding(torch_fused.weights._opoverload)
def _(x: Any, k: Any, temperature: Any, link: Any, number: Any) -> Any:
    return [([way, _second(way)], [way, way, way, None, None]) for way in placements(x.ndim - 1)]


@register_sharding(torch_fused.weights_backward._opoverload)
def _(cotangent: Any, x: Any, theta: Any, k: Any, temperature: Any, link: Any, number: Any) -> Any:
    return [
        ([way, _second(way)], [way, way, _second(way), way, way, None, None])
        for way in placements(x.ndim - 1)
    ]


@register_sharding(torch_fused.value._opoverload)
def _(x: Any, k: Any, temperature: Any, link: Any, number: Any) -> Any:
    return [([way] * 4, [way, way, way, None, None]) for way in placements(x.ndim - 1)]


def _second(way: Any) -> Any:
    """Return the placement of two numbers per row, which lie along a dimension before the batch."""
    return Shard(way.dim + 1) if isinstance(way, Shard) else way

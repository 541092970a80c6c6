"""Sharding rules of the operators of noisy scores for DTensor; see `rows/sharded.py`."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import Shard
from torch.distributed.tensor.experimental import register_sharding

from kofn.maps import torch_noise
from kofn.rows.sharded import placements


def _of_nodes(way: Any) -> Any:
    """Return the placement of numbers per node and row, three at each."""
    return Shard(way.dim + 2) if isinstance(way, Shard) else way


@register_sharding(torch_noise.noisy_argmax)
def _(y: Any, *noise: Any) -> Any:
    return [
        ([way, _of_nodes(way)], [way, *(None for _ in noise)]) for way in placements(y.ndim - 1)
    ]


@register_sharding(torch_noise.noisy_argmax_backward)
def _(cotangent: Any, y: Any, kept: Any, *noise: Any) -> Any:
    return [
        ([way], [way, way, _of_nodes(way), *(None for _ in noise)])
        for way in placements(y.ndim - 1)
    ]

"""DTensor: which shards the operators take. Imported once torch.distributed.tensor is.

A row is solved where all of it is: rows may be sharded over any batch dimension, and scores that
are sharded along a row are gathered first, by DTensor itself.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from kofn.rows import torch_threshold


def placements(batch: int) -> list[Any]:
    """What a batch of so many dimensions may be placed as."""
    return [Replicate(), *(Shard(dim) for dim in range(batch))]


@register_sharding(torch_threshold.threshold._opoverload)
def _(x: Any, k: Any, temperature: Any, alpha: Any, link: Any, number: Any) -> Any:
    ways = placements(x.ndim - 1)
    return [([way, way], [way, way, way, alpha and way, None, None]) for way in ways]

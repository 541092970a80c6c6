"""DTensor: which shards kofn's operators take. Imported once torch.distributed.tensor is.

A row is solved where all of it is: rows may be sharded over any batch dimension, and scores that
are sharded along a row are gathered first, by DTensor itself.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from kofn.rows import torch_threshold


@register_sharding(torch_threshold.threshold._opoverload)
def _(x: Any, k: Any, temperature: Any, alpha: Any, link: Any, number: Any) -> Any:
    rows = _rows(x.ndim - 1)
    return [([way, way], [way, way, way, alpha and way, None, None]) for way in rows]


@register_sharding(torch_threshold.temperature._opoverload)
def _(x: Any, k: Any, target: Any, alpha: Any, *settings: Any) -> Any:
    per_row = settings[-1]
    rows = _rows(x.ndim - 1 if per_row else 0)  # one temperature for all is one for every shard
    return [([way], [way, way, way, alpha and way, *[None] * len(settings)]) for way in rows]


def _rows(batch: int) -> list[Any]:
    return [Replicate(), *(Shard(dim) for dim in range(batch))]

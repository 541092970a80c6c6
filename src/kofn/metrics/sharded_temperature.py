"""Sharding rules of the temperature search for DTensor; see `rows/sharded.py`."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor.experimental import register_sharding

from kofn.arrays.torch_operator import OPERATORS

# Registered with these.
from kofn.maps import sharded as sharded_maps  # noqa: F401
from kofn.metrics import torch_temperature as torch_temperature
from kofn.rows.sharded import placements
from kofn.subsets import sharded as sharded_subsets  # noqa: F401


@register_sharding(OPERATORS.temperature.default)
def _(x: Any, k: Any, target: Any, alpha: Any, *settings: Any) -> Any:
    per_row = settings[-1]
    ways = placements(x.ndim - 1 if per_row else 0)  # one temperature for all is one per shard
    return [([way], [way, way, way, alpha and way, *[None] * len(settings)]) for way in ways]

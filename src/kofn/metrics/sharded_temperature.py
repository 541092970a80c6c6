"""How DTensor shards the temperature search, and with it all operators."""

from __future__ import annotations

from kofn.adapters.torch.sharding import shard
from kofn.arrays.torch.operator import OPERATORS
from kofn.metrics import torch_temperature as torch_temperature


def _batch(x: object, k: object, target: object, alpha: object, *settings: bool) -> int:
    """Return the dimensions that may be sharded: none for one temperature for all rows."""
    return x.ndim - 1 if settings[-1] else 0  # type: ignore[attr-defined]


shard(
    OPERATORS.temperature.default,
    "x n, k r, target r, alpha r?, link str, number float?, name str, per_row bool",
    "temperature r",
    _batch,
)

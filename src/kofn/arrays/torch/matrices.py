"""Matrices in DTensors: each lies whole in one process, batches of them may be sharded."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def whole_matrices(x: Tensor) -> Tensor:
    """Return a DTensor whose last two dimensions are not sharded, and which waits for no sum."""
    return x.redistribute(placements=_placements(x))  # type: ignore[attr-defined]


def placed_as(found: Any, x: Any) -> Any:
    """Return a DTensor with the shards of x."""
    from torch.distributed.tensor import Replicate

    return found.redistribute(
        placements=[Replicate() if way.is_partial() else way for way in x.placements]
    )


def locally(function: Callable[..., Any], x: Any, *others: Any) -> Any:
    """Return function(x, *others) of DTensors of whole matrices, done on those of each process.

    The others, and each answer, have the batch dimensions of x first.
    """
    from torch.distributed.tensor import DTensor

    mesh, placements, batch = x.device_mesh, _placements(x), tuple(x.shape[:-2])
    own = [
        each if each is None else each.redistribute(placements=placements).to_local()
        for each in (x, *others)
    ]

    def placed(found: Tensor) -> Any:
        shape = batch + tuple(found.shape[len(batch) :])
        place: Any = dict(run_check=False, shape=torch.Size(shape), stride=_stride(shape))
        return DTensor.from_local(found.contiguous(), mesh, placements, **place)

    found = function(*own)
    return tuple(map(placed, found)) if isinstance(found, tuple) else placed(found)


def _placements(x: Any) -> list[Any]:
    from torch.distributed.tensor import Replicate

    batch = range(x.ndim - 2)
    return [way if any(map(way.is_shard, batch)) else Replicate() for way in x.placements]


def _stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of an array that is contiguous."""
    return tuple(math.prod(max(size, 1) for size in shape[i + 1 :]) for i in range(len(shape)))

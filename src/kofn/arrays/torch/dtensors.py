"""DTensors: rows and matrices are brought whole to a process, and answers are laid out alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kofn.arrays.dtensor import is_dtensor
from kofn.arrays.torch.private import is_left_alone


def has_whole_rows(x: Tensor) -> bool:
    """Return whether `x` is a DTensor of whole rows that nothing traces or transforms."""
    if torch.compiler.is_compiling() or not is_dtensor(x) or not is_left_alone(x):
        return False
    last = x.ndim - 1
    return not any(way.is_partial() or way.is_shard(last) for way in x.placements)  # type: ignore[attr-defined]


def rows_are_cut(x: Tensor, dim: int) -> tuple[int, ...]:
    """Return the dimensions of a DTensor's mesh over which its rows along `dim` are cut."""
    ways = enumerate(x.placements)  # type: ignore[attr-defined]
    return tuple(place for place, way in ways if way.is_shard(dim % x.ndim))


def with_whole_rows(x: Tensor, dim: int = -1) -> Tensor:
    """Return a DTensor with whole rows along `dim`, and nothing that waits for a sum.

    PyTorch's functions along a cut dimension are not all right: `cumsum(-1)` sums each part alone,
    a maximum loses the NaN of another process, and `any` as numbers counts processes.
    """
    from torch.distributed.tensor import Replicate

    cut, old = rows_are_cut(x, dim), x.placements  # type: ignore[attr-defined]
    ways = [Replicate() if i in cut or way.is_partial() else way for i, way in enumerate(old)]
    return x if ways == list(old) else x.redistribute(placements=ways)  # type: ignore[attr-defined]


def with_cut_rows(x: Tensor, cut: Sequence[int]) -> Tensor:
    """Return a DTensor whose rows are cut again, over these dimensions of its mesh."""
    from torch.distributed.tensor import Shard

    placements = enumerate(x.placements)  # type: ignore[attr-defined]
    ways = [Shard(x.ndim - 1) if place in cut else way for place, way in placements]
    return x.redistribute(placements=ways)  # type: ignore[attr-defined]


def whole_matrices(x: Tensor) -> Tensor:
    """Return a DTensor whose last two dimensions are not sharded, and which waits for no sum."""
    return x.redistribute(placements=_placements(x))  # type: ignore[attr-defined]


def placed_as(answer: Any, x: Any) -> Any:
    """Return a DTensor with the shards of x."""
    from torch.distributed.tensor import Replicate

    return answer.redistribute(
        placements=[Replicate() if way.is_partial() else way for way in x.placements]
    )


def locally(function: Callable[..., Any], x: Any, *others: Any) -> Any:
    """Return function(x, *others) of DTensors of whole matrices, done on each process's.

    The others, and each answer, have the batch dimensions of x first.
    """
    from torch.distributed.tensor import DTensor

    mesh, placements, batch = x.device_mesh, _placements(x), tuple(x.shape[:-2])
    own = [
        each if each is None else each.redistribute(placements=placements).to_local()
        for each in (x, *others)
    ]

    def placed(answer: Tensor) -> Any:
        shape = batch + tuple(answer.shape[len(batch) :])
        place: Any = dict(run_check=False, shape=torch.Size(shape), stride=_stride(shape))
        return DTensor.from_local(answer.contiguous(), mesh, placements, **place)

    answer = function(*own)
    return tuple(map(placed, answer)) if isinstance(answer, tuple) else placed(answer)


def _placements(x: Any) -> list[Any]:
    from torch.distributed.tensor import Replicate

    batch = range(x.ndim - 2)
    return [way if any(map(way.is_shard, batch)) else Replicate() for way in x.placements]


def _stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of an array that is contiguous."""
    return tuple(math.prod(max(size, 1) for size in shape[i + 1 :]) for i in range(len(shape)))

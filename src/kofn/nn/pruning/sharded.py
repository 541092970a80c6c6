"""`prune` for a model under fully_shard: each process masks its own shards of the weights.

fully_shard gathers the weights of a layer before the layer runs. Here a process multiplies its
shard by the shard of the mask first, so scores and masks are never gathered; gradients come back
for the masked shard, and become gradients of weight and score here (see `sharded_pruner.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from kofn.arrays.dtensor import is_dtensor
from kofn.nn.pruning.choosers import Clock, SharedRow
from kofn.nn.pruning.layout import Blocks, Layout
from kofn.nn.pruning.sharded_pruner import ShardedPruner
from kofn.nn.pruning.sharded_weight import ShardedWeight, sharded_like
from kofn.nn.pruning.targets import Target, reshard
from kofn.nn.pruning.weight import Chooser
from kofn.streaming.tensors import Cost, Over


class Everywhere:
    """Numbers over all processes of a mesh that have different shards."""

    def __init__(self, tensor: DTensor) -> None:
        mesh = tensor.device_mesh
        dims = [dim for dim, way in enumerate(tensor.placements) if way.is_shard()]
        self.groups = [mesh.get_group(dim) for dim in dims]
        self.device = mesh.device_type
        self.size = math.prod(mesh.size(dim) for dim in dims)
        self.rank = 0
        for dim in dims:
            self.rank = self.rank * mesh.size(dim) + mesh.get_local_rank(dim)

    def sum(self, numbers: Sequence[float]) -> list[float]:
        return self._reduced(numbers, distributed.ReduceOp.SUM)

    def most(self, numbers: Sequence[float]) -> list[float]:
        return self._reduced(numbers, distributed.ReduceOp.MAX)

    def _reduced(
        self, numbers: Sequence[float], how: distributed.ReduceOp.RedOpType
    ) -> list[float]:
        sums = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        for group in self.groups:
            distributed.all_reduce(sums, how, group=group)
        return sums.tolist()


class ShardedRow(SharedRow):
    """One soft top-k over shards; θ stays until the model is called again or has made a step."""

    placed_at: Any = None

    def __init__(self, over: Over, *settings: Any) -> None:
        super().__init__(*settings)
        self.over = over

    def open(self) -> None:
        """Solve for θ, a leaf whose gradient `sharded_pruner.Backward` collects."""
        with torch.no_grad():
            placed = self._place()
        self.current = placed._replace(theta=placed.theta.detach().requires_grad_())
        self.placed_at = self.clock.now()

    def close(self) -> None:
        """Keep θ: weights are gathered once more in the backward pass."""

    def apply(self, member: Any, weight: Tensor) -> Tensor:
        if self.current is None or self.placed_at != self.clock.now():
            self.open()
        return super().apply(member, weight)


class Shards:
    """The pruning of a model whose weights are shards."""

    member, join = ShardedWeight, staticmethod(ShardedWeight.join)

    def __init__(
        self, model: nn.Module, targets: list[Target], layout: Layout, choice: str
    ) -> None:
        if choice == "k_subset_sample":
            raise ValueError(
                'choice must be "soft_topk" or "k_subset" for a model under fully_shard, which '
                "gathers a weight twice a step: two samples would differ"
            )
        _check_one_mesh(targets)
        for target in targets:
            _check_layout(target, layout)
        self.model, self.over = model, Everywhere(_held(targets[0]))

    def weights(self, targets: list[Target]) -> list[Tensor]:
        """Return the shards of this process."""
        with torch.no_grad():
            return [_held(target).to_local() for target in targets]

    def costs(self, targets: list[Target], prices: list[Cost]) -> list[Cost]:
        """Return the shards of costs, which may be whole."""
        reshard(self.model)  # counting operations has called it
        pairs = zip(targets, prices, strict=True)
        return [
            _shard_of(price, _held(target)) if isinstance(price, Tensor) else price
            for target, price in pairs
        ]

    def scores(self, target: Target, function: Callable[[str, Tensor], Tensor]) -> _OfShards:
        """Return the user's function of whole weights, as DTensors, for a shard."""
        return _OfShards(target.name, function, _held(target))

    def row(self, *settings: Any) -> ShardedRow:
        return ShardedRow(self.over, *settings)

    def pruner(self, model: nn.Module, choosers: list[Chooser], clock: Clock) -> ShardedPruner:
        return ShardedPruner(model, choosers, clock, self.over)


class _OfShards:
    """The user's function (name, weight) → scores, called with a DTensor."""

    def __init__(self, name: str, function: Callable[..., Tensor], like: DTensor) -> None:
        self.name, self.function, self.like = name, function, like

    def __call__(self, name: str, shard: Tensor) -> Tensor:
        scores = self.function(name, sharded_like(shard, self.like))
        if not is_dtensor(scores) or scores.shape != self.like.shape:
            raise ValueError(
                f"scores(name, weight) must return a DTensor of the weight's shape, here "
                f"{tuple(self.like.shape)} for {self.name}; got {type(scores).__name__} of shape "
                f"{tuple(getattr(scores, 'shape', ()))}"
            )
        return _shard_of(scores, self.like)


def _held(target: Target) -> DTensor:
    return target.weight  # type: ignore[return-value]


def _shard_of(values: Any, like: DTensor) -> Tensor:
    """Return this process's part of a DTensor, or of a tensor that every process has."""
    mesh = like.device_mesh
    if not is_dtensor(values):
        values = DTensor.from_local(values, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return values.redistribute(mesh, like.placements).to_local()


def _check_one_mesh(targets: list[Target]) -> None:
    first = targets[0]
    for target in targets:
        if not is_dtensor(target.weight):
            raise ValueError(
                f"{target.name} is whole in every process and other weights are sharded; call "
                "fully_shard for the whole model before nn.prune, or exclude one kind"
            )
    for target in targets:
        ours, theirs = _held(target), _held(first)
        same = ours.device_mesh == theirs.device_mesh
        if not same or ours.placements != theirs.placements:
            raise ValueError(
                f"{target.name} is sharded by {ours.placements} of {ours.device_mesh} and "
                f"{first.name} by {theirs.placements} of {theirs.device_mesh}; exclude one kind"
            )
        if any(way.is_partial() for way in ours.placements):
            raise ValueError(f"{target.name} must be sharded or replicated; got {ours.placements}")
        if ours.to_local().device.type != ours.device_mesh.device_type:
            raise ValueError(
                f"{target.name} is kept on {ours.to_local().device} and used on "
                f"{ours.device_mesh.device_type}: nn.prune does not support CPUOffloadPolicy"
            )


def _check_layout(target: Target, layout: Layout) -> None:
    """Raise unless blocks and groups lie within one process."""
    if isinstance(layout, Blocks) and layout.size == 1:
        return
    weight = _held(target)
    ways = [way for way in weight.placements if way.is_shard()]
    if len(ways) != 1 or type(ways[0]) is not Shard or ways[0].dim != 0:
        raise ValueError(
            f"{target.name} is sharded by {weight.placements}; a pattern needs shards of rows, "
            "Shard(0)"
        )
    rows = layout.rows if isinstance(layout, Blocks) else 1
    size = weight.device_mesh.size(weight.placements.index(ways[0]))
    if -(-weight.shape[0] // size) % rows:
        raise ValueError(
            f"{target.name} of shape {tuple(weight.shape)} has {-(-weight.shape[0] // size)} rows "
            f"in each of {size} processes, which blocks of {rows} rows do not cover; exclude it "
            "or choose other blocks"
        )

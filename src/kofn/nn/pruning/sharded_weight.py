"""One pruned weight under fully_shard: the shard of its scores or of its fixed mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from kofn.arrays.dtensor import is_dtensor
from kofn.nn.pruning.layout import Layout
from kofn.nn.pruning.targets import Target
from kofn.nn.pruning.weight import Measure, PrunedWeight
from kofn.streaming.tensors import Cost, wide

NAME = "pruning"
"""The name of a `ShardedWeight` among the children of its layer."""


class ShardedWeight(PrunedWeight):
    """shard ↦ shard·mask, before fully_shard gathers it.

    `original`, `score` and `spread` are about the shard of this process; `scores` and `mask` are
    DTensors, as the weight is, which stays the layer's parameter.
    """

    def __init__(
        self, target: Target, layout: Layout, cost: Cost, measure: Measure, learned: bool
    ) -> None:
        self._held = [target.weight]  # in a list, so that it does not become a parameter here too
        super().__init__(target, layout, cost, measure, False)
        self.leaf: Tensor | None = None
        self.hook: Any = None
        if learned:
            with torch.no_grad():
                scores = wide(measure(self.original))
            self.scores = nn.Parameter(self.whole(scores))

    def join(self) -> None:
        """Become a child of the layer, and mask its shard from now on."""
        self.target.module.add_module(NAME, self)
        self.attach()

    @property
    def held(self) -> DTensor:
        """Return the weight."""
        return self._held[0]  # type: ignore[return-value]

    @property
    def original(self) -> Tensor:
        """Return the shard of the weight."""
        with torch.no_grad():
            return self.held.to_local()

    @property
    def version(self) -> int:
        return self.held._version

    def score(self, weight: Tensor) -> Tensor:
        """Return the scores of a shard, or the leaf that stands for them."""
        if self.leaf is not None:
            return self.leaf
        return self.measure(weight) if self.scores is None else local(self.scores)

    def spread(self, mask: Tensor) -> Tensor:
        """Return flags of this shard, one per weight."""
        return super().spread(local(mask) if is_dtensor(mask) else mask)

    def shown(self, mask: Tensor) -> Tensor:
        """Return the mask as a DTensor, with a flag per weight."""
        return sharded_like(self.spread(mask), self.held)

    def whole(self, values: Tensor) -> DTensor:
        """Return a number per score of this shard as a DTensor."""
        shape = self.layout.shape(tuple(self.held.shape))
        return sharded_like(values, self.held, shape)

    def freeze(self, mask: Tensor) -> None:
        """Keep this mask from now on."""
        self.mask = self.whole(mask)

    def masked(self, shard: Tensor) -> Tensor:
        """Return the shard of the weight times the mask's."""
        if self.mask is not None:
            return torch.where(self.spread(self.mask), shard, 0.0)
        return self.chooser.apply(self, shard)

    def attach(self) -> None:
        """Have fully_shard gather the masked shard, also if it has replaced the parameter."""
        now = self.target.module._parameters["weight"]
        if now is not None and is_dtensor(now) and now is not self.held:
            self._held, self.hook = [now], None
        shard = self.held._local_tensor  # what fully_shard looks at; to_local() is another object
        if not hasattr(shard, "fsdp_pre_all_gather"):
            shard.fsdp_pre_all_gather = self._before  # type: ignore[attr-defined]
            shard.fsdp_post_all_gather = _after  # type: ignore[attr-defined]
        if self.hook is None:
            held: Any = self.held
            self.hook = held.register_post_accumulate_grad_hook(self._reduced)

    @torch.no_grad()
    def finalize(self) -> None:
        """Set the weights that the fixed mask leaves out to 0, and leave the layer as it was."""
        assert self.mask is not None
        shard = self.held._local_tensor
        shard.masked_fill_(~self.spread(self.mask), 0.0)
        del shard.fsdp_pre_all_gather, shard.fsdp_post_all_gather  # type: ignore[attr-defined]
        self.hook.remove()
        del self.target.module._modules[NAME]

    def _before(self, mesh: Any, size: Any, stride: object, module: object, policy: Any) -> Any:
        """Return the tensor to gather, in the policy's dtype and with the padding it expects."""
        shard = self.masked(self.original).to(policy.param_dtype or self.original.dtype)
        rows = -(-size[0] // mesh.size()) if shard.shape[1:] == size[1:] else len(shard)
        if len(shard) < rows:
            shard = torch.cat((shard, shard.new_zeros(rows - len(shard), *shard.shape[1:])))
        return (shard.contiguous(),), None

    def _reduced(self, held: DTensor) -> None:
        self.on_gradient(self, held)

    on_gradient: Callable[[ShardedWeight, DTensor], None]
    """Called by a `ShardedPruner` when a gradient of the masked shard arrives."""


def _after(gathered: Sequence[Tensor], _: object, dtype: torch.dtype, *, out: Any = None) -> Any:
    return (gathered[0], ()) if out is None else None


def local(tensor: Tensor) -> Tensor:
    """Return the part of a DTensor that this process has, without a gradient."""
    with torch.no_grad():
        part: Tensor = tensor.to_local()  # type: ignore[attr-defined]
        return part


def sharded_like(values: Tensor, like: DTensor, shape: tuple[int, ...] | None = None) -> DTensor:
    """Return a shard as a DTensor placed as another, of its shape or of one with as many rows."""
    size = torch.Size(like.shape if shape is None else shape)
    stride = torch.empty(size, dtype=like.dtype, device="meta").stride()
    return DTensor.from_local(
        values, like.device_mesh, like.placements, run_check=False, shape=size, stride=stride
    )

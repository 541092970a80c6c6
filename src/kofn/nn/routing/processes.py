"""Choices over the tokens of all processes of a group, such as all data-parallel ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn.maps.routing import Gating


class Processes:
    """A process group that a router keeps; copies of the router keep the same one."""

    def __init__(self, group: Any) -> None:
        self.group = group

    def __deepcopy__(self, memo: object) -> Processes:
        return self

    def __reduce__(self) -> Any:
        if self.group is torch.distributed.group.WORLD:
            return _world, ()
        raise TypeError(
            "a router with a process_group other than torch.distributed.group.WORLD cannot be "
            "pickled; save its state_dict()"
        )

    @property
    def size(self) -> int:
        """Return the number of processes."""
        return torch.distributed.get_world_size(self.group)

    def sum(self, number: Tensor) -> Tensor:
        """Return the sum over all processes, of numbers without a gradient."""
        total = number.clone()
        torch.distributed.all_reduce(total, group=self.group)
        return total

    def joint_choice(
        self, scores: Tensor, biased: Tensor, k: Tensor, dim: int, gating: Gating, mask: Any
    ) -> tuple[Tensor, Tensor]:
        """Return `routing.joint_choice` of the tokens of all processes, this one's part."""
        from kofn import distributed

        options: dict[str, Any] = dict(group=self.group, dim=dim, mask=mask)
        weights = distributed.soft_topk(scores, k, **options, **gating.soft)
        return weights, distributed.hard_topk(biased.detach(), k, **options) > 0

    def threshold_of(
        self, scores: Tensor, k: Tensor, dim: int, gating: Gating, mask: Any
    ) -> Tensor:
        """Return θ, the same in every process."""
        from kofn import distributed

        options: dict[str, Any] = dict(group=self.group, dim=dim, mask=mask, **gating.soft)
        return distributed.soft_topk_threshold(scores, k, **options)

    def ends(self, least: Tensor, greatest: Tensor) -> tuple[Tensor, Tensor]:
        """Return the minimum and the maximum over all processes."""
        both = torch.stack([-least, greatest])
        torch.distributed.all_reduce(both, torch.distributed.ReduceOp.MAX, group=self.group)
        return -both[0], both[1]


def _world() -> Processes:
    return Processes(torch.distributed.group.WORLD)


def processes_of(group: Any) -> Processes | None:
    """Return what a router keeps of its argument `process_group`."""
    if isinstance(group, Processes):
        return group
    own = group_of(group)
    return None if own is None else Processes(own)


def group_of(group: Any) -> Any:
    """Return the process group of an argument `process_group`, which may be a mesh, or None."""
    if group is None:
        return None
    kind = torch.distributed.ProcessGroup if torch.distributed.is_available() else ()
    if isinstance(group, kind):  # asked first, for torch.compile takes it to have any attribute
        return group
    processes = group.get_group() if hasattr(group, "get_group") else group
    if not isinstance(processes, kind):
        raise TypeError(
            "process_group must be None, a torch.distributed.ProcessGroup such as "
            f"torch.distributed.group.WORLD, or a DeviceMesh of one dimension; got {group!r}"
        )
    return processes

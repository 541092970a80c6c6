"""Rows of DTensors: from a DTensor to this process's part of it, and back.

`local_map` would do this, but for shards of unequal sizes, which it takes for equal ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from kofn import links
from kofn.arrays.checks import check_broadcasts, check_dim, check_per_row
from kofn.arrays.form import Form
from kofn.distributed.layout import SCORES, Scores
from kofn.distributed.on_group import OnGroup
from kofn.links import Link
from kofn.rows.shards.header import Arguments, agree
from kofn.rows.shards.ranks import ranks_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement


class OnMesh(OnGroup):
    """A DTensor of scores, and what else there is as DTensors, or the same in every process."""

    of_classes = "the entries"

    def __init__(
        self, name: str, scores: DTensor, dim: int, group: Any, of: Scores = SCORES
    ) -> None:
        dim = check_dim(dim, scores.ndim)
        self.mesh, self.shape = scores.device_mesh, tuple(scores.shape)
        self.along = dim + scores.ndim
        self.placements = [_settled(name, one) for one in scores.placements]
        _check_mesh(name, self.mesh)
        if self.placements != list(scores.placements):
            scores = scores.redistribute(self.mesh, self.placements)
        super().__init__(name, _local_of(scores, self.placements), dim, self._groups(), of)
        with self.checking():
            if group is not None:
                raise ValueError(
                    f"{name}: {of.name} is a DTensor, whose mesh defines the groups; leave out "
                    "group"
                )

    def _groups(self, of_rows: bool = True) -> list[Any]:
        """Return the groups that have parts of a row, or those that have other rows."""
        ways = enumerate(self.placements)
        cut = [i for i, way in ways if way.is_shard() and (way.dim == self.along) == of_rows]
        return [self.mesh.get_group(i) for i in cut]

    @property
    def _batch(self) -> tuple[int, ...]:
        return self.shape[: self.along] + self.shape[self.along + 1 :]

    @property
    def _of_rows(self) -> list[Placement]:
        """Return the placements of what there is per row."""

        def of(way: Any) -> Placement:
            if not way.is_shard() or way.dim == self.along:
                return Replicate()
            return Shard(way.dim - (way.dim > self.along))

        return [of(way) for way in self.placements]

    @contextmanager
    def with_all_rows(self, words: str) -> Iterator[None]:
        groups = self._groups(of_rows=False)
        if not groups:
            yield
            return
        ranks, failure = ranks_of(groups, self.name, self.mesh), None
        try:
            yield
        except Exception as error:
            failure = error
        agree(ranks, self.scores, Arguments(words), failure)

    def per_row(self, name: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        value = check_per_row(name, self._spread(value), self._batch, self.dim, self.of.name)
        return self._local(value.broadcast_to(self._batch), self._of_rows)

    def per_entry(self, name: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        check_broadcasts(name, tuple(value.shape), self.shape, f"the shape of {self.of.name}")
        return self._local(self._spread(value).broadcast_to(self.shape), self.placements)

    def per_class(self, value: Tensor) -> Tensor:
        cut = [way.is_shard() and way.dim == self.along for way in self.placements]
        return self._local(self._spread(value), [Shard(0) if one else Replicate() for one in cut])

    def link(self, link: Link) -> Link:
        alpha = link.inner.static_and_array_alpha()[1]
        return link if alpha is None else links.entmax(self.per_row("alpha", alpha))

    def _spread(self, value: Tensor) -> DTensor:
        """Return a DTensor; a plain tensor is the same in every process."""
        if isinstance(value, DTensor):
            return value
        return DTensor.from_local(value, self.mesh, [Replicate()] * self.mesh.ndim, run_check=False)

    def _local(self, value: Any, placements: Sequence[Placement]) -> Tensor:
        return _local_of(value.redistribute(self.mesh, placements), placements)

    def restored(self, numbers: Tensor, of_rows: bool, form: Form | None = None) -> Any:
        placements = self._of_rows if of_rows else self.placements
        shape = self._batch if of_rows else self.shape
        return self._placed(super().restored(numbers, of_rows, form), shape, placements)

    def restored_at(self, numbers: Tensor, place: int) -> DTensor:
        local, batch = super().restored_at(numbers, place), self._batch
        place %= len(batch) + 1

        def way_of(way: Any) -> Placement:
            return Shard(way.dim + (way.dim >= place)) if way.is_shard() else way

        ways = [way_of(way) for way in self._of_rows]
        shape = (*batch[:place], numbers.shape[-1], *batch[place:])
        return self._placed(local, shape, ways)

    def _placed(
        self, local: Tensor, shape: tuple[int, ...], placements: Sequence[Placement]
    ) -> DTensor:
        strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        return DTensor.from_local(
            local.contiguous(),
            self.mesh,
            placements,
            run_check=False,
            shape=torch.Size(shape),
            stride=strides,
        )

    def of_all_rows(self, numbers: Tensor) -> DTensor:
        ways = [Partial() if way.is_shard() else Replicate() for way in self._of_rows]
        total = DTensor.from_local(numbers.sum(), self.mesh, ways, run_check=False)
        return total.redistribute(self.mesh, [Replicate()] * self.mesh.ndim)


def _local_of(tensor: DTensor, placements: Sequence[Placement]) -> Tensor:
    """Return this process's part of a DTensor, when what it is made of has arrived."""
    local = tensor.to_local(grad_placements=placements)
    return local.wait() if hasattr(local, "wait") else local


def _settled(name: str, placement: Placement) -> Any:
    """Return the placement of scores; partial ones are summed."""
    if placement.is_partial():
        return Replicate()
    if type(placement) not in (Shard, Replicate):
        raise TypeError(
            f"{name}: scores has the placement {placement}; redistribute it to Shard or Replicate"
        )
    return placement


def _check_mesh(name: str, mesh: DeviceMesh) -> None:
    if mesh.get_coordinate() is None:
        raise ValueError(f"{name}: this process is not in the mesh of scores, {mesh}")
    for i in range(mesh.ndim):
        if bool((mesh.mesh.diff(dim=i) <= 0).any()):
            raise ValueError(
                f"{name}: the ranks of the mesh of scores must ascend along each of its "
                f"dimensions, because the parts of a row lie in the order of the ranks; got {mesh}"
            )

"""The way from a DTensor, or a shard and its group, to this process's part of the rows and back.

`local_map` would do this, but for shards of unequal sizes, which it takes for equal ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn.arrays.checks import check_broadcasts, check_dim, check_per_row
from kofn.distributed.early import checked_on_all_ranks, groups_of

Run = Callable[..., Any]
"""run(scores, groups, **others): the answer for this process's shard of the scores."""


def on_shards(
    name: str,
    run: Run,
    scores: Any,
    dim: int,
    group: Any,
    *,
    per_row: dict[str, Any],
    per_entry: dict[str, Any],
    of_rows: bool = False,
) -> Any:
    """Return run of this process's shards, in the form of `scores`.

    Args:
        name: of the public function, for errors.
        run: gets the groups that hold the other parts of the rows; none where rows are whole.
        per_row, per_entry: the other arguments of `run`, numbers or tensors.
        of_rows: whether the answer has numbers per row, not per entry.
    """
    if torch.compiler.is_compiling():
        from kofn.arrays.torch.untraced import outside_of_graphs  # imports the compiler

        return outside_of_graphs(
            on_shards, name, run, scores, dim, group,
            per_row=per_row, per_entry=per_entry, of_rows=of_rows,
        )  # fmt: skip
    if not hasattr(scores, "device_mesh"):
        return run(scores, (group,), **per_row, **per_entry)
    dim = check_dim(dim, scores.ndim)
    whole, layout = _layout_of(name, scores, dim)

    def parts() -> dict[str, Any]:
        refuse_group(name, group)
        rows = {key: layout.rows(key, one) for key, one in per_row.items()}
        return rows | {key: layout.entries(key, one) for key, one in per_entry.items()}

    others = checked_on_all_ranks(name, scores, None, dim, parts)
    local = local_of(whole, layout.placements)
    found = run(local, layout.groups, **others)
    return layout.restored(found, of_rows)


def refuse_group(name: str, group: Any) -> None:
    """Refuse a group beside a DTensor."""
    if group is not None:
        raise ValueError(
            f"{name}: scores is a DTensor, whose mesh defines the groups; leave out group"
        )


def local_of(tensor: Any, placements: Sequence[Any]) -> Tensor:
    """Return this process's part of a DTensor, when what it is made of has arrived."""
    local = tensor.to_local(grad_placements=placements)
    return local.wait() if hasattr(local, "wait") else local


class Layout(NamedTuple):
    """How a DTensor of scores lies on its mesh."""

    mesh: Any
    shape: torch.Size
    dim: int  # from the end
    placements: tuple[Any, ...]
    groups: tuple[Any, ...]  # of the dimensions of the mesh along which rows are cut

    @property
    def batch(self) -> tuple[int, ...]:
        shape = list(self.shape)
        del shape[self.dim]
        return tuple(shape)

    @property
    def of_rows(self) -> tuple[Any, ...]:
        """Return the placements of what there is per row."""
        from torch.distributed.tensor import Replicate, Shard

        along = self.dim + len(self.shape)

        def of(placement: Any) -> Any:
            if not placement.is_shard() or placement.dim == along:
                return Replicate()
            return Shard(placement.dim - (placement.dim > along))

        return tuple(map(of, self.placements))

    def rows(self, name: str, value: Any) -> Any:
        """Return this process's part of an argument per row."""
        if not isinstance(value, Tensor):
            return value
        value = check_per_row(name, self._spread(value), self.batch, self.dim)
        return self._local(value.broadcast_to(self.batch), self.of_rows)

    def entries(self, name: str, value: Any) -> Any:
        """Return this process's part of an argument per entry."""
        if not isinstance(value, Tensor):
            return value
        shape = tuple(self.shape)
        check_broadcasts(name, tuple(value.shape), shape, "the shape of scores")
        return self._local(self._spread(value).broadcast_to(shape), self.placements)

    def classes(self, value: Any) -> Tensor:
        """Return this process's part of numbers along `dim`."""
        from torch.distributed.tensor import Replicate, Shard

        along = self.dim + len(self.shape)
        cut = [one.is_shard() and one.dim == along for one in self.placements]
        return self._local(self._spread(value), [Shard(0) if one else Replicate() for one in cut])

    def of_all_rows(self, value: Tensor) -> Tensor:
        """Return the sum over this process's rows as a DTensor, summed over all of them."""
        from torch.distributed.tensor import DTensor, Partial, Replicate

        ways = [Partial() if one.is_shard() else Replicate() for one in self.of_rows]
        found = DTensor.from_local(value.sum(), self.mesh, ways, run_check=False)
        return found.redistribute(self.mesh, [Replicate()] * self.mesh.ndim)

    def _spread(self, value: Any) -> Any:
        """Return a DTensor; a plain tensor is the same in every process."""
        from torch.distributed.tensor import DTensor, Replicate

        if hasattr(value, "device_mesh"):
            return value
        return DTensor.from_local(value, self.mesh, [Replicate()] * self.mesh.ndim, run_check=False)

    def _local(self, value: Any, placements: Sequence[Any]) -> Tensor:
        return local_of(value.redistribute(self.mesh, placements), placements)

    def restored(self, found: Tensor, of_rows: bool) -> Any:
        from torch.distributed.tensor import DTensor

        shape = torch.Size(self.batch if of_rows else self.shape)
        strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        return DTensor.from_local(
            found.contiguous(),
            self.mesh,
            self.of_rows if of_rows else self.placements,
            run_check=False,
            shape=shape,
            stride=strides,
        )


def _layout_of(name: str, scores: Any, dim: int) -> tuple[Any, Layout]:
    """Return the scores without partial sums, and how they lie."""
    from torch.distributed.tensor import Replicate, Shard

    mesh, wanted = scores.device_mesh, []
    for placement in scores.placements:
        if placement.is_partial():
            placement = Replicate()
        elif type(placement) not in (Shard, Replicate):
            raise TypeError(
                f"{name}: scores has the placement {placement}; redistribute it to Shard or "
                "Replicate"
            )
        wanted.append(placement)
    if mesh.get_coordinate() is None:
        raise ValueError(f"{name}: this process is not in the mesh of scores, {mesh}")
    for i in range(mesh.ndim):
        if bool((mesh.mesh.diff(dim=i) <= 0).any()):
            raise ValueError(
                f"{name}: the ranks of the mesh of scores must ascend along each of its "
                f"dimensions, because the parts of a row lie in the order of the ranks; got {mesh}"
            )
    placements = tuple(wanted)
    if placements != tuple(scores.placements):
        scores = scores.redistribute(mesh, placements)
    return scores, Layout(mesh, scores.shape, dim, placements, groups_of(scores, dim))

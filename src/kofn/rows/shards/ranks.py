"""The processes among which rows are split, and their collectives, counted and named in errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

if distributed.is_available():
    from torch.distributed.device_mesh import DeviceMesh

ReduceOp: Any = getattr(distributed, "ReduceOp", None)


class Ranks(NamedTuple):
    """The processes that hold parts of the same rows, in the order of the parts.

    There are several groups where a dimension is sharded over several dimensions of a mesh: a
    reduction over all ranks is then one over each group in turn.
    """

    groups: tuple[Any, ...]
    name: str  # of the function that the user called, for errors

    @property
    def size(self) -> int:
        return math.prod(distributed.get_world_size(group) for group in self.groups)

    @property
    def place(self) -> int:
        """Return this process's place among the parts of a row."""
        number = 0
        for group in self.groups:
            number = number * distributed.get_world_size(group) + distributed.get_rank(group)
        return number

    def sum(self, message: Tensor) -> Tensor:
        """Return the sum over all ranks; `message` is overwritten."""
        return self._reduced(message, ReduceOp.SUM)

    def max(self, message: Tensor) -> Tensor:
        """Return the maximum over all ranks; `message` is overwritten, and holds no NaN."""
        return self._reduced(message, ReduceOp.MAX)

    def _reduced(self, message: Tensor, operation: Any) -> Tensor:
        message = message.contiguous()
        for group in self.groups:
            self._named("all_reduce", distributed.all_reduce, message, operation, group)
        return message

    def gathered(self, message: Tensor) -> Tensor:
        """Return the tensors of all ranks, stacked in the order of the parts."""
        for group in reversed(self.groups):
            parts = [torch.empty_like(message) for _ in range(distributed.get_world_size(group))]
            self._named("all_gather", distributed.all_gather, parts, message, group)
            message = torch.stack(parts)
        return message.flatten(0, len(self.groups) - 1)

    def said(self, text: str) -> list[str]:
        """Return what every rank says."""
        words: Any = text
        for group in reversed(self.groups):
            parts: list[Any] = [None] * distributed.get_world_size(group)
            self._named("all_gather", distributed.all_gather_object, parts, words, group)
            words = parts
        for _ in self.groups[1:]:
            words = [text for part in words for text in part]
        return words

    def _named(self, what: str, collective: Callable[..., Any], *arguments: Any) -> None:
        try:
            collective(*arguments)
        except Exception as error:
            text = (
                f"{self.name}: {what} over the {self.size} ranks of its group failed; a rank may "
                f"have died, or not called {self.name} with it. The backend says: {error}"
            )
            raise _like(error)(text) from error

    def device_for(self, tensor: Any) -> torch.device:
        """Return a device on which all groups can reduce: where `tensor` lies, if that is one."""
        if isinstance(tensor, Tensor):
            return tensor.device
        kinds = set.intersection(*(set(backends(group)) for group in self.groups))
        return torch.device("cpu" if "cpu" in kinds or not kinds else min(kinds))


def _like(error: Exception) -> type[Exception]:
    """Return the class of a backend's error, for those who catch it; RuntimeError for others."""
    known = getattr(distributed, "DistBackendError", RuntimeError)
    return known if isinstance(error, known) else RuntimeError


def backends(group: Any) -> dict[str, str]:
    """Return the backend of a group for each type of device: {"cpu": "gloo", …}."""
    config = distributed.get_backend_config(group)
    return dict(pair.split(":") for pair in config.split(",") if ":" in pair)


def ranks_of(groups: Sequence[Any], name: str, tensor: Any) -> Ranks:
    """Check that there are groups whose backends reduce tensors like this one, and return them."""
    if not distributed.is_available() or not distributed.is_initialized():
        raise RuntimeError(
            f"{name} needs the processes that hold the other parts of the rows; call "
            "torch.distributed.init_process_group first"
        )
    own = tuple(_process_group(group) for group in groups)
    if isinstance(tensor, Tensor):
        for group in own:
            _check_backend(group, name, tensor.device.type)
    return Ranks(own, name)


def _process_group(group: Any) -> Any:
    """Return a process group, of a mesh of one dimension too; None is the group of all."""
    if group is None:
        return distributed.group.WORLD
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(
                f"group must be a process group or a mesh of one dimension; got a mesh of "
                f"{group.ndim} dimensions: pass mesh[name], or a DTensor as scores"
            )
        return group.get_group()
    if group is distributed.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("group must be one that this process belongs to; got NON_GROUP_MEMBER")
    if not isinstance(group, distributed.ProcessGroup):
        raise TypeError(
            "group must be a torch.distributed.ProcessGroup, a DeviceMesh of one dimension, or "
            f"None for the group of all processes; got {group!r}"
        )
    return group


def _check_backend(group: Any, name: str, device: str) -> None:
    known = backends(group)
    if device not in known:
        raise ValueError(
            f"{name}: scores are on {device!r}, and the backend of the group "
            f"({distributed.get_backend(group)}) reduces tensors on "
            f"{', '.join(sorted(known)) or 'no device'} only; move the scores there, or make the "
            "group with a backend for their device (gloo for cpu, nccl for cuda)"
        )

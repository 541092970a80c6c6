"""A step of routers: their loads are summed over processes, all at once, and their biases move."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from kofn.nn.routing.processes import group_of


class DefaultGroup:
    """What `process_group` is where it is left out; None stands for this process alone."""

    def __repr__(self) -> str:
        return "<the default group>"


DEFAULT_GROUP = DefaultGroup()

ADVICE = (
    "Step the same routers in all processes of the group, or give the process_group of those that "
    "have them; process_group=None balances by the tokens of one process"
)


def step_together(routers: Sequence[Any], process_group: Any, name: str) -> None:
    """Advance the schedules and move the biases by the load of all processes of the group."""
    biases = [each.balance for each in routers if each.balance is not None]
    group = _group(process_group)
    if group is None:
        loads = [each.load() for each in biases]
    else:
        loads = _summed(biases, _described(routers), group, name)
    for bias, load in zip(biases, loads, strict=True):
        bias.move(load)
    for each in routers:
        each.unstepped = 0
        if callable(each.temperature):
            each.steps += 1


def is_alone(process_group: Any) -> bool:
    """Return whether a step goes by the tokens of this process alone."""
    return _group(process_group) is None


def _group(process_group: Any) -> Any:
    """Return the group whose loads are summed, or None for this process alone."""
    if process_group is not DEFAULT_GROUP:
        return group_of(process_group)
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed.group.WORLD if distributed.get_world_size() > 1 else None


_agreed: dict[Any, str] = {}
"""What was stepped last, by group, on devices for which one has to wait."""


def _waits(device: torch.device) -> bool:
    """Return whether reading a number waits for the work that was given to the device."""
    return device.type != "cpu"


def _agree(ranks: Any, like: Any, described: str, group: Any) -> None:
    """Compare what all processes step.

    Where reading the answer waits for a device, it is read only by a process that steps something
    else than last time. But it is sent in every process: another one may do so.
    """
    from kofn.rows.shards.header import Arguments, ends_of_digests, handshake

    device = ranks.device_for(like)
    if group not in _agreed or not _waits(device):
        handshake(ranks, like, lambda: None, lambda _: Arguments(described), ADVICE)
    else:
        ends = ends_of_digests(ranks, Arguments(described), device)
        if _agreed[group] == described:
            return
        greatest, least = ends.tolist()
        if greatest != -least:  # processes that go on cannot be asked what they step
            raise ValueError(
                f"{ranks.name}: this process {described}, which it did not do at the last step, "
                f"and another process of the group steps something else. {ADVICE}"
            )
    if _waits(device):
        _agreed[group] = described


def _summed(biases: Sequence[Any], described: str, group: Any, name: str) -> list[Tensor]:
    """Return loads summed over the group in one message, after a small one that compares them.

    Messages of different sizes might never end. Grids of histograms are made the same before, by
    another small message.
    """
    from kofn.rows.shards.ranks import Ranks

    ranks = Ranks((group,), name)
    like = biases[0].load() if biases else None
    _agree(ranks, like, described, group)
    if like is None:
        return []
    on_grids = [each for each in biases if each.span() is not None]
    if on_grids:
        spans = [each.span().to(like.device) for each in on_grids]
        for each, span in zip(on_grids, ranks.max(torch.cat(spans)).view(-1, 2), strict=True):
            each.widen(span.to(each.span().device))
    loads = [each.load() for each in biases]
    # Whole numbers are sent as such, or with others in float64, which holds them up to 2^53.
    dtype = torch.float64 if any(each.is_floating_point() for each in loads) else torch.int64
    whole = ranks.sum(torch.cat([each.to(like.device, dtype) for each in loads]))
    parts = torch.split(whole, [len(each) for each in loads])
    return [part.to(each.device, each.dtype) for part, each in zip(parts, loads, strict=True)]


def _described(routers: Sequence[Any]) -> str:
    """Describe the routers to step, alike on all processes where their messages fit together."""
    kinds = [
        f"{each.num_experts} experts with {each.balance.described()}"
        for each in routers
        if each.balance is not None
    ]
    counted = [f"{len(list(same))} of {kind}" for kind, same in groupby(kinds)]
    return f"stepped routers: {', '.join(counted)}" if counted else "stepped no router with balance"

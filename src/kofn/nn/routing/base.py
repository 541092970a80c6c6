"""What every router keeps: its schedule, its load and its balance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from kofn.arrays.checks import check_integer, check_temperature
from kofn.nn.routing.state import Counting, SelectionBias, load_statistics, once


class RouterBase(Counting):
    """What every router has beside its parameters and its way to choose.

    `counts` are the tokens per expert since `statistics` was last reset; they are not saved.
    """

    steps: Tensor

    def __init__(
        self,
        num_experts: int,
        temperature: float | Callable[[Any], Any],
        balance: float | None,
        device: Any,
    ) -> None:
        n = check_integer("num_experts", num_experts, "an integer ≥ 1", 1)
        super().__init__(n, device)
        self.num_experts = n
        self.temperature = temperature if callable(temperature) else check_temperature(temperature)
        self.balance = None if balance is None else SelectionBias(n, balance, device)
        if callable(temperature):
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=device))

    def current_temperature(self) -> Any:
        """Return the temperature of this step: a number, or a tensor if it follows a schedule."""
        return self.temperature(self.steps) if callable(self.temperature) else self.temperature

    @torch.no_grad()
    def step(self, process_group: Any = None) -> None:
        """Advance the schedule and move the balancing bias; call it once per optimizer step.

        Args:
            process_group: sum the load over the processes of this group, such as
                torch.distributed.group.WORLD. All of them have to call `step`.
        """
        if self.balance is not None:
            self.balance.step(process_group)
        if callable(self.temperature):
            self.steps += 1

    def statistics(self, reset: bool = True) -> dict[str, Tensor]:
        """Return the load of the experts in training since the last call with `reset`.

        It is the load of this process alone.

        Returns:
            assignments: how many (token, expert) pairs; load [num_experts]: each expert's share of
            them; entropy: of the load, in nats; experts_in_use: e^entropy; dead_experts: how many
            got no token; max_violation: the largest load times num_experts, less 1.
        """
        found = load_statistics(self.counts)
        if reset:
            self.counts.zero_()
        return found

    def _count(self, counts: Tensor) -> None:
        counts = once(counts)
        self.add(counts)
        if self.balance is not None:
            self.balance.add(counts)


def step_routers(module: nn.Module, process_group: Any = None) -> None:
    """Call `step` of every router in a model: once per step of the optimizer.

    Args:
        module: the model.
        process_group: as for `TopKRouter.step`.

    Example:
        >>> import torch
        >>> from kofn import nn
        >>> model = torch.nn.Sequential(nn.TopKRouter(16, 8, 2, balance=1e-3))
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> hook = optimizer.register_step_post_hook(lambda *_: nn.step_routers(model))
    """
    for each in module.modules():
        if isinstance(each, RouterBase):
            each.step(process_group)

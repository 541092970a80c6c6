"""What every router keeps: its schedule, its load and its balance."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Never

import torch
from torch import Tensor, nn

from kofn.adapters.kept_kernels import tally, tally_of
from kofn.arrays.checks import check_integer
from kofn.arrays.names import unknown_keyword
from kofn.nn.routing.following import Following
from kofn.nn.routing.quantile import QuantileBias
from kofn.nn.routing.state import Counting, SelectionBias, counts_of, load_statistics, once
from kofn.nn.routing.together import DEFAULT_GROUP, is_alone, step_together
from kofn.nn.scheduled import check_schedule, temperature_at

MOST = 1000
"""Calls without a step after which a router says that it waits for one."""


def _warn_of_steps() -> None:
    warnings.warn(
        f"a router with a balance or a schedule was called {MOST:,} times in training without a "
        "step, so that neither moved; call nn.step_routers(model) after each optimizer.step()",
        stacklevel=2,
    )


class RouterBase(Counting):
    """What every router has besides its parameters and its way to choose.

    `counts` are the tokens per expert since `statistics` was last reset; they are not saved.
    """

    steps: Tensor
    replayed: Tensor
    following: Following | None = None
    unstepped = 0
    """Calls in training since the last step, where a step would move something."""

    def __init__(
        self,
        num_experts: int,
        temperature: float | Callable[[Any], Any],
        balance: Callable[[int], SelectionBias | QuantileBias] | None,
        device: Any,
    ) -> None:
        n = check_integer("num_experts", num_experts, "an integer ≥ 1", 1)
        super().__init__(n, device)
        self.num_experts = n
        self.temperature = check_schedule(temperature)
        self.balance = None if balance is None else balance(n)
        if callable(temperature):
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=device))

    def current_temperature(self) -> Any:
        """Return the temperature of this step: a number, or a tensor if it follows a schedule."""
        now = self.temperature
        return temperature_at(now, self.steps) if callable(now) else now

    @torch.no_grad()
    def step(self, process_group: Any = DEFAULT_GROUP) -> None:
        """Advance the schedule and move the balancing bias; call it once per optimizer step.

        Args:
            process_group: the tokens of all its processes count as load; for None, the tokens
                of this one alone. It may be a DeviceMesh of one dimension. By default it is the
                default group where torch.distributed is initialized with more than one process.

        All processes of the group have to call it. One that does not, or that gives None, is not
        known to the others, which raise an error when the timeout of the group ends.

        Raises:
            ValueError: the processes step different routers. RuntimeError: a process did not call.
        """
        step_together([self], process_group, f"{type(self).__name__}.step")

    def statistics(self, reset: bool = True) -> dict[str, Tensor]:
        """Return the load of the experts in training since the last call with `reset`.

        It is the load of this process alone.

        Returns:
            assignments: how many (token, expert) pairs; load [num_experts]: each expert's share of
            them; entropy: of the load, in nats; experts_in_use: e^entropy; dead_experts: how many
            got no token; max_violation: the largest load times num_experts, less 1. Once the router
            has been in a `replay_routing`, replayed_assignments and replayed_load, of the experts
            that were replayed, which the others leave out.
        """
        load = load_statistics(self.counts)
        if "replayed" in self.SUMS:
            apart = load_statistics(self.replayed)
            load |= {f"replayed_{name}": apart[name] for name in ("assignments", "load")}
        if reset:
            self._forget()
        return load

    def _count_replays(self) -> None:
        """Have a sum for the experts that are replayed, from the first replay on."""
        if "replayed" not in self.SUMS:
            self.SUMS = (*self.SUMS, "replayed")
            self.replayed = torch.zeros_like(self.counts)

    def _count_call(self) -> None:
        """Count a call in training, and warn once there were many without a step."""
        if not torch.compiler.is_compiling():
            calls = self.__dict__["unstepped"] = self.unstepped + 1  # not by a module's setattr
            if calls == MOST and (self.balance is not None or callable(self.temperature)):
                _warn_of_steps()

    def _counters(self) -> list[Counting]:
        """Return what counts the load: this router, and its balance if that is by counts."""
        balance = self.balance
        return [self, balance] if isinstance(balance, Counting) else [self]

    def _count_choice(
        self, indices: Tensor, taken: Tensor | None, replayed: Tensor | None, at_hand: bool = False,
        scores: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Count the load of a call, and apart from it what was replayed; integers have no graph.

        Of rows of `scores` only those without a NaN count, where `tally_of` serves them.
        """
        if replayed is not None:
            apart = replayed[:, None] if taken is None else taken & replayed[:, None]
            counts = once(counts_of(indices, apart, self.num_experts))
            self._settle(counts.device)
            self.replayed.add_(counts)
            taken = not_replayed(replayed[:, None], taken)
        load: Tensor | None = None
        counters = self._counters()
        if scores is not None:
            for each in counters:
                each._settle(scores.device)
            tally_of(scores)(scores, indices, tuple(each.counts for each in counters))
            return
        usual = at_hand and taken is None
        for each in counters:
            if usual and tally(indices, each.counts):
                continue
            if load is None:
                load = once(counts_of(indices, taken, self.num_experts, at_hand))
            each.add(load)


def not_replayed(replayed: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """Return which of those in the mask were not replayed; all, if None."""
    if replayed is None:
        return mask
    return ~replayed if mask is None else mask & ~replayed


@torch.no_grad()
def step_routers(module: nn.Module, process_group: Any = DEFAULT_GROUP, **others: Never) -> None:
    """Do what `step` of every router in a model does: once per step of the optimizer.

    Args:
        module: the model.
        process_group: as for `TopKRouter.step`. With several processes, the default one sums the
            load of all of them, in one message for all routers, after one that compares what they
            step.

    Raises:
        ValueError, RuntimeError: as for `TopKRouter.step`.

    Example:
        >>> import torch
        >>> from kofn import nn
        >>> model = torch.nn.Sequential(nn.TopKRouter(16, 8, 2, balance=1e-3))
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> hook = optimizer.register_step_post_hook(lambda *_: nn.step_routers(model))
    """
    if others:
        raise unknown_keyword(step_routers, others)
    routers = [each for each in module.modules() if isinstance(each, RouterBase)]
    if not routers and is_alone(process_group):  # a stage of a pipeline may have none
        warnings.warn(
            f"nn.step_routers was given a {type(module).__name__} without routers; give it the "
            "model that has them",
            stacklevel=3,
        )
    usual = {each: type(each).step is RouterBase.step for each in routers}
    step_together([each for each in routers if usual[each]], process_group, "nn.step_routers")
    for each in routers:
        if not usual[each]:  # a user's class, with a step of its own
            each.step(process_group)

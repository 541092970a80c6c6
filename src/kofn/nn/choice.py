"""k of n entries that a model learns to choose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn

from kofn import schedules
from kofn.arrays.checks import check_integer
from kofn.arrays.typing import LinkName
from kofn.links import Link, table
from kofn.maps.topk import hard_topk, soft_topk
from kofn.nn.autoencoders.learned_k import LatentsPerToken
from kofn.nn.scheduled import check_schedule, temperature_at
from kofn.nn.tensors import check_tensors

COOLING = 0.7
"""The share of the steps after which the choice is whole, and only the rest of a model learns."""


class Closing(nn.Module):
    """What a choice has besides its scores: k, a schedule, and at last a mask that stays."""

    steps: Tensor
    mask: Tensor | None
    n: int

    def __init__(self, k: Any, n: int, schedule: Any, learned_k: bool, device: Any) -> None:
        super().__init__()
        self.n = check_integer("n", n, "an integer ≥ 1", 1)
        self.k = LatentsPerToken(k, self.n, False, learned_k, device, of="n")
        self.schedule = schedule
        self.freezes_at: int | None = None
        if callable(schedule):
            self.temperature = check_schedule(schedule)
        else:
            allowed = "a number of steps ≥ 1, or a function of the step, the temperature"
            steps = check_integer("schedule", schedule, allowed, 1)
            self.freezes_at = max(1, round(COOLING * steps))
            self.temperature = schedules.exponential(1.0, 0.01, steps=self.freezes_at)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=device))
        self.register_buffer("mask", None)

    def current_k(self) -> Any:
        """Return k of this step, a number or a tensor; once the choice is fixed, its whole k."""
        return self.k(self.steps) if self.mask is None else self.mask.sum()

    def current_temperature(self) -> Any:
        """Return the temperature of this step, a tensor."""
        return temperature_at(self.temperature, self.steps)

    @torch.no_grad()
    def step(self) -> None:
        """Advance the schedule, and at last fix the choice; call it once per optimizer step."""
        self.steps += 1
        if self.mask is None and self.freezes_at is not None and self.steps >= self.freezes_at:
            self.freeze()

    @torch.no_grad()
    def freeze(self) -> None:
        """Fix the choice: from now on it is as in eval(), whatever the scores become."""
        self.mask = self._whole().clone()

    def _whole(self) -> Tensor:
        """Return weights of 0 and 1, which each kind of choice finds in its own way."""
        raise NotImplementedError

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take the fixed choice along, or its absence."""
        saved = state.get(f"{prefix}mask")
        self.mask = None if saved is None else torch.empty_like(saved, device=self.steps.device)
        super()._load_from_state_dict(state, prefix, *rest)


class SoftTopK(Closing):
    """Return x times the weights of k of its n entries, which the model learns to choose.

    Each entry has a score, a parameter. In training, the weights are `soft_topk` of the scores, at
    a temperature that falls; from 70 % of the steps on, `hard_topk` gives them, and they stay:
    the rest of the model learns with the choice that it will have. In eval(), they are 0 and 1, and
    exactly k are 1.

    Args:
        n: how many entries, an integer ≥ 1.
        k: how many are chosen, in [1, n]: an integer, or a function of the step, such as
            `kofn.schedules.exponential(64.0, 8.0, steps=300)`; a whole choice rounds it.
        schedule: the number of training steps, an integer ≥ 1: the temperature falls from 1 to 0.01
            in the first 70 %. Or a function of the step, the temperature; then the choice is soft
            until eval() or `freeze()`. `step()` counts the steps.
        link: as for `soft_topk`.
        learned_k: k is learned, starting from the number given. Add a price times `current_k()` to
            the loss, or k grows. A whole choice rounds it.
        device, dtype: of the scores. A learned k is float32 in any case.

    Inputs:
        x: [..., n], of any float dtype, which the answer has, too.

    Raises:
        TypeError, ValueError: an argument has the wrong type or is out of range.

    Example:
        >>> import torch
        >>> from kofn import nn
        >>> choice = nn.SoftTopK(64, 8, schedule=600)
        >>> model = torch.nn.Sequential(choice, torch.nn.Linear(64, 10))
        >>> optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        >>> for _ in range(600):
        ...     optimizer.zero_grad()
        ...     model(torch.randn(1, 64)).square().mean().backward()
        ...     optimizer.step()
        ...     choice.step()
        >>> choice.eval().weights().sum().item(), choice.weights().unique().tolist()
        (8.0, [0.0, 1.0])
        >>> choice
        SoftTopK(64, k=8, schedule=600)
    """

    def __init__(
        self,
        n: int,
        k: float | Callable[[Any], Any],
        *,
        schedule: int | Callable[[Any], Any],
        link: LinkName | Link = "logistic",
        learned_k: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(k, n, schedule, learned_k, device)
        resolved = table.resolve(link)
        self.link: Any = link if link is resolved else resolved.name
        self.scores = nn.Parameter(torch.empty(self.n, device=device, dtype=dtype))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw scores that are nearly equal; start k and the steps again."""
        nn.init.normal_(self.scores, std=0.01)
        self.k.reset_parameters()
        self.steps.zero_()
        self.mask = None

    def forward(self, x: Tensor) -> Tensor:
        """Return x times the weights; the docstring of the class describes them."""
        check_tensors(x=x)
        if tuple(x.shape[-1:]) != (self.n,):
            raise ValueError(f"x must have shape [..., n] (here {self.n}); got {tuple(x.shape)}")
        return x * self.weights().to(x.dtype)

    def weights(self) -> Tensor:
        """Return the weights [n] alone: soft in training, 0 and 1 in eval() and once they stay."""
        if self.mask is not None:
            weights = self.mask
            if self.training and distributed.is_available() and distributed.is_initialized():
                # DistributedDataParallel waits for a gradient of every parameter; this one is 0.
                weights = weights + 0.0 * sum(each.flatten()[0] for each in self.parameters())
            return weights
        if not self.training:
            return self._whole()
        k, temperature = self.current_k(), self.current_temperature()
        return soft_topk(self.scores, k, link=self.link, temperature=temperature)

    def _whole(self) -> Tensor:
        k = self.current_k()
        return hard_topk(self.scores, k.detach().round() if isinstance(k, Tensor) else round(k))

    def score_parameters(self, lr: float = 0.02) -> dict[str, Any]:
        """Return scores and a learned k as a group for an optimizer, without weight decay.

        Example:
            >>> import torch
            >>> from kofn import nn
            >>> choice, layer = nn.SoftTopK(64, 8, schedule=600), torch.nn.Linear(64, 10)
            >>> groups = [{"params": layer.parameters()}, choice.score_parameters()]
            >>> optimizer = torch.optim.Adam(groups, lr=3e-3)
        """
        return {"params": list(self.parameters()), "lr": lr, "weight_decay": 0.0}

    def extra_repr(self) -> str:
        learned = "" if self.k.log is None else ", learned_k=True"
        named = "" if self.link == "logistic" else f", link={self.link!r}"
        return f"{self.n}, k={self.k.given!r}, schedule={self.schedule!r}{named}{learned}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"

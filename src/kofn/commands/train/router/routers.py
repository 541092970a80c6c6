"""The routers that are compared. Each maps tokens [T, H] to (logits, weights, indices)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kofn.nn import TopKRouter, step_routers
from kofn.nn.routing.state import SelectionBias, counts_of

Routed = tuple[Tensor, Tensor, Tensor]
RATE = 1e-2  # of the biases that even the load, in logits or in sigmoids of them
L1_START, L1_FACTOR = 1e-8, 1.2  # as in the paper on ReMoE


class Router(nn.Module):
    """A linear layer without a bias, and what routers may add to it."""

    def __init__(self, hidden_size: int, num_experts: int, k: int) -> None:
        super().__init__()
        # Drawn as by TopKRouter, so that all routers of a seed start from the same weights.
        self.weight = nn.Linear(hidden_size, num_experts, bias=False).weight
        self.num_experts, self.k = num_experts, k

    def logits(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)

    def penalty(self) -> Tensor | float:
        """Return what is added to the loss, of the last call."""
        return 0.0

    def step(self) -> None:
        """Go on after a step of the optimizer."""


class SoftmaxTopK(Router):
    """The k largest of a softmax, as in Switch Transformers."""

    def forward(self, x: Tensor) -> Routed:
        logits = self.logits(x)
        return logits, *logits.softmax(-1).topk(self.k)


class TopKSoftmax(Router):
    """A softmax of the k largest, as in Mixtral: the same, divided by its sum."""

    def forward(self, x: Tensor) -> Routed:
        logits = self.logits(x)
        largest, indices = logits.topk(self.k)
        return logits, largest.softmax(-1), indices


class SigmoidBias(Router):
    """Sigmoids, chosen with a bias that evens the load, as in DeepSeek-V3.

    With k ≥ 2 they are divided by their sum.
    """

    def __init__(self, hidden_size: int, num_experts: int, k: int) -> None:
        super().__init__(hidden_size, num_experts, k)
        self.even = SelectionBias(num_experts, RATE)

    def forward(self, x: Tensor) -> Routed:
        logits = self.logits(x)
        gates = logits.sigmoid()
        indices = (gates.detach() + self.even()).topk(self.k).indices
        chosen = gates.gather(-1, indices)
        if self.training:
            self.even.counts += counts_of(indices, None, self.num_experts)
        return logits, chosen if self.k == 1 else chosen / chosen.sum(-1, keepdim=True), indices

    def step(self) -> None:
        self.even.move(self.even.counts)


class ReluL1(Router):
    """ReLU of the logits, as in ReMoE; a token has k experts in the mean.

    An L1 penalty grows while there are more. Experts with more load are penalised more.
    """

    factor: Tensor

    def __init__(self, hidden_size: int, num_experts: int, k: int) -> None:
        super().__init__(hidden_size, num_experts, k)
        self.register_buffer("factor", torch.tensor(L1_START))
        self.added: Tensor | float = 0.0
        self.active = float(num_experts)

    def forward(self, x: Tensor) -> Routed:
        logits = self.logits(x)
        gates = logits.relu()
        used = (gates > 0).float().mean(0)
        self.active = float(used.sum())
        load = used * self.num_experts / self.k
        self.added = self.factor * (load * gates.mean(0)).sum()
        return logits, *gates.sort(-1, descending=True)

    def penalty(self) -> Tensor | float:
        return self.added

    def step(self) -> None:
        self.factor *= L1_FACTOR if self.active > self.k else 1 / L1_FACTOR


class Method(NamedTuple):
    """A way to route, by name."""

    name: str
    about: str
    make: Callable[[int, int, int], nn.Module]
    """Takes the width, the number of experts and k."""
    least_k: int = 1


def _kofn(hidden_size: int, num_experts: int, k: int, **options: Any) -> TopKRouter:
    options.setdefault("normalize", k > 1)
    return TopKRouter(hidden_size, num_experts, k, **options)


METHODS = {
    method.name: method
    for method in (
        Method("kofn", "TopKRouter as it comes: softmax of the chosen, soft top-k gradient", _kofn),
        Method(
            "kofn-balanced",
            f"the same with balance={RATE:g}",
            partial(_kofn, balance=RATE),
        ),
        Method(
            "kofn-unnormalized",
            "TopKRouter with normalize=False: softmax of all experts, soft top-k gradient",
            partial(_kofn, normalize=False),
            least_k=2,
        ),
        Method(
            "kofn-topk",
            'TopKRouter with gates="topk": soft top-k weights',
            partial(_kofn, gates="topk", normalize=False),
        ),
        Method(
            "kofn-topk-normalized",
            "the same, divided by their sum",
            partial(_kofn, gates="topk", normalize=True),
            least_k=2,
        ),
        Method("softmax-topk", "the largest of a softmax", SoftmaxTopK),
        Method("topk-softmax", "a softmax of the largest", TopKSoftmax),
        Method("sigmoid-bias", "sigmoids, chosen with a bias that evens the load", SigmoidBias),
        Method("relu-l1", "ReLU gates with an adaptive L1 penalty", ReluL1),
    )
}


def penalty_of(model: nn.Module) -> Tensor | float:
    """Return the sum of what the model's routers add to the loss."""
    return sum(each.penalty() for each in model.modules() if isinstance(each, Router))


def step(model: nn.Module) -> None:
    """Go on after a step of the optimizer, in all routers of a model."""
    step_routers(model)
    for each in model.modules():
        if isinstance(each, Router):
            each.step()

"""The routers that are compared. Each maps tokens [T, H] to (logits, weights, indices)."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from kofn.nn import TopKRouter, step_routers
from studies.frame.run import Method

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

    With k ≥ 2 they are divided by their sum. The bias of an expert rises after a step in which it
    had less than the mean load, and falls after one with more.
    """

    net_steps: Tensor

    def __init__(self, hidden_size: int, num_experts: int, k: int) -> None:
        super().__init__(hidden_size, num_experts, k)
        self.register_buffer("net_steps", torch.zeros(num_experts, dtype=torch.int64))
        self.load = torch.zeros_like(self.net_steps)

    def forward(self, x: Tensor) -> Routed:
        logits = self.logits(x)
        gates = logits.sigmoid()
        indices = (gates.detach() + self.bias()).topk(self.k).indices
        chosen = gates.gather(-1, indices)
        if self.training:
            self.load = indices.flatten().bincount(minlength=self.num_experts)
        return logits, chosen if self.k == 1 else chosen / chosen.sum(-1, keepdim=True), indices

    def bias(self) -> Tensor:
        n = self.net_steps.float()
        return RATE * (n - n.mean())

    def step(self) -> None:
        self.net_steps += torch.sign(self.load.sum() - self.load * self.num_experts)


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


def _kofn(hidden_size: int, num_experts: int, k: int, **options: Any) -> TopKRouter:
    options.setdefault("normalize", k > 1)
    return TopKRouter(hidden_size, num_experts, k, **options)


METHODS = {
    "kofn": Method(_kofn, "#0072B2"),
    "kofn-balanced": Method(partial(_kofn, balance=RATE), "#0072B2", "--"),
    "kofn-unnormalized": Method(partial(_kofn, normalize=False), "#0072B2", ":"),
    "kofn-topk": Method(partial(_kofn, gates="topk", normalize=False), "#56B4E9"),
    "kofn-topk-normalized": Method(partial(_kofn, gates="topk", normalize=True), "#56B4E9", ":"),
    "softmax-topk": Method(SoftmaxTopK, "#D55E00"),
    "topk-softmax": Method(TopKSoftmax, "#D55E00", "--"),
    "sigmoid-bias": Method(SigmoidBias, "#009E73"),
    "relu-l1": Method(ReluL1, "#CC79A7"),
}
"""Each takes the width, the number of experts and k."""
NOT_FOR_ONE = ("kofn-unnormalized", "kofn-topk-normalized")
"""Those that are another method, or constant, with k = 1."""


def penalty_of(model: nn.Module) -> Tensor | float:
    """Return the sum of what the model's routers add to the loss."""
    return sum(each.penalty() for each in model.modules() if isinstance(each, Router))


def after_step(model: nn.Module) -> None:
    """Go on after a step of the optimizer, in all routers of a model."""
    modules = [*model.modules()]
    if any(isinstance(each, TopKRouter) for each in modules):
        step_routers(model)
    for each in modules:
        if isinstance(each, Router):
            each.step()

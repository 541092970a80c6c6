"""Right code of a user: strict type checkers accept it, without a cast or a comment.

`make test-dist` checks it with mypy and basedpyright against the installed wheel; it is never run.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import kofn
from kofn import KSubset, estimators, links, losses, metrics, schedules
from kofn.nn import SoftTopK, SparseAttention, TopKRouter, TopKSAE, load_balancing_loss


class Gate(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(n))

    def forward(self, x: Tensor, temperature: float) -> Tensor:
        weights = kofn.soft_topk(
            self.scores, k=2, link="exponential", temperature=temperature, hard=True
        )
        return x * weights


def loss(scores: Tensor, target: Tensor) -> Tensor:
    topk = losses.topk_loss(scores, target)
    return topk + kofn.fenchel_young_loss(scores, target, reduction="mean")


def subsets(logits: Tensor) -> tuple[Tensor, Tensor]:
    choice = KSubset(logits, 3)
    sample = choice.sample((5,))
    return choice.marginals(), choice.log_prob(sample)


def estimated(logits: Tensor) -> Tensor:
    return estimators.score_function(KSubset(logits, 2), lambda sample: sample.sum(-1))


def first_weight(scores: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float:
    weights = kofn.soft_topk(scores, 1.5, link=links.entmax(1.2))
    return float(weights[0])


def of_rows(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    return kofn.soft_topk(scores, scores[:, 0], temperature=scores[:, 1:2])


def routed(tokens: Tensor) -> Tensor:
    router = TopKRouter(16, 8, 2)
    logits, gates, experts = router(tokens)
    # PyTorch says Any for what a module returns.
    total: Tensor = gates.sum() + load_balancing_loss(logits, experts)
    return total + metrics.entropy(total, dim=0)


def annealed(steps: int) -> list[float]:
    temperature = schedules.exponential(1.0, 0.01, steps)
    return [temperature(step) for step in range(steps)]


modules: list[nn.Module] = [SparseAttention(16, 4), TopKSAE(16, 64, k=4), Gate(3)]
choice: Tensor = SoftTopK(64, 8, schedule=schedules.constant(1.0)).weights()

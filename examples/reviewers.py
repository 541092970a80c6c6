"""Papers to reviewers: each paper needs three, and each reviewer has a load.

    python examples/reviewers.py        # a few seconds

Affinities of papers and reviewers are noisy products of topics. Some reviewers fit many papers, and
some have less time than others. A linear map of the topics learns, through the soft assignment, to
score the pairs so that those which are assigned are those that were rated well.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from kofn import soft_assignment, soft_topk

PAPERS, REVIEWERS, TOPICS, EACH = 120, 30, 6, 3


def conference(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return papers and reviewers as topics, true ratings, and the loads of the reviewers."""
    rng = torch.Generator().manual_seed(seed)
    papers = torch.randn(PAPERS, TOPICS, generator=rng)
    reviewers = torch.randn(REVIEWERS, TOPICS, generator=rng)
    matters = torch.tensor([2.0, 1.0, 0.5, 0.0, 0.0, 0.0])  # the topics by which ratings go
    liked = torch.linspace(-1, 1, REVIEWERS)
    ratings = (papers * matters) @ reviewers.T + liked
    loads = torch.tensor([8.0, 10, 12, 14, 16] * (REVIEWERS // 5))  # of 12 on average
    return papers, reviewers, ratings, loads


def train(seed: int, steps: int) -> Tensor:
    """Return how much each topic matters, learned from the ratings of what is assigned."""
    papers, reviewers, ratings, loads = conference(seed)
    weight = torch.ones(TOPICS, requires_grad=True)
    adam = torch.optim.Adam([weight], lr=0.05)
    for _ in range(steps):
        scores = (papers * weight) @ reviewers.T
        chosen = soft_assignment(scores, EACH, loads, temperature=0.5)
        adam.zero_grad()
        (-(chosen * ratings).sum() / PAPERS).backward()
        adam.step()
    return weight.detach()


def report(name: str, chosen: Tensor, ratings: Tensor, loads: Tensor) -> None:
    worst = (chosen.sum(0) / loads - 1).abs().max().item()
    mean = (chosen * ratings).sum().item() / PAPERS
    print(f"{name:28s}rating per paper {mean:6.2f}   worst load {worst:+7.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    papers, reviewers, ratings, loads = conference(options.seed)
    report("best three of each paper", soft_topk(ratings, EACH, hard=True), ratings, loads)
    soft = soft_assignment(ratings, EACH, loads, temperature=0.1)
    report("soft assignment", soft, ratings, loads)
    hard = soft_assignment(ratings, EACH, loads, temperature=0.01, hard=True)
    report("hard, by its prices", hard, ratings, loads)
    weight = train(options.seed, options.steps)
    learned = (papers * weight) @ reviewers.T
    report("untrained", soft_assignment(papers @ reviewers.T, EACH, loads), ratings, loads)
    report("learned", soft_assignment(learned, EACH, loads, temperature=0.1), ratings, loads)


if __name__ == "__main__":
    main()

"""A policy over sequences of tokens, trained by a reward of whole sequences.

    python examples/sequence_policy.py  # the table, 5 seeds, minutes

The policy sees three of scikit-learn's digits side by side and writes three tokens, each given
those before: one of 10³ sequences. It is paid by the share of tokens that are right, and never told
which. The gradient is E reward·∇log π(sequence), by surrogate, of four sequences per example; the
ways differ in the baseline that is subtracted from the reward. The table has the share of sequences
that are right altogether when the most likely tokens are taken, on digits that were held out.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import one_hot

from kofn import gumbel_max
from kofn.estimators import RunningMean, surrogate

TOKENS, LENGTH, INK, HIDDEN = 10, 3, 16, 64
STEPS, BATCH, SAMPLES, RATE, PART = 600, 64, 4, 2e-3, 40
WAYS = ("no baseline", "running mean", "leave-one-out")
MEASURED = "share of held-out sequences that are right"
EVERY = "steps"


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU())
        self.cell = nn.GRUCell(HIDDEN + TOKENS, HIDDEN)
        self.score = nn.Linear(HIDDEN, TOKENS)

    def forward(self, images: Tensor, rng: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Return sequences for images [N, 3, 64], and log π; without rng, the likeliest tokens."""
        state, last = images.new_zeros(len(images), HIDDEN), images.new_zeros(len(images), TOKENS)
        tokens, total = [], images.new_zeros(len(images))
        for place in range(LENGTH):
            state = self.cell(torch.cat([self.see(images[:, place] / INK), last], -1), state)
            logits = self.score(state)
            token = logits.argmax(-1) if rng is None else gumbel_max(logits, rng)
            total = total + logits.log_softmax(-1).gather(-1, token[:, None])[:, 0]
            last = one_hot(token, TOKENS).float()
            tokens.append(token)
        return torch.stack(tokens, -1), total


def train(way: str, seed: int) -> list[tuple[int, float]]:
    """Return the share of held-out sequences that are right, after every 40 steps."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    images, labels = map(torch.as_tensor, load_digits(return_X_y=True))
    order = torch.randperm(len(labels), generator=rng)
    x, y = images[order].float(), labels[order]
    baseline = {"running mean": RunningMean(), "leave-one-out": "leave_one_out"}.get(way)
    policy, curve = Policy(), []
    optimizer = torch.optim.Adam(policy.parameters(), lr=RATE)
    shown = torch.randint(1347, len(y), (500, LENGTH), generator=rng)  # held out
    for step in range(1, STEPS + 1):
        rows = torch.randint(1347, (BATCH, LENGTH), generator=rng).repeat(SAMPLES, 1)
        tokens, log_prob = policy(x[rows], rng)
        cost = -(tokens == y[rows]).float().mean(-1)
        apart = SAMPLES, BATCH
        loss = surrogate(cost.view(apart), log_prob.view(apart), baseline=baseline)
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
        if step % PART == 0:
            with torch.no_grad():
                right = (policy(x[shown], None)[0] == y[shown]).all(-1)
            curve.append((step, right.float().mean().item()))
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    print(MEASURED)
    for way in WAYS:
        ends = [train(way, seed)[-1][1] for seed in seeds]
        print(f"{way:16}{statistics.mean(ends):.3f}  ", *(f"{end:.3f}" for end in ends))


if __name__ == "__main__":
    main()

"""Keep 2 % or 0.5 % of a network's weights: one soft top-k over all of them, against magnitude.

    python examples/pruning.py                       # the table: 5 seeds, some ten minutes
    python examples/pruning.py --seeds 1 --keep 0.02 # a first look

A perceptron 64–300–100–10 classifies scikit-learn's digits. Three methods end with the same number
of weights. Each trains for the same number of steps, at the learning rate that suits it best:

- soft top-k: every weight w has a score s, and the network uses w · soft_topk(s, k, T) over all
  layers at once. k falls from n to the number of weights to keep; T goes on falling. In the last
  tenth of the steps the choice is hard.
- gradual magnitude pruning: every 20 steps the smallest |w| of all layers become 0 and stay 0, by
  the cubic schedule of Zhu & Gupta (2017).
- magnitude, then fine-tuning: train all weights, keep the k largest |w|, and train these.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

from kofn import hard_topk, schedules, soft_topk

SIZES = (64, 300, 100, 10)
SHAPES = [(out, given) for given, out in itertools.pairwise(SIZES)]
N = sum(out * given for out, given in SHAPES)
STEPS, BATCH, RATE = 2000, 128, 3e-3

Data = tuple[Tensor, Tensor, Tensor, Tensor]


class Perceptron:
    """All weights in one vector, with He's initial deviation √(2/fan in); biases 0."""

    def __init__(self) -> None:
        parts = [torch.randn(out * given) * math.sqrt(2 / given) for out, given in SHAPES]
        self.weights = torch.cat(parts).requires_grad_()
        self.biases = [torch.zeros(out, requires_grad=True) for out, _ in SHAPES]

    def __call__(self, x: Tensor, weights: Tensor) -> Tensor:
        """The scores of the classes, computed with these weights."""
        parts = weights.split([out * given for out, given in SHAPES])
        for layer, (part, shape, bias) in enumerate(zip(parts, SHAPES, self.biases, strict=True)):
            x = F.linear(F.relu(x) if layer else x, part.view(shape), bias)
        return x


def train(
    data: Data, net: Perceptron, used: Callable[[int], Tensor], scores: list[Tensor]
) -> float:
    """Train by Adam with the weights `used(step)`; return the held-out accuracy at the end."""
    images, labels, held_out, answers = data
    groups = [{"params": [net.weights, *net.biases]}, {"params": scores, "lr": 20 * RATE}]
    optimizer = torch.optim.Adam(groups if scores else groups[:1], lr=RATE)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for step in range(STEPS):
        rows = torch.randint(len(images), (BATCH,))
        loss = F.cross_entropy(net(images[rows], used(step)), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        slower.step()
    with torch.no_grad():
        right = net(held_out, used(STEPS)).argmax(-1) == answers
    return right.float().mean().item()


def soft(data: Data, kept: int) -> float:
    net = Perceptron()
    scores = (0.01 * net.weights.detach().abs()).requires_grad_()
    how_many = schedules.exponential(float(N), float(kept), steps=STEPS // 2)
    cool = schedules.exponential(1.0, 0.01, steps=round(0.9 * STEPS))

    def used(step: int) -> Tensor:
        if step >= 0.9 * STEPS:
            return net.weights * hard_topk(scores, kept)
        return net.weights * soft_topk(scores, how_many(step), temperature=cool(step))

    return train(data, net, used, [scores])


def magnitude(data: Data, kept: int, share: Callable[[float], float]) -> float:
    """Keep the share `share(progress)` of the weights, and at least `kept`."""
    net, mask = Perceptron(), torch.ones(N)

    def used(step: int) -> Tensor:
        nonlocal mask
        if step % 20 == 0:
            still = max(kept, round(N * share(step / STEPS)))
            mask = hard_topk((net.weights.detach() * mask).abs(), still)
        return net.weights * mask

    return train(data, net, used, [])


def gradual(data: Data, kept: int) -> float:
    return magnitude(data, kept, lambda done: max(0.0, 1 - done / 0.75) ** 3)


def once(data: Data, kept: int) -> float:
    return magnitude(data, kept, lambda done: float(done < 0.5))


WAYS = {"soft top-k": soft, "gradual magnitude": gradual, "magnitude, fine-tuned": once}


def digits(seed: int) -> Data:
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=0.25, random_state=seed)
    x, held_out, y, answers = map(torch.as_tensor, parts)
    return x.float(), y, held_out.float(), answers


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--keep", type=float, nargs="+", default=[0.02, 0.005])
    args = parser.parse_args()
    print(f"held-out accuracy, mean ± standard deviation of {args.seeds} seeds, of {N} weights")
    for keep in args.keep:
        kept = round(keep * N)
        for name, way in WAYS.items():
            found = []
            for seed in range(args.seeds):
                torch.manual_seed(seed)
                found.append(way(digits(seed), kept))
            spread = statistics.stdev(found) if len(found) > 1 else math.nan
            print(f"{kept:5d}  {name:22s}{statistics.mean(found):.3f} ± {spread:.3f}", flush=True)


if __name__ == "__main__":
    main()

"""How many pixels does a digit take? nn.SoftTopK learns which pixels a network sees, and how many.

    python examples/learned_k.py        # the table, 3 seeds, half a minute

A perceptron 64-64-10 learns scikit-learn's digits in 600 steps. Each pixel that it sees has a
price, which is added to the loss: price·k. The learned k is a real number; nn.SoftTopK rounds it
when 70 % of the steps are over, and the network trains on with that many pixels, whole ones. The
table has how many pixels are left, and the held-out accuracy with these.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.nn import functional

from kofn import nn

STEPS, BATCH, RATE, START = 600, 128, 3e-3, 32.0


def train(price: float, seed: int) -> tuple[int, float]:
    """Return the number of pixels that are left, and the held-out accuracy."""
    torch.manual_seed(seed)
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=0.25, random_state=seed)
    x, held_out, y, answers = map(torch.as_tensor, parts)
    choice = nn.SoftTopK(64, START, schedule=STEPS, learned_k=True)
    layers = torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    network = torch.nn.Sequential(*layers)
    groups = [{"params": network.parameters()}, choice.score_parameters()]
    optimizer = torch.optim.Adam(groups, lr=RATE)
    for _ in range(STEPS):
        rows = torch.randint(len(x), (BATCH,))
        loss = functional.cross_entropy(network(choice(x[rows].float())), y[rows])
        optimizer.zero_grad()
        (loss + price * choice.current_k().sum()).backward()
        optimizer.step()
        choice.step()
    choice.eval()
    with torch.no_grad():
        right = network(choice(held_out.float())).argmax(-1) == answers
    return int(choice.weights().sum()), right.float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    print("price  pixels  accuracy")
    for price in (0.003, 0.01, 0.03, 0.1):
        left, right = zip(*(train(price, seed) for seed in seeds), strict=True)
        print(f"{price:5g}  {statistics.mean(left):6.1f}  {statistics.mean(right):8.3f}", end="  ")
        print(*(f"{k}: {each:.3f}" for k, each in zip(left, right, strict=True)))


if __name__ == "__main__":
    main()

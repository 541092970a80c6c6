"""Time of a training step with nn.prune, in that of a plain one, side by side.

    python benchmarks/pruning.py [PAIRS]

One thread; a convolutional network of 97,000 weights, 64 images of 32 × 32; medians of steps in
turns.
"""

from __future__ import annotations

import sys
import time

import torch

from kofn import nn

BATCH = 64


def network() -> torch.nn.Sequential:
    """Return a network for images of 32 × 32."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(64, 64, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(4096, 10),
    )


def ratio(pairs: int) -> float:
    """Return the median time of a step with nn.prune, in that of one without."""
    x, y = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    plain, model = network(), network()
    pruner = nn.prune(model, 0.95, schedule=1000)
    groups = [{"params": pruner.other_parameters()}, pruner.score_parameters()]
    optimizers = torch.optim.Adam(plain.parameters()), torch.optim.Adam(groups)
    spent: tuple[list[float], list[float]] = [], []
    for _ in range(pairs):
        for which, net in enumerate((plain, model)):
            began = time.thread_time()
            optimizers[which].zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimizers[which].step()
            if which:
                pruner.step(optimizers[1])
            spent[which].append(time.thread_time() - began)
    plain_time, time_of = (sorted(times)[len(times) // 2] for times in spent)
    return time_of / plain_time


def main() -> None:
    """Print the ratio, five times."""
    torch.set_num_threads(1)
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    found = " ".join(f"{ratio(pairs):.2f}" for _ in range(5))
    print(f"step with nn.prune, in plain steps: {found}")


if __name__ == "__main__":
    main()

"""Keep 2 % of a network's weights, by nn.prune and by magnitude.

    python examples/prune.py              # the table, 3 seeds, half a minute

A perceptron 64-300-100-10 learns scikit-learn's digits in 600 steps. nn.prune gives every weight a
score and keeps the 1,004 largest of all layers: a soft choice that becomes hard while the network
is trained. By magnitude, the 1,004 largest weights are kept after 300 steps, and trained further.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.nn import functional
from torch.nn.utils import prune as torch_prune

from kofn import nn

STEPS, BATCH, RATE, REMOVED = 600, 128, 3e-3, 0.98


def network() -> torch.nn.Sequential:
    layers = torch.nn.Linear(64, 300), torch.nn.Linear(300, 100), torch.nn.Linear(100, 10)
    return torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])


def train(way: str, seed: int) -> tuple[float, int]:
    """Return the held-out accuracy, and how many weights are left."""
    torch.manual_seed(seed)
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=0.25, random_state=seed)
    x, held_out, y, answers = map(torch.as_tensor, parts)
    model = network()
    layers = [(layer, "weight") for layer in model if isinstance(layer, torch.nn.Linear)]
    groups = [{"params": list(model.parameters())}]
    if way == "nn.prune":
        pruner = nn.prune(model, REMOVED, schedule=STEPS)
        groups = [{"params": pruner.other_parameters()}, pruner.score_parameters(lr=20 * RATE)]
    optimizer = torch.optim.Adam(groups, lr=RATE)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for step in range(STEPS):
        if way == "magnitude" and step == STEPS // 2:
            torch_prune.global_unstructured(layers, torch_prune.L1Unstructured, amount=REMOVED)
        rows = torch.randint(len(x), (BATCH,))
        loss = functional.cross_entropy(model(x[rows].float()), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        slower.step()
        if way == "nn.prune":
            pruner.step(optimizer)
    if way == "nn.prune":
        pruner.finalize()
    with torch.no_grad():
        right = model(held_out.float()).argmax(-1) == answers
    left = sum(int((layer.weight != 0).sum()) for layer, _ in layers)
    return right.float().mean().item(), left


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    print(f"{'':12s}weights  accuracy")
    for way in ("nothing", "magnitude", "nn.prune"):
        found, left = zip(*(train(way, seed) for seed in seeds), strict=True)
        print(f"{way:12s}{left[0]:7d}  {statistics.mean(found):8.3f}", end="  ")
        print(*(f"{each:.3f}" for each in found))


if __name__ == "__main__":
    main()

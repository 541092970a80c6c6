"""Prune a network whose weights are sharded over processes by fully_shard (FSDP2).

    torchrun --nproc-per-node 4 examples/prune_sharded.py

A perceptron 64-300-100-10 learns scikit-learn's digits and keeps the 1,004 best of its 50,200
weights. Every process has a part of each batch and of each layer. nn.prune chooses among the
weights of all processes; it sends numbers, never scores or masks.
"""

from __future__ import annotations

import os

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from kofn import nn

STEPS, BATCH, RATE, REMOVED = 300, 128, 3e-3, 0.98


def network() -> torch.nn.Sequential:
    layers = torch.nn.Linear(64, 300), torch.nn.Linear(300, 100), torch.nn.Linear(100, 10)
    return torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])


def train() -> tuple[float, int, list[int]]:
    """Return the held-out accuracy, how many weights are left, and how many of each layer."""
    torch.manual_seed(0)
    rank, size = distributed.get_rank(), distributed.get_world_size()
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=0.25, random_state=0)
    x, held_out, y, answers = map(torch.as_tensor, parts)
    model = network()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    pruner = nn.prune(model, REMOVED, schedule=STEPS)
    groups = [{"params": pruner.other_parameters()}, pruner.score_parameters(lr=20 * RATE)]
    optimizer = torch.optim.Adam(groups, lr=RATE)
    for _ in range(STEPS):
        rows = torch.randint(len(x), (BATCH,)).chunk(size)[rank]
        loss = functional.cross_entropy(model(x[rows].float()), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pruner.step(optimizer)
    left = [int(mask.full_tensor().sum()) for mask in pruner.masks().values()]
    pruner.finalize()
    with torch.no_grad():
        right = model(held_out.float()).argmax(-1) == answers
    return right.float().mean().item(), sum(left), left


def main() -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo")
    accuracy, left, of_layers = train()
    if distributed.get_rank() == 0:
        size = distributed.get_world_size()
        print(f"{size} processes: {left} weights, {of_layers} of the layers; {accuracy:.3f} right")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

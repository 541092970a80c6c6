"""Train a model whose vocabulary is cut among processes; no process has a row of logits.

    torchrun --nproc-per-node 4 examples/vocabulary_parallel.py

A chain of words is learned: each of 1,000 words is followed by one of five. Each process has a part
of the output layer, and so of the logits, and kofn.distributed.softmax_loss takes them as they
are. The same model in one process, with the same data, ends at the same loss.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor, distributed
from torch.distributed.tensor import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import kofn.distributed
from kofn import losses

WORDS, WIDTH, STEPS, BATCH, SMOOTHING = 1000, 32, 200, 256, 0.1


class Model(torch.nn.Module):
    """The next word's logits, from the present word."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.head = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.embedding(words))


def train(cut: bool) -> float:
    """Return the mean loss of the last steps."""
    torch.manual_seed(0)
    model, found = Model(), []
    followers = torch.randint(WORDS, (WORDS, 5))
    if cut:
        mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
        parallelize_module(model, mesh, {"head": ColwiseParallel(use_local_output=False)})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(STEPS):
        words = torch.randint(WORDS, (BATCH,))
        following = followers[words, torch.randint(5, (BATCH,))]
        logits = model(words)
        loss_of = kofn.distributed.softmax_loss if cut else losses.softmax_loss
        loss = loss_of(logits, following, label_smoothing=SMOOTHING)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append((loss.full_tensor() if cut else loss).item())
    return sum(found[-10:]) / len(found[-10:])


def main() -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo")
    together, alone = train(cut=True), train(cut=False)
    if distributed.get_rank() == 0:
        size = distributed.get_world_size()
        print(f"loss with the vocabulary in {size} processes {together:.4f}, in one {alone:.4f}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

"""Experts that choose from the tokens of all data-parallel processes.

    torchrun --nproc-per-node 4 examples/expert_choice.py

Every process has tokens of its own, and three quarters of the last one's are padding. An expert
takes its share of all tokens together, wherever they are, as it would in one process with the whole
batch. Were each process to choose alone, the last one would give every expert as large a share of
its few tokens.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel

from kofn import nn

WIDTH, EXPERTS, K, TOKENS, STEPS = 16, 8, 2, 64, 100


class Mixture(torch.nn.Module):
    """Linear experts, and a router that sees the tokens of all processes."""

    def __init__(self) -> None:
        super().__init__()
        world = distributed.group.WORLD
        options = dict(selection="expert_choice", process_group=world)
        self.router = nn.TopKRouter(WIDTH, EXPERTS, K, **options)
        self.experts = torch.nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        logits, weights, indices = self.router(x, mask)
        gates = torch.zeros_like(logits).scatter(1, indices, weights)
        return torch.einsum("te,eij,tj->ti", gates, self.experts, x)


def train() -> tuple[float, Tensor]:
    """Return the last loss, and how many tokens of each process the experts have [R, E]."""
    torch.manual_seed(0)
    rank, size = distributed.get_rank(), distributed.get_world_size()
    model, truth = DistributedDataParallel(Mixture()), torch.randn(EXPERTS, WIDTH, WIDTH) / 4
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1 + rank)
    mask = torch.arange(TOKENS) < (TOKENS // 4 if rank == size - 1 else TOKENS)
    for _ in range(STEPS):
        model.module.router.statistics(reset=True)
        x = torch.randn(TOKENS, WIDTH, generator=generator)
        wanted = torch.einsum("tij,tj->ti", truth[x[:, :EXPERTS].argmax(1)], x)
        loss = (model(x, mask) - wanted)[mask].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    load = torch.zeros(size, EXPERTS, dtype=torch.int64)
    load[rank] = model.module.router.counts
    distributed.all_reduce(load)
    return loss.item(), load


def main() -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo")
    loss, load = train()
    if distributed.get_rank() == 0:
        print(f"loss {loss:.3f}; tokens of each expert {load.sum(0).tolist()}, by process:")
        print(load)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

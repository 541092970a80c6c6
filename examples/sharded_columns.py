"""Choose 5 of 200 columns that lie in several processes: kofn.distributed.

    torchrun --nproc-per-node 2 examples/sharded_columns.py     # half a minute
    python examples/sharded_columns.py                          # the same in one process

Every process has some of the columns of a table, and learns scores and slopes of its own columns.
The five columns that matter all lie in the first process. One choice over all processes finds
them. A choice in each process, of an equal part of k, cannot: the first may choose only 2.5.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

import kofn
from kofn.distributed import hard_topk, soft_topk
from kofn.schedules import exponential

ROWS, COLUMNS, K, STEPS = 500, 200, 5, 100


def total(part: Tensor) -> Tensor:
    """The sum over processes; its gradient goes to this process's part."""
    found = part.detach().clone()
    dist.all_reduce(found)
    return found + (part - part.detach())


def train(together: bool) -> tuple[int, float]:
    """Return how many of the five columns are chosen, and the squared error with them alone."""
    rng = torch.Generator().manual_seed(0)  # every process makes the whole table, and keeps a part
    x = torch.randn(ROWS, COLUMNS, generator=rng, dtype=torch.float64)
    y = x[:, :K].sum(-1) + torch.randn(ROWS, generator=rng)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    mine = torch.arange(COLUMNS).tensor_split(ranks)[rank]
    x = x[:, mine]
    scores, slopes = torch.zeros(2, len(mine), dtype=torch.float64).unbind()
    adam = torch.optim.Adam([scores.requires_grad_(), slopes.requires_grad_()], lr=0.05)
    cool = exponential(1.0, 0.01, STEPS)
    for step in range(STEPS):
        if together:
            weights = soft_topk(scores, K, temperature=cool(step))  # of all processes
        else:
            weights = kofn.soft_topk(scores, K / ranks, temperature=cool(step))  # of this one
        error = (total(x @ (weights * slopes)) - y).square().mean()
        adam.zero_grad()
        error.backward()
        adam.step()
    choice = hard_topk(scores, K) if together else kofn.hard_topk(scores, K / ranks)
    error = (total(x @ (choice * slopes)) - y).square().mean()
    return round(total((choice * (mine < K)).sum()).item(), 1), error.item()


def main() -> None:
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for name, together in (("one choice over all", True), ("a choice in each", False)):
        found, error = train(together)
        if dist.get_rank() == 0:
            print(f"{name:20s} {found} of {K} columns, error {error:.2f} (noise: 1)", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

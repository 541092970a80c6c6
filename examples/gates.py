"""Which gates for a mixture of experts? A task whose right expert is known.

    python examples/gates.py            # the table, 5 seeds, a minute

Each input belongs to one of eight groups, and each group has its own linear map. The eight experts
are these maps, and they are not trained. A linear router sees the group and sends each input to two
experts. The right gates are 1 and 0. The error is the squared error divided by the variance.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from torch import Tensor, nn

from kofn import topk_gates

EXPERTS, K, WIDTH = 8, 2, 16
STEPS, BATCH, RATE = 500, 256, 3e-2

Gates = Callable[[Tensor], tuple[Tensor, Tensor]]


def soft(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The soft weights of the two chosen experts, from topk_gates."""
    return topk_gates(scores, K)


def shared(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The same, divided by their sum."""
    gates, chosen = topk_gates(scores, K)
    return gates / gates.sum(-1, keepdim=True), chosen


def stock(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The two largest entries of softmax(scores), divided by their sum, as in most routers."""
    gates, chosen = scores.softmax(-1).topk(K)
    return gates / gates.sum(-1, keepdim=True), chosen


def both(scores: Tensor) -> tuple[Tensor, Tensor]:
    """A softmax of the chosen scores, and the gradient of the soft top-k for the choice."""
    gates, chosen = topk_gates(scores, K)
    once = 1 + gates - gates.detach()  # 1, with a gradient to every score
    return scores.gather(-1, chosen).softmax(-1) * once, chosen


WAYS: dict[str, Gates] = {
    "soft top-k gates": soft,
    "divided by their sum": shared,
    "softmax, then top-k": stock,
    "softmax × soft choice": both,
}


def run(way: Gates, seed: int) -> float:
    torch.manual_seed(seed)
    maps = torch.randn(EXPERTS, WIDTH, WIDTH) / WIDTH**0.5
    router = nn.Linear(WIDTH + EXPERTS, EXPERTS)
    adam = torch.optim.Adam(router.parameters(), lr=RATE)

    def batch() -> tuple[Tensor, Tensor]:
        """The squared error and the variance of what is right, whose mean is 0."""
        x, group = torch.randn(BATCH, WIDTH), torch.randint(EXPERTS, (BATCH,))
        each = torch.einsum("eoi,bi->beo", maps, x)
        known = nn.functional.one_hot(group, EXPERTS)
        gates, chosen = way(router(torch.cat([x, known], -1)))
        answers = each.gather(1, chosen[..., None].expand(-1, -1, WIDTH))
        right = each[torch.arange(BATCH), group]
        error = ((gates[..., None] * answers).sum(1) - right).square().mean()
        return error, right.square().mean()

    for _ in range(STEPS):
        adam.zero_grad()
        batch()[0].backward()
        adam.step()
    with torch.no_grad():
        error, variance = torch.tensor([batch() for _ in range(20)]).sum(0).tolist()
        return error / variance


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    for name, way in WAYS.items():
        errors = [run(way, seed) for seed in seeds]
        print(f"{name:24s}{statistics.mean(errors):.4f}", *(f"{error:.4f}" for error in errors))


if __name__ == "__main__":
    main()

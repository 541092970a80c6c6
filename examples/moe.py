"""A mixture of experts with kofn's router, on a task whose right expert is known.

    python examples/moe.py              # the table, 3 seeds, half a minute

Each input belongs to one of eight groups, which a linear router can tell apart, and each group has
a linear map of its own for an expert to learn. The table has the squared error divided by the
variance, and the share of inputs at their group's expert (groups and experts matched at best).
"""

from __future__ import annotations

import argparse
import statistics

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import grouped_mm, normalize

from kofn import nn

GROUPS, WIDTH, STEPS, BATCH, RATE = 8, 16, 400, 256, 1e-2


class UsualRouter(torch.nn.Linear):
    """The largest of a softmax, as in Switch Transformers."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = super().forward(x)
        return logits, *logits.softmax(-1).topk(1)


ROUTERS = {
    "usual router": lambda: UsualRouter(WIDTH, GROUPS, bias=False),
    "TopKRouter": lambda: nn.TopKRouter(WIDTH, GROUPS, 1, normalize=False),
    "TopKRouter, balanced": lambda: nn.TopKRouter(WIDTH, GROUPS, 1, normalize=False, balance=1e-2),
}


def train(name: str, seed: int) -> tuple[float, Tensor]:
    """Return the last errors' mean, and the share of each group at each group's expert."""
    torch.manual_seed(seed)
    experts, maps = torch.randn(2, GROUPS, WIDTH, WIDTH) / WIDTH**0.5
    centres = 2 * normalize(torch.randn(GROUPS, WIDTH), dim=-1)
    router = ROUTERS[name]()
    optimizer = torch.optim.Adam([experts.requires_grad_(), *router.parameters()], lr=RATE)
    if isinstance(router, nn.TopKRouter):
        optimizer.register_step_post_hook(lambda *_: nn.step_routers(router))
    errors, uses = [], torch.zeros(GROUPS, GROUPS)
    for _ in range(STEPS):
        group = torch.randint(GROUPS, (BATCH,))
        _, weights, indices = router(x := centres[group] + torch.randn(BATCH, WIDTH) / 2)
        plan = nn.dispatch_plan(indices, GROUPS)
        outputs = grouped_mm(plan.gather(x), experts, offs=plan.offsets)
        wanted = torch.einsum("bh,bhi->bi", x, maps[group])
        error = (plan.combine(outputs, weights) - wanted).square().mean() / wanted.var()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        errors.append(error.item())
        uses = 0.9 * uses.index_put((group, indices[:, 0]), torch.ones(()), accumulate=True)
    uses /= uses.sum()
    return statistics.mean(errors[-50:]), uses[:, linear_sum_assignment(-uses.numpy())[1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    print(f"{'':24s}error  right expert")
    for name in ROUTERS:
        errors, shares = zip(*(train(name, seed) for seed in seeds), strict=True)
        mean, right = statistics.mean(errors), torch.stack(shares).mean(0).trace()
        print(f"{name:24s}{mean:.3f}  {right:12.2f}", end="  ")
        print(*(f"{error:.3f}" for error in errors))


if __name__ == "__main__":
    main()

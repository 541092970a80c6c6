"""Count the all-reduces of kofn.distributed for rows in shards; scale.md has them.

`python docs/table_of_messages.py` prints the tables; with `--write` the page takes them. One
process sends itself what several would send each other: the steps of a search depend on sums alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from written import Part, show

from kofn import distributed
from kofn.links import TABLE

COMMAND = "python docs/table_of_messages.py --write"
LINKS = Part("docs/scale.md", "messages of links", COMMAND)
OTHERS = Part("docs/scale.md", "messages of functions", COMMAND)
TEMPERATURES = 3.0, 1.0, 0.3, 0.01
SCORES = 2 * torch.randn(4, 1_000, generator=torch.Generator().manual_seed(0))
K = torch.tensor([1.0, 3.5, 100.0, 900.0])
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "softmax": distributed.softmax,
    "sparsemax": distributed.sparsemax,
    "soft_topk_threshold": lambda x: distributed.soft_topk_threshold(x, K),
    "soft_topk_sum": lambda x: distributed.soft_topk_sum(x, K),
    "soft_knapsack": lambda x: distributed.soft_knapsack(x, SCORES.abs(), 50.0),
    "soft_knapsack, hard": lambda x: distributed.soft_knapsack(x, SCORES.abs(), 50.0, hard=True),
    "hard_topk": lambda x: distributed.hard_topk(x, K.ceil()),
}


@contextlib.contextmanager
def one_process() -> Iterator[None]:
    """Be the only process of a group."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def counts(function: Callable[[Any], Any]) -> str:
    """Return the all-reduces of an answer, and of the gradient in the scores if it has one."""
    x = SCORES.clone().requires_grad_()
    before, count = dist.all_reduce, []

    def all_reduce(*arguments: Any, **options: Any) -> Any:
        count.append(None)
        return before(*arguments, **options)

    dist.all_reduce = all_reduce
    try:
        answer = function(x)
        forward = len(count)
        if not answer.requires_grad:
            return f"{forward}"
        answer.backward(torch.cos(torch.arange(float(answer.numel()))).reshape(answer.shape))
        return f"{forward} + {len(count) - forward}"
    finally:
        dist.all_reduce = before


def of_links() -> str:
    head = " | ".join(f"T = {each:g}" for each in TEMPERATURES)
    lines = [f"| link | {head} |", f"| --- |{' ---: |' * len(TEMPERATURES)}"]
    for link in TABLE:
        found = [
            counts(lambda x, t=t, link=link: distributed.soft_topk(x, K, link=link, temperature=t))
            for t in TEMPERATURES
        ]
        lines.append(f"| {link} | {' | '.join(found)} |")
    return "\n".join(lines)


def of_functions() -> str:
    lines = ["| function at T = 1 | all-reduces |", "| --- | ---: |"]
    lines += [f"| `{name}` | {counts(function)} |" for name, function in FUNCTIONS.items()]
    return "\n".join(lines)


def main() -> None:
    with one_process():
        show({LINKS: of_links(), OTHERS: of_functions()})


if __name__ == "__main__":
    main()

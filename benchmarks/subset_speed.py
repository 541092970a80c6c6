"""Time KSubset, soft_topk and softmax of the same tensor, in milliseconds: a table.

    python benchmarks/subset_speed.py

The best of many calls; float32 on this machine's CPU, with torch's own number of threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from kofn import KSubset, soft_topk

CASES = [((4096, 64), 8), ((128, 1024), 100), ((64, 32_768), 64), ((1, 1_000_000), 300_000)]
SECONDS = 1.0  # for each figure


def best(function: Callable[[], object]) -> float:
    """Milliseconds of the fastest call."""
    function()
    found, start = [], time.perf_counter()
    while not found or (time.perf_counter() - start < SECONDS and len(found) < 200):
        begin = time.perf_counter()
        function()
        found.append(time.perf_counter() - begin)
    return 1e3 * min(found)


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    print(f"{torch.get_num_threads()} threads, milliseconds; in brackets, divided by softmax\n")
    print("| Shape, k | softmax | soft_topk | marginals | with backward | log_prob | sample |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for shape, k in CASES:
        x, v = torch.randn(2, *shape, generator=generator)
        leaf = x.clone().requires_grad_()
        choice, subset = KSubset(x, k), KSubset(x, k).mode()
        softmax = best(lambda x=x: torch.softmax(x, -1))
        both = best(lambda leaf=leaf, v=v: torch.autograd.grad(torch.softmax(leaf, -1), leaf, v))

        def backward(leaf: torch.Tensor = leaf, k: int = k, v: torch.Tensor = v) -> object:
            return torch.autograd.grad(KSubset(leaf, k).marginals(), leaf, v)

        times = [
            (best(lambda x=x, k=k: soft_topk(x, k)), softmax),
            (best(choice.marginals), softmax),
            (best(backward), both),
            (best(lambda c=choice, s=subset: c.log_prob(s)), softmax),
            (best(lambda c=choice: c.sample((), generator)), softmax),
        ]
        cells = " | ".join(f"{t:.2f} ({t / to:.0f}×)" for t, to in times)
        print(f"| {shape[0]:,} × {shape[1]:,}, {k:,} | {softmax:.3f} | {cells} |", flush=True)


if __name__ == "__main__":
    main()

"""Speed of topk, topk_gates and quantile on a CPU, side by side with PyTorch and NumPy.

    taskset -c 0 python benchmarks/order_speed.py

Each line has the lower quartiles of the times of two functions that run in turns, in one process
and by one thread: what others do in between would leave neither its memory in the cache. What they
answer is compared first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("KOFN_NUM_THREADS", "1")

import numpy as np
import torch

import kofn

ROUNDS = 41
TOPK = (
    ((1024, 1024), 32),
    ((4096, 256), 8),
    ((4096, 64), 8),
    ((16, 131_072), 2048),
    ((1, 50_257), 50),
    ((32, 50_257), 50),
)
QUANTILES = ((1024, 1024), (64, 16_384))


def times(functions: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the milliseconds of each function, called in turns."""
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(ROUNDS):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            taken[name].append(time.perf_counter() - start)
    return {name: 1e3 * sorted(each)[ROUNDS // 4] for name, each in taken.items()}


def told(title: str, base: tuple[str, Any], *others: tuple[str, Any]) -> None:
    """Print each of the others beside the first."""
    for name, function in others:
        found = times({base[0]: base[1], name: function})
        before, after = found[base[0]], found[name]
        print(f"{title:22s} {base[0]:16s} {before:7.3f}   {name:16s} {after:7.3f} ", end="")
        print(f"{after / before:5.2f} of it, {before / after:4.1f} times as fast")


def with_backward(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Any:
    """Return a function that goes there and back, each time by the same cotangent."""
    leaf = x.clone().requires_grad_()
    cotangent = torch.randn(function(x).shape, generator=torch.Generator().manual_seed(1))

    def run() -> None:
        leaf.grad = None
        function(leaf).backward(cotangent)

    return run


def choices() -> None:
    print("Milliseconds")
    for shape, k in TOPK:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        assert torch.equal(kofn.topk(x, k).values, x.topk(k).values)
        gates, indices = kofn.topk_gates(x, k)
        assert torch.equal(gates, kofn.soft_topk(x, k).gather(-1, indices))
        title = f"{shape[0]}×{shape[1]}, k = {k}"
        soft, gates_of = partial(kofn.soft_topk, k=k), partial(kofn.topk_gates, k=k)
        both, gates_both = with_backward(soft, x), with_backward(lambda x, f=gates_of: f(x)[0], x)
        told(title, ("torch.topk", partial(x.topk, k)), ("topk", partial(kofn.topk, x, k)))
        told(title, ("soft_topk", partial(soft, x)), ("topk_gates", partial(gates_of, x)))
        told(title, ("soft_topk, both", both), ("topk_gates, both", gates_both))


def quantiles() -> None:
    for shape in QUANTILES:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        array, title = x.numpy(), f"{shape[0]}×{shape[1]}, q = 0.5"
        assert np.allclose(kofn.quantile(array, 0.3, dim=-1), np.quantile(array, 0.3, -1))
        own = ("quantile", partial(kofn.quantile, x, 0.5, dim=-1))
        base = ("numpy.partition", partial(np.partition, array, shape[-1] // 2, -1))
        told(title, base, own, ("quantile, NumPy", partial(kofn.quantile, array, 0.5, dim=-1)))
        told(title, ("torch.quantile", partial(x.quantile, 0.5, dim=-1)), own)


def main() -> None:
    torch.set_num_threads(1)
    choices()
    quantiles()


if __name__ == "__main__":
    main()

"""Speed of topk, topk_gates and quantile on a CPU, side by side with PyTorch and NumPy.

    taskset -c 0 python benchmarks/order_speed.py

Each line has the lower quartile of the times of functions that run in turns, in one process and by
one thread. What they answer is compared first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
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


def told(title: str, found: dict[str, float], base: str) -> None:
    parts = [f"{name} {each:.3f} ({found[base] / each:.1f}×)" for name, each in found.items()]
    print(f"{title:24s}", ", ".join(parts))


def with_backward(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Any:
    leaf = x.clone().requires_grad_()

    def run() -> None:
        leaf.grad = None
        function(leaf).sum().backward()

    return run


def choices() -> None:
    print("Milliseconds, and how many times as fast as torch.topk")
    for shape, k in TOPK:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        assert torch.equal(kofn.topk(x, k).values, x.topk(k).values)
        functions = {
            "torch.topk": lambda x=x, k=k: x.topk(k),
            "topk": lambda x=x, k=k: kofn.topk(x, k),
            "topk_gates": lambda x=x, k=k: kofn.topk_gates(x, k),
            "soft_topk": lambda x=x, k=k: kofn.soft_topk(x, k),
            "topk_gates, both": with_backward(lambda x, k=k: kofn.topk_gates(x, k)[0], x),
            "soft_topk, both": with_backward(lambda x, k=k: kofn.soft_topk(x, k) ** 2, x),
        }
        told(f"{shape[0]}×{shape[1]}, k = {k}", times(functions), "torch.topk")


def quantiles() -> None:
    print("\nMilliseconds, and how many times as fast as numpy.partition")
    for shape in QUANTILES:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        array = x.numpy()
        assert np.allclose(kofn.quantile(array, 0.3, dim=-1), np.quantile(array, 0.3, -1))
        functions = {
            "numpy.partition": lambda x=array: np.partition(x, x.shape[-1] // 2, -1),
            "quantile": lambda x=x: kofn.quantile(x, 0.5, dim=-1),
            "quantile, NumPy": lambda x=array: kofn.quantile(x, 0.5, dim=-1),
            "torch.quantile": lambda x=x: x.quantile(0.5, dim=-1),
        }
        told(f"{shape[0]}×{shape[1]}, q = 0.5", times(functions), "numpy.partition")


def main() -> None:
    torch.set_num_threads(1)
    choices()
    quantiles()


if __name__ == "__main__":
    main()

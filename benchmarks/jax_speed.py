"""Speed of compiled JAX functions on a CPU, as multiples of jax.nn.softmax on the same scores.

    taskset -c 0 python benchmarks/jax_speed.py

The functions run alternately, on one processor. Times are CPU seconds of the process, which other
work on the machine changes little; the table has their lower quintiles. Of two calls in a row the
second is timed. KOFN_KERNELS=reference in
the environment measures the array code.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import kofn
from kofn import losses

SHAPES = ((1024, 1024), (128, 8192), (4096, 64))
SECONDS = 3.0


def maps(k: int, labels: Any, marks: Any) -> dict[str, Callable[[Any], Any]]:
    """Return the functions by name; entmax at its usual k."""
    links = ("logistic", "laplace", "normal", "exponential")
    costs = np.linspace(0.1, 3.1, marks.shape[-1], dtype="f")
    return {
        "jax.nn.softmax": jax.nn.softmax,
        **{name: lambda x, name=name: kofn.soft_topk(x, k, link=name) for name in links},
        "soft_knapsack": lambda x: kofn.soft_knapsack(x, costs, 0.1 * costs.sum()),
        "sparsemax": kofn.sparsemax,
        "entmax": kofn.entmax,
        "KSubset.marginals": lambda x: kofn.KSubset(x, k).marginals(),
        "log_soft_topk": lambda x: kofn.log_soft_topk(x, k),
        "log_entmax": kofn.log_entmax,
        "softmax_loss": lambda x: losses.softmax_loss(x, labels),
        "sparsemax_loss": lambda x: losses.sparsemax_loss(x, labels),
        "entmax_loss": lambda x: losses.entmax_loss(x, labels),
        "topk_loss": lambda x: losses.topk_loss(x, marks),
        "topk_cross_entropy": lambda x: losses.topk_cross_entropy(x, labels, min(5, k)),
    }


def forward(function: Callable[[Any], Any]) -> Any:
    return jax.jit(lambda x, c: function(x))


def both(function: Callable[[Any], Any]) -> Any:
    def run(x: Any, c: Any) -> Any:
        answer, pull = jax.vjp(function, x)
        return answer, pull(c if answer.ndim else jax.numpy.ones_like(answer))

    return jax.jit(run)


def times(functions: dict[str, Any], x: Any, c: Any) -> dict[str, float]:
    """Return the lower quintile of the CPU seconds of each function."""
    for function in functions.values():
        jax.block_until_ready(function(x, c))
    found: dict[str, list[float]] = {name: [] for name in functions}
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for name, function in functions.items():
            jax.block_until_ready(function(x, c))  # memory is then as this function leaves it
            began = time.process_time()
            jax.block_until_ready(function(x, c))
            found[name].append(time.process_time() - began)
    return {name: float(np.quantile(each, 0.2)) for name, each in found.items()}


def main() -> None:
    print(f"load {os.getloadavg()[0]:.1f}, KOFN_KERNELS={os.environ.get('KOFN_KERNELS', 'on')}")
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        x, c = (rng.standard_normal(shape, dtype=np.float32) for _ in range(2))
        k = min(32, shape[1] // 8)
        labels = jax.numpy.asarray(rng.integers(0, shape[1], shape[0]))
        functions = maps(k, labels, kofn.hard_topk(jax.numpy.asarray(c), k))
        tables = [
            times({name: make(f) for name, f in functions.items()}, x, c)
            for make in (forward, both)
        ]
        base = [table["jax.nn.softmax"] for table in tables]
        print(f"\n{shape}: softmax {base[0] * 1e3:.2f} ms, with backward {base[1] * 1e3:.2f} ms")
        for name in functions:
            ratios = (table[name] / one for table, one in zip(tables, base, strict=True))
            print(f"{name:>18}" + "".join(f"{ratio:8.2f}" for ratio in ratios), flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""How many softmaxes does a map cost? Forward and forward + backward, against torch.softmax.

Every timing of a map follows one of softmax on the same tensor, and the ratio of the two is what
counts: it cancels most of what else the machine is doing. Before anything is timed, each map is
checked against itself in float64. One thread by default: the cost of the code, not of waiting for
the other cores. Usage: python benchmarks/maps.py [--rounds 15] [--threads 1]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

import kofn

SHAPES = [(1024, 64), (64, 1024), (4, 16384)]

Map = Callable[[Tensor], Tensor]


def baseline(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def candidates(n: int) -> dict[str, Map]:
    k = max(1, n // 16)
    maps: dict[str, Map] = {
        f"soft_topk {name}": lambda x, name=name: kofn.soft_topk(x, k, link=name)
        for name in kofn.links.TABLE
    }
    return maps | {
        "softmax": kofn.softmax,
        "sparsemax": kofn.sparsemax,
        "entmax 1.5": kofn.entmax,
        "torch.topk (hard)": lambda x: torch.topk(x, k).values,
        "torch.sort": lambda x: torch.sort(x, -1).values,
    }


def check(name: str, map_: Map, x: Tensor) -> None:
    """A fast wrong answer is not worth timing."""
    error = (map_(x).double() - map_(x.double())).abs().max().item()
    if not error <= 2e-6:
        sys.exit(f"{name} is off by {error:.2g} on {tuple(x.shape)}; nothing was timed")


def seconds(map_: Map, x: Tensor, *, backward: bool) -> float:
    x = x.detach().requires_grad_(backward)
    start = time.perf_counter()
    y = map_(x)
    if backward:
        y.backward(torch.ones_like(y))
    return time.perf_counter() - start


def ratios(map_: Map, x: Tensor, rounds: int, *, backward: bool) -> list[float]:
    seconds(map_, x, backward=backward)
    found = []
    for _ in range(rounds):
        softmax = seconds(baseline, x, backward=backward)
        found.append(seconds(map_, x, backward=backward) / softmax)
    return found


def summary(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.1f}× ({low:.1f}–{high:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    rounds = arguments.rounds
    torch.set_num_threads(arguments.threads)

    print(f"kofn {kofn.__version__}, torch {torch.__version__}, Python {platform.python_version()}")
    print(f"{platform.machine()}, {torch.get_num_threads()} thread(s), float32, k = n/16")
    print(f"time / time of torch.softmax: median of {rounds} (quartiles)")
    generator = torch.Generator().manual_seed(0)
    for shape in SHAPES:
        x = torch.randn(shape, generator=generator)
        title = f"{shape[0]} rows of {shape[1]}"
        print(f"\n{title:<24}{'forward':>24}{'forward + backward':>26}")
        for name, map_ in candidates(shape[-1]).items():
            check(name, map_, x)
            passes = [summary(ratios(map_, x, rounds, backward=b)) for b in (False, True)]
            print(f"{name:<24}{passes[0]:>24}{passes[1]:>26}", flush=True)


if __name__ == "__main__":
    main()

"""Time other maps and losses, relative to torch.softmax of the same tensor: a table.

    python benchmarks/family.py

The script first compares each function with its own result in float64. Then softmax and the
function run alternately, so that anything that slows the machine slows both. The table has the
median of the ratios of neighbouring runs: forward, and forward with backward. float32 on this
machine's CPU, with PyTorch's own number of threads.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import kofn
from kofn import losses

SHAPES = ((4096, 64), (128, 1024), (8, 32_768))
SECONDS = 0.5  # for each figure, three rounds at least
ERROR = 2e-5  # of a float32 answer, in units of its size

Function = Callable[[Tensor, Tensor], Any]
"""Of scores and the index of each row's label."""

GROUPS: dict[str, dict[str, Function]] = {
    "maps": {
        "`softmax`": lambda x, t: kofn.softmax(x),
        "`sparsemax`": lambda x, t: kofn.sparsemax(x),
        "`entmax`": lambda x, t: kofn.entmax(x),
        "`taylor_softmax`": lambda x, t: kofn.taylor_softmax(x),
        "`sparse_softmax`, k = 8": lambda x, t: kofn.sparse_softmax(x, k=8),
        "`sparse_softmax`, p = 0.9": lambda x, t: kofn.sparse_softmax(x, p=0.9),
        '`perturbed_argmax`, "normal"': lambda x, t: kofn.perturbed_argmax(x),
    },
    "logarithms": {
        "`torch.log_softmax`": lambda x, t: torch.log_softmax(x, -1),
        "`log_soft_topk`, k = 8": lambda x, t: kofn.log_soft_topk(x, 8),
        "`log_entmax`, alpha = 1": lambda x, t: kofn.log_entmax(x, 1.0),
    },
    "losses": {
        "`torch` cross-entropy": lambda x, t: torch.nn.functional.cross_entropy(x, t),
        "`softmax_loss`": lambda x, t: losses.softmax_loss(x, t),
        "`sparsemax_loss`": lambda x, t: losses.sparsemax_loss(x, t),
        "`entmax_loss`": lambda x, t: losses.entmax_loss(x, t),
        "`topk_loss`, 8 labels": lambda x, t: losses.topk_loss(x, _labels(x)),
        "`sparse_softmax_loss`, k = 8": lambda x, t: losses.sparse_softmax_loss(x, t, k=8),
        "`topk_cross_entropy`, k = 8": lambda x, t: losses.topk_cross_entropy(x, t, 8),
        "`accuracy_loss`": lambda x, t: losses.accuracy_loss(x, t),
        "`am_softmax`": lambda x, t: losses.am_softmax(x, t, temperature=1.0)[0],
    },
}  # fmt: skip


def _labels(x: Tensor) -> Tensor:
    labels = torch.zeros_like(x)
    labels[:, :8] = 1
    return labels


def passes(function: Function, x: Tensor, target: Tensor) -> list[Callable[[], object]]:
    """Forward, and forward with backward."""
    leaf = x.clone().requires_grad_()
    answer = function(leaf, target)
    v = torch.randn(answer.shape, generator=torch.Generator().manual_seed(1))
    return [
        lambda: function(x, target),
        lambda: torch.autograd.grad(function(leaf, target), leaf, v),
    ]


def check(name: str, function: Function, x: Tensor, target: Tensor) -> None:
    """Stop if a result or a gradient is wrong."""

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        leaf = x.clone().requires_grad_()
        answer = function(leaf, target)
        v = torch.randn(answer.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
        return answer.detach(), torch.autograd.grad(answer, leaf, v)[0]

    for got, exact in zip(both(x), both(x.double()), strict=True):
        known = torch.isfinite(exact)
        off = (got.double() - exact)[known].norm() / exact[known].norm()
        if not off <= ERROR or not torch.equal(known, torch.isfinite(got)):
            raise SystemExit(f"{name} at {tuple(x.shape)} is wrong by {off:.1e}")


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def ratio(function: Callable[[], object], beside: Callable[[], object]) -> float:
    """The median of the time of `function` divided by that of `beside` just before."""
    function(), beside()
    found: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(found) < 3 or time.perf_counter() < end:
        softmax = seconds(beside)
        found.append(seconds(function) / softmax)
    return statistics.median(found)


def times(ratio: float) -> str:
    return f"{ratio:.1f}×" if ratio < 9.95 else f"{ratio:.0f}×"


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, float32 on a CPU;")
    print("times `torch.softmax` of the same tensor: forward / forward + backward\n")
    rng = torch.Generator().manual_seed(0)
    cases = []
    for shape in SHAPES:
        x = torch.randn(shape, generator=rng)
        target = torch.randint(shape[-1], shape[:-1], generator=rng)
        cases.append((x, target, passes(lambda x, t: torch.softmax(x, -1), x, target)))
    print("| | " + " | ".join(f"{rows:,} × {n:,}" for rows, n in SHAPES) + " |")
    print("| --- |" + " --- |" * len(SHAPES))
    for group, functions in GROUPS.items():
        print(f"| *{group}* |" + " |" * len(SHAPES))
        for name, function in functions.items():
            cells = []
            for x, target, softmax in cases:
                check(name, function, x, target)
                both = zip(passes(function, x, target), softmax, strict=True)
                cells.append(" / ".join(times(ratio(*pair)) for pair in both))
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

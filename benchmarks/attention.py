"""Time sparse attention in units of softmax attention, and what its time is made of.

python benchmarks/attention.py [rounds]: forward and backward at (4, 8, 256×256, 64) on one CPU
thread, the median of that thread's time; the kinds take turns, so that load hits all alike.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import kofn
from kofn import nn

KINDS: dict[str, tuple[dict[str, Any], Callable[..., Any]]] = {
    "entmax": ({"weights": "entmax"}, kofn.entmax),
    "sparsemax": ({"weights": "sparsemax"}, kofn.sparsemax),
    "soft top-k": ({"weights": "soft_topk"}, lambda s: kofn.soft_topk(s, 8)),
    "hard": (
        {"weights": "soft_topk", "hard": True},
        lambda s: kofn.soft_topk(s, 8, hard=True),
    ),
}


def softmax_attention(query: Tensor, key: Tensor, value: Tensor) -> Any:
    return (query * query.shape[-1] ** -0.5 @ key.mT).softmax(-1) @ value


def calls(dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Return forward and backward of whole attention, of the weights alone, and of products."""
    draw = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(4, 8, *shape, generator=draw).to(dtype).requires_grad_()

    inputs, scores = tuple(drawn(256, 64) for _ in range(3)), drawn(256, 256)
    of_output, of_weights = drawn(256, 64).detach(), drawn(256, 256).detach()

    def whole(attention: Callable[..., Any]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(attention(*inputs), inputs, of_output)

    def weights(of: Callable[..., Any]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(of(scores), scores, of_weights)

    def products(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return query @ key.mT @ value

    found = {"softmax": whole(softmax_attention), "matrix products": whole(products)}
    found["weights of softmax"] = weights(lambda s: s.softmax(-1))
    for name, (options, of) in KINDS.items():
        found[name] = whole(lambda *each, how=options: nn.sparse_attention(*each, **how))
        found[f"weights of {name}"] = weights(of)
    return found


def main(rounds: int = 15) -> None:
    torch.set_num_threads(1)
    for dtype in (torch.float32, torch.bfloat16):
        each = calls(dtype)
        times: dict[str, list[float]] = {name: [] for name in each}
        for turn in range(rounds + 2):
            for name, call in each.items():
                began = time.thread_time()
                call()
                if turn > 1:
                    times[name].append(time.thread_time() - began)
        taken = {name: statistics.median(of) for name, of in times.items()}
        for name, seconds in taken.items():
            print(f"{dtype}  {name:22} {1e3 * seconds:5.1f} ms {seconds / taken['softmax']:5.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

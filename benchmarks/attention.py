"""Time sparse attention in units of softmax attention, and what its time is made of.

python benchmarks/attention.py [rounds]: forward and backward at (4, 8, 256×256, 64) on one CPU
thread, the median of that thread's time; the kinds take turns, so that load hits all alike.

python benchmarks/attention.py lengths: Taylor softmax against length, with and without its
weights, and softmax, for one head of 32 features; the least of a few rounds.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
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


WAYS: dict[str, Callable[..., Any]] = {
    "taylor": partial(nn.sparse_attention, weights="taylor"),
    "causal": partial(nn.sparse_attention, weights="taylor", is_causal=True),
    "all weights": lambda *each: nn.sparse_attention(*each, weights="taylor", need_weights=True)[0],
    "softmax": softmax_attention,
}


def lengths(rounds: int = 5) -> None:
    """Print the time of forward and backward at each length."""
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    for length in (1024, 2048, 4096, 8192, 16384):
        inputs = [torch.randn(1, length, 32, generator=draw).requires_grad_() for _ in range(3)]
        ways = list(WAYS)[: 4 if length <= 8192 else 2]
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(rounds):
            for name in ways:
                began = time.thread_time()
                torch.autograd.grad(WAYS[name](*inputs).sum(), inputs)
                best[name] = min(best[name], time.thread_time() - began)
        print(length, {name: f"{1e3 * seconds:.0f} ms" for name, seconds in best.items()})


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
    if sys.argv[1:] == ["lengths"]:
        lengths()
    else:
        main(*map(int, sys.argv[1:]))

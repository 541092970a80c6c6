"""Time a training step of TopKSAE by which latents get a gradient.

python benchmarks/autoencoder.py [rounds]: a step of Adam on one CPU thread, in units of the usual
gradient, that of the chosen latents alone: the median of that thread's time; the kinds take turns.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from kofn import nn

SHAPES = ((256, 2048), (512, 1024))  # inputs of a step, latents
D_IN, K = 64, 16


def training(inputs: int, latents: int, **options: Any) -> Callable[[], None]:
    """Return one step of the training of a new model."""
    torch.manual_seed(0)
    model, x = nn.TopKSAE(D_IN, latents, K, **options), torch.randn(inputs, D_IN)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        (model(x)[0] - x).square().mean().backward()
        optimizer.step()
        model.step()

    return step


def measure(inputs: int, latents: int, selection: str, rounds: int) -> None:
    kinds = ("chosen", "silent", "all")
    steps = {each: training(inputs, latents, selection=selection, gradient=each) for each in kinds}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(rounds + 5):
        for kind, step in steps.items():
            began = time.thread_time()
            step()
            if turn >= 5:
                times[kind].append(time.thread_time() - began)
    taken = {kind: statistics.median(of) for kind, of in times.items()}
    for kind, seconds in taken.items():
        ratio = seconds / taken["chosen"]
        print(f"{inputs} × {latents}  {selection}  {kind:6} {1e3 * seconds:5.1f} ms {ratio:5.2f}")


def main(rounds: int = 31) -> None:
    torch.set_num_threads(1)
    for inputs, latents in SHAPES:
        for selection in ("token", "batch"):
            measure(inputs, latents, selection, rounds)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""Roads around the maps for `kofn bench`: torch.compile, JAX and half precision.

Each yields (name, group, function, the same function for the check in float64).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

import kofn
from kofn import losses
from kofn.arrays.typing import LinkName

Map = Callable[[Any], Any]
Road = tuple[str, str, Map, Map]


def compiled(shape: tuple[int, int], k: int) -> Iterator[Road]:
    """Yield each function twice: eager, and compiled by torch.compile."""
    labels = _labels(shape)
    functions: dict[str, Map] = {
        "torch.softmax": partial(torch.softmax, dim=-1),
        "F.cross_entropy": lambda x: F.cross_entropy(x.to(_wide(x)), labels),
        **_maps(k),
        "hard=True": partial(kofn.soft_topk, k=k, hard=True),
        "topk_gates": lambda x: kofn.topk_gates(x, k)[0],
        "soft_topk_sum": partial(kofn.soft_topk_sum, k=k),
        **_losses(shape, k),
    }
    for name, function in functions.items():
        group = "baseline" if name.startswith(("torch", "F")) else "kofn"
        if name != "torch.softmax":  # stands first in every case
            yield name, group, function, function
        torch.compiler.reset()  # else functions of one line count as recompilations of it
        yield f"{name}, compiled", group, torch.compile(function, fullgraph=True), function


def half(shape: tuple[int, int], k: int) -> Iterator[Road]:
    for name, function in {**_maps(k), **_losses(shape, k)}.items():
        yield name, "kofn", function, function


def knapsack(shape: tuple[int, int], k: int) -> Iterator[Road]:
    """Yield soft_topk, and soft_knapsack with costs that buy about as many entries."""
    costs = 0.1 + 3 * torch.rand(shape[1], generator=torch.Generator().manual_seed(3))
    budget = costs.sum() * k / shape[1]

    def of(**options: Any) -> Map:
        return lambda x: kofn.soft_knapsack(x, costs.to(x.dtype), budget.to(x.dtype), **options)

    functions: dict[str, Map] = {"soft_topk": partial(kofn.soft_topk, k=k)}
    for link in (*_LINKS, "exponential", "linear", "entmax"):
        functions[f"soft_knapsack, {link}"] = of(link=link)
    functions["soft_knapsack, hard=True"] = of(hard=True)
    for name, function in functions.items():
        yield name, "kofn", function, function


def jax(k: int) -> Iterator[Road]:
    """Yield what `kofn bench` times on JAX arrays besides soft_topk with every link."""
    functions: dict[str, Map] = {
        "softmax": kofn.softmax,
        "sparsemax": kofn.sparsemax,
        "entmax": kofn.entmax,
        "log_soft_topk": partial(kofn.log_soft_topk, k=k),
        "KSubset.marginals": lambda x: kofn.KSubset(x, k).marginals(),
    }
    for name, function in functions.items():
        yield f"{name} (JAX)", "kofn", function, function


def _maps(k: int) -> dict[str, Map]:
    return {
        **{f"soft_topk, {link}": partial(kofn.soft_topk, k=k, link=link) for link in _LINKS},
        "softmax": kofn.softmax,
        "sparsemax": kofn.sparsemax,
        "entmax": kofn.entmax,
        "log_soft_topk": partial(kofn.log_soft_topk, k=k),
    }


_LINKS: tuple[LinkName, ...] = ("logistic", "laplace", "normal")


def _losses(shape: tuple[int, int], k: int) -> dict[str, Map]:
    generator = torch.Generator().manual_seed(2)
    hot = torch.zeros(shape, dtype=torch.bool)
    hot.scatter_(-1, torch.rand(shape, generator=generator).topk(k).indices, True)
    return {
        "softmax_loss": partial(losses.softmax_loss, target=_labels(shape)),
        "entmax_loss": partial(losses.entmax_loss, target=_labels(shape)),
        "topk_loss": partial(losses.topk_loss, target=hot),
    }


def _labels(shape: tuple[int, int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(shape[1], (shape[0],), generator=generator)


def _wide(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32

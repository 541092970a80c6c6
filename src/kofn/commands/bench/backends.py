"""Ways to call the maps for `kofn bench`: torch.compile, JAX, half precision and segments.

Each yields (name, group, function, the same function for the check in float64).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

import kofn
from kofn import losses
from kofn.arrays.typing import LinkName

Map = Callable[[Any], Any]
Variant = tuple[str, str, Map, Map]


def compiled(shape: tuple[int, int], k: int) -> Iterator[Variant]:
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


def half(shape: tuple[int, int], k: int) -> Iterator[Variant]:
    for name, function in {**_maps(k), **_losses(shape, k)}.items():
        yield name, "kofn", function, function


def knapsack(shape: tuple[int, int], k: int, every_link: bool = True) -> Iterator[Variant]:
    """Yield soft_topk, and soft_knapsack with costs that buy about as many entries."""
    costs = 0.1 + 3 * torch.rand(shape[1], generator=torch.Generator().manual_seed(3))
    given = costs, costs.sum() * k / shape[1]

    def of(function: Any, **options: Any) -> Map:
        def knapsack(x: Any) -> Any:
            is_torch = isinstance(x, torch.Tensor)
            return function(
                x, *(a.to(x.dtype) if is_torch else a.numpy() for a in given), **options
            )

        return knapsack

    functions: dict[str, Map] = {"soft_topk": partial(kofn.soft_topk, k=k)}
    for link in (*_LINKS, "exponential", "linear", "entmax") if every_link else _LINKS[:1]:
        functions[f"soft_knapsack, {link}"] = of(kofn.soft_knapsack, link=link)
    functions["soft_knapsack, hard=True"] = of(kofn.soft_knapsack, hard=True)
    functions["soft_knapsack_threshold"] = of(kofn.soft_knapsack_threshold)
    functions["soft_knapsack_value"] = of(kofn.soft_knapsack_value)
    for name, function in functions.items():
        yield name, "kofn", function, function


def jax(k: int) -> Iterator[Variant]:
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


def segments(shape: tuple[int, int], k: int) -> Iterator[Variant]:
    """Yield the dense map, and the same numbers of entries as segments of several kinds."""
    yield "soft_topk, dense", "kofn", *_twice(partial(kofn.soft_topk, k=k))
    for name, ptr, order in _ragged(shape):
        ids = torch.repeat_interleave(torch.arange(len(ptr) - 1), ptr.diff())[order]
        of: dict[str, Any] = dict(ptr=ptr) if name.endswith("ptr") else dict(segment_ids=ids)
        yield f"segment_soft_topk, {name}", "kofn", *_twice(_of_segments(of, k))
        yield f"segment_softmax, {name}", "kofn", *_twice(partial(_softmax_of_segments, of))
        scattered = partial(_scattered_softmax, ids, len(ptr) - 1)
        yield f"scattered softmax, {name}", "by hand", *_twice(scattered)


def _twice(function: Map) -> tuple[Map, Map]:
    return function, function


def _of_segments(of: dict[str, Any], k: int) -> Map:
    return lambda x: kofn.segment_soft_topk(x.reshape(-1), k, **of)


def _softmax_of_segments(of: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    return kofn.segment_softmax(x.reshape(-1), **of)


def _ragged(shape: tuple[int, int]) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield (name, where segments end, the order of the entries) of as many entries as `shape`."""
    rows, n = shape
    generator = torch.Generator().manual_seed(3)
    apart = torch.randint(n // 2 + 1, (rows // 2,), generator=generator)
    uneven = torch.cat((n - apart, n + apart))[torch.randperm(rows, generator=generator)]
    hub = torch.full((rows,), n - n // 4)
    hub[0] += rows * n - int(hub.sum())
    equal, in_order = torch.full((rows,), n), torch.arange(rows * n)
    shuffled = torch.randperm(rows * n, generator=generator)
    for name, lengths, order in (
        ("equal ptr", equal, in_order),
        ("uneven ptr", uneven, in_order),
        ("hub ptr", hub, in_order),
        ("sorted ids", uneven, in_order),
        ("unsorted ids", uneven, shuffled),
    ):
        yield name, torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))), order


def _scattered_softmax(ids: torch.Tensor, count: int, x: torch.Tensor) -> torch.Tensor:
    """Return softmax of segments by scatters, as graph libraries compute it."""
    x = x.reshape(-1)
    most = x.new_full((count,), -math.inf).scatter_reduce(0, ids, x.detach(), "amax")
    raised = (x - most[ids]).exp()
    return raised / x.new_zeros(count).index_add(0, ids, raised)[ids]


def _maps(k: int) -> dict[str, Map]:
    return {
        **{f"soft_topk, {link}": partial(kofn.soft_topk, k=k, link=link) for link in _LINKS},
        "softmax": kofn.softmax,
        "sparsemax": kofn.sparsemax,
        "entmax": kofn.entmax,
        "log_soft_topk": partial(kofn.log_soft_topk, k=k),
        "soft_topk_threshold": partial(kofn.soft_topk_threshold, k=k),
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

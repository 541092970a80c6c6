"""Special cases of `kofn bench`: losses, torch.compile, JAX, half precision, knapsack, segments,
the balance of routers, and what an entry costs at least.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

import kofn
from kofn import losses
from kofn.arrays.typing import LinkName
from kofn.commands.bench.cases import Case, Contender, Map, ours
from kofn.commands.bench.recipes import FOR_ONE, chosen, cross_entropy, labels, softmax

LINKS: tuple[LinkName, ...] = ("logistic", "laplace", "normal")


def of_losses(case: Case) -> Iterator[Contender]:
    """Yield the losses of a case; targets are drawn here, alike in every run."""
    target, k = labels(case), case.k
    by_torch = cross_entropy(target)
    yield Contender("F.cross_entropy", "baseline", by_torch, by_torch)
    of_labels = ("softmax_loss", "sparsemax_loss", "entmax_loss", "accuracy_loss")
    yield from ours(
        {
            **{name: partial(getattr(losses, name), target=target) for name in of_labels},
            "topk_loss": partial(losses.topk_loss, target=chosen(case)),
            "fenchel_young_loss": partial(kofn.fenchel_young_loss, target=chosen(case)),
            "topk_cross_entropy": partial(losses.topk_cross_entropy, target=target, k=5),
            "sparse_softmax_loss": partial(losses.sparse_softmax_loss, target=target, k=k),
            "am_softmax": lambda x: losses.am_softmax(x / 8, target)[0],
            "arcface": lambda x: losses.arcface(x / 8, target)[0],
            "log_soft_topk": partial(kofn.log_soft_topk, k=k),
            "log_softmax": partial(kofn.log_soft_topk, k=1, link="exponential"),
            "sparse_softmax": partial(kofn.sparse_softmax, k=k),
            "taylor_softmax": kofn.taylor_softmax,
        }
    )


def compiled(case: Case) -> Iterator[Contender]:
    """Yield each function twice: eager, and compiled by torch.compile."""
    functions: dict[str, Map] = {
        "torch.softmax": softmax,
        "F.cross_entropy": cross_entropy(labels(case)),
        **_maps(case.k),
        "hard=True": partial(kofn.soft_topk, k=case.k, hard=True),
        "topk_gates": lambda x: kofn.topk_gates(x, case.k)[0],
        "soft_topk_sum": partial(kofn.soft_topk_sum, k=case.k),
        **_losses(case),
    }
    for name, function in functions.items():
        group = "baseline" if name.startswith(("torch", "F")) else "kofn"
        if name != "torch.softmax":  # stands first in every case
            yield Contender(name, group, function, function)
        torch.compiler.reset()  # else functions of one line count as recompilations of it
        made = torch.compile(function, fullgraph=True)
        yield Contender(f"{name}, compiled", group, made, function)


def half(case: Case) -> Iterator[Contender]:
    """Yield what half precision is timed with."""
    return ours({**_maps(case.k), **_losses(case)})


def knapsack(case: Case) -> Iterator[Contender]:
    """Yield soft_topk, and soft_knapsack with costs that buy about as many entries."""
    every: tuple[LinkName, ...] = (*LINKS, "exponential", "linear", "entmax")
    yield from ours(_knapsacks(case, every))
    if importlib.util.find_spec("jax"):
        yield jax_softmax()
        yield from ours(_knapsacks(case, LINKS[:1]), "jax")


def _knapsacks(case: Case, links: tuple[LinkName, ...]) -> dict[str, Map]:
    n = case.shape[1]
    costs = 0.1 + 3 * torch.rand(n, generator=torch.Generator().manual_seed(3))
    given = costs.to(case.device), (costs.sum() * case.k / n).to(case.device)

    def of(function: Any, **options: Any) -> Map:
        def knapsack(x: Any) -> Any:
            is_torch = isinstance(x, torch.Tensor)
            return function(
                x, *(a.to(x.dtype) if is_torch else a.cpu().numpy() for a in given), **options
            )

        return knapsack

    return {
        "soft_topk": partial(kofn.soft_topk, k=case.k),
        **{f"soft_knapsack, {link}": of(kofn.soft_knapsack, link=link) for link in links},
        "soft_knapsack, hard=True": of(kofn.soft_knapsack, hard=True),
        "soft_knapsack_threshold": of(kofn.soft_knapsack_threshold),
        "soft_knapsack_value": of(kofn.soft_knapsack_value),
    }


def jax(case: Case) -> Iterator[Contender]:
    """Yield the contenders on JAX arrays."""
    if importlib.util.find_spec("jax"):
        yield jax_softmax()
        yield from ours(of_every_link(case.k), "jax")
        more: dict[str, Map] = {
            **FOR_ONE,
            "log_soft_topk": partial(kofn.log_soft_topk, k=case.k),
            "KSubset.marginals": lambda x: kofn.KSubset(x, case.k).marginals(),
        }
        yield from ours(more, "jax")


def jax_softmax() -> Contender:
    """Return what times on JAX arrays are compared with."""
    import jax

    return Contender("jax.nn.softmax", "baseline", jax.vmap(jax.nn.softmax), softmax, "jax")


def segments(case: Case) -> Iterator[Contender]:
    """Yield the dense map, and the same numbers of entries as segments of several kinds."""
    yield from ours({"soft_topk, dense": partial(kofn.soft_topk, k=case.k)})
    for name, ptr, order in _ragged(case.shape):
        ids = torch.repeat_interleave(torch.arange(len(ptr) - 1), ptr.diff())[order]
        ptr, ids = ptr.to(case.device), ids.to(case.device)
        of: dict[str, Any] = dict(ptr=ptr) if name.endswith("ptr") else dict(segment_ids=ids)
        maps: dict[str, Map] = {
            f"segment_soft_topk, {name}": _flat(partial(kofn.segment_soft_topk, k=case.k, **of)),
            f"segment_softmax, {name}": _flat(partial(kofn.segment_softmax, **of)),
        }
        yield from ours(maps)
        by_hand = _flat(partial(_scattered_softmax, ids, len(ptr) - 1))
        yield Contender(f"scattered softmax, {name}", "by hand", by_hand, by_hand)


def balance(case: Case) -> Iterator[Contender]:
    """Yield a router's choice by given logits, after the step of each rule that balances it."""
    from kofn.nn import TopKRouter

    rules: dict[str, dict[str, Any]] = {
        "no balance": {},
        "balance=1e-3": dict(balance=1e-3),
        'balance="quantile"': dict(balance="quantile"),
        "the same, bins=1000": dict(balance="quantile", bins=1000),
    }
    for name, options in rules.items():
        router = TopKRouter(1, case.shape[1], case.k, device=case.device, **options)
        yield Contender(name, "kofn", partial(_step, router), None)


def _step(router: Any, logits: torch.Tensor) -> torch.Tensor:
    router.step()
    return router.choose(logits, None, len(logits))[0]


def floor(case: Case) -> Iterator[Contender]:
    """Yield what reads every entry once, what sorts rows, and each map of kofn."""
    k, into = case.k, torch.empty(case.shape, device=case.device)

    def alone(name: str, function: Map, group: str = "floor") -> Contender:
        return Contender(name, group, function, None, forward_alone=True)

    yield alone("copy", into.copy_)
    yield alone("max", lambda x: x.amax(-1))
    yield alone("exp", torch.exp)
    if case.device == "cpu":
        yield alone("np.partition", lambda x: np.partition(x.numpy(), -k, -1))
        yield alone("np.sort", lambda x: np.sort(x.numpy(), -1))
    yield alone("torch.topk", lambda x: torch.topk(x, k).values, "hard")
    yield from ours(of_every_link(k))
    yield from ours(FOR_ONE)
    yield from ours({"topk_gates": lambda x: kofn.topk_gates(x, k)[0]})
    yield alone("hard_topk", partial(kofn.hard_topk, k=k), "kofn")
    yield alone("topk", lambda x: kofn.topk(x, k).values, "kofn")


def _flat(function: Map) -> Map:
    return lambda x: function(x.reshape(-1))


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
    most = x.new_full((count,), -math.inf).scatter_reduce(0, ids, x.detach(), "amax")
    raised = (x - most[ids]).exp()
    return raised / x.new_zeros(count).index_add(0, ids, raised)[ids]


def of_every_link(k: int) -> dict[str, Map]:
    """Return soft_topk with each link."""
    links = kofn.links.TABLE.items()
    return {f"soft_topk, {name}": partial(kofn.soft_topk, k=k, link=link) for name, link in links}


def _maps(k: int) -> dict[str, Map]:
    return {
        **{f"soft_topk, {link}": partial(kofn.soft_topk, k=k, link=link) for link in LINKS},
        **FOR_ONE,
        "log_soft_topk": partial(kofn.log_soft_topk, k=k),
        "soft_topk_threshold": partial(kofn.soft_topk_threshold, k=k),
    }


def _losses(case: Case) -> dict[str, Map]:
    return {
        "softmax_loss": partial(losses.softmax_loss, target=labels(case)),
        "entmax_loss": partial(losses.entmax_loss, target=labels(case)),
        "topk_loss": partial(losses.topk_loss, target=chosen(case)),
    }

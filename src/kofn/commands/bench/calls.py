"""Small calls: what a model waits for besides the entries, beside PyTorch's own functions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

import kofn
from kofn import losses
from kofn.commands.bench.cases import Case, Contender, Map, ours
from kofn.commands.bench.recipes import (
    FOR_ONE,
    compiled,
    cross_entropy,
    labels,
    softmax,
    straight_through,
)


def calls(case: Case) -> Iterator[Contender]:
    """Yield functions of few scores, each of kofn after what it stands beside; modules take the
    scores for tokens.
    """
    k, target = case.k, labels(case)
    by_torch = cross_entropy(target)
    quantile = partial(torch.quantile, q=0.5, dim=-1)

    def other(name: str, function: Map, exact: Map | None = None) -> Contender:
        return Contender(name, "baseline", function, exact)

    yield from ours(FOR_ONE)
    yield other("torch.topk, straight-through", straight_through(k))
    yield from ours(_choices(case))
    yield other("torch.topk", lambda x: torch.topk(x, k).values)
    yield from ours({"topk": lambda x: kofn.topk(x, k).values})
    yield other("torch.quantile", quantile, quantile)
    yield from ours({"quantile": partial(kofn.quantile, q=0.5, dim=-1)})
    yield other("F.gumbel_softmax", F.gumbel_softmax)
    yield Contender("gumbel_softmax", "kofn", kofn.gumbel_softmax, None)
    yield other("F.cross_entropy", by_torch, by_torch)
    for_labels = "softmax_loss", "sparsemax_loss", "entmax_loss"
    yield from ours({name: partial(getattr(losses, name), target=target) for name in for_labels})
    yield other("linear, topk, softmax", _bare(case))
    for name, options in {"": {}, ', balance="quantile"': dict(balance="quantile")}.items():
        yield Contender(f"TopKRouter{name}", "kofn", _routed(case, options), None)
    yield other("torch.softmax, compiled", compiled(softmax), softmax)
    soft = partial(kofn.soft_topk, k=k)
    yield Contender("soft_topk, compiled", "kofn", compiled(soft), soft)


def _choices(case: Case) -> dict[str, Map]:
    k, drawn = case.k, torch.rand(case.shape, generator=torch.Generator().manual_seed(3))
    mask = (drawn > 0.2).to(case.device)
    return {
        "soft_topk": partial(kofn.soft_topk, k=k),
        "soft_topk, with a mask": partial(kofn.soft_topk, k=k, mask=mask),
        "soft_topk, hard": partial(kofn.soft_topk, k=k, hard=True),
        "topk_gates": lambda x: kofn.topk_gates(x, k)[0],
        "log_soft_topk": partial(kofn.log_soft_topk, k=k),
        "soft_topk_threshold": partial(kofn.soft_topk_threshold, k=k),
    }


def _bare(case: Case) -> Map:
    """Return a router as usually written."""
    layer = torch.nn.Linear(case.shape[1], case.shape[1], bias=False, device=case.device)

    def route(x: torch.Tensor) -> torch.Tensor:
        values, _ = torch.topk(layer(x), case.k)
        return values.softmax(-1)

    return route


def _routed(case: Case, options: dict[str, Any]) -> Map:
    """Return a router of as many experts as scores, with its step."""
    n = case.shape[1]
    router = kofn.nn.TopKRouter(n, n, case.k, device=case.device, **options)

    def route(x: torch.Tensor) -> torch.Tensor:
        router.step()
        return router(x)[1]

    return route

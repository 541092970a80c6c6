"""The functions that `kofn bench` times: kofn's maps, hand-written versions and other libraries.

Each names the map that it should compute, so that wrong results are not timed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

import kofn
from kofn.commands.bench import calls, special
from kofn.commands.bench.cases import Case, Contender, Map, ours
from kofn.commands.bench.recipes import (
    FOR_ONE,
    Bisected,
    by_newton,
    compiled,
    softmax,
    sorted_sparsemax,
    straight_through,
)

PEERS = {"entmax": "entmax", "jaxopt": "jaxopt", "ott-jax": "ott", "optax": "optax"}
ON_GPU = {"liger-kernel": "liger_kernel"}
"""Other libraries: the name to install, the name to import."""


def installed(device: str = "cpu") -> dict[str, str | None]:
    """Return the version of each other library, None if it is not installed."""
    peers = PEERS if device == "cpu" else PEERS | ON_GPU
    specs = {name: importlib.util.find_spec(module) for name, module in peers.items()}
    return {name: importlib.metadata.version(name) if specs[name] else None for name in peers}


def contenders(case: Case) -> Iterator[Contender]:
    """Yield all functions that this environment can run, PyTorch's softmax first."""
    k = case.k
    yield Contender("torch.softmax", "baseline", softmax, softmax)
    if case.name in OTHERS:
        yield from OTHERS[case.name](case)
        return
    yield from ours(special.of_every_link(k))
    yield from ours(FOR_ONE)
    yield from ours({"soft_topk, hard": partial(kofn.soft_topk, k=k, hard=True)})
    yield Contender("torch.topk, straight-through", "recipe", straight_through(k), None)
    yield Contender("torch.topk", "hard", lambda x: torch.topk(x, k).values, None)
    yield Contender("torch.sort", "hard", lambda x: torch.sort(x).values, None)
    sigmoid = partial(kofn.soft_topk, k=k)
    yield Contender("sigmoid, bisected", "recipe", lambda x: Bisected.apply(x, k), sigmoid)
    yield Contender("sigmoid, Newton, compiled", "recipe", compiled(by_newton(k)), sigmoid)
    yield Contender("sparsemax, sorted", "recipe", sorted_sparsemax, kofn.sparsemax)
    versions = installed(case.device)
    if versions["entmax"]:
        yield from _entmax()
    if case.device != "cpu":
        yield Contender("torch.softmax, compiled", "baseline", torch.compile(softmax), softmax)
        if versions["liger-kernel"]:
            yield from _liger()
    elif importlib.util.find_spec("jax"):
        yield from _jax(k, versions)


OTHERS = {
    "losses": special.of_losses,
    "compile": special.compiled,
    "jax": special.jax,
    "half": special.half,
    "knapsack": special.knapsack,
    "segments": special.segments,
    "balance": special.balance,
    "calls": calls.calls,
    "floor": special.floor,
}
"""Cases of other functions than the maps of all links and of other libraries."""


def _entmax() -> Iterator[Contender]:
    import entmax

    for name, exact in (("sparsemax", kofn.sparsemax), ("entmax15", kofn.entmax)):
        yield Contender(f"entmax.{name}", "peer", partial(getattr(entmax, name), dim=-1), exact)
    bisect = partial(entmax.entmax_bisect, alpha=1.5, dim=-1)
    yield Contender("entmax.entmax_bisect", "peer", bisect, kofn.entmax)


def _liger() -> Iterator[Contender]:
    from liger_kernel.transformers.functional import liger_sparsemax

    yield Contender("liger_sparsemax", "peer", liger_sparsemax, kofn.sparsemax)


def _jax(k: int, versions: dict[str, str | None]) -> Iterator[Contender]:
    import jax

    def one(name: str, group: str, row: Map, exact: Map | None) -> Contender:
        return Contender(name, group, jax.vmap(row), exact, framework="jax")

    yield special.jax_softmax()
    yield from ours(special.of_every_link(k), "jax")
    linear = partial(kofn.soft_topk, k=k, link="linear")
    if versions["jaxopt"]:
        with warnings.catch_warnings():
            # jaxopt warns that it is no longer maintained; it is still in use.
            warnings.simplefilter("ignore", DeprecationWarning)
            from jaxopt import projection

        yield one("jaxopt simplex", "peer", projection.projection_simplex, kofn.sparsemax)

        # jaxopt takes one constant bound and weight per entry, and cannot check them under vmap.
        def section(row: Any) -> Any:
            one = np.ones(row.shape, np.float32)
            box = (0 * one, one, one, np.float32(k))
            return projection.projection_box_section(row, box, check_feasible=False)

        yield one("jaxopt box section", "peer", section, linear)
    if versions["optax"]:
        from optax import projections

        yield one("optax simplex", "peer", projections.projection_simplex, kofn.sparsemax)
    if versions["ott-jax"]:
        from ott.tools import soft_sort

        yield one("ott topk_mask", "peer", partial(soft_sort.topk_mask, k=k), None)

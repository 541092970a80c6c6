"""The functions that `kofn bench` times: kofn's maps, hand-written versions and other libraries.

Each names the map that it should compute, so that wrong results are not timed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import kofn
from kofn.commands.bench import backends as backends
from kofn.commands.bench.losses import functions as losses

Map = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """One problem size, named after its typical use."""

    name: str
    shape: tuple[int, int]
    k: int
    dtypes: tuple[str, ...] = ("float32", "bfloat16")  # unless the user chooses


CASES = (
    Case("router", (4096, 64), 8),
    Case("attention", (1024, 1024), 32),
    Case("vocabulary", (64, 32768), 64),
    Case("pruning", (1, 4_000_000), 400_000),
    Case("losses", (128, 1024), 32),
    Case("compile", (512, 1024), 32, ("float32",)),
    Case("jax", (1024, 1024), 32, ("float32",)),
    Case("half", (512, 1024), 32, ("bfloat16", "float16")),
    Case("knapsack", (512, 1024), 100, ("float32",)),
    Case("segments", (1024, 64), 8, ("float32",)),
)


@dataclass(frozen=True)
class Contender:
    """A function to time; its result must match `exact` in float64 (None: no check)."""

    name: str
    group: str
    function: Map
    exact: Map | None
    framework: str = "torch"


PEERS = {"entmax": "entmax", "jaxopt": "jaxopt", "ott-jax": "ott", "optax": "optax"}
"""Other libraries: the name to install, the name to import."""


def installed() -> dict[str, str | None]:
    """Return the version of each other library, None if it is not installed."""
    found = {name: importlib.util.find_spec(module) for name, module in PEERS.items()}
    return {name: importlib.metadata.version(name) if found[name] else None for name in PEERS}


def contenders(case: Case) -> Iterator[Contender]:
    """Yield all functions that this environment can run, PyTorch's softmax first."""
    k = case.k
    yield Contender("torch.softmax", "baseline", softmax, softmax)
    if case.name in _ROADS:
        yield from _ROADS[case.name](case)
        return
    for name, link in kofn.links.TABLE.items():
        map_ = partial(kofn.soft_topk, k=k, link=link)
        yield Contender(f"soft_topk, {name}", "kofn", map_, map_)
    for name in ("softmax", "sparsemax", "entmax"):
        yield Contender(name, "kofn", getattr(kofn, name), getattr(kofn, name))
    yield Contender("torch.topk", "hard", lambda x: torch.topk(x, k).values, None)
    yield Contender("torch.sort", "hard", lambda x: torch.sort(x).values, None)
    sigmoid = partial(kofn.soft_topk, k=k)
    yield Contender("sigmoid, bisected", "recipe", lambda x: Bisected.apply(x, k), sigmoid)
    yield Contender("sparsemax, sorted", "recipe", sorted_sparsemax, kofn.sparsemax)
    versions = installed()
    if versions["entmax"]:
        yield from _entmax()
    if importlib.util.find_spec("jax"):
        yield from _jax(k, versions)


def _losses(case: Case) -> Iterator[Contender]:
    for name, group, variant in losses(case.shape, case.k):
        yield Contender(name, group, variant, variant)


def _compiled(case: Case) -> Iterator[Contender]:
    yield from (Contender(*variant) for variant in backends.compiled(case.shape, case.k))


def _half(case: Case) -> Iterator[Contender]:
    yield from (Contender(*variant) for variant in backends.half(case.shape, case.k))


def _knapsack(case: Case) -> Iterator[Contender]:
    yield from (Contender(*variant) for variant in backends.knapsack(case.shape, case.k))
    if importlib.util.find_spec("jax"):
        yield _jax_softmax()
        for name, group, function, exact in backends.knapsack(case.shape, case.k, every_link=False):
            yield Contender(f"{name} (JAX)", group, function, exact, framework="jax")


def _on_jax(case: Case) -> Iterator[Contender]:
    if not importlib.util.find_spec("jax"):
        return
    yield from _jax_maps(case.k)
    yield from (Contender(*variant, framework="jax") for variant in backends.jax(case.k))


def _segments(case: Case) -> Iterator[Contender]:
    yield from (Contender(*variant) for variant in backends.segments(case.shape, case.k))


_ROADS = {
    "losses": _losses,
    "compile": _compiled,
    "jax": _on_jax,
    "half": _half,
    "knapsack": _knapsack,
    "segments": _segments,
}
"""Cases of other functions than the maps of all links and of other libraries."""


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


class Bisected(torch.autograd.Function):
    """The sigmoid top-k as usually written: 40 bisection steps and the implicit gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: int) -> Tensor:
        low = x.min(-1, keepdim=True).values - 20
        high = x.max(-1, keepdim=True).values + 20
        for _ in range(40):
            middle = (low + high) / 2
            many = torch.sigmoid(x - middle).sum(-1, keepdim=True) > k
            low, high = torch.where(many, middle, low), torch.where(many, high, middle)
        p = torch.sigmoid(x - (low + high) / 2)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (p,) = ctx.saved_tensors
        w = p * (1 - p)
        mean = (w * g).sum(-1, keepdim=True) / w.sum(-1, keepdim=True)
        return w * (g - mean), None


def sorted_sparsemax(x: Tensor) -> Tensor:
    """Sparsemax as usually written: sort, cumulative sums, count of the support."""
    ordered = torch.sort(x, dim=-1, descending=True).values
    count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    total = ordered.cumsum(-1) - 1
    support = (count * ordered > total).sum(-1, keepdim=True)
    return (x - total.gather(-1, support - 1) / support.to(x.dtype)).clamp(min=0)


def _entmax() -> Iterator[Contender]:
    import entmax

    for name, exact in (("sparsemax", kofn.sparsemax), ("entmax15", kofn.entmax)):
        yield Contender(f"entmax.{name}", "peer", partial(getattr(entmax, name), dim=-1), exact)
    bisect = partial(entmax.entmax_bisect, alpha=1.5, dim=-1)
    yield Contender("entmax.entmax_bisect", "peer", bisect, kofn.entmax)


def _jax_softmax() -> Contender:
    import jax

    return Contender("jax.nn.softmax", "baseline", jax.vmap(jax.nn.softmax), softmax, "jax")


def _jax_maps(k: int) -> Iterator[Contender]:
    yield _jax_softmax()
    for name, link in kofn.links.TABLE.items():
        map_ = partial(kofn.soft_topk, k=k, link=link)
        yield Contender(f"soft_topk, {name} (JAX)", "kofn", map_, map_, framework="jax")


def _jax(k: int, versions: dict[str, str | None]) -> Iterator[Contender]:
    import jax

    def one(name: str, group: str, row: Map, exact: Map | None) -> Contender:
        return Contender(name, group, jax.vmap(row), exact, framework="jax")

    yield from _jax_maps(k)
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

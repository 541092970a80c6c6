"""Functions of shards, in a group, or along an axis, of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax

import kofn
from calls.call import TORCH, WITH_GRADIENTS, Call, flat
from calls.data import (
    ALPHA,
    BUDGET,
    LEARNED,
    MASK,
    OF_BUDGET,
    OF_ROWS,
    SCORES,
    SETS,
    SOFT,
    TOPK,
    UNSMOOTHED,
    WHOLE_K,
    K,
    X,
)
from calls.laws import of_law
from calls.losses import of_losses
from kofn import distributed


def over_processes(function: Callable) -> Callable:
    """A function of shards, called with whole rows in a group, or along an axis, of one.

    Arrays of other frameworks beside JAX's are what the code inside shard_map has at hand.
    """

    def whole(**given: Any) -> Any:
        arrays = {name: value for name, value in given.items() if isinstance(value, jax.Array)}
        if not arrays:
            return function(**given)
        others = {name: value for name, value in given.items() if name not in arrays}
        part = jax.sharding.PartitionSpec()
        shards = jax.shard_map(
            lambda arrays: flat(function(**arrays, **others, axis_name="shards")),
            mesh=jax.make_mesh((1,), ("shards",), devices=jax.devices()[:1]),
            in_specs=(part,),
            out_specs=part,
            check_vma=False,
        )
        return jax.jit(shards)(arrays)

    return whole


def of_processes() -> Iterator[Call]:
    """The functions of shards, in a group of one process."""
    known = {each.name: each for each in (*maps_of_shards(), *of_losses())}
    for name in distributed.__all__:
        function = getattr(distributed, name)
        if name == "KSubset":
            given = {"logits": X, "k": WHOLE_K, "mask": MASK}
            function = of_law(distributed.KSubset, "marginals", "logits", "k", "mask")
            yield Call("kofn.distributed.KSubset", function, given, ("logits",), TORCH)
            continue
        whole = known.get(f"kofn.{name}") or known[f"kofn.losses.{name}"]
        given = {k: v for k, v in whole.arguments.items() if k != "sorted"}
        served, learned = WITH_GRADIENTS, whole.learned
        function = over_processes(function)
        yield Call(f"kofn.distributed.{name}", function, given, learned, served)


def maps_of_shards() -> Iterator[Call]:
    for name in ("soft_topk", "soft_topk_threshold", "soft_topk_sum"):
        yield Call(f"kofn.{name}", kofn.soft_topk, TOPK, LEARNED)
    yield Call("kofn.hard_topk", kofn.hard_topk, {"scores": X, "k": K, "mask": MASK})
    yield Call("kofn.topk", kofn.topk, {"x": X, "k": 2, "mask": MASK}, ("x",))
    yield Call("kofn.quantile", kofn.quantile, {"x": X, "q": 0.3, "mask": MASK}, ("x",))
    for name in ("softmax", "sparsemax"):
        yield Call(f"kofn.{name}", kofn.softmax, {**SCORES, **OF_ROWS}, SOFT)
    powers = {**SCORES, "alpha": ALPHA, **OF_ROWS}
    yield Call("kofn.entmax", kofn.entmax, powers, (*SOFT, "alpha"))
    several = {**SCORES, **OF_ROWS, **SETS["several"]}
    for name in ("sparse_softmax", "sparse_softmax_entropy"):
        yield Call(f"kofn.{name}", kofn.sparse_softmax, several, SOFT)
    loss = {**UNSMOOTHED, **SETS["several"], "outside": "kept"}
    yield Call("kofn.sparse_softmax_loss", kofn.losses.sparse_softmax_loss, loss, SOFT)
    for name in ("soft_knapsack", "soft_knapsack_threshold", "soft_knapsack_value"):
        yield Call(f"kofn.{name}", kofn.soft_knapsack, BUDGET, OF_BUDGET)

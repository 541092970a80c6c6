"""PyTorch modules and what belongs to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from calls.call import TORCH, Call
from calls.data import COSTS, HEADS, TOKENS, WEIGHTS, T, X
from kofn import nn


def of_module(make: Callable, use: Callable) -> Callable:
    """What a method of a module answers: of one with the same parameters in every call."""

    def function(**given: Any) -> Any:
        own = {getattr(x, "dtype", None) for x in given.values()}
        dtype = torch.float32 if torch.float32 in own else torch.float64
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = make(device="cpu", dtype=dtype)
        return use(module, **given)

    return function


def method(name: str) -> Callable:
    return lambda module, *given, **named: getattr(module, name)(*given, **named)


def router(device: Any, dtype: Any, **options: Any) -> nn.TopKRouter:
    return nn.TopKRouter(4, 3, 2, **options, device=device, dtype=dtype)


def after(count: Callable, then: Callable) -> Callable:
    """What a module says of itself after a forward pass."""

    def use(module: Any, **given: Any) -> Any:
        module(**given)
        count(module)
        return then(module)

    return use


sae = partial(nn.TopKSAE, 5, 8, 2)


attention = partial(nn.SparseAttention, 4, 2, batch_first=True)


choice = partial(nn.SoftTopK, 5, 2, schedule=9)


ROUTED = {"hidden_states": TOKENS, "mask": np.array([[True, True], [True, False]])}


CHOSEN = {"logits": X, "indices": np.array([[0, 2], [3, 1], [1, 4]])}


DISPATCHED = {**CHOSEN, "mask": np.array([[True, True], [True, False], [True, True]])}


ATTENDED = {
    "query": HEADS["query"],
    "key": HEADS["key"],
    "value": HEADS["value"],
    "attn_mask": np.tril(np.ones((3, 3), bool)),
    "need_weights": True,
}


def sae_loss(module: Any, x: Any, mask: Any = None) -> Any:
    module.silent_after = 1
    output = module(x, mask)
    module.step()
    module.step()
    return nn.auxk_loss(module, x, output, k=2)


def dispatch(name: str) -> Callable:
    def function(indices: Any, mask: Any, **given: Any) -> Any:
        plan = nn.dispatch_plan(indices, 5, mask=mask, capacity=2)
        return getattr(plan, name)(**given)

    return function


def pruned(weight: Any, scores: Any) -> Any:
    layer = torch.nn.Linear(5, 3, bias=False, device="cpu", dtype=weight.dtype)
    layer.weight = torch.nn.Parameter(weight.detach())
    nn.prune(layer, 0.5, schedule=4, scores=lambda *_: scores)
    return layer.weight


def of_modules() -> Iterator[Call]:
    tokens, room = ("tokens",), "kofn.nn.TopKRouter"

    def of(name: str, make: Callable, use: Callable, given: Mapping, learned: tuple = ()) -> Call:
        return Call(name, of_module(make, use), given, learned, TORCH, together=tokens)

    deep = ("hidden_states",)
    forward = method("forward")
    for name in ("kofn.nn.TopKRouter", f"{room}.forward"):
        yield of(name, router, forward, ROUTED, deep)
    for selection in ("soft", "expert_choice", "budget", "assignment"):
        make = partial(router, selection=selection)
        yield of(f"{room}[{selection}]", make, forward, ROUTED, deep)
    counted = {"hidden_states": TOKENS}
    load = after(lambda module: None, method("statistics"))
    yield of(f"{room}.statistics", router, load, counted)
    balanced = partial(router, balance="quantile")
    for name in (f"{room}.step", "kofn.nn.step_routers"):
        step = method("step") if name.endswith("step") else nn.step_routers
        use = after(step, lambda module: module.balance())
        yield of(name, balanced, use, counted)
    chosen = {"scores": X[:, :3]}
    yield of(f"{room}.choose", router, method("choose"), chosen, ("scores",))
    gated = {**chosen, "shares": WEIGHTS[:, :2], "indices": np.array([[0, 2], [2, 1], [1, 0]])}
    yield of(f"{room}.gates_of", router, method("gates_of"), gated, ("scores", "shares"))

    def added(counts: Any) -> Any:
        module = router("cpu", torch.float64)
        module.add(counts)
        return module.counts

    yield Call(f"{room}.add", added, {"counts": np.array([1, 2, 3])}, (), TORCH, together=tokens)
    masked = {**CHOSEN, "mask": np.array([True, False, True])}
    loss, logits = nn.load_balancing_loss, ("logits",)
    yield Call("kofn.nn.load_balancing_loss", loss, masked, logits, TORCH, together=tokens)
    masked = {"logits": X, "mask": np.array([True, False, True])}
    loss = nn.router_z_loss
    yield Call("kofn.nn.router_z_loss", loss, masked, logits, TORCH, together=tokens)
    pairs = {name: DISPATCHED[name] for name in ("indices", "mask")}
    plan = partial(nn.dispatch_plan, num_experts=5, capacity=2)
    for name in ("dispatch_plan", "DispatchPlan"):
        yield Call(f"kofn.nn.{name}", plan, pairs, (), TORCH, together=tokens)
    given, name = {"hidden_states": X, **pairs}, "kofn.nn.DispatchPlan"
    yield Call(f"{name}.gather", dispatch("gather"), given, deep, TORCH, together=tokens)
    given = {"outputs": np.concatenate([X, X / 2]), "weights": WEIGHTS[:, :2], **pairs}
    learned = ("outputs", "weights")
    yield Call(f"{name}.combine", dispatch("combine"), given, learned, TORCH, together=tokens)

    name, self_attended = "kofn.nn.SparseAttention", {"query": TOKENS, "key": TOKENS / 2}
    given = {**self_attended, "value": TOKENS / 3}
    given = {**given, "key_padding_mask": np.array([[False, True], [False, False]])}
    learned = ("query", "key", "value")
    for each in (name, f"{name}.forward"):
        yield of(each, attention, forward, given, learned)
    function = partial(nn.sparse_attention, alpha=1.5)
    temperature = {"temperature": T[:1]}
    together = ("keys",)
    given = {**ATTENDED, **temperature}
    learned = (*learned, "temperature")
    yield Call("kofn.nn.sparse_attention", function, given, learned, TORCH, together=together)

    def cached(key: Any, value: Any) -> Any:
        cache = nn.KeyValueCache()
        cache.extended(key, value)
        return cache.extended(value, key)

    given, learned = {"key": HEADS["key"], "value": HEADS["value"]}, ("key", "value")
    for name in ("kofn.nn.KeyValueCache", "kofn.nn.KeyValueCache.extended"):
        yield Call(name, cached, given, learned, TORCH, together=together)

    room, rows = "kofn.nn.TopKSAE", {"x": X, "mask": np.array([True, False, True])}
    yield of(room, sae, forward, rows, ("x",))
    yield of(f"{room}.forward", sae, forward, rows, ("x",))
    yield of(f"{room}.encode", sae, method("encode"), rows, ("x",))
    yield of("kofn.nn.SAEOutput", sae, forward, rows, ("x",))
    yield of("kofn.nn.auxk_loss", sae, sae_loss, rows, ("x",))
    use = after(lambda module: module.step(), method("silent_latents"))
    for name in ("step", "silent_latents"):
        yield of(f"{room}.{name}", sae, use, {"x": X})
    use = after(lambda module: None, method("statistics"))
    yield of(f"{room}.statistics", sae, use, {"x": X})
    use = method("decode")
    yield of(
        f"{room}.decode", sae, use, {"code": np.concatenate([COSTS, COSTS[:, :3]], 1)}, ("code",)
    )

    def calibrated(module: Any, x: Any, mask: Any) -> Any:
        module.calibrate(x, mask, batch_size=2)
        return module.eval()(x)

    batch = partial(sae, selection="batch")
    yield of(f"{room}.calibrate", batch, calibrated, rows, ("x",))

    def initialized(module: Any, x: Any, mask: Any) -> Any:
        module.initialize(x, mask, batch_size=2)
        return module(x)

    yield of(f"{room}.initialize", sae, initialized, rows, ("x",))

    for name in ("kofn.nn.SoftTopK", "kofn.nn.SoftTopK.forward"):
        yield of(name, choice, forward, {"x": X}, ("x",))

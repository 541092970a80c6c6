"""Distributions, and samples of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import kofn
from calls.call import ALL, TORCH, Call
from calls.data import (
    BITS,
    COSTS,
    K_HOT,
    LAWS,
    MASK,
    NOISY,
    ONE_HOT,
    OTHER,
    WEIGHTS,
    WHOLE_K,
    K,
    T,
    X,
)


def of_law(law: Callable, method: str, *parts: str, **more: Any) -> Callable:
    """A function of the parts of a distribution and the arguments of a method."""

    def function(**given: Any) -> Any:
        own = {part: given.pop(part) for part in parts}
        if "other" in given:
            given["other"] = law(given["other"], **{p: own[p] for p in parts[1:] if p != "mask"})
        found = getattr(law(**own), method)
        return found(**given, **more) if callable(found) else found

    return function


def of_laws() -> Iterator[Call]:
    subset = {"logits": X, "k": WHOLE_K, "mask": MASK}
    one_k = {"logits": X, "k": 2}
    deep = ("logits",)

    def k_subset(method: str, given: Mapping, learned: tuple = deep, **more: Any) -> Call:
        parts = [each for each in ("logits", "k", "mask") if each in given]
        function = of_law(kofn.KSubset, method, *parts)
        return Call(f"kofn.KSubset.{method}", function, given, learned, **more)

    yield replace(k_subset("marginals", subset), name="kofn.KSubset")
    for method in ("covariance_vector_product",):
        yield k_subset(method, {**subset, "v": COSTS}, ("logits", "v"))
    for method in ("entropy", "log_partition", "marginals", "mean", "variance"):
        yield k_subset(method, subset)
    yield k_subset("mode", subset, ())
    yield k_subset("choose", {**subset, **NOISY}, ())
    yield k_subset("relax", {**subset, **NOISY, "temperature": T}, ("perturbed", "temperature"))
    yield k_subset("kl", {**one_k, **OTHER}, ("logits", "other"))
    yield k_subset("log_prob", {**one_k, "subset": K_HOT})
    yield k_subset("enumerate_support", one_k, ())
    yield k_subset("perturb", {**subset, "shape": 2}, random=True)
    yield k_subset("sample", {**subset, "shape": 2}, (), random=True)
    yield Call(
        "kofn.KSubset.from_marginals",
        lambda pi: (kofn.KSubset.from_marginals(pi).logits, kofn.KSubset.from_marginals(pi).k),
        {"pi": np.array([[0.5, 0.5, 0.25, 0.5, 0.25], [0.75, 0.25, 0.5, 0.25, 0.25]])},
    )
    choice = of_law(lambda logits: kofn.KSubset(logits, 2).expand((2, 3)), "marginals", "logits")
    yield Call("kofn.KSubset.expand", choice, {"logits": X}, deep)
    choice = of_law(lambda logits: kofn.KSubset(logits, 2).to_torch(), "mean", "logits")
    yield Call("kofn.KSubset.to_torch", choice, {"logits": X}, deep, TORCH)

    race = partial(of_law, kofn.PlackettLuce)
    places = {"logits": X, "indices": np.array([[0, 2], [3, 1], [1, 4]])}
    name = "kofn.PlackettLuce"
    yield Call(name, race("log_prob", "logits"), places, deep)
    yield Call(f"{name}.log_prob", race("log_prob", "logits"), places, deep)
    unordered = race("log_prob", "logits", ordered=False)
    yield Call(f"{name}.log_prob[unordered]", unordered, places, deep)
    relaxed = {"logits": X, "k": K, "temperature": T}
    function, learned = race("relaxed_sample", "logits"), ("logits", "k", "temperature")
    yield Call(f"{name}.relaxed_sample", function, relaxed, learned, random=True)
    two = {"logits": X, "k": 2, "shape": 2}
    yield Call(f"{name}.sample", race("sample", "logits"), two, random=True)
    choice = of_law(lambda logits: kofn.PlackettLuce(logits).expand((2, 3)), "log_prob", "logits")
    wide = {"logits": X, "indices": np.stack([places["indices"]] * 2)}
    yield Call(f"{name}.expand", choice, wide, deep)

    yield Call("kofn.gumbel_max", kofn.gumbel_max, {**LAWS, "shape": 2}, random=True)
    relaxed, learned = {**LAWS, "shape": 2, "temperature": T}, ("logits", "temperature")
    yield Call("kofn.gumbel_softmax", kofn.gumbel_softmax, relaxed, learned, random=True)
    hard = {**relaxed, "hard": True}
    yield Call("kofn.gumbel_softmax[hard]", kofn.gumbel_softmax, hard, learned, random=True)
    normal = {"mean": X, "scale": COSTS, "shape": 2}
    function = kofn.normal_rsample
    yield Call("kofn.normal_rsample", function, normal, ("mean", "scale"), random=True)


def of_factors() -> Iterator[Call]:
    """Categorical and Bernoulli, which have the same methods."""
    yield from _of_law(kofn.Categorical, LAWS, ONE_HOT, (2, 3))
    yield from _of_law(kofn.Bernoulli, {"logits": X}, BITS, (2, 3, 5))


def _of_law(law: Callable, own: Mapping, sample: Mapping, shape: tuple) -> Iterator[Call]:
    name, deep, parts = f"kofn.{law.__name__}", ("logits",), tuple(own)

    def of(method: str, given: Mapping, learned: tuple = deep, **more: Any) -> Call:
        return Call(f"{name}.{method}", of_law(law, method, *parts), given, learned, **more)

    yield replace(of("marginals", own), name=name)
    by_probs = of_law(lambda probs: law(probs=probs), "entropy", "probs")
    yield Call(f"{name}[probs]", by_probs, {"probs": WEIGHTS + 0.1}, ("probs",))
    for method in ("entropy", "marginals", "mean", "probs", "variance"):
        yield of(method, own)
    yield of("mode", own, ())
    yield of("choose", {**own, **NOISY}, ())
    soft = {**own, **NOISY, "temperature": T if "mask" in own else COSTS}
    yield of("relax", soft, ("perturbed", "temperature"))
    yield of("conditioned", {**own, **NOISY})
    kl, two = of_law(law, "kl", "logits"), {"logits": X, **OTHER}
    yield Call(f"{name}.kl", kl, two, ("logits", "other"))
    yield of("log_prob", {**own, **sample})
    yield of("enumerate_support", own, ())
    yield of("support", own, ())
    yield of("perturb", {**own, "shape": 2}, random=True)
    yield of("perturb_given", {**own, **sample}, random=True)
    yield of("sample", {**own, "shape": 2}, (), random=True)
    function = of_law(lambda logits: law(logits).expand(shape), "marginals", "logits")
    yield Call(f"{name}.expand", function, {"logits": X}, deep)
    function = of_law(lambda logits: law(logits).to_torch(), "mean", "logits")
    yield Call(f"{name}.to_torch", function, {"logits": X}, deep, TORCH)
    if law is kofn.Bernoulli:
        function = of_law(lambda logits: law(logits).entries_last(), "marginals", "logits")
        yield Call(f"{name}.entries_last", function, {"logits": X}, deep)


def of_numbers() -> Iterator[Call]:
    """Normal and RelaxedOneHot."""
    own, both, name = {"mean": X, "scale": COSTS}, ("mean", "scale"), "kofn.Normal"

    def of(method: str, given: Mapping, learned: tuple = both, **more: Any) -> Call:
        function = of_law(kofn.Normal, method, "mean", "scale")
        return Call(f"{name}.{method}", function, given, learned, **more)

    yield replace(of("log_prob", {**own, "value": WEIGHTS}, (*both, "value")), name=name)
    yield of("log_prob", {**own, "value": WEIGHTS}, (*both, "value"))
    yield of("entropy", own, ("scale",))
    yield of("variance", own, ("scale",))
    yield of("mode", own, ("mean",))
    yield of("kl", {**own, **OTHER}, (*both, "other"))
    yield of("rsample", {**own, "shape": 2}, random=True)
    yield of("sample", {**own, "shape": 2}, (), random=True)
    for other in ("entries_last", "expand", "to_torch"):
        given = {"batch_shape": (2, *X.shape)} if other == "expand" else {}

        def function(
            mean: Any, scale: Any, value: Any, other: str = other, given: Any = given
        ) -> Any:
            return getattr(kofn.Normal(mean, scale), other)(**given).log_prob(value)

        value = np.stack([WEIGHTS] * 2) if other == "expand" else WEIGHTS
        served = TORCH if other == "to_torch" else ALL
        given = {**own, "value": value}
        yield Call(f"{name}.{other}", function, given, (*both, "value"), served)

    own, both = {"logits": X, "temperature": T}, ("logits", "temperature")
    name = "kofn.RelaxedOneHot"
    point = {**own, "value": (WEIGHTS + 0.1) / 1.5}

    def relaxed(method: str, given: Mapping, learned: tuple = both, **more: Any) -> Call:
        function = of_law(kofn.RelaxedOneHot, method, *both)
        return Call(f"{name}.{method}", function, given, learned, **more)

    yield replace(relaxed("log_prob", point, (*both, "value")), name=name)
    yield relaxed("log_prob", point, (*both, "value"))
    yield relaxed("rsample", {**own, "shape": 2}, random=True)
    yield relaxed("log_rsample", {**own, "shape": 2}, random=True)
    yield relaxed("sample", {**own, "shape": 2}, (), random=True)
    for other in ("expand", "to_torch"):
        given = {"batch_shape": (2, 3)} if other == "expand" else {}

        def function(
            logits: Any, temperature: Any, value: Any, other: str = other, given: Any = given
        ) -> Any:
            law = kofn.RelaxedOneHot(logits, temperature)
            return getattr(law, other)(**given).log_prob(value)

        served = TORCH if other == "to_torch" else ALL
        value = np.stack([point["value"]] * 2) if other == "expand" else point["value"]
        given = {**own, "value": value}
        yield Call(f"{name}.{other}", function, given, (*both, "value"), served)

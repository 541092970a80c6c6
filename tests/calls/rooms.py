"""Metrics, older maps, projections, rows that are read block by block, and estimators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import kofn
from calls.call import ALL, WITH_GRADIENTS, Call
from calls.data import COSTS, MASK, MATRICES, OF_ROWS, SETS, SOFT, TOPK, WEIGHTS, WHOLE_K, K, T, X
from kofn import balance, classic, estimators, metrics, projections, streaming


def cost_of(sample: Any) -> Any:
    """What estimators take the expectation of: one number per row."""
    return (sample[..., 0] - 2 * sample[..., 1] + 0.5 * sample[..., 2] + 1) ** 2


def estimated(estimator: Callable, **more: Any) -> Callable:
    def function(logits: Any, rng: Any = None) -> Any:
        return estimator(kofn.Categorical(logits), cost_of, rng, **more)

    return function


def drawn_through(estimator: Callable, **more: Any) -> Callable:
    def function(logits: Any, rng: Any) -> Any:
        return estimator(kofn.Categorical(logits), (2,), rng, **more)

    return function


def studied(logits: Any, rng: Any) -> Any:
    found = estimators.study("reinmax", cost_of, logits, rng=rng, draws=50)
    return found.gradient, found.mean, found.bias, found.variance, found.value


def running(values: Any) -> Any:
    past = estimators.RunningMean(0.5)
    past.update(values)
    past.update(2 * values)
    return past.mean


def of_rooms() -> Iterator[Call]:
    """Metrics, older maps, projections, and rows that are read block by block."""
    weights = {"weights": WEIGHTS, "mask": MASK}
    deep = ("weights",)
    own: dict[str, tuple[Mapping, tuple]] = {
        "effective_support": (weights, deep),
        "entropy": (weights, deep),
        "hard_gap": ({**weights, "k": K}, deep),
        "jacobian_norm": (TOPK, ()),
        "order_violations": ({"scores": X, **weights}, ()),
        "renyi_entropy": ({**weights, "alpha": 2.0}, deep),
        "sparsity": (weights, ()),
        "support_size": (weights, ()),
        "tsallis_entropy": ({**weights, "alpha": 2.0}, deep),
    }
    for name, (given, learned) in own.items():
        yield Call(f"kofn.metrics.{name}", getattr(metrics, name), given, learned)
    wanted = {"scores": X, "k": np.ones(3), "support": K + 1, "per_row": True, "mask": MASK}
    function = metrics.sparse_softmax_entropy
    for example, sets in SETS.items():
        given = {"scores": X, **OF_ROWS, **sets}
        yield Call(f"kofn.metrics.sparse_softmax_entropy[{example}]", function, given, SOFT)
    for room in ("kofn", "kofn.metrics"):
        yield Call(f"{room}.temperature_for", kofn.temperature_for, wanted)
    common, function = {**wanted, "per_row": False}, kofn.temperature_for
    yield Call("kofn.temperature_for[common]", function, common, together=("one temperature",))
    for name in ("iterative_soft_topk", "ones_and_softmax", "weighted_soft_topk"):
        given = {"scores": X, "k": 2, **OF_ROWS}
        yield Call(f"kofn.classic.{name}", getattr(classic, name), given, SOFT)
    box = {"x": X, "lower": X - 1, "upper": X + 2, "w": COSTS, "c": np.array([2.0, 1.0, 3.0])}
    shapes: dict[str, tuple[Mapping, tuple]] = {
        "projection_box_section": (box, ("x", "lower", "upper", "w", "c")),
        "projection_capped_simplex": ({"x": X, "k": K, "mask": MASK}, ("x", "k")),
        "projection_l1_ball": ({"x": X, "scale": T}, ("x", "scale")),
        "projection_simplex": ({"x": X, "scale": T, "mask": MASK}, ("x", "scale")),
        "projection_sparse_simplex": (
            {"x": X, "k": WHOLE_K, "scale": T, "mask": MASK},
            ("x", "scale"),
        ),
        "projection_sparse_vector": ({"x": X, "k": WHOLE_K}, ("x",)),
    }
    for name, (given, learned) in shapes.items():
        yield Call(f"kofn.projections.{name}", getattr(projections, name), given, learned)
    given = {"scores": X, "k": 2, "bias": COSTS[0] - 1, "mask": np.array([True, True, False])}
    one = ("the tokens of a batch",)
    yield Call("kofn.balance.quantile_bias", balance.quantile_bias, given, together=one)
    matrix = {name: MATRICES[name][0] for name in ("scores", "k", "capacity")}
    streams: dict[str, Mapping] = {
        "hard_topk": {"scores": X, "k": 4},
        "quantile": {"x": X, "q": 0.3},
        "soft_assignment": matrix,
        "soft_assignment_prices": matrix,
        "soft_topk": {"scores": X, "k": 4.5},
        "soft_topk_threshold": {"scores": X, "k": 4.5},
        "topk": {"x": X, "k": 4},
        "topk_indices": {"scores": X, "k": 4},
    }
    for name, given in streams.items():
        served, one = ("numpy", "torch"), ("one row",)
        function = getattr(streaming, name)
        yield Call(f"kofn.streaming.{name}", function, given, (), served, together=one)


def of_estimators() -> Iterator[Call]:
    room, logits, deep = "kofn.estimators", {"logits": X}, ("logits",)
    for name in estimators.TABLE:
        function = estimated(estimators.TABLE[name], samples=3)
        served = WITH_GRADIENTS if name in ("rebar", "perturbed") else ALL
        yield Call(f"{room}.{name}", function, logits, deep, served, random=True)
    yield Call(f"{room}.exact", estimated(estimators.exact), logits, deep)
    for name in ("marginals", "relaxed", "gumbel_rao", "reinmax"):
        function = drawn_through(getattr(estimators, f"{name}_through"))
        yield Call(f"{room}.{name}_through", function, logits, deep, random=True)
    for name in ("RunningMean", "RunningMean.update", "RunningMean.mean"):
        yield Call(f"{room}.{name}", running, {"values": X[0]}, together=("mean",))
    given, learned = {"values": WEIGHTS, "log_prob": -COSTS}, ("values", "log_prob")
    yield Call(f"{room}.surrogate", estimators.surrogate, given, learned, together=("mean",))
    names, served, one = ("study", "Study"), WITH_GRADIENTS, ("one problem",)
    for name in names:
        given = {"logits": X[0]}
        yield Call(f"{room}.{name}", studied, given, (), served, random=True, together=one)

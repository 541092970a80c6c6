"""Maps of rows and of segments."""

from __future__ import annotations

from collections.abc import Iterator

import kofn
from calls.call import Call
from calls.data import (
    ALPHA,
    BUDGET,
    BY_PTR,
    COSTS,
    FLAT,
    IDS,
    LEARNED,
    MASK,
    MATRICES,
    OF_BUDGET,
    OF_ROWS,
    OF_SEGMENTS,
    PER_CLASS,
    SCORES,
    SEGMENTS,
    SETS,
    SOFT,
    TOPK,
    K,
    Q,
    X,
)


def of_rows() -> Iterator[Call]:
    of = Call
    for name, learned in (
        ("soft_topk", LEARNED),
        ("soft_topk_threshold", LEARNED),
        ("soft_topk_sum", LEARNED),
        ("log_soft_topk", LEARNED),
    ):
        yield of(f"kofn.{name}", getattr(kofn, name), TOPK, learned)
    yield of("kofn.soft_topk[hard]", kofn.soft_topk, {**TOPK, "hard": True}, LEARNED)
    gates = {"scores": X, "k": 2, **OF_ROWS, "bias": PER_CLASS, "normalize": True}
    yield of("kofn.topk_gates", kofn.topk_gates, gates, SOFT)
    hard = {"scores": X, "k": K, "mask": MASK}
    yield of("kofn.hard_topk", kofn.hard_topk, hard, integers=True)
    yield of("kofn.topk", kofn.topk, {"x": X, "k": 2, "mask": MASK}, ("x",), integers=True)
    numbers = {"x": X, "q": Q, "dim": -1, "mask": MASK}
    yield of("kofn.quantile", kofn.quantile, numbers, ("x", "q"), integers=True)
    smooth = {**numbers, "q": 0.3, "temperature": 0.7}
    yield of("kofn.quantile[smooth]", kofn.quantile, smooth, ("x",), integers=True)
    for name in ("soft_knapsack", "soft_knapsack_threshold", "soft_knapsack_value"):
        yield of(f"kofn.{name}", getattr(kofn, name), BUDGET, OF_BUDGET)
    hard = {**BUDGET, "hard": True}
    yield of("kofn.soft_knapsack[hard]", kofn.soft_knapsack, hard, OF_BUDGET)
    for name in ("soft_assignment", "soft_assignment_prices"):
        learned = ("scores", "k", "capacity", "temperature")
        yield of(f"kofn.{name}", getattr(kofn, name), MATRICES, learned)
    few = {**MATRICES, "rounds": 3}
    yield of("kofn.soft_assignment[rounds]", kofn.soft_assignment, few, learned)
    yield of("kofn.softmax", kofn.softmax, {**SCORES, **OF_ROWS}, SOFT)
    weighted = {**SCORES, **OF_ROWS, "weights": COSTS}
    yield of("kofn.softmax[weights]", kofn.softmax, weighted, (*SOFT, "weights"))
    yield of("kofn.sparsemax", kofn.sparsemax, {**SCORES, **OF_ROWS}, SOFT)
    yield of("kofn.taylor_softmax", kofn.taylor_softmax, {**SCORES, **OF_ROWS}, SOFT)
    yield of("kofn.perturbed_argmax", kofn.perturbed_argmax, {**SCORES, **OF_ROWS}, SOFT)
    powers = {**SCORES, "alpha": ALPHA, **OF_ROWS}
    for name in ("entmax", "log_entmax"):
        yield of(f"kofn.{name}", getattr(kofn, name), powers, (*SOFT, "alpha"))
    few = {**SCORES, **OF_ROWS}
    yield of("kofn.sparse_softmax", kofn.sparse_softmax, {**few, "k": 3}, SOFT)
    yield of("kofn.sparse_softmax[p]", kofn.sparse_softmax, {**few, "p": 0.8}, SOFT)
    for example, sets in SETS.items():
        yield of(f"kofn.sparse_softmax[{example}]", kofn.sparse_softmax, {**few, **sets}, SOFT)


def of_segments() -> Iterator[Call]:
    in_segments = ("segments",)
    for name in ("soft_topk", "soft_topk_threshold", "soft_topk_sum"):
        function = getattr(kofn, f"segment_{name}")
        yield Call(f"kofn.segment_{name}", function, SEGMENTS, LEARNED, together=in_segments)
        by_ptr = f"kofn.segment_{name}[ptr]"
        yield Call(by_ptr, function, BY_PTR, LEARNED, together=in_segments)
    whole = {"scores": FLAT, **OF_SEGMENTS}
    for name in ("softmax", "sparsemax"):
        function = getattr(kofn, f"segment_{name}")
        yield Call(f"kofn.segment_{name}", function, whole, SOFT, together=in_segments)
    several = {**whole, "k": 3, "p": 0.9, "min_p": 0.05}
    function = kofn.segment_sparse_softmax
    yield Call("kofn.segment_sparse_softmax", function, several, SOFT, together=in_segments)
    powers, learned = {**whole, "alpha": ALPHA}, (*SOFT, "alpha")
    yield Call("kofn.segment_entmax", kofn.segment_entmax, powers, learned, together=in_segments)
    hard = {name: value for name, value in SEGMENTS.items() if name != "temperature"}
    yield Call("kofn.segment_hard_topk", kofn.segment_hard_topk, hard, together=in_segments)
    numbers = {"x": FLAT, "segment_ids": IDS, "num_segments": 3, "mask": OF_SEGMENTS["mask"]}
    largest, quantile = {**numbers, "k": 2}, {**numbers, "q": Q}
    yield Call(
        *("kofn.segment_topk", kofn.segment_topk, largest, ("x",)),
        together=in_segments,
        integers=True,
    )
    function, learned = kofn.segment_quantile, ("x", "q")
    yield Call("kofn.segment_quantile", function, quantile, learned, together=in_segments)
    learned, smooth = ("x",), {**quantile, "q": 0.3, "temperature": 0.7}
    yield Call("kofn.segment_quantile[smooth]", function, smooth, learned, together=in_segments)

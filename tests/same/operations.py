"""What is compared: public functions of arguments by name, alike in every framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import kofn
from kofn import distributed, links, losses, metrics, streaming

ROWS = ("rows", "numbers", "mask", "turned", "each")
DENSE = ("numpy", "torch", "func", "compile", "inductor", "jax", "jit", "kept")
LOCAL = (*DENSE, "dtensor", "dtensor_compile")
SHARDED = ("group", "axis")


class Operation(NamedTuple):
    """`of(on, a)` calls a function of a module with the arguments `a`."""

    of: Callable[[Any, Any], Any]
    learns: str = "xkt"
    """Initials of the arguments that are differentiated if they are arrays; `a` is alpha."""
    links: bool = True
    judged: bool = False
    """The answer need not stay bit by bit if its error does not grow."""
    frameworks: tuple[str, ...] = LOCAL
    rows: tuple[str, ...] = ROWS
    longest: int = 9001


def link_of(a: Any) -> Any:
    return links.entmax(1.3) if a.link == "entmax(1.3)" else a.link


def _row(a: Any, **others: Any) -> dict[str, Any]:
    return dict(temperature=a.t, dim=a.dim, mask=a.mask, **a.shards, **others)


def _topk(name: str, **options: Any) -> Operation:
    def of(on: Any, a: Any) -> Any:
        return getattr(on, name)(a.x, a.k, link=link_of(a), **_row(a), **options)

    sharded = SHARDED if hasattr(distributed, name) else ()
    return Operation(of, frameworks=LOCAL + sharded)


def _one(name: str, **options: Any) -> Operation:
    sharded = SHARDED if hasattr(distributed, name) else ()
    return Operation(
        lambda on, a: getattr(on, name)(a.x, **_row(a), **options),
        "xt",
        links=False,
        frameworks=LOCAL + sharded,
    )


def _each_alpha(name: str) -> Operation:
    def of(on: Any, a: Any) -> Any:
        return getattr(on, name)(a.x, a.k, link=links.entmax(a.alpha), **_row(a))

    return Operation(of, "xkta", links=False, judged=True, rows=("rows", "each"))


def _knapsack(name: str, **options: Any) -> Operation:
    def of(on: Any, a: Any) -> Any:
        return getattr(on, name)(a.x, a.c, a.b, link=link_of(a), **_row(a), **options)

    return Operation(of, "xtcb", judged=True, frameworks=LOCAL + SHARDED)


def _loss(name: str, target: str = "labels", *, link: bool = False, **options: Any) -> Operation:
    def of(on: Any, a: Any) -> Any:
        named = dict(options, reduction="none") | (dict(link=link_of(a)) if link else {})
        module = losses if on is kofn else on
        return getattr(module, name)(a.x, getattr(a, target), **_row(a), **named)

    sharded = SHARDED if hasattr(distributed, name) else ()
    return Operation(of, "xt", links=link, frameworks=LOCAL + sharded)


def _subset(method: str, *, learns: str = "x", longest: int = 1000) -> Operation:
    def of(on: Any, a: Any) -> Any:
        choice = on.KSubset(a.x, min(3, a.n), dim=a.dim, mask=a.mask, **a.shards)
        given = {"log_prob": (a.hot,), "covariance_vector_product": (a.v,)}.get(method, ())
        return getattr(choice, method)(*given)

    kinds = (*LOCAL, *(["group"] if hasattr(distributed.KSubset, method) else []))
    return Operation(of, learns, links=False, frameworks=kinds, longest=longest)


def _ptr(a: Any) -> Any:
    """As many segments as rows: an empty one, halves of the first row, the last three as one."""
    n = a.n
    return a.whole(np.array([0, 0, n // 2, *range(n, 19 * n + 1, n), 22 * n]))


def _segments(name: str, learns: str = "xkt", *, link: bool = False, k: bool = False) -> Operation:
    def of(on: Any, a: Any) -> Any:
        named: dict[str, Any] = {"ptr": _ptr(a)}
        named |= {"link": link_of(a)} if link else {}
        named |= {"mask": None if a.mask is None else a.mask.reshape(-1)}
        named |= {"temperature": a.t} if "t" in learns else {}
        counts = (a.k if isinstance(a.k, float) else a.k.clip(0, max(1, a.n // 2)),) if k else ()
        return getattr(on, name)(a.x.reshape(-1), *counts, **named)

    eager = tuple(each for each in DENSE if each != "func")
    return Operation(of, learns, link, frameworks=eager, rows=("rows", "numbers", "mask"))


def _streaming(name: str) -> Operation:
    def of(on: Any, a: Any) -> Any:
        row = a.x[:4].reshape(-1)  # without NaN, which would be the answer to all
        blocks = [row[:7].reshape(1, -1), row[7:7], row[7:]]
        named = (
            {} if "hard" in name or "indices" in name else dict(link=link_of(a), temperature=0.7)
        )
        return getattr(streaming, name)(blocks, 5 if "indices" in name else 4.5, **named)

    return Operation(of, "", "soft" in name, frameworks=("numpy", "torch"), rows=("numbers",))


def _tensors(on: Any, a: Any) -> Any:
    """The threshold of a row that is held as several tensors, as pruning solves it."""
    from torch import ops

    import kofn.nn  # noqa: F401, registers the operator

    link = "entmax" if a.link == "entmax(1.3)" else a.link
    number = {"entmax": 1.5, "entmax(1.3)": 1.3}.get(a.link)
    tensors, ones = list(a.x[:4]), [a.whole(np.ones(1)).to(a.x.dtype)] * 4
    budget, t = (a.whole(np.array(z)) for z in (0.7 * a.n, 0.5))
    return ops.kofn.pieces_threshold(tensors, ones, budget, 4.0 * a.n, t, link, number)


OPERATIONS = {
    "soft_topk": _topk("soft_topk"),
    "threshold": _topk("soft_topk_threshold"),
    "sum": _topk("soft_topk_sum"),
    "hard": _topk("soft_topk", hard=True),
    "log_soft_topk": _topk("log_soft_topk"),
    "hard_topk": Operation(
        lambda on, a: on.hard_topk(a.x, a.k, dim=a.dim, mask=a.mask, **a.shards),
        "",
        links=False,
        frameworks=LOCAL + SHARDED,
    ),
    "gates": Operation(
        lambda on, a: on.topk_gates(a.x, min(3, a.n), link=link_of(a), **_row(a)), "xt"
    ),
    "gates_normalized": Operation(
        lambda on, a: on.topk_gates(a.x, min(3, a.n), bias=a.w, normalize=True, **_row(a)),
        "xt",
        links=False,
        rows=("rows", "numbers", "mask"),
    ),
    "softmax": _one("softmax"),
    "softmax_weights": Operation(
        lambda on, a: on.softmax(a.x, weights=a.c, **_row(a)), "xtc", links=False
    ),
    "sparsemax": _one("sparsemax"),
    "entmax": _one("entmax"),
    "entmax_1.2": _one("entmax", alpha=1.2),
    "log_entmax": _one("log_entmax", alpha=1.3),
    "sparse_softmax": _one("sparse_softmax", p=0.8),
    "taylor_softmax": _one("taylor_softmax"),
    "perturbed_argmax": _one("perturbed_argmax")._replace(longest=128),
    "alpha_soft_topk": _each_alpha("soft_topk"),
    "alpha_threshold": _each_alpha("soft_topk_threshold"),
    "alpha_sum": _each_alpha("soft_topk_sum"),
    "alpha_log": _each_alpha("log_soft_topk"),
    "truncated": Operation(
        lambda on, a: on.sparse_softmax(a.x, k=min(5, a.n), **_row(a)), "xt", links=False
    ),
    "knapsack": _knapsack("soft_knapsack"),
    "knapsack_threshold": _knapsack("soft_knapsack_threshold"),
    "knapsack_value": _knapsack("soft_knapsack_value"),
    "knapsack_hard": _knapsack("soft_knapsack", hard=True),
    "softmax_loss": _loss("softmax_loss"),
    "softmax_loss_soft": _loss("softmax_loss", "soft", label_smoothing=0.1),
    "sparsemax_loss": _loss("sparsemax_loss"),
    "entmax_loss": _loss("entmax_loss", alpha=1.3, label_smoothing=0.1),
    "topk_loss": _loss("topk_loss", "hot", link=True),
    "fenchel_young_loss": _loss("fenchel_young_loss", "hot", link=True),
    "sparse_softmax_loss": _loss("sparse_softmax_loss", p=0.9),
    "topk_cross_entropy": _loss("topk_cross_entropy", link=True, k=1),
    "epsilon_cross_entropy": _loss("epsilon_cross_entropy", link=True),
    "accuracy_loss": _loss("accuracy_loss", link=True),
    "perturbed_accuracy_loss": _loss("perturbed_accuracy_loss")._replace(longest=128),
    "marginals": _subset("marginals"),
    "log_partition": _subset("log_partition"),
    "log_prob": _subset("log_prob"),
    "subset_entropy": _subset("entropy"),
    "covariance": _subset("covariance_vector_product"),
    "subset_sample": Operation(
        lambda on, a: on.KSubset(a.x, min(3, a.n), dim=a.dim, mask=a.mask).sample((2,), a.rng()),
        "",
        links=False,
        frameworks=("numpy", "torch", "jax", "jit"),
        rows=("rows", "mask", "turned"),
        longest=1000,
    ),
    "plackett_luce": Operation(
        lambda on, a: on.PlackettLuce(a.x).log_prob(a.labels[..., None]),
        "x",
        links=False,
        frameworks=("numpy", "torch", "func", "jax"),
        rows=("rows", "each"),
    ),
    "temperature_for": Operation(
        lambda on, a: on.temperature_for(
            a.x, min(2, a.n), link=link_of(a), gap=0.2, dim=a.dim, mask=a.mask, per_row=True
        ),
        "",
        rows=("rows", "mask", "turned"),
    ),
    "jacobian_norm": Operation(
        lambda on, a: metrics.jacobian_norm(a.x, a.k, link=link_of(a), **_row(a)),
        frameworks=("numpy", "torch", "jax"),
    ),
    "segment_soft_topk": _segments("segment_soft_topk", link=True, k=True),
    "segment_threshold": _segments("segment_soft_topk_threshold", link=True, k=True),
    "segment_sum": _segments("segment_soft_topk_sum", link=True, k=True),
    "segment_softmax": _segments("segment_softmax", "xt"),
    "segment_sparsemax": _segments("segment_sparsemax", "xt"),
    "segment_entmax": _segments("segment_entmax", "xt"),
    "segment_hard_topk": _segments("segment_hard_topk", "", k=True),
    "segment_topk_loss": Operation(
        lambda on, a: losses.segment_topk_loss(
            a.x.reshape(-1), a.hot.reshape(-1), ptr=_ptr(a), link=link_of(a), reduction="none"
        ),
        "x",
        frameworks=("numpy", "torch", "compile", "jax", "jit", "kept"),
        rows=("rows",),
    ),
    "stream_soft_topk": _streaming("soft_topk"),
    "stream_threshold": _streaming("soft_topk_threshold"),
    "stream_hard_topk": _streaming("hard_topk"),
    "stream_indices": _streaming("topk_indices"),
    "tensors": Operation(_tensors, "", frameworks=("torch",), rows=("rows",)),
}

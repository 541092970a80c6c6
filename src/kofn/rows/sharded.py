"""Sharding rules of the operators for DTensor; imported after torch.distributed.tensor.

One process solves a whole row: scores may be sharded over batch dimensions, and DTensor gathers
scores that are sharded along a row first.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from kofn.arrays.torch_operator import OPERATORS
from kofn.rows import torch_each_alpha
from kofn.rows import torch_operators as operators
from kofn.rows import torch_price as torch_price
from kofn.rows import torch_threshold as torch_threshold


def placements(batch: int) -> list[Any]:
    """Return the allowed placements of a batch with this number of dimensions."""
    return [Replicate(), *(Shard(dim) for dim in range(batch))]


@register_sharding(OPERATORS.threshold.default)
def _(x: Any, k: Any, temperature: Any, alpha: Any, link: Any, number: Any) -> Any:
    ways = placements(x.ndim - 1)
    return [([way, way], [way, way, way, alpha and way, None, None]) for way in ways]


@register_sharding(OPERATORS.price.default)
def _(x: Any, costs: Any, budget: Any, t: Any, alpha: Any, link: Any, number: Any) -> Any:
    ways = placements(x.ndim - 1)
    return [([way] * 4, [way, way, way, way, alpha and way, None, None]) for way in ways]


def second(way: Any) -> Any:
    """Return the placement of two numbers per row, which lie along a dimension before the batch."""
    return Shard(way.dim + 1) if isinstance(way, Shard) else way


def _of_rows(way: Any, k: Any, every_k: Any, t: Any, *others: Any) -> list[Any]:
    """Return the placements of the arguments that every row has."""
    return [k and way, None, t and way, *(None for _ in others)]


def _entries_and_pair(x: Any, *rows: Any) -> Any:
    return [([way, second(way)], [way, *_of_rows(way, *rows)]) for way in placements(x.ndim - 1)]


def _backward(cotangent: Any, x: Any, theta: Any, *rows: Any) -> Any:
    return [
        ([way, second(way)], [way, way, second(way), *_of_rows(way, *rows)])
        for way in placements(x.ndim - 1)
    ]


def _backward_of_weights(cotangent: Any, x: Any, theta: Any, *rows: Any) -> Any:
    learned = rows[0] is not None or rows[2] is not None
    return [
        (
            [way, _or_nothing(second(way), learned)],
            [way, way, second(way), *_of_rows(way, *rows)],
        )
        for way in placements(x.ndim - 1)
    ]


def _each_alpha(x: Any, alpha: Any, *rows: Any) -> Any:
    return [
        ([way, second(way)], [way, way, *_of_rows(way, *rows)]) for way in placements(x.ndim - 1)
    ]


def _backward_of_each_alpha(
    cotangent: Any, x: Any, found: Any, theta: Any, alpha: Any, *rows: Any
) -> Any:
    return [
        ([way, second(way)], [way, way, way, second(way), way, *_of_rows(way, *rows)])
        for way in placements(x.ndim - 1)
    ]


def _or_nothing(way: Any, wanted: bool) -> Any:
    """Return the placement of an answer that has no entries unless it is wanted."""
    return way if wanted else Replicate()


def _value(x: Any, *rows_and_slopes: Any) -> Any:
    ways, slopes = placements(x.ndim - 1), rows_and_slopes[-1]
    return [
        ([way, *[_or_nothing(way, slopes)] * 3], [way, *_of_rows(way, *rows_and_slopes)])
        for way in ways
    ]


def _value_backward(cotangent: Any, x: Any, in_x: Any) -> Any:
    return [([way], [way] * 3) for way in placements(x.ndim - 1)]


def _gap(x: Any, target: Any, *rows_and_flags: Any) -> Any:
    ways, slopes = placements(x.ndim - 1), rows_and_flags[-1]
    return [
        ([way, *[_or_nothing(way, slopes)] * 2], [way, way, *_of_rows(way, *rows_and_flags)])
        for way in ways
    ]


def _choice(x: Any, k: Any, *every_k: Any) -> Any:
    of_k = getattr(k, "ndim", None) is not None
    return [
        ([way], [way, way if of_k else None, *(None for _ in every_k)])
        for way in placements(x.ndim - 1)
    ]


def _truncated(x: Any, k: Any, p: Any, t: Any, every_t: Any) -> Any:
    return [([way], [way, None, None, t and way, None]) for way in placements(x.ndim - 1)]


def _truncated_backward(x: Any, weights: Any, cotangent: Any, t: Any, every_t: Any) -> Any:
    ways = placements(x.ndim - 1)
    return [([way, way], [way, way, way, t and way, None]) for way in ways]


def _truncated_loss(x: Any, labels: Any, k: Any, p: Any, t: Any, every_t: Any, slopes: Any) -> Any:
    return [
        ([way, _or_nothing(way, slopes)], [way, way, None, None, t and way, None, None])
        for way in placements(x.ndim - 1)
    ]


for _operator, _rule in (
    (operators.weights, _entries_and_pair),
    (operators.hard_weights, _entries_and_pair),
    (operators.log_weights, _entries_and_pair),
    (operators.located, _entries_and_pair),
    (operators.weights_backward, _backward_of_weights),
    (operators.located_backward, _backward),
    (operators.log_weights_backward, _backward_of_weights),
    (operators.value, _value),
    (operators.value_backward, _value_backward),
    (operators.gap, _gap),
    (operators.hard, _choice),
    (operators.largest, _choice),
    (operators.truncated, _truncated),
    (operators.truncated_backward, _truncated_backward),
    (operators.truncated_loss, _truncated_loss),
    (torch_each_alpha.weights_each_alpha, _each_alpha),
    (torch_each_alpha.weights_each_alpha_backward, _backward_of_each_alpha),
):
    register_sharding(_operator)(_rule)

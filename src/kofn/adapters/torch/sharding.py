"""How DTensor shards the operators; imported after torch.distributed.tensor.

One process solves a whole row: scores may be sharded over batch dimensions, and DTensor gathers
scores that are sharded along a row first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from kofn.adapters.torch.operators import REGISTERED, Plan, is_given
from kofn.arrays.torch.operator import OPERATORS
from kofn.operations.operation import LAYERS, PAIR, THREE, Argument, arguments_of

BEFORE = {PAIR: 1, THREE: 1, LAYERS: 2}
"""The number of dimensions that stand before the rows'."""


def placed(way: Any, argument: Argument) -> Any:
    """Return the placement of an array, where the rows have the placement `way`."""
    before = BEFORE.get(argument.kind, 0)
    return Shard(way.dim + before) if isinstance(way, Shard) else way


def rule_of(plan: Plan) -> Callable[..., Any]:
    """Return the rule of an operator: which placements of its arguments give which answers."""
    operation = plan.operation
    kinds = {each.name: each for each in operation.arguments}

    def rule(*arguments: Any) -> Any:
        known = dict(zip(plan.names, arguments, strict=True))
        return [
            (
                [placed(way, a) if is_given(a, known) else Replicate() for a in operation.answers],
                [placed(way, kinds[n]) if hasattr(v, "ndim") else None for n, v in known.items()],
            )
            for way in ways(arguments[plan.rows[0] or 0].ndim - 1)
        ]

    return rule


def ways(batch: int) -> list[Any]:
    """Return the placements of rows in a batch with this number of dimensions."""
    return [Replicate(), *(Shard(dim) for dim in range(batch))]


def shard(operator: Any, takes: str, gives: str, count: Callable[..., int] | None = None) -> None:
    """Let an operator that is written by hand work on shards of a batch."""
    arguments, answers = arguments_of(takes), arguments_of(gives)

    def rule(x: Any, *others: Any) -> Any:
        given: Sequence[Any] = (x, *others)
        batch = x.ndim - 1 if count is None else count(*given)
        return [
            (
                [placed(way, answer) for answer in answers],
                [
                    placed(way, argument) if hasattr(value, "ndim") else None
                    for argument, value in zip(arguments, given, strict=True)
                ],
            )
            for way in ways(batch)
        ]

    register_sharding(operator)(rule)


for _name, _plan in REGISTERED.items():
    register_sharding(getattr(OPERATORS, _name).default)(rule_of(_plan))
shard(OPERATORS.threshold.default, "x n, k r, t r, alpha r?, link str, number float?", "hi r, lo r")
shard(
    OPERATORS.price.default,
    "x n, costs n, budget r, t r, alpha r?, link str, number float?",
    "high r, low r, distance n, scale r",
)

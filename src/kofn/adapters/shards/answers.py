"""Operations on rows in several processes: array code at a θ that is found by messages.

A call gathers statistics of the rows, searches for θ, and sums once more if its answer is a number
per row. First derivatives are the pullbacks of declarations, by two sums at most. Further ones,
derivatives in alpha, and all of a declaration without a pullback, come from the array code, at the
θ that is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from kofn.adapters.shards import knapsack
from kofn.adapters.shards.knapsack_choice import fill as knapsack_fill
from kofn.adapters.shards.search import solve
from kofn.adapters.theta import theta_of
from kofn.adapters.torch import eager
from kofn.arrays.torch.state import is_recorded
from kofn.links.link import Link
from kofn.operations.knapsack import KNAPSACK
from kofn.operations.operation import Operation, Signature
from kofn.operations.signatures import COSTED, NONE, ROWS
from kofn.rows.settled import Rows
from kofn.rows.settled import rows_of as given_rows
from kofn.rows.shards.given import Shards
from kofn.rows.shards.statistics import Counts, gathered, rows_of

Grads = Sequence[Tensor | None]

SHARDS: Signature = ROWS._replace(
    takes="x n, k r, t r, link",
    learnable=lambda _: ("x", "k", "t"),
    tensors=lambda shards: (shards.scores, shards.k, shards.temperature),
    without_tensors=lambda shards: shards._replace(scores=NONE, k=None, temperature=None),
    with_tensors=lambda shards, tensors: shards._replace(
        scores=tensors[0], k=tensors[1], temperature=tensors[2]
    ),
)
PER_ROW = "hi r, lo r, left r, live r, tops r"
"""What only messages tell of a row: θ, the k of its available entries, and two counts."""


def answer(operation: Operation, shards: Shards, *arrays: Tensor) -> Tensor:
    """Return the answer of an operation, with derivatives in scores, costs, k, T and alpha."""
    if shards.costs is not None:
        return _knapsack_answer(operation, shards)
    learned = _learned(shards.link, shards, SHARDS)
    slopes = not operation.has_slopes or learned[-1]
    if learned[0]:
        with torch.no_grad():
            known = _by_messages(operation, slopes, None, shards, *arrays)[1:]
        return _by_array_code(operation, shards, arrays, known)
    if any(learned):
        return eager.recorded(_with_back(operation, slopes), _run, None, shards, arrays, ())
    return _by_messages(operation, slopes, None, shards, *arrays)[0]


def _learned(link: Link, shards: Any, of: Signature) -> list[bool]:
    """Return whether autograd records alpha, and the tensors of rows."""
    alpha = link.static_and_array_alpha()[1]
    return [each is not None and is_recorded(each) for each in (alpha, *of.tensors(shards))]


def _run(operation: Operation, _: object, shards: Shards, *own: Any) -> Any:
    return operation.kernel(None, shards, *own)


@lru_cache
def _with_back(operation: Operation, slopes: bool) -> Operation:
    """Declare the operation on shards; `slopes` is whether what it keeps is made."""
    arrays = "".join(f", {name} n" for name in operation.arrays)
    known = PER_ROW + "".join(f", {name} r" for name in operation.keeps if slopes)
    back = Operation(
        name="",
        takes=f"cotangent r{arrays}, {known}, of_x int, of_k int, of_t int",
        gives="x n, k r, t r",
        of=SHARDS,
        kernel=partial(_pulled, operation, _by_formula if operation.pullback else _by_graph),
        plain=partial(_pulled, operation, _by_graph, None),
    )
    return Operation(
        name="",
        takes=f"x n{arrays}, k r, t r, link",
        gives=f"answer r, {known}",
        of=SHARDS,
        kernel=partial(_by_messages, operation, slopes),
        back=(back,),
    )


def _by_messages(
    operation: Operation, slopes: bool, _: object, shards: Shards, *arrays: Tensor
) -> tuple[Tensor, ...]:
    """Return the answer, the rows' statistics, and what the declaration keeps if `slopes`."""
    constants = SHARDS.with_tensors(shards, [each.detach() for each in SHARDS.tensors(shards)])
    statistics, rows = gathered(constants)
    over = shards.over
    theta = solve(statistics, rows, over) if operation.at_theta else None
    kept: Sequence[Tensor] = ()
    if operation.sloped is not None and slopes:
        first, theta, kept = operation.sloped(rows, *arrays, over=over, theta=theta)
    else:
        first = operation.reference(rows, *arrays, over=over, theta=theta)
    assert theta is not None
    return (first, *theta, rows.k, statistics.live, statistics.top, *kept)


def _pulled(
    operation: Operation, by: Callable[..., Grads], _: object, shards: Shards, v: Tensor, *own: Any
) -> Grads:
    """Return the cotangents of scores, k and T, as far as they are wanted."""
    count = len(operation.arrays)
    arrays, known, wanted = own[:count], own[count:-3], own[-3:]
    slopes = by(operation, shards, v, arrays, known)
    triples = zip(slopes, SHARDS.tensors(shards), wanted, strict=True)
    return tuple(_needed(slope, like) if of_it else None for slope, like, of_it in triples)


def _needed(slope: Any, like: Tensor) -> Tensor | None:
    """Return a cotangent; one that takes messages comes as a function."""
    slope = slope() if callable(slope) else slope
    return None if slope is None else slope.to(like.dtype)


def _by_formula(
    operation: Operation, shards: Shards, v: Tensor, arrays: Sequence[Any], known: Sequence[Tensor]
) -> Grads:
    assert operation.pullback is not None
    rows, theta, kept = _known(operation, shards, known)
    if "constant" in kept:
        v = torch.where(kept.pop("constant"), 0.0, v)
    return operation.pullback(v, rows, *arrays, over=shards.over, theta=theta, **kept)


def _by_graph(
    operation: Operation, shards: Shards, v: Tensor, arrays: Sequence[Any], known: Sequence[Tensor]
) -> Grads:
    tensors = SHARDS.tensors(shards)
    return _pulled_back(lambda: _by_array_code(operation, shards, arrays, known), tensors, v)


def _pulled_back(plain: Callable[[], Tensor], tensors: Sequence[Tensor], v: Tensor) -> Grads:
    """Return the cotangents of array code, which can be differentiated again if that is wanted."""
    some, again = [each for each in tensors if each.requires_grad], torch.is_grad_enabled()
    with torch.enable_grad():
        slopes = torch.autograd.grad(plain(), some, v, create_graph=again, allow_unused=True)
    left = iter(slopes)
    return tuple(next(left) if each.requires_grad else None for each in tensors)


def _by_array_code(
    operation: Operation, shards: Shards, arrays: Sequence[Any], known: Sequence[Tensor]
) -> Tensor:
    """Return the answer as differentiable code, at a θ that is known."""
    rows, theta, kept = _known(operation, shards, known)
    at = dict(theta=theta) if operation.at_theta else {}
    answer: Tensor = operation.reference(rows, *arrays, over=shards.over, **at)
    return torch.where(kept["constant"], answer.detach(), answer) if "constant" in kept else answer


def _known(
    operation: Operation, shards: Shards, known: Sequence[Tensor]
) -> tuple[Rows, tuple[Tensor, Tensor], dict[str, Tensor]]:
    """Return rows without a message, θ, and what the declaration keeps, if that was made.

    The answer of rows that are `constant` has no derivative.
    """
    hi, lo, left, live, tops, *kept = known
    k = torch.where(left.isnan(), math.nan, shards.k)
    rows = rows_of(shards._replace(k=k), Counts(live, tops))
    return rows, (hi, lo), dict(zip(operation.keeps, kept, strict=False))


# Rows with costs. Only the weights have a way back; prices and values are array code.


def _knapsack_answer(operation: Operation, shards: Shards) -> Tensor:
    served, learned = _OF_COSTED.get(operation.name), _learned(shards.link, shards, COSTED)
    if served is None or learned[0]:
        return _plain_answer(operation, shards)
    if any(learned):
        return eager.recorded(served, _run, None, shards, (), ())
    return served.kernel(None, shards)[0]


def knapsack_choice(shards: Shards) -> Tensor:
    """Return the entries that are bought, as 0 and 1, with the gradient of the weights."""
    fill = knapsack_fill(shards.given, shards.over)
    if not any(_learned(shards.link, shards, COSTED)):
        return fill
    soft = _knapsack_answer(KNAPSACK, shards)
    return fill + (soft - soft.detach())


def _plain_answer(operation: Operation, shards: Shards) -> Tensor:
    rows, over = given_rows(shards.given, shards.over), shards.over
    return operation.reference(rows, over=over, theta=theta_of(rows, over))


def _knapsack_weights(_: object, shards: Shards) -> tuple[Tensor, ...]:
    given = COSTED.with_tensors(
        shards.given, [each.detach() for each in COSTED.tensors(shards.given)]
    )
    p, kept = knapsack.weights(given, shards.over)
    return p, *kept


def _weights_again(_: object, shards: Shards, v: Tensor, *kept: Tensor) -> Grads:
    tensors = COSTED.tensors(shards.given)
    return _pulled_back(lambda: _plain_answer(KNAPSACK, shards), tensors, v)


def _weights_back(_: object, shards: Shards, v: Tensor, *kept: Tensor) -> Grads:
    slopes = knapsack.cotangents(v, shards.given, knapsack.Kept(*kept), shards.over)
    if slopes is None:
        return _weights_again(None, shards, v)
    pairs = zip(slopes, COSTED.tensors(shards.given), strict=True)
    return tuple(each.to(like.dtype) for each, like in pairs)


_KEPT = "z n, theta r, scale r, open r, over_budget r, price r"
_OF_COSTED = {
    KNAPSACK.name: Operation(
        name="",
        takes=KNAPSACK.takes,
        gives=f"p n, {_KEPT}",
        of=COSTED,
        kernel=_knapsack_weights,
        back=(
            Operation(
                name="",
                takes=f"cotangent n, {_KEPT}",
                gives="x n, costs n, budget r, t r",
                of=COSTED,
                kernel=_weights_back,
                plain=partial(_weights_again, None),
            ),
        ),
    )
}
"""What serves rows with costs, by the names of operations."""

"""Operations by array code, which defines them: every transform can see and differentiate it.

θ is found first, and the formulas take it. JAX compiles both in one program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kofn.adapters.theta import theta_of
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, cast
from kofn.operations.operation import ENTRY, Operation
from kofn.rows.compiled import evaluate
from kofn.rows.given import Given
from kofn.rows.settled import Rows, rows_of
from kofn.solver.reductions import DENSE, Reductions


def answer(
    operation: Operation,
    rows: Any,
    arrays: Sequence[Array],
    settings: Sequence[Any],
    theta: Array | None = None,
) -> Any:
    """Return the answer of an operation; at θ, two floats per row, if that is known."""
    own = dict(zip(operation.settings, settings, strict=True))
    for name in operation.told:
        own.pop(name)
    if operation.plain is not None:
        return operation.plain(rows, *arrays, **own)
    if rows.costs is not None:
        return evaluate(_with_costs, rows, *arrays, operation=operation, **own)
    if theta is not None and operation.at_theta:
        own["theta"] = (theta[0], theta[1])
    rows = operation.prepared(rows, *arrays)
    answer = of_settled(operation, rows_of(rows), *arrays, over=rows.over, **own)
    half = isinstance(rows, Given) and rows.is_half and operation.answers[0].kind == ENTRY
    return cast(answer, rows.scores.dtype) if half else answer


def of_settled(
    operation: Operation, rows: Rows, *arrays: Array, over: Reductions, **own: Any
) -> Any:
    """Return the answer of an operation on settled rows; `own` are its settings."""
    reference = operation.reference
    if "theta" in own or not operation.at_theta or own.get(operation.without_theta):
        return evaluate(reference, rows, *arrays, over=over, **own)
    return evaluate(_at_theta, rows, *arrays, over=over, reference=reference, **own)


def _at_theta(
    rows: Rows,
    *arrays: Array,
    over: Reductions = DENSE,
    reference: Callable[..., Array],
    **own: Any,
) -> Array:
    """Find θ of rows, and return the answer there."""
    return reference(rows, *arrays, over=over, theta=theta_of(rows, over), **own)


def _with_costs(given: Given, *arrays: Array, operation: Operation, **own: Any) -> Array:
    """Return the answer of rows with costs, whose many steps JAX compiles with it."""
    soft = _at_theta(rows_of(given), *arrays, reference=operation.reference, **own)
    if operation.fixed is None:
        return soft
    hard: Array = operation.fixed(given)
    return hard + (soft - stop_gradient(soft))

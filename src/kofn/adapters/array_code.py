"""Operations by array code, which defines them: every transform can see and differentiate it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from kofn.arrays.kinds import Array, cast, is_jax
from kofn.inputs.compiled import evaluate
from kofn.inputs.given import Given
from kofn.inputs.settled import rows_of
from kofn.operations.operation import ENTRY, Operation


def answer(
    operation: Operation,
    rows: Any,
    arrays: Sequence[Array],
    settings: Sequence[Any],
    theta: Array | None = None,
) -> Any:
    """Return the answer of an operation; at θ, two floats per row, if that is known."""
    known = dict(zip(operation.settings, settings, strict=True))
    known.pop("slopes", None)
    if operation.plain is not None:
        return operation.plain(rows, *arrays, **known)
    assert operation.reference is not None
    if theta is not None and operation.at_theta and rows.costs is None:
        known["found"] = (theta[0], theta[1])
    if rows.costs is None or not is_jax(rows.scores):
        found = evaluate(operation.reference, rows_of(rows), *arrays, over=rows.over, **known)
    else:
        found = evaluate(_of_given(operation.reference), rows, *arrays, **known)
    half = isinstance(rows, Given) and rows.is_half and operation.answers[0].kind == ENTRY
    return cast(found, rows.scores.dtype) if half else found


@lru_cache
def _of_given(reference: Callable[..., Array]) -> Callable[..., Array]:
    """Return the function of rows that are not settled yet: so many steps are compiled with it."""
    return lambda given, *own, **named: reference(rows_of(given), *own, **named)

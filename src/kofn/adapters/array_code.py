"""Operations by array code, which defines them: every transform can see and differentiate it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kofn.arrays.kinds import Array, cast
from kofn.operations.operation import ENTRY, Operation
from kofn.rows.compiled import evaluate
from kofn.rows.given import Given
from kofn.rows.settled import rows_of


def answer(
    operation: Operation,
    rows: Any,
    arrays: Sequence[Array],
    settings: Sequence[Any],
    theta: Array | None = None,
) -> Array:
    """Return the answer of an operation; at θ, two floats per row, if that is known."""
    known = dict(zip(operation.settings, settings, strict=True))
    known.pop("slopes", None)
    if operation.plain is not None:
        return operation.plain(rows, *arrays, **known)
    assert operation.reference is not None
    if theta is not None and operation.at_theta and rows.costs is None:
        known["found"] = (theta[0], theta[1])
    found = evaluate(operation.reference, rows_of(rows), *arrays, over=rows.over, **known)
    half = isinstance(rows, Given) and rows.is_half and operation.answers[0].kind == ENTRY
    return cast(found, rows.scores.dtype) if half else found

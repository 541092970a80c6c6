"""Operations on segments: block by block of segments of one length, as dense rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kofn.arrays.kinds import Array
from kofn.operations.operation import ENTRY, WIDE, Operation
from kofn.rows.given import Given
from kofn.rows.segments.blocks import by_blocks

PER_ENTRY = (ENTRY, WIDE)


def call(operation: Operation, backend: Any, given: Given, *own: Any) -> Any:
    """Return the answers of an operation on segments whose places are known.

    `own` are the arrays and settings of the operation, as for its kernel.
    """
    arrays = [each for each in operation.arguments if each.name in operation.arrays]
    takes = [each.kind in PER_ENTRY for each in arrays]
    gives = [each.kind in PER_ENTRY for each in operation.answers]
    count = len(takes)
    if operation.elementwise:
        return operation.kernel(backend, given, *own)

    def of_rows(rows: Given, parts: Sequence[Array]) -> Sequence[Any]:
        answers = operation.kernel(backend, rows, *parts, *own[count:])
        return answers if type(answers) is tuple else (answers,)

    whole = by_blocks(of_rows, given, own[:count], takes, gives)
    return tuple(whole) if len(gives) > 1 else whole[0]

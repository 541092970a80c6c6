"""Operations on JAX arrays: those that declare calls of XLA are primitives.

All others are array code, around a threshold that is a primitive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kofn.adapters import jax_onward, jax_primitives
from kofn.arrays.kinds import Array
from kofn.operations.operation import Operation
from kofn.rows import answers, jax_lost, priced_choice, pullbacks
from kofn.rows.given import Given
from kofn.rows.jax_operators import Settings, served
from kofn.solver.reductions import DENSE

_OF_ROWS = answers.weights, answers.gap, pullbacks.log_cotangents
jax_lost.by(jax_lost.Reference(*_OF_ROWS, priced_choice.fill))


def answer(
    operation: Operation, rows: Any, arrays: Sequence[Array], settings: Sequence[Any]
) -> Array | None:
    """Return the answer of an operation by a primitive, or None if there is none for it."""
    dense = type(rows) is not Given or rows.over is DENSE
    if operation.xla is None or not dense or not served(rows.link):
        return None
    n = rows.scores.shape[-1]
    tensors = operation.of.tensors(rows.per_row() if type(rows) is Given else rows)
    static = Settings(rows.link.id, rows.link.static_and_array_alpha()[0], True, own=(*settings,))
    if operation.onward is None:
        return jax_primitives.answer(operation, static, *tensors) if n else None
    if isinstance(n, int) and n > jax_onward.MOST:  # it may be a symbol
        return None
    return jax_onward.answer(operation, static, *tensors, *arrays)

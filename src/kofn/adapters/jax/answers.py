"""Operations on JAX arrays: those with calls of XLA or tangents are primitives, as are choices.

All others are array code, around a threshold that is a primitive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from kofn.adapters.jax import choice, onward, primitives
from kofn.adapters.jax.operators import Settings, served
from kofn.arrays.kinds import Array
from kofn.kernels.contract import GENERAL, kind_of
from kofn.operations.operation import Operation
from kofn.operations.signatures import EACH_ALPHA, ROWS
from kofn.rows.given import Given
from kofn.rows.shards.jax_axis import AxisRows
from kofn.solver.reductions import DENSE

OF_ALPHAS = {ROWS: EACH_ALPHA}
"""The signature of rows with an alpha each, by the signature with a number for alpha."""


def answer(
    operation: Operation, rows: Any, arrays: Sequence[Array], settings: Sequence[Any]
) -> Any:
    """Return the answer of an operation by a primitive, or None if there is none for it.

    The primitive calls a kernel on a CPU, and is array code elsewhere. A choice's is array
    code everywhere, which knows what to do with rows that are spread over devices.
    """
    if operation in choice.ANSWERS:
        return choice.ANSWERS[operation](rows, *arrays, *settings)
    dense = type(rows) is not Given or rows.over is DENSE
    if (operation.xla is None and operation.tangents is None) or not dense:
        return None
    number, alpha = rows.link.static_and_array_alpha()
    of = operation.of if alpha is None else OF_ALPHAS.get(operation.of)
    of = None if alpha is not None and operation.xla is None else of
    if of is None or not served(rows.link if alpha is None else rows.link.with_alpha(GENERAL)):
        return None
    n = rows.scores.shape[-1]
    tensors = of.tensors(rows.per_row() if type(rows) is Given else rows)
    static = Settings(rows.link.id, number, True, own=(*settings,))
    if operation.onward is None:
        return primitives.answer(operation, of, static, *tensors) if n else None
    if isinstance(n, int) and n > onward.MOST:  # it may be a symbol
        return None
    return onward.answer(operation, of, static, *tensors, *arrays)


def in_parts(operation: Operation, rows: Given, over: AxisRows) -> jax.Array | None:
    """Return the answer of an operation on parts of rows by a primitive, or None if it has none.

    Its derivatives have closed forms; those of array code take XLA twice as long to compile.
    """
    if operation.tangents is None or not operation.at_theta or kind_of(rows.link) is None:
        return None
    if rows.costs is not None or rows.scores.shape[-1] == 0:
        return None
    number = rows.link.static_and_array_alpha()[0]
    settings = Settings(rows.link.id, number, False, over=over)
    return primitives.answer(operation, operation.of, settings, *rows.per_row()[:3])

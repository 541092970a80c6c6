"""Operations on JAX arrays: which of them are primitives, that call kernels on a CPU.

All others are array code, around a threshold that is a primitive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kofn.arrays.kinds import Array
from kofn.operations.losses import with_number
from kofn.operations.operation import Operation
from kofn.rows.given import Given
from kofn.solver.reductions import DENSE


def answer(
    operation: Operation, rows: Any, arrays: Sequence[Array], settings: Sequence[Any]
) -> Array | None:
    """Return the answer of an operation by a primitive, or None if there is none for it."""
    primitive = PRIMITIVES.get(operation.name)
    if primitive is None or (type(rows) is Given and rows.over is not DENSE):
        return None
    return primitive(operation, rows, *arrays, *settings)


def _weights(operation: Operation, given: Given) -> Array | None:
    from kofn.adapters.jax_weights import weights

    return weights(given, operation.reference)


def _losses(operation: Operation, given: Given, target: Array, likely: int) -> Array | None:
    from kofn.adapters.jax_losses import losses

    given = with_number(given, target) if target.ndim == given.scores.ndim else given
    return losses(given, target, bool(likely))


def _knapsack(operation: Operation, given: Any) -> Array | None:
    from kofn.adapters.jax_priced import weights

    return weights(given)


PRIMITIVES: dict[str, Callable[..., Array | None]] = {
    "weights": _weights,
    "log_weights": _weights,
    "gap": _losses,
    "knapsack_weights": _knapsack,
}
"""By the names of operations; each returns None where no kernel serves the link."""

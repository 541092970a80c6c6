"""Evaluation of functions of rows, compiled with jax.jit for JAX arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from kofn.arrays.kinds import Array, is_jax
from kofn.rows.given import Given
from kofn.rows.settled import Rows
from kofn.solver.reductions import DENSE, Reductions


def evaluate(
    function: Callable[..., Array],
    rows: Rows | Given,
    *arrays: Array,
    over: Reductions = DENSE,
    **settings: Hashable,
) -> Array:
    """Call function(rows, *arrays, **settings), compiled as a whole for JAX.

    It gets `over`, too, unless the rows are dense.
    """
    if is_jax(rows.scores):
        from kofn.arrays.jax.compile import bound
        from kofn.rows.jax_compiled import evaluate as compiled

        chosen = bound(function, **settings) if settings else function
        rows = rows._replace(form=None) if type(rows) is Given else rows
        return compiled(chosen, rows, _other(over), *arrays)  # type: ignore[arg-type]  # of JAX
    return function(rows, *arrays, **_other(over), **settings)


def _other(over: Reductions) -> dict[str, Any]:
    return {} if over is DENSE else {"over": over}


def whole(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call function(*arguments) on arrays, compiled as a whole for JAX.

    `function` must be defined at module level, so that it is compiled once.
    """
    first = arguments[0]
    if is_jax(first[0] if isinstance(first, tuple) else first):
        from kofn.arrays.jax.compile import whole as compiled

        return compiled(function, *arguments)
    return function(*arguments)

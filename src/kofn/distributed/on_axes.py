"""The maps of rows that lie along named axes of a JAX mesh, inside jax.shard_map."""

from __future__ import annotations

from typing import Any

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, framework, is_jax
from kofn.formulas import choice
from kofn.inputs.settled import rows_of
from kofn.operations.choice import HARD
from kofn.operations.operation import ENTRY
from kofn.threshold.compiled import evaluate

AxisName = str | tuple[str, ...] | None


def is_asked(name: str, scores: Any, group: Any, axis_name: AxisName) -> bool:
    """Return whether a call is for JAX; raise an error if its arguments are for another library."""
    if not is_jax(scores):
        if axis_name is None:
            return False
        raise TypeError(
            f"{name}: axis_name is for JAX arrays inside jax.shard_map; scores is "
            f"{framework(scores) or type(scores).__name__}; pass group, the processes with the rest"
        )
    if group is not None:
        raise TypeError(
            f"{name}: group is for torch tensors; scores is a JAX array; pass axis_name, the "
            "axes of jax.shard_map along which its rows lie"
        )
    if axis_name is None:
        raise ValueError(
            f"{name}: scores is a JAX array; give axis_name, the axes of jax.shard_map along which "
            "its rows lie; outside of shard_map, kofn's own functions take arrays on any mesh"
        )
    return True


def answer(name: str, axis_name: Any, operation: Any, choose: bool, *arguments: Any) -> Any:
    """Return this device's part of an operation, or its number per row; if `choose`, hard choices.

    `arguments` are those of `given_on_axes`.
    """
    from kofn.threshold.jax_axis import axis_rows, given_on_axes

    over = axis_rows(name, axis_name)
    given = given_on_axes(over, *arguments)
    if operation is HARD:
        return given.form.restored(_hard(given, over))
    found = evaluate(operation.reference, rows_of(given, over), over=over)
    if operation.answers[0].kind != ENTRY:
        return over.shared(found)
    if choose:
        found = _hard(given, over) + (found - stop_gradient(found))
    return given.form.restored(found)


def _hard(given: Any, over: Any) -> Array:
    from kofn.threshold.jax_choice import hard_in_shards

    x, k = stop_gradient(given.scores), stop_gradient(given.k)
    chosen = hard_in_shards(choice.known_scores(x), k, over)
    return choice.with_nan(x, k, chosen, over)

"""The maps of rows that lie along named axes of a JAX mesh, inside jax.shard_map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, framework, is_jax
from kofn.links import Link
from kofn.links import logistic as LOGISTIC
from kofn.rows import answers, choice, implicit, priced_answers
from kofn.rows.answers import require_integral
from kofn.rows.compiled import evaluate
from kofn.rows.settled import rows_of

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


def soft_topk(name: str, axis_name: Any, hard: bool, *arguments: Any) -> Any:
    """Return this device's part of the weights; `arguments` are those of `given_on_axes`."""
    given, over = _given(name, axis_name, *arguments)
    soft = evaluate(answers.weights, rows_of(given, over), over=over)
    if hard:
        soft = _hard(given, over) + (soft - stop_gradient(soft))
    return given.form.restored(soft)


def hard_topk(name: str, axis_name: Any, scores: Any, k: Any, dim: int, mask: Any) -> Any:
    """Return this device's part of the hard choice."""
    given, over = _given(name, axis_name, scores, k, LOGISTIC, 1.0, dim, mask)
    return given.form.restored(_hard(given, over))


def softmax(name: str, axis_name: Any, *arguments: Any) -> Any:
    """Return this device's part of softmax."""
    given, over = _given(name, axis_name, *arguments)
    return given.form.restored(evaluate(answers.softmax, rows_of(given, over), over=over))


def soft_topk_threshold(name: str, axis_name: Any, *arguments: Any) -> Any:
    """Return θ of every row."""
    return _per_row(implicit.theta, name, axis_name, *arguments)


def soft_topk_sum(name: str, axis_name: Any, scores: Any, k: Any, link: Link, *others: Any) -> Any:
    """Return S_k of every row."""
    require_integral(link, scores)
    return _per_row(answers.value, name, axis_name, scores, k, link, *others)


def soft_knapsack(name: str, axis_name: Any, answer: str, *arguments: Any) -> Any:
    """Return this device's part of `priced_answers.weights`, or θ or S of every row."""
    from kofn.rows.jax_axis import axis_rows, priced_on_axes

    over = axis_rows(name, axis_name)
    given, form = priced_on_axes(over, *arguments)
    if answer == "value":
        require_integral(given.link, given.scores)
    found = evaluate(getattr(priced_answers, answer), given, over=over)
    return form.restored(found) if answer == "weights" else over.shared(found)


def _per_row(function: Callable[..., Any], name: str, axis_name: Any, *arguments: Any) -> Any:
    given, over = _given(name, axis_name, *arguments)
    return over.shared(evaluate(function, rows_of(given, over), over=over))


def _given(name: str, axis_name: Any, *arguments: Any) -> tuple[Any, Any]:
    from kofn.rows.jax_axis import axis_rows, given_on_axes

    over = axis_rows(name, axis_name)
    return given_on_axes(over, *arguments), over


def _hard(given: Any, over: Any) -> Array:
    from kofn.rows.jax_choice import hard_in_shards

    x, k = stop_gradient(given.scores), stop_gradient(given.k)
    chosen = hard_in_shards(choice.known_scores(x), k, over)
    return choice.with_nan(x, k, chosen, over)

"""Logarithms and losses of rows, with first derivatives in closed form for eager torch.

These derivatives avoid the Newton steps of `rows/implicit.py`. Gradients in k or alpha, second
derivatives, transforms and compilers use the plain code instead. docs/rows.md has the
formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kofn.arrays.kinds import Array, is_torch, of_torch
from kofn.rows import answers, fused
from kofn.rows.compiled import evaluate
from kofn.rows.given import Given
from kofn.rows.pullbacks import in_rows, of_logarithms, of_losses
from kofn.rows.settled import Rows, rows_of
from kofn.rows.threshold_route import threshold
from kofn.solver.reductions import Reductions


def log_weights_of(given: Given) -> Array:
    """Return log p of rows by the fastest route."""
    found = fused.log_weights(given)
    return log_weights(given.per_row()) if found is None else found


def log_weights(given: Given, over: Reductions | None = None) -> Array:
    """Return `answers.log_weights` of the rows of `given`."""
    over = given.over if over is None else over
    if not _closed(given):
        return evaluate(answers.log_weights, rows_of(given, over), over=over)
    return _by_rule(given, answers.log_weights, of_logarithms, over)


def gap(given: Given, target: Array, over: Reductions | None = None) -> Array:
    """Return `answers.gap` of the rows of `given`, whose derivative in z is p − t."""
    over = given.over if over is None else over
    if not _closed(given):
        return evaluate(answers.gap, rows_of(given, over), target, over=over)
    return _by_rule(given, answers.gap, of_losses, over, target)


def _closed(given: Given) -> bool:
    """Return whether eager torch records operations on scores and temperature only."""
    x, k, temperature, link, _ = given
    if not is_torch(x):
        return False
    state = of_torch("state")
    others = [k] if link.alpha is None or isinstance(link.alpha, float) else [k, link.alpha]
    return (
        (state.is_recorded(x) or state.is_recorded(temperature))
        and all(state.is_eager(a) for a in (x, temperature, *others))
        and not any(a.requires_grad for a in others)
    )


def _by_rule(
    given: Given, answer: Callable, in_z: Callable, over: Reductions, *constants: Array
) -> Array:
    """Return answer(rows, *constants), with the cotangent of z from in_z.

    The tensors go through the rule and not into its closures, which would hold their memory.
    """
    numbers = given._replace(scores=None, temperature=None)

    def of(x: Array, temperature: Array) -> Rows:
        return rows_of(numbers._replace(scores=x, temperature=temperature), over)

    def value(x: Array, temperature: Array, *constants: Array) -> Any:
        rows = of(x, temperature)
        found = threshold(rows.scores, rows.k, rows.temperature, rows.link, over)
        return answer(rows, *constants, over=over, found=found), found

    def pullback(cotangent: Array, tensors: Any, found: Any) -> Any:
        x, temperature, *constants = tensors
        slopes = in_rows(cotangent, of(x, temperature), found, in_z, constants, over)
        return *slopes, *[None] * len(constants)

    def plain(x: Array, temperature: Array, *constants: Array) -> Array:
        return answer(of(x, temperature), *constants, over=over)

    rule = of_torch("rule")
    tensors = given.scores, given.temperature, *constants
    return rule.by_rule(rule.Rule(value, pullback, plain), *tensors)

"""Logarithms and losses of rows, with first derivatives in closed form for eager torch.

These derivatives avoid the Newton steps of `rows/implicit.py`. Gradients in k or alpha, second
derivatives, transforms and compilers use the plain code instead. docs/rows.md has the
formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kofn.arrays.autodiff import values_and_slopes
from kofn.arrays.flow import only_if
from kofn.arrays.kinds import Array, is_torch, namespace, of_torch
from kofn.rows import answers, fused, implicit
from kofn.rows.compiled import evaluate
from kofn.rows.given import Given
from kofn.rows.settled import Rows, rows_of
from kofn.rows.threshold_route import threshold
from kofn.solver.plateau import Entries
from kofn.solver.reductions import DENSE, Reductions


def log_weights_of(given: Given) -> Array:
    """Return log p of rows by the fastest route."""
    found = fused.log_weights(given, partial(_in_rows, in_z=_log_pullback, constants=()))
    return log_weights(given.per_row()) if found is None else found


def log_weights(given: Given, over: Reductions = DENSE) -> Array:
    """Return `answers.log_weights` of the rows of `given`."""
    if not _closed(given):
        return evaluate(answers.log_weights, rows_of(given, over), over=over)
    return _by_rule(given, answers.log_weights, _log_pullback, over)


def gap(given: Given, target: Array, over: Reductions = DENSE) -> Array:
    """Return `answers.gap` of the rows of `given`, whose derivative in z is p − t."""
    if not _closed(given):
        return evaluate(answers.gap, rows_of(given, over), target, over=over)
    return _by_rule(given, answers.gap, _gap_pullback, over, target)


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
        slopes = _in_rows(cotangent, of(x, temperature), found, in_z, constants, over)
        return *slopes, *[None] * len(constants)

    def plain(x: Array, temperature: Array, *constants: Array) -> Array:
        return answer(of(x, temperature), *constants, over=over)

    rule = of_torch("rule")
    tensors = given.scores, given.temperature, *constants
    return rule.by_rule(rule.Rule(value, pullback, plain), *tensors)


def _in_rows(
    cotangent: Array,
    rows: Rows,
    found: Any,
    in_z: Callable,
    constants: Sequence[Array],
    over: Reductions = DENSE,
) -> tuple[Array, Array]:
    """Return the cotangents of the scores and the temperature."""
    p = implicit.place(rows, over, found)
    # Cotangents of z = (x − θ)/T that sum to 0.
    in_x = in_z(cotangent, p, rows, *constants) / over.expand(rows.temperature)
    moved = in_x * implicit.distances(rows, p)
    return in_x, -over.sum(namespace(in_x).where(in_x == 0, 0.0, moved))


def _gap_pullback(v: Array, p: implicit.Placed, rows: Rows, target: Array) -> Array:
    xp = namespace(v)
    chosen = xp.where(p.upper, 1 - p.link.sf(p.z), p.link.cdf(p.z))
    chosen = xp.where(p.over.expand(p.spoiled), math.nan, chosen)
    return xp.where(_moving(p, rows), p.over.expand(v) * (chosen - target), 0.0)


def _log_pullback(v: Array, p: implicit.Placed, rows: Rows) -> Array:
    xp = namespace(v)
    moves = _moving(p, rows)
    slope = xp.where(moves, p.link.pdf(p.z), 0.0)
    z = implicit.reached(rows, p)
    pulled = v * values_and_slopes(lambda z: answers.log_of(p, z, rows.live), z)[1]
    pulled = xp.where(moves, pulled, 0.0)
    total = p.over.sum(slope)
    solvable = total >= implicit.least_weight(total)
    hard = ~(solvable | p.every | p.none | p.spoiled)
    share = slope / p.over.expand(xp.where(solvable, total, math.inf))

    def shares() -> Array:
        row = Entries(p.z, rows.scores, rows.temperature, rows.live, p.over)
        return share + implicit.shares(p.link, row, hard)

    return pulled - only_if(hard, shares, share) * p.over.expand(p.over.sum(pulled))


def _moving(p: implicit.Placed, rows: Rows) -> Array:
    return rows.live & ~p.over.expand(p.every | p.none)

"""Weights of rows for JAX, and their logarithms, with derivatives of any order, from three
primitives.

The tangent of weights is linear in those of scores, k and T, and its transpose is what the kernels'
backward pass computes. What is not linear, the derivatives of either in scores, k or T, comes from
the array code of `implicit.py`, which is differentiable to any order. So first derivatives are
kernels, forward mode and second derivatives are array code around the same θ.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from jax.interpreters import ad

from kofn.rows import answers, jax_lost, pullbacks
from kofn.rows.given import Given
from kofn.rows.jax_axis import AxisRows
from kofn.rows.jax_operators import Operator, Settings, Site, bind, make, served
from kofn.rows.settled import Rows, rows_of
from kofn.rows.threshold_route import threshold
from kofn.solver.plateau import at_end
from kofn.solver.reductions import DENSE, Reductions

jax_lost.by(jax_lost.Reference(answers.weights, answers.gap, pullbacks.log_cotangents))


def weights(given: Given, reference: Any) -> jax.Array | None:
    """Return the weights of `given`, or None if no kernel serves the link."""
    if not served(given.link):
        return None
    number, _ = given.link.static_and_array_alpha()
    return _weights(Settings(given.link.id, number, True, reference), *given.per_row()[:3])


def log_weights(given: Given) -> jax.Array | None:
    """Return log p of `given`, or None if no kernel serves the link."""
    return weights(given, answers.log_weights)


@partial(jax.jit, static_argnums=0)
def _weights(settings: Settings, *arrays: jax.Array) -> jax.Array:
    return _bind(_WEIGH, *arrays, settings=settings)[2]


def _plain(
    x: Any, k: Any, t: Any, *, settings: Settings, over: Reductions, found: Any = None
) -> jax.Array:
    rows = rows_of(Given(x, k, t, settings.link_of()), over)
    if settings.reference in (answers.weights, answers.log_weights):
        return settings.reference(rows, over=over, found=found)
    return settings.reference(rows, over=over)


def _are_logarithms(settings: Settings) -> bool:
    return settings.reference is answers.log_weights


def _weighed(
    x: Any, k: Any, t: Any, *, settings: Settings, grouped: bool, over: Reductions = DENSE
) -> Any:
    """Return θ and the weights; in shards, θ as it is used, which spares `_pulled` messages."""
    rows = rows_of(Given(x, k, t, settings.link_of()), over)
    found = threshold(rows.scores, rows.k, rows.temperature, rows.link, over)
    answer = _plain(x, k, t, settings=settings, over=over, found=found)
    return *(found if over is DENSE else _at_ends(rows, found, over)), answer


def _at_ends(rows: Rows, found: tuple[Any, Any], over: Reductions) -> Sequence[Any]:
    """Return θ of links that end at 1 as `implicit.place` uses it; see `plateau.at_end`."""
    if rows.link.capped is False:
        return found
    open_ = jax.numpy.isfinite(found[0])
    hi, lo = (jax.numpy.where(open_, part, 0) for part in found)
    moved = at_end(rows.scores, rows.k, rows.temperature, rows.link, hi, lo, over)
    return [jax.numpy.where(open_, *parts) for parts in zip(moved, found, strict=True)]


def _pushed(
    x: Any,
    k: Any,
    t: Any,
    hi: Any,
    lo: Any,
    *tangents: Any,
    settings: Settings,
    grouped: bool,
    over: Reductions = DENSE,
) -> Any:
    """Return the tangent of the weights."""
    function = partial(_plain, settings=settings, over=over, found=(hi, lo))
    return [jax.jvp(function, (x, k, t), tangents)[1]]


def _pulled(
    x: Any,
    k: Any,
    t: Any,
    hi: Any,
    lo: Any,
    cotangent: Any,
    *,
    settings: Settings,
    grouped: bool,
    over: Reductions = DENSE,
) -> Any:
    """Return the cotangents of scores, k and T."""
    if over is not DENSE and settings.reference is answers.weights:
        given = Given(x, k, t, settings.link_of())
        return list(pullbacks.of_weights(cotangent, given, (hi, lo), over))
    function = partial(_plain, settings=settings, over=over, found=(hi, lo))
    in_x, in_k, in_t = jax.vjp(function, x, k, t)[1](cotangent)
    return in_x, total(in_k, over), total(in_t, over)


def total(per_row: jax.Array, over: Reductions) -> jax.Array:
    """Return the sum of what all devices have of a cotangent per row."""
    return over.total(per_row) if isinstance(over, AxisRows) else per_row


def _weigh_by_kernel(site: Site, *values: Any) -> Any:
    hi, lo, found = site.weights(*values)
    if _are_logarithms(site.settings):
        x = site.shapes[0]
        (found,) = site.rows("logarithms", (*values, hi, lo, found), [x], x)
    return hi, lo, found


def _pull_by_kernel(site: Site, *values: Any) -> Any:
    call = "log_cotangents" if _are_logarithms(site.settings) else "cotangents"
    return site.rows(call, values, site.context.avals_out, site.shapes[5])


_WEIGH = Operator("kofn_weights", (1, 1, 0), (0,), _weighed, _weigh_by_kernel, True)
_PUSH = Operator("kofn_tangents", (0,), (0, 5), _pushed, in_shards=True)
_PULL = Operator("kofn_cotangents", (0, 1, 1), (0, 5), _pulled, _pull_by_kernel, True)
_primitives = {operator: make(operator) for operator in (_WEIGH, _PUSH, _PULL)}
_NUMBERS = 5  # x, k, T and both floats of θ; what follows is linear


def _bind(operator: Operator, *arrays: Any, settings: Settings) -> Any:
    return bind(_primitives[operator], operator, *arrays, settings=settings)


def push(*arrays: Any, settings: Settings) -> jax.Array:
    """Return the tangent of weights, from x, k, T, θ and the tangents of x, k, T."""
    tangents = map(ad.instantiate_zeros, arrays[_NUMBERS:])
    found: jax.Array = _bind(_PUSH, *arrays[:_NUMBERS], *tangents, settings=settings)[0]
    return found


def _weigh_jvp(primals: Any, tangents: Any, *, settings: Settings) -> Any:
    hi, lo, found = _bind(_WEIGH, *primals, settings=settings)
    if _are_logarithms(settings) and not isinstance(tangents[1], ad.Zero):
        settings = settings._replace(kernels=False)  # they have no cotangent of k
    pushed = push(*primals, hi, lo, *tangents, settings=settings)
    # θ is a constant of the array code, which differentiates around it.
    none = (ad.Zero(part.aval) for part in (hi, lo))
    return [hi, lo, found], [*none, pushed]


def linear_jvp(
    operator: Operator,
    primitive: Any,
    moving: int,
    primals: Any,
    tangents: Any,
    *,
    settings: Settings,
) -> Any:
    """Return the tangent of an operator that is linear in its arguments after θ.

    So many arguments before θ are not linear.
    """
    call = partial(bind, primitive, operator, settings=settings)
    found, start = call(*primals), moving + 2
    numbers, linear = primals[:start], primals[start:]
    following = map(ad.instantiate_zeros, tangents[start:])
    if all(isinstance(tangent, ad.Zero) for tangent in tangents[:moving]):
        return found, call(*numbers, *following)

    def around(*arrays: Any) -> Any:
        arrays = *arrays[:moving], *numbers[moving:], *arrays[moving:]
        return list(operator.plain(*arrays, settings=settings, grouped=False))

    moved = (*map(ad.instantiate_zeros, tangents[:moving]), *following)
    return found, jax.jvp(around, (*numbers[:moving], *linear), moved)[1]


def _push_transposed(cotangents: Any, *arrays: Any, settings: Settings) -> Any:
    numbers, linear = arrays[:_NUMBERS], arrays[_NUMBERS:]
    pulled = _bind(_PULL, *numbers, ad.instantiate_zeros(cotangents[0]), settings=settings)
    wanted = map(ad.is_undefined_primal, linear)
    return [None] * _NUMBERS + [p if w else None for p, w in zip(pulled, wanted, strict=True)]


def _pull_transposed(cotangents: Any, *arrays: Any, settings: Settings) -> Any:
    tangents = map(ad.instantiate_zeros, cotangents)
    return [None] * _NUMBERS + _bind(_PUSH, *arrays[:_NUMBERS], *tangents, settings=settings)


ad.primitive_jvps[_primitives[_WEIGH]] = _weigh_jvp
for _operator in (_PUSH, _PULL):
    _rule = partial(linear_jvp, _operator, _primitives[_operator], 3)
    ad.primitive_jvps[_primitives[_operator]] = _rule
ad.primitive_transposes[_primitives[_PUSH]] = _push_transposed
ad.primitive_transposes[_primitives[_PULL]] = _pull_transposed

"""Operations with a way onward as JAX primitives: losses, whose second answer is p − t.

One primitive is the answer alone, one is both answers. The slope of a loss in the scores is
(p − t)/T, and p − t moves as the weights do. So first derivatives are the work of kernels, and
second ones add the array code of weights.
"""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any, NamedTuple

import jax
from jax.interpreters import ad, mlir

from kofn.adapters.jax_linear import pushed
from kofn.adapters.jax_primitives import linear_of
from kofn.adapters.jax_rows import names_of, packed, prepared, solved
from kofn.arrays.autodiff import for_values, quotient, stop_gradient
from kofn.arrays.kinds import cast
from kofn.operations.operation import Operation
from kofn.rows.jax_operators import RULES, Operator, Rules, Settings, Site, bind
from kofn.rows.settled import rows_of
from kofn.solver.reductions import DENSE, Reductions

MOST = 2**31 - 1
"""The greatest label."""


@partial(jax.jit, static_argnums=(0, 1))
def answer(operation: Operation, settings: Settings, *arrays: jax.Array) -> jax.Array:
    """Return the losses of rows; the last array is a target like the scores, or a label per row."""
    *before, target = arrays
    rows = prepared(operation, settings, before, target)
    is_label = target.ndim < rows[0].ndim
    target = target.astype("int32") if is_label else cast(target, rows[0].dtype)
    found: jax.Array = bind(_pair(operation, is_label).alone, *rows, target, settings=settings)[0]
    return found


class _Pair(NamedTuple):
    alone: Operator  # the loss
    both: Operator  # θ, the loss and p − t


@cache
def _pair(operation: Operation, is_label: bool) -> _Pair:
    names, name = (*names_of(operation.of), "target"), f"kofn_{operation.name}"
    entries = (0,) if is_label else (0, len(names) - 1)
    row = names.index("t")

    def both(*arrays: Any, settings: Settings, grouped: bool, over: Reductions = DENSE) -> Any:
        """Return θ, the losses and p − t, which is 0 where the loss is constant."""
        *before, target = arrays
        rows = rows_of(packed(operation.of, settings, before), over)
        assert operation.compared is not None
        with for_values():
            found = solved(rows, over)[1]
            return *found, *operation.compared(rows, target, *settings.own, over=over, found=found)

    def both_by_kernel(site: Site, *values: Any) -> Any:
        assert operation.xla is not None
        calls = operation.xla(*site.settings.own, is_label)
        site, values = _with_long_labels(site, values) if is_label else (site, values)
        found = site.rows(names, values, calls)
        return [found[each] for each in ("hi", "lo", "loss", "away")]

    def alone(*arrays: Any, **ways: Any) -> Any:
        return [both(*arrays, **ways)[2]]

    def alone_by_kernel(site: Site, *values: Any) -> Any:
        return [both_by_kernel(site, *values)[2]]

    pair = _Pair(
        Operator(name, (row,), entries, alone, alone_by_kernel, True),
        Operator(f"{name}_slopes", (row, row, row, 0), entries, both, both_by_kernel, True),
    )
    RULES[pair.alone] = Rules(partial(_alone_jvp, pair))
    RULES[pair.both] = Rules(partial(_both_jvp, operation, pair))
    return pair


def _with_long_labels(site: Site, values: Any) -> tuple[Site, Any]:
    """Return the labels as integers of 64 bits, which JAX may not have: as pairs of 32."""
    (*before, label), shapes = values, site.shapes

    def long(label: jax.Array) -> jax.Array:
        return jax.numpy.stack([label, jax.numpy.zeros_like(label)], axis=-1)

    one = site.context.replace(avals_in=shapes[-1:], avals_out=None)
    (pairs,) = mlir.lower_fun(long, multiple_results=False)(one, label)
    shape = jax.eval_shape(long, shapes[-1])
    longer = shapes[-1].update(shape=shape.shape)
    context = site.context.replace(avals_in=[*shapes[:-1], longer])
    return site._replace(context=context), (*before, pairs)


def _alone_jvp(pair: _Pair, primals: Any, tangents: Any, *, settings: Settings) -> Any:
    both = bind(pair.both, *primals, settings=settings)
    return both[2:3], [_tangent(primals, both, tangents)]


def _tangent(primals: Any, both: Any, tangents: Any) -> jax.Array:
    """Return Σ(p − t)·dz with z = (x − θ)/T; what θ and k add is 0, because Σp is Σt.

    So any number may stand for θ, as in pivot.py: the mean of x in the weights |p − t|. Where a
    target is out of play, and the loss infinite, Σp is another number.
    """
    (x, _, t, _), (hi, lo, loss, away), (dx, _, dt, _) = primals, both, tangents
    moved = away * ad.instantiate_zeros(dx)  # type: ignore[no-untyped-call]
    if not isinstance(dt, ad.Zero):
        some = away != 0
        pivot, rest = _pivot(x, hi, lo, loss, away)
        z = quotient((jax.numpy.where(some, x, pivot) - pivot) - rest, t[..., None], some)
        moved = moved - jax.numpy.where(some, away * z, 0.0) * dt[..., None]
    return moved.sum(-1) / t


def _pivot(*both: Any) -> tuple[jax.Array, jax.Array]:
    """Return what stands for θ, per entry, and what this number lacks of it."""
    x, hi, lo, loss, away = map(stop_gradient, both)
    hi, lo, size, where = hi[..., None], lo[..., None], abs(away), jax.numpy.where
    from_theta = (where(away != 0, x, hi) - hi) - lo
    total = size.sum(-1, keepdims=True)
    moment = where(away != 0, size * from_theta, 0.0).sum(-1, keepdims=True)
    usual = (total > 0) & jax.numpy.isfinite(moment) & jax.numpy.isfinite(loss)[..., None]
    mean = moment / where(usual, total, 1.0)
    return where(usual, hi + (lo + mean), hi), where(usual, 0.0, lo)


def _both_jvp(
    operation: Operation, pair: _Pair, primals: Any, tangents: Any, *, settings: Settings
) -> Any:
    both = hi, lo, loss, _ = bind(pair.both, *primals, settings=settings)
    assert operation.moves_as is not None
    alike = settings._replace(own=())
    moved = pushed(linear_of(operation.moves_as), (*primals[:3], hi, lo), tangents[:3], alike)
    moved = jax.numpy.where(loss[..., None] == math.inf, 0.0, moved)  # p − t is 0 there
    none = (ad.Zero(part.aval) for part in (hi, lo))
    return both, [*none, _tangent(primals, both, tangents), moved]

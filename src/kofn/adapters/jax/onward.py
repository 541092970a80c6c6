"""Operations with a way onward as JAX primitives: losses, whose second answer is p − t.

One primitive is the answer alone, one is both answers. The slope of a loss in the scores is
(p − t)/T, and p − t moves as the weights do. So first derivatives are the work of kernels, and
second ones add the array code of weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax

from kofn.adapters.jax.alphas import in_kinds
from kofn.adapters.jax.linear import pushed
from kofn.adapters.jax.operators import RULES, Operator, Rules, Settings, Site, bind
from kofn.adapters.jax.primitives import linear_of
from kofn.adapters.jax.rows import names_of, packed, prepared, solved
from kofn.arrays.autodiff import for_values, quotient, stop_gradient
from kofn.arrays.jax.private import ad, mlir
from kofn.arrays.kinds import cast
from kofn.operations.operation import Operation, Signature
from kofn.rows.settled import rows_of
from kofn.solver.reductions import DENSE, Reductions

Arrays = Sequence[jax.Array]

MOST = 2**31 - 1
"""The greatest label."""


@partial(jax.jit, static_argnums=(0, 1, 2))
def answer(
    operation: Operation, of: Signature, settings: Settings, *arrays: jax.Array
) -> jax.Array:
    """Return the losses of rows; the last array is a target like the scores, or a label per row."""
    *before, target = arrays
    rows = prepared(operation, of, settings, before, target)
    is_label = target.ndim < rows[0].ndim
    target = target.astype("int32") if is_label else cast(target, rows[0].dtype)
    operator = pair_of(operation, of, is_label).alone
    return bind(operator, *rows, target, settings=settings)[0]


class Pair(NamedTuple):
    names: tuple[str, ...]  # of the rows
    alone: Operator  # the loss
    both: Operator  # θ, the loss, p − t and, where alpha is an array, the loss's slope in it


@cache
def pair_of(operation: Operation, of: Signature, is_label: bool) -> Pair:
    """Return the primitives of an operation."""
    code = _Code(operation, of, is_label)
    names, name = (*names_of(of), "target"), f"kofn_{operation.name}"
    entries, row = (0,) if is_label else (0, len(names) - 1), names.index("t")
    like = (row, row, row, 0, *([row] if code.has_alpha else []))
    alone = Operator(name, (row,), entries, code.alone, code.alone_by_kernel, True)
    both = Operator(f"{name}_slopes", like, entries, code.both, code.both_by_kernel, True)
    if code.has_alpha:
        alone, both = (in_kinds(each, names.index("alpha")) for each in (alone, both))
    pair = Pair(names[:-1], alone, both)
    RULES[alone] = Rules(partial(_alone_jvp, pair))
    RULES[both] = Rules(partial(_both_jvp, pair, code))
    return pair


class _Code:
    """The array code of an operation, and what calls kernels for it."""

    def __init__(self, operation: Operation, of: Signature, is_label: bool) -> None:
        self.operation, self.of, self.is_label = operation, of, is_label
        self.names = *names_of(of), "target"
        self.has_alpha = "alpha" in self.names

    def both(self, *arrays: jax.Array, settings: Settings, over: Reductions = DENSE) -> Any:
        """Return θ, the losses and p − t, which is 0 where the loss is constant."""
        with for_values():
            known = self._compared(arrays, settings, over)
        if not self.has_alpha:
            return known
        return [*known, self.slope(*arrays, settings=settings, over=over)]

    def _compared(self, arrays: Arrays, settings: Settings, over: Reductions) -> Any:
        *before, target = arrays
        rows = rows_of(packed(self.of, settings, before), over)
        theta = solved(rows, over)[1]
        assert self.operation.compared is not None
        compared = self.operation.compared(rows, target, *settings.own, over=over, theta=theta)
        return *theta, *compared

    def slope(self, *arrays: jax.Array, settings: Settings, over: Reductions = DENSE) -> Any:
        """Return the slope of the loss in alpha."""
        place = self.names.index("alpha")

        def loss(alpha: jax.Array) -> jax.Array:
            own = *arrays[:place], alpha, *arrays[place + 1 :]
            return self._compared(own, settings, over)[2]

        alpha = arrays[place]
        return jax.jvp(loss, (alpha,), (jax.numpy.ones_like(alpha),))[1]

    def alone(self, *arrays: jax.Array, settings: Settings, over: Reductions = DENSE) -> Any:
        with for_values():
            return [self._compared(arrays, settings, over)[2]]

    def both_by_kernel(self, site: Site, *values: Any) -> Any:
        known = self._by_kernel(site, values, self.has_alpha)
        names = ("hi", "lo", "loss", "residual", *(("alpha",) if self.has_alpha else ()))
        return [known[each] for each in names]

    def alone_by_kernel(self, site: Site, *values: Any) -> Any:
        return [self._by_kernel(site, values, False)["loss"]]

    def _by_kernel(self, site: Site, values: Any, of_alpha: bool) -> dict[str, Any]:
        assert self.operation.xla is not None
        calls = self.operation.xla(*site.settings.own, self.is_label)
        site, values = _with_long_labels(site, values) if self.is_label else (site, values)
        return site.rows(self.names, values, calls, of_alpha)


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


def _alone_jvp(pair: Pair, primals: Arrays, tangents: Sequence[Any], *, settings: Settings) -> Any:
    both = bind(pair.both, *primals, settings=settings)
    return both[2:3], [_tangent(pair, primals, both, tangents)]


def _tangent(pair: Pair, primals: Arrays, both: Arrays, tangents: Sequence[Any]) -> jax.Array:
    """Return Σ(p − t)·dz with z = (x − θ)/T; θ and k add 0, because Σp is Σt.

    So any number may stand for θ, as in pivot.py: the mean of x in the weights |p − t|. Where a
    target is out of play, and the loss infinite, Σp is another number.
    """
    given = dict(zip(pair.names, primals, strict=False))
    change = dict(zip(pair.names, tangents, strict=False))
    hi, lo, loss, residual, *slope = both
    x, t, dt = given["x"], given["t"], change["t"]
    products = residual * ad.instantiate_zeros(change["x"])  # type: ignore[no-untyped-call]
    if not isinstance(dt, ad.Zero):
        some = residual != 0
        pivot, rest = _pivot(x, hi, lo, loss, residual)
        z = quotient((jax.numpy.where(some, x, pivot) - pivot) - rest, t[..., None], some)
        products = products - jax.numpy.where(some, residual * z, 0.0) * dt[..., None]
    tangent: jax.Array = products.sum(-1) / t
    if slope and not isinstance(change["alpha"], ad.Zero):
        tangent = tangent + slope[0] * change["alpha"]
    return tangent


def _pivot(*both: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return a stand-in for θ, per entry, and its difference from θ."""
    x, hi, lo, loss, residual = map(stop_gradient, both)
    hi, lo, size, where = hi[..., None], lo[..., None], abs(residual), jax.numpy.where
    from_theta = (where(residual != 0, x, hi) - hi) - lo
    total = size.sum(-1, keepdims=True)
    moment = where(residual != 0, size * from_theta, 0.0).sum(-1, keepdims=True)
    usual = (total > 0) & jax.numpy.isfinite(moment) & jax.numpy.isfinite(loss)[..., None]
    mean = moment / where(usual, total, 1.0)
    return where(usual, hi + (lo + mean), hi), where(usual, 0.0, lo)


def _both_jvp(
    pair: Pair, code: _Code, primals: Arrays, tangents: Sequence[Any], *, settings: Settings
) -> Any:
    both = hi, lo, loss, *_ = bind(pair.both, *primals, settings=settings)
    moves_as, rows = code.operation.moves_as, len(pair.names)
    assert moves_as is not None
    weights, alike = linear_of(moves_as, code.of), settings._replace(own=())
    in_weights = pushed(weights, (*primals[:rows], hi, lo), tangents[:rows], alike)
    in_weights = jax.numpy.where(loss[..., None] == math.inf, 0.0, in_weights)  # p − t is 0 there
    changes = [*(ad.Zero(part.aval) for part in (hi, lo)), _tangent(pair, primals, both, tangents)]
    if not code.has_alpha:
        return both, [*changes, in_weights]

    def slope(*given: jax.Array) -> Any:
        return code.slope(*given, primals[-1], settings=settings)

    own = tuple(map(ad.instantiate_zeros, tangents[:rows]))
    bent = jax.jvp(slope, primals[:rows], own)[1]
    return both, [*changes, in_weights, bent]

"""Losses of rows for JAX: the loss alone, and the loss with p − t, from which its slopes follow.

The slope of a loss in the scores is (p − t)/T, and the tangent of p is that of jax_weights.py. So
first derivatives are the work of kernels, and second ones add the array code of weights.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
from jax.interpreters import ad

from kofn.adapters.jax_linear import pushed as tangent_of
from kofn.adapters.jax_weights import WEIGHTS
from kofn.arrays.autodiff import quotient, stop_gradient
from kofn.arrays.kinds import cast
from kofn.arrays.operations import marked
from kofn.rows import answers, implicit, pullbacks
from kofn.rows.given import Given
from kofn.rows.jax_axis import AxisRows
from kofn.rows.jax_operators import RULES, Operator, Rules, Settings, Site, bind, served
from kofn.rows.settled import rows_of
from kofn.rows.threshold_route import threshold
from kofn.solver.reductions import DENSE, Reductions


def losses(given: Given, target: jax.Array, likely: bool) -> jax.Array | None:
    """Return Fenchel–Young losses of rows, or −log softmax at a label if `likely`.

    The target is an array like the scores, or one label per row. None if no kernel serves the link.
    """
    labels = target.ndim < given.scores.ndim
    n = given.scores.shape[-1]
    if not served(given.link) or (isinstance(n, int) and n > _MOST):  # it may be a symbol
        return None
    number, _ = given.link.static_and_array_alpha()
    reference = answers.log_softmax if likely else answers.gap
    settings = Settings(given.link.id, number, True, reference, labels)
    return _losses(settings, *given.per_row()[:3], target)


_MOST = 2**31 - 1  # the greatest label


@partial(jax.jit, static_argnums=0)
def _losses(settings: Settings, *arrays: jax.Array) -> jax.Array:
    x, k, t, target = arrays
    if settings.labels:  # an integer of 64 bits, which JAX may not have
        low = target.astype("int32")
        target = jax.numpy.stack([low, jax.numpy.zeros_like(low)], axis=-1)
    else:
        target = cast(target, x.dtype)
    return bind(_LOSS, x, k, t, target, settings=settings)[0]


def _compared(
    x: Any,
    k: Any,
    t: Any,
    target: Any,
    *,
    settings: Settings,
    grouped: bool,
    over: Reductions = DENSE,
) -> Any:
    """Return θ, the losses and p − t, which is 0 where the loss is constant."""
    rows = rows_of(Given(x, k, t, settings.link_of()), over)
    found = threshold(rows.scores, rows.k, rows.temperature, rows.link, over)
    if settings.labels:
        target = cast(_marked(x, target[..., :1], over), x.dtype)
    if _are_likelihoods(settings):
        logs = answers.log_softmax(rows, over=over)
        loss = -over.sum(jax.numpy.where(target > 0, logs, 0.0))
        moves = rows.live & jax.numpy.isfinite(loss)[..., None]
        return *found, loss, jax.numpy.where(moves, answers.softmax(rows, over) - target, 0.0)
    placed = implicit.place(rows, over, found)
    away = pullbacks.of_losses(jax.numpy.ones_like(k), placed, rows, target)
    return *found, answers.gap(rows, target, over, found), away


def _marked(x: Any, labels: Any, over: Reductions) -> jax.Array:
    """Return where the labels are."""
    if isinstance(over, AxisRows):
        return over.positions(x.shape[-1]) == labels
    return marked(x, labels)


def _valued(*arrays: Any, settings: Settings, **ways: Any) -> Any:
    return [_compared(*arrays, settings=settings, **ways)[2]]


def _are_likelihoods(settings: Settings) -> bool:
    return settings.reference is answers.log_softmax


def _compare_by_kernel(site: Site, *values: Any) -> Any:
    x, k, _, target = site.shapes
    hi, lo, p = site.weights(*values[:3])
    call = "likelihoods" if _are_likelihoods(site.settings) else "label_losses"
    call = call if site.settings.labels else "losses"
    given = (*values[:3], hi, lo, values[3], p)
    away, loss, _ = site.rows(call, given, [x, k, k], target)
    return hi, lo, loss, away


def _value_by_kernel(site: Site, *values: Any) -> Any:
    return [_compare_by_kernel(site, *values)[2]]


_LOSS = Operator("kofn_losses", (1,), (0, 3), _valued, _value_by_kernel, True)
_COMPARE = Operator("kofn_compared", (1, 1, 1, 0), (0, 3), _compared, _compare_by_kernel, True)


def _loss_jvp(primals: Any, tangents: Any, *, settings: Settings) -> Any:
    compared = bind(_COMPARE, *primals, settings=settings)
    return compared[2:3], [_loss_tangent(primals, compared, tangents)]


def _loss_tangent(primals: Any, compared: Any, tangents: Any) -> jax.Array:
    """Return Σ(p − t)·dz with z = (x − θ)/T; what θ and k add is 0, because Σp is Σt.

    So any number may stand for θ, as in pivot.py: the mean of x in the weights |p − t|. Where a
    target is out of play, and the loss infinite, Σp is another number.
    """
    (x, _, t, _), (hi, lo, loss, away), (dx, _, dt, _) = primals, compared, tangents
    moved = away * ad.instantiate_zeros(dx)
    if not isinstance(dt, ad.Zero):
        some = away != 0
        pivot, rest = _pivot(x, hi, lo, loss, away)
        z = quotient((jax.numpy.where(some, x, pivot) - pivot) - rest, t[..., None], some)
        moved = moved - jax.numpy.where(some, away * z, 0.0) * dt[..., None]
    return moved.sum(-1) / t


def _pivot(*compared: Any) -> tuple[jax.Array, jax.Array]:
    """Return what stands for θ, per entry, and what this number lacks of it."""
    x, hi, lo, loss, away = map(stop_gradient, compared)
    hi, lo, size, where = hi[..., None], lo[..., None], abs(away), jax.numpy.where
    from_theta = (where(away != 0, x, hi) - hi) - lo
    total = size.sum(-1, keepdims=True)
    moment = where(away != 0, size * from_theta, 0.0).sum(-1, keepdims=True)
    usual = (total > 0) & jax.numpy.isfinite(moment) & jax.numpy.isfinite(loss)[..., None]
    mean = moment / where(usual, total, 1.0)
    return where(usual, hi + (lo + mean), hi), where(usual, 0.0, lo)


def _compare_jvp(primals: Any, tangents: Any, *, settings: Settings) -> Any:
    compared = hi, lo, loss, _ = bind(_COMPARE, *primals, settings=settings)
    weights = settings._replace(reference=answers.weights, labels=False)
    pushed = tangent_of(WEIGHTS, (*primals[:3], hi, lo), tangents[:3], weights)
    if _are_likelihoods(settings):
        pushed = jax.numpy.where(loss[..., None] == math.inf, 0.0, pushed)
    none = (ad.Zero(part.aval) for part in (hi, lo))
    return compared, [*none, _loss_tangent(primals, compared, tangents), pushed]


RULES[_LOSS.name] = Rules(_loss_jvp)
RULES[_COMPARE.name] = Rules(_compare_jvp)

"""Weights of rows for JAX, and their logarithms, with derivatives in scores, k and T."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from jax.interpreters import ad

from kofn.adapters.jax_linear import Linear, Pull, differentiate
from kofn.rows import answers, jax_lost, pullbacks
from kofn.rows.given import Given
from kofn.rows.jax_axis import AxisRows
from kofn.rows.jax_operators import Operator, Settings, Site, bind, served
from kofn.rows.settled import Rows, rows_of, uncounted
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


@partial(jax.jit, static_argnums=0)
def _weights(settings: Settings, *arrays: jax.Array) -> jax.Array:
    return bind(_WEIGH, *arrays, settings=settings)[2]


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
        rows = uncounted(Given(x, k, t, settings.link_of()))
        in_x, in_k, in_t = pullbacks.of_weights(cotangent, rows, (hi, lo), over)
        return in_x, in_k(), in_t
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


def _settings(settings: Settings, tangents: Any) -> Settings:
    """Logarithms have no cotangent of k by kernels."""
    learned = _are_logarithms(settings) and not isinstance(tangents[1], ad.Zero)
    return settings._replace(kernels=False) if learned else settings


WEIGHTS = Linear(_WEIGH, _PUSH, (Pull(_PULL, (0, 1, 2)),), moving=3, numbers=5, settings=_settings)
differentiate(WEIGHTS)

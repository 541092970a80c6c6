"""Weights of rows with costs for JAX, with derivatives of any order, as in jax_weights.py.

First derivatives are kernels; forward mode and second derivatives are array code.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from jax.interpreters import mlir

from kofn.adapters.jax_linear import Linear, Pull, differentiate
from kofn.adapters.jax_weights import total
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.flow import only_if
from kofn.arrays.operations import power_of_two
from kofn.rows import jax_lost, priced_answers
from kofn.rows.jax_operators import Operator, Settings, Site, bind, served
from kofn.rows.price_route import price
from kofn.rows.priced_given import PricedGiven, equation, priced_rows, with_link
from kofn.solver.beside import Place
from kofn.solver.price import Price, price_at, solve
from kofn.solver.reductions import DENSE, Reductions

jax_lost.by_prices(priced_answers.weights)


def weights(given: PricedGiven) -> jax.Array | None:
    """Return `priced_answers.weights`, or None if no kernel serves the link."""
    if not served(given.link) or not given.scores.shape[-1]:
        return None
    number, _ = given.link.static_and_array_alpha()
    return _weights(Settings(given.link.id, number, True), *given[:4])


@partial(jax.jit, static_argnums=0)
def _weights(settings: Settings, x: Any, costs: Any, budget: Any, t: Any) -> jax.Array:
    # θ is then near the scores, and a number, whatever the unit of costs.
    usual = (x > -jax.numpy.inf) & (costs < jax.numpy.inf)
    scale = power_of_two(stop_gradient(jax.numpy.where(usual, costs, 0.0)).max(-1))
    arrays = x, costs / scale[..., None], budget / scale, t
    return bind(_WEIGH, *arrays, settings=settings)[2]


def _weighed(*arrays: Any, settings: Settings, grouped: bool, over: Reductions = DENSE) -> Any:
    """Return θ and the weights."""
    given = with_link(arrays, settings.link_of())
    found = price(*equation(priced_rows(given, over)), over)
    theta = found.high / found.scale, found.low / found.scale
    return *theta, priced_answers.weights(given, over, found)


def _plain(*arrays: Any, settings: Settings, over: Reductions, theta: Any) -> jax.Array:
    """Return the weights, of which θ is known."""
    given = with_link(arrays, settings.link_of())
    rows = [*map(stop_gradient, arrays)]
    fixed = equation(priced_rows(with_link(rows, given.link), over))
    return priced_answers.weights(given, over, _found(fixed, theta[0], theta[1], over))


def _found(rows: Any, high: Any, low: Any, over: Reductions) -> Price:
    """Return the price from θ, but solve rows anew that a kernel gave up on: `low` is infinite.

    They may need more digits of θ than two numbers have.
    """
    x, costs, budget, t, link = rows
    lost = jax.numpy.isinf(low)
    found = price_at(x, costs, budget, t, link, Place(high, jax.numpy.where(lost, 0.0, low)), over)

    def anew() -> Price:
        right, each = solve(x, costs, budget, t, link, over), (lost, lost, over.expand(lost), lost)
        return Price(*map(jax.numpy.where, each, right, found))

    return only_if(lost, anew, found)


def _pushed(
    x: Any, costs: Any, budget: Any, t: Any, hi: Any, lo: Any, *tangents: Any,
    settings: Settings, grouped: bool, over: Reductions = DENSE,
) -> Any:  # fmt: skip
    """Return the tangent of the weights."""
    function = partial(_plain, settings=settings, over=over, theta=(hi, lo))
    return [jax.jvp(function, (x, costs, budget, t), tangents)[1]]


def _pulled(
    x: Any, costs: Any, budget: Any, t: Any, hi: Any, lo: Any, cotangent: Any, *,
    settings: Settings, grouped: bool, over: Reductions = DENSE,
) -> Any:  # fmt: skip
    """Return the cotangents of scores, budget, T and costs."""
    function = partial(_plain, settings=settings, over=over, theta=(hi, lo))
    in_x, in_costs, *per_row = jax.vjp(function, x, costs, budget, t)[1](cotangent)
    return in_x, *(total(each, over) for each in per_row), in_costs


def _pulled_but_costs(*arrays: Any, **ways: Any) -> Any:
    """Return the cotangents of scores, budget and T."""
    return _pulled(*arrays, **ways)[:3]


def _weigh_by_kernel(site: Site, *values: Any) -> Any:
    x, _, budget, _ = site.shapes
    return site.prices("PRICED", values, [budget, budget, x])


def _pull_by_kernel(site: Site, *values: Any) -> Any:
    return site.prices("PRICED_BACK", values, site.context.avals_out)


def _pull_and_mend(alone: Operator, site: Site, *values: Any) -> Any:
    """Have the kernel pull; where it has given up on a row, the array code does all of them."""
    settings = site.settings

    def mended(*arrays: jax.Array) -> Any:
        *before, lo, cotangent = arrays
        known = jax.numpy.where(jax.numpy.isfinite(lo), lo, jax.numpy.nan)
        found = bind(alone, *before, known, cotangent, settings=settings)
        lost = jax.numpy.isnan(found[1])

        def anew() -> Any:
            right = alone.plain(*arrays, settings=settings, grouped=False)
            each = (lost[..., None] if f.ndim > lost.ndim else lost for f in found)
            return [*map(jax.numpy.where, each, right, found)]

        return jax.lax.cond(lost.any(), anew, lambda: found)

    return mlir.lower_fun(mended, multiple_results=True)(site.context, *values)


_ENTRIES = 0, 1, 6


def _pull(name: str, like: tuple[int, ...], plain: Any) -> tuple[Operator, Operator]:
    """Return what pulls a cotangent back, and what does so by the kernel alone."""
    alone = Operator(f"{name}_alone", like, _ENTRIES, plain, _pull_by_kernel, True)
    return Operator(name, like, _ENTRIES, plain, partial(_pull_and_mend, alone), True), alone


_WEIGH = Operator("kofn_priced", (2, 2, 0), (0, 1), _weighed, _weigh_by_kernel, True)
_PUSH = Operator("kofn_priced_tangents", (0,), (*_ENTRIES, 7), _pushed, in_shards=True)
_PULL = _pull("kofn_priced_cotangents", (0, 2, 3, 1), _pulled)
_PULL_FREE = _pull("kofn_priced_cotangents_but_costs", (0, 2, 3), _pulled_but_costs)
_PULLS = Pull(_PULL[0], (0, 2, 3, 1)), Pull(_PULL_FREE[0], (0, 2, 3))
# x, costs, B and T move; both floats of θ come next.
differentiate(Linear(_WEIGH, _PUSH, _PULLS, moving=4, numbers=6))

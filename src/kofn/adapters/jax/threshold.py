"""θ as a JAX primitive without a derivative: `formulas/implicit.py` attaches its derivatives."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

from kofn.adapters.jax import search
from kofn.adapters.jax.operators import Operator, Settings, Site, bind, served
from kofn.arrays.kinds import promoting
from kofn.arrays.operations import power_of_two
from kofn.links.link import Link
from kofn.operations.price import solved
from kofn.solver import price
from kofn.solver.neighbours import Place
from kofn.solver.reductions import DENSE, Reductions
from kofn.solver.threshold import solve


def threshold_of(
    x: Any, k: Any, temperature: Any, link: Link, over: Reductions = DENSE, costs: Any = None
) -> tuple[Any, ...]:
    """Return θ as two floats, or a Price; in shards by array code, which a primitive contains."""
    if over is not DENSE:
        if costs is not None:
            return solved(x, costs, k, temperature, link, over)
        return search.solve(x, k, temperature, link, over)
    if costs is not None:
        return _price_of(x, costs, k, temperature, link)
    number, alpha = link.static_and_array_alpha()
    settings = Settings(link.id, number, served(link))
    return _threshold(settings, x, k, temperature, *([] if alpha is None else [alpha]))


@partial(jax.jit, static_argnums=0)
@promoting
def _threshold(settings: Settings, *arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
    high, low = bind(_OPERATOR, *arrays, settings=settings)
    return high, low


def _solve(*arrays: jax.Array, settings: Settings, over: Reductions = DENSE) -> Any:
    x, k, temperature, *alpha = arrays
    given = x, k, temperature, settings.link_of(*alpha)
    return solve(*given) if over is DENSE else search.solve(*given, over)


def _kernel(site: Site, *values: Any) -> Any:
    return [*site.rows(("x", "k", "t"), values, ["threshold"]).values()]


_OPERATOR = Operator(
    "kofn_threshold", (1, 1), (0,), _solve, _kernel, in_shards=True, in_groups=True
)


# Rows with costs.


def _price_of(
    x: jax.Array, costs: jax.Array, budget: jax.Array, temperature: jax.Array, link: Link
) -> price.Price:
    number, alpha = link.static_and_array_alpha()
    settings = Settings(link.id, number, served(link) and x.shape[-1] > 0)
    per_row = [budget, temperature, *([] if alpha is None else [alpha])]
    return price.Price(*_price(settings, x, costs, *per_row))


@partial(jax.jit, static_argnums=0)
@promoting
def _price(settings: Settings, x: Any, costs: Any, budget: Any, *per_row: Any) -> Any:
    scale = power_of_two(jax.numpy.where(x > -jax.numpy.inf, costs, 0.0).max(-1, initial=0.0))
    rows = x, costs / scale[..., None], budget / scale
    high, low = bind(_PRICE, *rows, *per_row, settings=settings)
    temperature, *alpha = per_row
    at = price.price_at(*rows, temperature, settings.link_of(*alpha), Place(high, low))
    return at._replace(scale=scale * at.scale)


def _solve_price(*arrays: jax.Array, settings: Settings, over: Reductions = DENSE) -> Any:
    x, costs, budget, temperature, *alpha = arrays
    solution = price.solve(x, costs, budget, temperature, settings.link_of(*alpha), over)
    return solution.high / solution.scale, solution.low / solution.scale


def _price_kernel(site: Site, *values: Any) -> Any:
    return [*site.rows(("x", "costs", "budget", "t"), values, ["prices"]).values()]


_PRICE = Operator("kofn_price", (2, 2), (0, 1), _solve_price, _price_kernel, in_shards=True)

"""Prices as a JAX primitive without a derivative: by a kernel, or by the solver."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

from kofn.arrays.kinds import promoting
from kofn.arrays.operations import power_of_two
from kofn.links.link import Link
from kofn.solver.neighbours import Place
from kofn.solver.price import Price, price_at, solve
from kofn.solver.reductions import DENSE, Reductions
from kofn.threshold.jax_operators import Operator, Settings, Site, bind, served


def price_of(
    x: jax.Array, costs: jax.Array, budget: jax.Array, temperature: jax.Array, link: Link
) -> Price:
    number, alpha = link.static_and_array_alpha()
    settings = Settings(link.id, number, served(link) and x.shape[-1] > 0)
    per_row = [budget, temperature, *([] if alpha is None else [alpha])]
    return Price(*_price(settings, x, costs, *per_row))


@partial(jax.jit, static_argnums=0)
@promoting
def _price(settings: Settings, x: Any, costs: Any, budget: Any, *per_row: Any) -> Any:
    scale = power_of_two(jax.numpy.where(x > -jax.numpy.inf, costs, 0.0).max(-1, initial=0.0))
    rows = x, costs / scale[..., None], budget / scale
    high, low = bind(_OPERATOR, *rows, *per_row, settings=settings)
    temperature, *alpha = per_row
    found = price_at(*rows, temperature, settings.link_of(*alpha), Place(high, low))
    return found._replace(scale=scale * found.scale)


def _solve(*arrays: jax.Array, settings: Settings, grouped: bool, over: Reductions = DENSE) -> Any:
    x, costs, budget, temperature, *alpha = arrays
    found = solve(x, costs, budget, temperature, settings.link_of(*alpha), over)
    return found.high / found.scale, found.low / found.scale


def _kernel(site: Site, *values: Any) -> Any:
    return [*site.rows(("x", "costs", "budget", "t"), values, ["prices"]).values()]


_OPERATOR = Operator("kofn_price", (2, 2), (0, 1), _solve, _kernel, in_shards=True)

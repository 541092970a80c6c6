"""The solver for prices as a JAX primitive without a derivative, compiled once per shape."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

from kofn.links.link import Link
from kofn.rows.jax_operators import Operator, Settings, bind, make
from kofn.solver.priced import Price, solve
from kofn.solver.reductions import DENSE, Reductions


def price_of(
    x: jax.Array, costs: jax.Array, budget: jax.Array, temperature: jax.Array, link: Link
) -> Price:
    number, alpha = link.static_and_array_alpha()
    settings = Settings(link.id, number, False)
    per_row = [budget, temperature, *([] if alpha is None else [alpha])]
    return Price(*_price(settings, x, costs, *per_row))


@partial(jax.jit, static_argnums=0)
def _price(settings: Settings, *arrays: jax.Array) -> Any:
    return bind(_primitive, _operator, *arrays, settings=settings)


def _solve(*arrays: jax.Array, settings: Settings, grouped: bool, over: Reductions = DENSE) -> Any:
    x, costs, budget, temperature, *alpha = arrays
    return list(solve(x, costs, budget, temperature, settings.link_of(*alpha), over))


# The answers have the shapes of the budgets (three times) and of the scores.
_operator = Operator("kofn_price", (2, 2, 0, 2), (0, 1), _solve, in_shards=True)
_primitive = make(_operator)

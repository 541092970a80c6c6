"""The solver for prices, called as each framework needs: plain, an operator, or compiled."""

from __future__ import annotations

from kofn.arrays.kinds import Array, is_jax, is_torch
from kofn.links.link import Link
from kofn.rows.price_precision import solved
from kofn.solver.price import Price
from kofn.solver.reductions import DENSE, Reductions


def price(
    x: Array, costs: Array, budget: Array, temperature: Array, link: Link, over: Reductions = DENSE
) -> Price:
    """Solve as `kofn.solver.price.solve`, in float64 where the framework has it by default."""
    if over is not DENSE:
        return solved(x, costs, budget, temperature, link, over)
    if is_torch(x):
        from kofn.rows.torch_price import price_of

        return price_of(x, costs, budget, temperature, link)
    if is_jax(x):
        from kofn.rows.jax_price import price_of as compiled

        return compiled(x, costs, budget, temperature, link)
    return solved(x, costs, budget, temperature, link)

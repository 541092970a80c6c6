"""The solver for prices, called as each framework needs: plain, an operator, or compiled."""

from __future__ import annotations

from kofn.arrays.kinds import Array, cast, is_jax, is_torch, most_precise_dtype, namespace, quiet
from kofn.links.link import Link
from kofn.solver.priced import Price, solve
from kofn.solver.reductions import DENSE, Reductions


def price(
    x: Array, costs: Array, budget: Array, temperature: Array, link: Link, over: Reductions = DENSE
) -> Price:
    """Solve as `kofn.solver.priced.solve`, in float64 where the framework has it by default."""
    if over is not DENSE:
        return solved(x, costs, budget, temperature, link, over)
    if is_torch(x):
        from kofn.rows.torch_price import price_of

        return price_of(x, costs, budget, temperature, link)
    if is_jax(x):
        from kofn.rows.jax_price import price_of as compiled

        return compiled(x, costs, budget, temperature, link)
    return solved(x, costs, budget, temperature, link)


def solved(
    x: Array, costs: Array, budget: Array, temperature: Array, link: Link, over: Reductions = DENSE
) -> Price:
    """Solve in the most precise dtype, and return the answers in that of the scores."""
    wide = most_precise_dtype(x)
    if x.dtype == wide:
        return solve(x, costs, budget, temperature, link, over)
    link = link.map_alpha(lambda alpha: cast(alpha, wide))
    rows = [cast(array, wide) for array in (x, costs, budget, temperature)]
    found = solve(rows[0], rows[1], rows[2], rows[3], link, over)
    xp, largest = namespace(x), float(namespace(x).finfo(x.dtype).max)
    with quiet(x):
        some = xp.isfinite(found.high)
        clipped = xp.clip(found.high, -largest, largest)
        high = cast(xp.where(some, clipped, found.high), x.dtype)
        rest = xp.where(some, (clipped - cast(high, wide)) + found.low, 0.0)
        parts = rest, found.distance, found.scale
        return Price(high, *(cast(part, x.dtype) for part in parts))

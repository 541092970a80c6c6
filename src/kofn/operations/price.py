"""The solver for prices in the most precise dtype: float64 for float32, where there is one."""

from __future__ import annotations

from typing import Any

from kofn.arrays import torch as of_torch
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, cast, is_jax, is_torch, most_precise_dtype, namespace, quiet
from kofn.links.link import Link
from kofn.operations import by_kernel
from kofn.rows.settled import Rows
from kofn.solver.neighbours import Place
from kofn.solver.price import Price, price_at, solve
from kofn.solver.reductions import DENSE, Reductions


def price_of(rows: Rows) -> Price:
    """Return the price of settled rows with costs, a constant."""
    given: Any = (rows.scores, rows.costs, rows.k, rows.temperature)
    x, costs, k, t = map(stop_gradient, given)
    return solved(x, costs, k, t, rows.link.map_alpha(stop_gradient))


def solved(
    x: Array, costs: Array, budget: Array, temperature: Array, link: Link, over: Reductions = DENSE
) -> Price:
    """Solve in the most precise dtype, and return the answers in the scores' dtype.

    Kernels, if there are any for the rows, find θ. Where the rows are transformed, the array
    code does, which has more digits.
    """
    wide, theta = most_precise_dtype(x), None
    if over is DENSE and (of_torch.state.is_plain(x) if is_torch(x) else not is_jax(x)):
        theta = by_kernel.threshold(x, budget, temperature, link, costs)
    link = link.map_alpha(lambda alpha: cast(alpha, wide))
    rows = [cast(array, wide) for array in (x, costs, budget, temperature)]
    if theta is None:
        answer = solve(rows[0], rows[1], rows[2], rows[3], link, over)
    else:
        at = Place(cast(theta[0], wide), cast(theta[1], wide))
        answer = price_at(rows[0], rows[1], rows[2], rows[3], link, at)
    if x.dtype == wide:
        return answer
    xp, largest = namespace(x), float(namespace(x).finfo(x.dtype).max)
    with quiet(x):
        some = xp.isfinite(answer.high)
        clipped = xp.clip(answer.high, -largest, largest)
        high = cast(xp.where(some, clipped, answer.high), x.dtype)
        rest = xp.where(some, (clipped - cast(high, wide)) + answer.low, 0.0)
        parts = rest, answer.distance, answer.scale
        return Price(high, *(cast(part, x.dtype) for part in parts))

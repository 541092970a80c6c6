"""θ of rows, a constant: formulas take it as an argument, and attach its derivatives."""

from __future__ import annotations

from typing import Any

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, is_jax, is_torch
from kofn.links.link import Link
from kofn.operations import by_kernel
from kofn.operations.price import solved
from kofn.rows.settled import Rows
from kofn.solver.reductions import DENSE, Reductions
from kofn.solver.segments import SegmentRows
from kofn.solver.threshold import solve


def theta_of(rows: Rows, over: Reductions = DENSE) -> tuple[Any, ...]:
    """Return θ of settled rows: two numbers per row, or a Price of rows with costs."""
    costs = None if rows.costs is None else stop_gradient(rows.costs)
    x, k, t = map(stop_gradient, (rows.scores, rows.k, rows.temperature))
    return threshold(x, k, t, rows.link.map_alpha(stop_gradient), over, costs)


def threshold(
    x: Array,
    k: Any,
    temperature: Any,
    link: Link,
    over: Reductions = DENSE,
    costs: Any = None,
) -> tuple[Array, ...]:
    """Solve as `solver.threshold.solve`, by a kernel if one serves the rows, without derivatives.

    With costs, as `solver.price.solve`, in float64 where the framework has it by default. All
    arrays are of the framework of x.
    """
    if is_jax(x):
        from kofn.adapters.jax.threshold import threshold_of as on_jax

        return on_jax(x, k, temperature, link, over, costs)
    if over is not DENSE:
        return _of_other_rows(x, k, temperature, link, over, costs)
    if is_torch(x):
        from kofn.adapters.torch.threshold import threshold_of as on_torch

        return on_torch(x, k, temperature, link, costs)
    if costs is not None:
        return solved(x, costs, k, temperature, link)
    theta = by_kernel.threshold(x, k, temperature, link)
    return solve(x, k, temperature, link) if theta is None else (theta[0], theta[1])


def _of_other_rows(
    x: Array, k: Any, temperature: Any, link: Link, over: Reductions, costs: Any
) -> tuple[Array, ...]:
    """Return θ of rows in segments or in several processes."""
    if costs is not None:
        return solved(x, costs, k, temperature, link, over)
    if is_torch(x) and isinstance(over, SegmentRows):
        from kofn.adapters.torch.segment_threshold import threshold_of

        return threshold_of(x, k, temperature, link, over)
    if hasattr(over, "ranks"):
        from kofn.adapters.shards import search

        return search.threshold_of(x, k, temperature, link, over)  # type: ignore[arg-type]
    return solve(x, k, temperature, link, over)

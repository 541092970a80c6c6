"""Thresholds and weights from kernels; the reference solves the rows that a kernel gave up on."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from kofn import kernels
from kofn.arrays.kinds import Array, cast, is_torch, namespace, quiet_for
from kofn.formulas import answers
from kofn.links.link import Link
from kofn.rows.given import Given
from kofn.rows.settled import Rows, rows_of
from kofn.solver import price
from kofn.solver.plateau import at_end
from kofn.solver.reductions import DENSE
from kofn.solver.threshold import solve


def threshold(
    x: Array, k: Array, temperature: Array, link: Link, costs: Array | None = None
) -> Array | None:
    """Return θ of `solve` as one array of its two floats, or None if no kernel supports the rows.

    A torch tensor has memory here, because transforms have been resolved before the operator runs.
    """
    which, kind = "rows" if costs is None else "knapsack", "torch" if is_torch(x) else "numpy"
    backend = kernels.serving_of(which, x, kind, link, operation="located")
    if backend is None:
        return None
    return threshold_of(backend, Given(x, k, temperature, link, None, costs))


def threshold_of(backend: Any, given: Given) -> Array:
    """Return θ as two floats.

    With costs, they are of float64 if a kernel gave up on rows, which may need more digits.
    """
    own = () if given.costs is None else (given.costs,)
    theta, lost = backend.threshold(*given[:4], *own)
    if lost:
        theta = cast(theta, namespace(theta).float64) if own else theta
        finish(given, theta)
    pair: Array = theta
    return pair


def weights_by_kernel(
    backend: kernels.RowKernels, given: Given, single: bool = False
) -> tuple[Array, Array]:
    """Return weights and θ; weights of half precision are float32 if `single`."""
    p, theta, lost = backend.weights(*given[:4], single)
    if lost and given.is_half:  # so rare that a cast does
        wide, theta = weights_by_kernel(backend, given.wide())
        return cast(wide, p.dtype), theta
    if lost:
        where, rows, solution = finish(given, theta)
        with quiet_for("numpy"):
            put(p, where, answers.weights(rows, theta=solution))
    return p, theta


def finish(given: Given, theta: Array) -> tuple[np.ndarray, Rows, Any]:
    """Solve the rows that a kernel gave up on; most span more than 10⁵ temperatures.

    This uses float64, in which squares of float32 scores neither overflow nor underflow. Returns
    the indices of these rows, the rows and the solver's answer, and writes θ.
    """
    pair = in_memory(theta)
    lost, info = np.isnan(pair[1]), np.finfo(pair.dtype)
    with np.errstate(all="ignore"):
        rows = rows_of(part(given, lost))
        solution, high, low = _solved(rows)
        finite = np.isfinite(high)
        first = np.where(finite, np.clip(high, info.min, info.max), high).astype(info.dtype)
        rest = np.where(finite, (high - first) + low, 0.0)
        put(theta, (slice(None), lost), np.stack((first, rest)))
    return lost, rows, solution


def _solved(rows: Rows) -> tuple[Any, Array, Array]:
    """Return the solver's answer, and θ as two floats in the units of the rows."""
    x, k, t, link, costs = rows.scores, rows.k, rows.temperature, rows.link, rows.costs
    if costs is not None:
        at_price = price.solve(x, costs, k, t, link)
        return at_price, at_price.high / at_price.scale, at_price.low / at_price.scale
    theta = solve(x, k, t, link)
    if link.capped is not False:  # the backward pass starts from θ and does not change it
        theta = at_end(x, k, t, link, *theta, DENSE)
    return theta, *theta


def part(given: Given, where: np.ndarray) -> Given:
    """Return some of the rows, in float64, as NumPy arrays."""
    x, k, temperature, link, _, costs = given.per_row()
    x, k, temperature = (in_memory(array)[where] for array in (x, k, temperature))
    excluded = x <= np.finfo(x.dtype).min / 2
    x, k, temperature = (np.asarray(array, np.float64) for array in (x, k, temperature))
    link = link.map_alpha(lambda alpha: np.asarray(in_memory(alpha)[where], np.float64))
    costs = None if costs is None else np.asarray(in_memory(costs)[where], np.float64)
    return Given(np.where(excluded, -np.inf, x), k, temperature, link, None, costs)


def in_memory(array: Array) -> np.ndarray:
    """Return a NumPy array to read: of a device's memory, for one, it is a copy."""
    return array.numpy(force=True) if is_torch(array) else np.asarray(array)


def put(answer: Any, where: Any, values: Any) -> None:
    """Write what array code has found of some rows, wherever the memory of the answer is."""
    if is_torch(answer):
        torch, parts = sys.modules["torch"], where if type(where) is tuple else (where,)
        where = tuple(torch.from_numpy(np.asarray(p)) if hasattr(p, "dtype") else p for p in parts)
        values = torch.from_numpy(np.ascontiguousarray(values)).to(answer)
    answer[where] = values

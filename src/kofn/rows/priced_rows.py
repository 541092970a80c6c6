"""Prices from the kernels; the array code solves the rows that these gave up on."""

from __future__ import annotations

import numpy as np

from kofn import kernels
from kofn.arrays.kinds import Array, cast, is_torch, namespace, of_torch
from kofn.links.link import Link
from kofn.rows.kernel_rows import in_memory
from kofn.solver.price import solve


def serving(x: Array, link: Link) -> kernels.PricedKernels | None:
    """Return the kernels for these rows, or None if something traces or transforms them."""
    kind = "torch" if is_torch(x) else "numpy"
    if kind == "torch" and not of_torch("state").is_plain(x):
        return None
    found: kernels.PricedKernels | None = kernels.serving_of("priced", x, kind, link)
    return found


def price(
    backend: kernels.PricedKernels,
    x: Array,
    costs: Array,
    budget: Array,
    temperature: Array,
    link: Link,
) -> Array:
    """Return θ as two floats, of rows as `solver.price.solve` takes them.

    They are of float64 if the array code had rows to solve: it may need more digits of θ.
    """
    theta, lost = backend.price(x, costs, budget, temperature, link)
    if lost:
        theta = cast(theta, namespace(theta).float64)
        rows = [*map(in_memory, (x, costs, budget, temperature))]
        mend(in_memory(theta), rows[0], rows[1], rows[2], rows[3], link)
    return theta


def mend(
    pair: np.ndarray,
    x: np.ndarray,
    costs: np.ndarray,
    budget: np.ndarray,
    temperature: np.ndarray,
    link: Link,
) -> None:
    """Write θ, as two floats, of the rows that have none."""
    where = np.isnan(pair[1])
    arrays = x, costs, budget, temperature
    rows = [np.asarray(array[where], np.float64) for array in arrays]
    with np.errstate(all="ignore"):
        found = solve(rows[0], rows[1], rows[2], rows[3], link)
        pair[:, where] = _in_units_of_rows(found.high / found.scale, found.low / found.scale, pair)


def _in_units_of_rows(high: np.ndarray, low: np.ndarray, like: np.ndarray) -> tuple[Array, Array]:
    """Return θ as two numbers of the rows' dtype."""
    largest, finite = np.finfo(like.dtype).max, np.isfinite(high)
    first = np.where(finite, np.clip(high, -largest, largest), high).astype(like.dtype)
    return first, np.where(finite, (high - first) + low, 0.0)

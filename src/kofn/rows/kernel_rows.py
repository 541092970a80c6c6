"""Thresholds from the fused kernels; the reference solves the rows that a kernel gave up on."""

from __future__ import annotations

from typing import Any

import numpy as np

from kofn import kernels
from kofn.arrays.kinds import Array, is_torch
from kofn.rows.given import Given
from kofn.rows.settled import Rows, rows_of
from kofn.solver.plateau import at_end
from kofn.solver.reductions import DENSE
from kofn.solver.threshold import solve


def threshold(x: Array, k: Array, temperature: Array, link: Any) -> Array | None:
    """Return θ of `solve` as one array of its two floats, or None if no kernel supports the rows.

    A torch tensor has memory here, because transforms have been resolved before the operator runs.
    """
    backend = kernels.serving_of("rows", x, "torch" if is_torch(x) else "numpy", link)
    if backend is None:
        return None
    theta, lost = backend.threshold(x, k, temperature, link)
    if lost:
        finish(Given(x, k, temperature, link), theta)
    return theta


def threshold_of(backend: kernels.RowKernels, given: Given) -> Array:
    """Return θ as two floats."""
    theta, lost = backend.threshold(*given[:4])
    if lost:
        finish(given, theta)
    return theta


def finish(given: Given, theta: Array) -> tuple[np.ndarray, Rows, tuple[Array, Array]]:
    """Solve the rows that a kernel gave up on; most span more than 10⁵ temperatures.

    This uses float64, in which squares of float32 scores neither overflow nor underflow. Returns
    the indices of these rows, the rows, and their θ in float64.
    """
    x, k, temperature = (in_memory(array) for array in given.per_row()[:3])
    found_before = in_memory(theta)
    lost, info = np.isnan(found_before[1]), np.finfo(x.dtype)
    scores, count, scale = (np.asarray(a[lost], np.float64) for a in (x, k, temperature))
    with np.errstate(all="ignore"):
        scores = np.where(scores <= info.min / 2, -np.inf, scores)
        rows = rows_of(Given(scores, count, scale, given.link))
        found = solve(rows.scores, rows.k, rows.temperature, given.link)
        if given.link.capped is not False:  # the backward pass starts from θ and does not change it
            found = at_end(rows.scores, rows.k, rows.temperature, given.link, *found, DENSE)
        high = np.clip(found[0], info.min, info.max).astype(x.dtype)
        # θ is finite: rows that choose nothing or everything are not among them.
        found_before[:, lost] = high, (found[0] - high) + found[1]
    return lost, rows, found


def in_memory(array: Array) -> np.ndarray:
    """Return a NumPy array that shares the memory."""
    return np.asarray(array.detach() if is_torch(array) else array)

"""Weights, thresholds and values from the kernels, with the rows that a kernel gave up on."""

from __future__ import annotations

import numpy as np

from kofn import kernels
from kofn.arrays.kinds import Array
from kofn.rows import answers
from kofn.rows.given import Given
from kofn.rows.kernel_rows import finish, in_memory


def weights(backend: kernels.RowKernels, given: Given) -> tuple[Array, Array]:
    """Return (weights, θ as two floats)."""
    found, theta, lost = backend.weights(*given[:4])
    if lost:
        where, rows, placed = finish(given, theta)
        with np.errstate(all="ignore"):
            in_memory(found)[where] = answers.weights(rows, found=placed)
    return found, theta


def threshold(backend: kernels.RowKernels, given: Given) -> Array:
    """Return θ as two floats."""
    theta, lost = backend.threshold(*given[:4])
    if lost:
        finish(given, theta)
    return theta


def value(backend: kernels.RowKernels, given: Given) -> tuple[Array, Array, Array, Array]:
    """Return S_k and its slopes in the scores, k and the temperature."""
    found, theta = weights(backend, given)
    values, in_temperature = backend.values(given.scores, theta, *given[1:4])
    center = theta.sum(0) - given.temperature * given.link.edge
    # If nothing or everything is chosen, θ is infinite and S_k is constant in k.
    return values.clone(), found, center.masked_fill(center.isinf(), 0.0), in_temperature

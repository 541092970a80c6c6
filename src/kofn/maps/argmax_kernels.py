"""The kernels for sums over rows at quadrature nodes, where nothing traces or differentiates."""

from __future__ import annotations

from typing import Any

from kofn import kernels
from kofn.arrays.kinds import Array, is_jax, is_torch, of_torch


def serving(link: Any, *arrays: Array) -> kernels.NoiseKernels | None:
    """Return the kernels for the rows of the first array, or None."""
    if is_jax(arrays[0]):
        return None
    if is_torch(arrays[0]):
        state = of_torch("state")
        if not all(state.is_plain(x) and not state.is_recorded(x) for x in arrays):
            return None
    kind = "torch" if is_torch(arrays[0]) else "numpy"
    found: kernels.NoiseKernels | None = kernels.serving_of("noise", arrays[0], kind, link)
    return found

"""Samples of k-subsets with random numbers from each framework's generator."""

from __future__ import annotations

from typing import Any

from kofn.arrays.kinds import Array, is_torch
from kofn.arrays.operations import divided_as, with_undivided_rows
from kofn.arrays.random import uniform
from kofn.arrays.without_onnx import refuse
from kofn.kernels.contract import splits
from kofn.subsets.operations import heads


def draw(z: Array, k: Array, rng: Any, shape: tuple[int, ...]) -> Array:
    """Return booleans, shape + z.shape, from `sampling.draw` with random numbers from `rng`."""
    like, z = z, with_undivided_rows(z)
    uniforms = uniform(rng, (*shape, *z.shape[:-1], splits(z.shape[-1])), z)
    if is_torch(z):
        refuse("KSubset.sample")
        from kofn.subsets.torch_sampling import draw as operator

        return operator(z, k, uniforms)  # type: ignore[arg-type]  # of torch, as z
    drawn = heads(z, k, uniforms)
    return drawn if shape else divided_as(drawn, like)

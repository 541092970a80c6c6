"""Which code serves this array: a plain `if`, decided at every call."""

from __future__ import annotations

from typing import Any

import numpy as np

from kofn import kernels, links
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, is_torch
from kofn.arrays.random import uniform
from kofn.rows.compiled import whole
from kofn.rows.threshold_route import threshold
from kofn.subsets import quadrature, sampling


def marginals(y: Array, k: Array) -> Array | None:
    """Marginals of logits y, −inf where masked, by fused rows; None where none serve them."""
    kernel = _kernel_of_nodes(stop_gradient(y))
    if kernel is None:
        return None
    if is_torch(y):
        from kofn.subsets.torch_marginals import Marginals

        return Marginals.apply(kernel, y, k)  # type: ignore[no-untyped-call]
    return kernel.at(quadrature.MARGINALS, y, *threshold(y, k, np.ones_like(k), links.logistic), k)


def log_count(z: Array, k: Array) -> Array:
    """`quadrature.log_count`; in eager torch with a derivative that keeps no nodes."""
    if is_torch(z):
        from kofn.subsets.torch_nodes import LogCount, serves

        if serves(z):
            return LogCount.apply(z, k)  # type: ignore[no-untyped-call]
    kernel = _kernel_of_nodes(z)
    return kernel.evaluate(quadrature.LOG_COUNT, z, k) if kernel else quadrature.log_count(z, k)


def tails(z: Array, k: Array) -> Array:
    """`kofn.subsets.quadrature.tails`, likewise."""
    if is_torch(z):
        from kofn.subsets.torch_nodes import Tails, serves

        if serves(z):
            return Tails.apply(z, k)  # type: ignore[no-untyped-call]
    kernel = _kernel_of_nodes(z)
    return kernel.evaluate(quadrature.TAILS, z, k) if kernel else quadrature.tails(z, k)


def covariance(z: Array, k: Array, v: Array) -> Array:
    """`kofn.subsets.quadrature.covariance`; plain code where a graph is wanted."""
    kernel = _kernel_of_nodes(z, v)
    return (
        kernel.evaluate(quadrature.COVARIANCE, z, k, v)
        if kernel
        else quadrature.covariance(z, k, v)
    )


def draw(z: Array, k: Array, rng: Any, shape: tuple[int, ...]) -> Array:
    """`kofn.subsets.sampling.draw` with numbers from `rng`: booleans, shape + z.shape."""
    uniforms = uniform(rng, (*shape, *z.shape[:-1], sampling.splits(z.shape[-1])), z)
    if is_torch(z):
        from kofn.subsets.torch_sampling import draw as operator

        return operator(z, k, uniforms)
    return heads(z, k, uniforms)


def heads(z: Array, k: Array, uniforms: Array) -> Array:
    """`kofn.subsets.sampling.draw` by the fastest route there is."""
    kernel = _kernel_of_nodes(z)
    return kernel.draw(z, k, uniforms) if kernel else whole(sampling.draw, z, k, uniforms)


def _kernel_of_nodes(*arrays: Array) -> Any:
    """The module with the fused rows, None where none serve these arrays."""
    for x in arrays:
        if is_torch(x):
            from kofn.arrays.torch_state import is_plain, is_recorded

            if not is_plain(x) or is_recorded(x):
                return None
    return kernels.serving_subsets(arrays[0])

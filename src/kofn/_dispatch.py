"""Which code serves this array: a plain `if`, decided at every call."""

from __future__ import annotations

from typing import Any

import numpy as np

from kofn import _nodes, _sampling, kernels, links
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, is_torch
from kofn.arrays.random import uniform
from kofn.rows.compiled import whole
from kofn.rows.threshold_route import threshold


def marginals(y: Array, k: Array) -> Array | None:
    """Marginals of logits y, −inf where masked, by fused rows; None where none serve them."""
    kernel = _kernel_of_nodes(stop_gradient(y))
    if kernel is None:
        return None
    if is_torch(y):
        from kofn.kernels.marginals import Marginals

        return Marginals.apply(kernel, y, k)  # type: ignore[no-untyped-call]
    return kernel.at(_nodes.MARGINALS, y, *threshold(y, k, np.ones_like(k), links.logistic), k)


def log_count(z: Array, k: Array) -> Array:
    """`kofn._nodes.log_count`; in eager torch with a derivative that keeps no nodes in memory."""
    if is_torch(z):
        from kofn._torch_nodes import LogCount, serves

        if serves(z):
            return LogCount.apply(z, k)  # type: ignore[no-untyped-call]
    kernel = _kernel_of_nodes(z)
    return kernel.evaluate(_nodes.LOG_COUNT, z, k) if kernel else _nodes.log_count(z, k)


def tails(z: Array, k: Array) -> Array:
    """`kofn._nodes.tails`, likewise."""
    if is_torch(z):
        from kofn._torch_nodes import Tails, serves

        if serves(z):
            return Tails.apply(z, k)  # type: ignore[no-untyped-call]
    kernel = _kernel_of_nodes(z)
    return kernel.evaluate(_nodes.TAILS, z, k) if kernel else _nodes.tails(z, k)


def covariance(z: Array, k: Array, v: Array) -> Array:
    """`kofn._nodes.covariance`; plain code where a graph is wanted."""
    kernel = _kernel_of_nodes(z, v)
    return kernel.evaluate(_nodes.COVARIANCE, z, k, v) if kernel else _nodes.covariance(z, k, v)


def draw(z: Array, k: Array, rng: Any, shape: tuple[int, ...]) -> Array:
    """`kofn._sampling.draw` with numbers from `rng`: booleans, shape + z.shape."""
    uniforms = uniform(rng, (*shape, *z.shape[:-1], _sampling.splits(z.shape[-1])), z)
    if is_torch(z):
        from kofn._torch_sampling import draw as operator

        return operator(z, k, uniforms)
    return heads(z, k, uniforms)


def heads(z: Array, k: Array, uniforms: Array) -> Array:
    """`kofn._sampling.draw` by the fastest route there is."""
    kernel = _kernel_of_nodes(z)
    return kernel.draw(z, k, uniforms) if kernel else whole(_sampling.draw, z, k, uniforms)


def _kernel_of_nodes(*arrays: Array) -> Any:
    """The module with the fused rows, None where none serve these arrays."""
    for x in arrays:
        if is_torch(x):
            from kofn.arrays.torch_state import is_plain, is_recorded

            if not is_plain(x) or is_recorded(x):
                return None
    return kernels.serving_subsets(arrays[0])

"""Which code serves this array: a plain `if`, decided at every call."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from kofn import _nodes, _sampling, kernels, links
from kofn._rows import Given, Rows
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, is_jax, is_torch
from kofn.arrays.random import uniform
from kofn.links.link import Link
from kofn.solver.threshold import solve


def evaluate(
    function: Callable[..., Array], rows: Rows | Given, *arrays: Array, **settings: Hashable
) -> Array:
    """`function(rows, *arrays, **settings)`; compiled as a whole where that is how it is done."""
    if is_jax(rows.scores):
        from kofn._jax import evaluate as compiled
        from kofn.arrays.jax_compile import bound

        function = bound(function, **settings) if settings else function
        return compiled(function, rows, *arrays)
    return function(rows, *arrays, **settings)


def whole(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)` of arrays, compiled as a whole where that is how a framework works.

    `function` is one of a module, so that it is compiled once.
    """
    first = arguments[0]
    if is_jax(first[0] if isinstance(first, tuple) else first):
        from kofn.arrays.jax_compile import whole as compiled

        return compiled(function, *arguments)
    return function(*arguments)


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


def threshold(x: Array, k: Array, temperature: Array, link: Link) -> tuple[Array, Array]:
    """`kofn.solver.threshold.solve` by the fastest route there is; opaque to differentiation."""
    if is_torch(x):
        from kofn._torch import threshold as operator

        number, alpha = link.parted()
        return operator(x, k, temperature, alpha, link.id, number)
    if is_jax(x):
        from kofn._jax import threshold as compiled

        return compiled(x, k, temperature, link)
    fused = kernels.threshold(x, k, temperature, link)
    return solve(x, k, temperature, link) if fused is None else (fused[0], fused[1])


def integral_ends(link: Link, like: Array) -> tuple[float, float, float]:
    """(z, G(−z), G(z) − z) at a large z: numbers, even while `like` is being traced."""
    if is_torch(like):
        from kofn._torch import integral_ends as ends

        return ends(link.id)
    if is_jax(like):
        from kofn._jax import integral_ends as ends

        return ends(link.id)
    return link.integral_ends(np.asarray(2.0**26))

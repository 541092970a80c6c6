"""Which code finds the threshold of this array: a plain `if`, decided at every call."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from kofn import kernels
from kofn._array import Array, is_jax, is_torch
from kofn._link import Link
from kofn._rows import Rows
from kofn.threshold import solve


def evaluate(function: Callable[..., Array], rows: Rows, *arrays: Array) -> Array:
    """`function(rows, *arrays)`; compiled as a whole where compiling is how a framework works."""
    if is_jax(rows.scores):
        from kofn._jax import evaluate as compiled

        return compiled(function, rows, *arrays)
    return function(rows, *arrays)


def threshold(x: Array, k: Array, temperature: Array, link: Link) -> tuple[Array, Array]:
    """`kofn.threshold.solve` by the fastest route there is; opaque to differentiation."""
    if is_torch(x):
        from kofn._torch import threshold as operator

        if isinstance(link.alpha, float):
            return operator(x, k, temperature, None, link.id, link.alpha)
        return operator(x, k, temperature, link.alpha, link.id, math.nan)
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

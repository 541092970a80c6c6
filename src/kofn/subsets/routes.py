"""The choice of the code for k-subsets: kernel or plain."""

from __future__ import annotations

from typing import Any

from kofn import links
from kofn.adapters import route
from kofn.adapters.theta import threshold as any_threshold
from kofn.arrays import torch as of_torch
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, framework, is_torch, namespace
from kofn.operations.operation import Operation
from kofn.rows.compiled import whole
from kofn.subsets import quadrature, sampling
from kofn.subsets.operations import (
    COVARIANCE,
    LOG_COUNT,
    TAILS,
    kernel_for,
    sum_of,
)


def threshold(y: Array, k: Array) -> tuple[Array, Array]:
    """Return λ as a sum of two numbers per row: with it, the coins y − λ have k heads on average.

    It is a constant: every λ gives the same distribution.
    """
    hi, lo = any_threshold(stop_gradient(y), k, namespace(k).ones_like(k), links.logistic)
    return hi, lo


def marginals(
    y: Array, k: Array, of: Operation, at: Operation, plain: Any, found: Any = None
) -> Array:
    """Return the marginals of logits y, −inf where masked.

    `of` and `at` are `operations.marginals` and `marginals_at` of the differentiable code `plain`.
    """
    if framework(y) == "jax":
        from kofn.subsets.jax_marginals import marginals as traced

        of_jax: Any = traced(y, k, plain, found)  # type: ignore[arg-type]
        return plain(y, k, found) if of_jax is None else of_jax
    kernel = kernel_for(y)
    if kernel is not None:
        return route.computed(at, kernel, y, (k, *(found or threshold(y, k))))
    answer = route.by_kernel(of, y, k) if is_torch(y) else None
    return plain(y, k, found) if answer is None else answer


def log_count(z: Array, k: Array) -> Array:
    """Return log Pr(N = k), as `quadrature.log_count`."""
    return sum_of(LOG_COUNT, z, k)


def tails(z: Array, k: Array) -> Array:
    """Return the probability of each coin's rarer side given N = k, as `quadrature.tails`."""
    return sum_of(TAILS, z, k)


def covariance(z: Array, k: Array, v: Array) -> Array:
    """Return the covariance of the coins times v, as `quadrature.covariance`."""
    if any(is_torch(each) and of_torch.state.is_recorded(each) for each in (z, v)):
        return quadrature.covariance(z, k, v)
    return route.answer(COVARIANCE, z, k, v)


def heads(z: Array, k: Array, uniforms: Array) -> Array:
    """Draw as `sampling.draw`, by the fastest available code."""
    kernel = None if is_torch(z) and of_torch.state.is_recorded(z) else kernel_for(z)
    if kernel and kernel.draw:
        return kernel.draw(z, k, uniforms)
    return whole(sampling.draw, z, k, uniforms)

"""The choice of the code for k-subsets: kernel or plain.

Eager torch tensors have their first derivatives as further calls of the same sums, not as graphs
through the nodes of quadrature.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kofn import kernels, links
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, framework, is_torch, namespace, of_torch
from kofn.kernels.contract import COVARIANCE, LOG_COUNT, MARGINALS, TAILS
from kofn.rows.compiled import whole
from kofn.rows.threshold_route import threshold as any_threshold
from kofn.subsets import quadrature, sampling


def threshold(y: Array, k: Array) -> tuple[Array, Array]:
    """Return λ as a sum of two numbers per row: with it, the coins y − λ have k heads on average.

    It is a constant: every λ gives the same distribution.
    """
    return any_threshold(stop_gradient(y), k, namespace(k).ones_like(k), links.logistic)


def marginals(y: Array, k: Array, plain: Callable[..., Array], found: Any = None) -> Array:
    """Return the marginals of logits y, −inf where masked; `plain` is the differentiable code."""
    if framework(y) == "jax":
        from kofn.subsets.jax_marginals import marginals as traced

        answer = traced(y, k, plain, found)
        return plain(y, k, found) if answer is None else answer
    kernel = _kernel_for(stop_gradient(y))
    if kernel is None:
        operators = _operators(y)
        return plain(y, k, found) if operators is None else operators.marginals_of(y, k)
    if not is_torch(y):
        return kernel.at(MARGINALS, y, *(found or threshold(y, k)), k)

    def value(y: Array, k: Array) -> Any:
        placed = found or threshold(y, k)
        return kernel.at(MARGINALS, y, *placed, k), placed

    def pullback(cotangent: Array, tensors: Any, placed: Any) -> Any:
        y, k = tensors
        return kernel.at(COVARIANCE, y, *placed, k, cotangent), None

    rule = of_torch("rule").Rule(value, pullback, lambda y, k: plain(y, k, found))
    return of_torch("rule").by_rule(rule, y, k)


def log_count(z: Array, k: Array) -> Array:
    """Return log Pr(N = k), as `quadrature.log_count`."""

    def pullback(cotangent: Array, tensors: Any, kept: Any) -> Any:
        z, k = tensors
        coin = quadrature.coins(z)
        shift = coin.sign * (tails(z, k) - coin.tail)  # π − p
        return cotangent[..., None] * shift, None

    return _by_sums(LOG_COUNT, quadrature.log_count, pullback, z, k)


def tails(z: Array, k: Array) -> Array:
    """Return the probability of each coin's rarer side given N = k, as `quadrature.tails`."""

    def pullback(cotangent: Array, tensors: Any, kept: Any) -> Any:
        z, k = tensors
        return covariance(z, k, quadrature.coins(z).sign * cotangent), None

    return _by_sums(TAILS, quadrature.tails, pullback, z, k)


def covariance(z: Array, k: Array, v: Array) -> Array:
    """Return the covariance of the coins times v, as `quadrature.covariance`."""
    kernel, operators = _kernel_for(z, v), _operators(z)
    if operators is not None and not any(map(of_torch("state").is_recorded, (z, v))):
        return operators.covariance_of(z, k, v)
    return kernel.evaluate(COVARIANCE, z, k, v) if kernel else quadrature.covariance(z, k, v)


def heads(z: Array, k: Array, uniforms: Array) -> Array:
    """Draw as `sampling.draw`, by the fastest available code."""
    kernel = _kernel_for(z)
    if kernel and kernel.draw:
        return kernel.draw(z, k, uniforms)
    return whole(sampling.draw, z, k, uniforms)


def _by_sums(what: int, plain: Callable, pullback: Callable, z: Array, k: Array) -> Array:
    """Compute the sums by a kernel if there is one, with `pullback` as their derivative."""

    def value(z: Array, k: Array) -> Array:
        kernel = _kernel_for(stop_gradient(z))
        return kernel.evaluate(what, z, k) if kernel else plain(z, k)

    if not is_torch(z):
        return value(z, k)
    operators = _operators(z)
    if operators is not None:
        return operators.log_count_of(z, k) if what == LOG_COUNT else operators.tails_of(z, k)
    if not of_torch("state").is_eager(z):
        return plain(z, k)
    rule = of_torch("rule").Rule(lambda z, k: (value(z, k), ()), pullback)
    return of_torch("rule").by_rule(rule, z, k)


def _operators(z: Array) -> Any:
    """Return the module of torch's operators for these rows; None if nothing compiles them."""
    if not is_torch(z) or not of_torch("state").is_compiled():
        return None
    from kofn.subsets import torch_operators

    return torch_operators if torch_operators.serves(z) else None


def _kernel_for(*arrays: Array) -> Any:
    """Return the module with the kernels for these arrays, or None."""
    kind = str(framework(arrays[0]))
    if kind == "torch":
        state = of_torch("state")
        if not all(state.is_plain(x) and not state.is_recorded(x) for x in arrays):
            return None
    return kernels.serving_subsets(arrays[0], kind)

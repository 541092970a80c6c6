"""Weights of rows with costs from fused kernels, with first derivatives for eager torch.

As in rows/fused.py: torch.func, forward mode and second derivatives use the array code, whose
operations they can see.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, is_jax, is_torch, of_torch
from kofn.kernels import PricedKernels
from kofn.links.link import Link
from kofn.rows import priced_answers, priced_choice, priced_kernels
from kofn.rows.compiled import evaluate
from kofn.rows.priced_given import PricedGiven, with_link
from kofn.rows.priced_rows import serving


def weights(given: PricedGiven) -> Array:
    """Return `priced_answers.weights`."""
    traced = _traced(given)
    if traced is not None:
        return traced
    backend = _serving(given)
    if backend is None:
        operators = _operators(given)
        if operators is not None:
            return operators.weights_of(given, False)
        return evaluate(priced_answers.weights, given)
    if not _is_recorded(given):
        return priced_kernels.weights(backend, given)[0]

    def value(*tensors: Array) -> Any:
        found, theta = priced_kernels.weights(backend, with_link(tensors, link))
        return found, (theta,)

    link: Link = given.link
    return _recorded(backend, given, value, priced_answers.weights)


def hard_weights(given: PricedGiven) -> Array:
    """Return `priced_answers.hard_weights`; of the soft weights, their θ alone is needed."""
    traced = _traced(given)
    if traced is not None:
        return evaluate(priced_choice.fill, given) + (traced - stop_gradient(traced))
    backend = _serving(given)
    if backend is None:
        operators = _operators(given)
        if operators is not None:
            return operators.weights_of(given, True)
        return evaluate(priced_answers.hard_weights, given)
    if not _is_recorded(given):
        return priced_kernels.fill(backend, given)

    def value(*tensors: Array) -> Any:
        rows = with_link(tensors, link)
        return priced_kernels.fill(backend, rows), (backend.price(*rows)[0],)

    link: Link = given.link
    return _recorded(backend, given, value, priced_answers.hard_weights)


def theta(given: PricedGiven) -> Array:
    """Return `priced_answers.theta`."""
    backend = _serving(given)
    if backend is None:
        return evaluate(priced_answers.theta, given)
    if not _is_recorded(given):
        return priced_kernels.theta(backend, given)[0]
    link: Link = given.link

    def value(*tensors: Array) -> Any:
        found, pair = priced_kernels.theta(backend, with_link(tensors, link))
        return found, (pair,)

    def pullback(cotangent: Array, tensors: Any, kept: Any) -> Any:
        rows, of_costs = with_link(tensors, link), tensors[1].requires_grad
        return priced_kernels.slopes_of_theta(rows, cotangent, kept[0], of_costs)

    return _by_rule(given, value, pullback, priced_answers.theta)


def value(given: PricedGiven) -> Array:
    """Return `priced_answers.value`, whose slopes are the weights and the price."""
    backend = _serving(given)
    if backend is None:
        return evaluate(priced_answers.value, given)
    if not _is_recorded(given):
        return priced_kernels.value(backend, given, backend.price(*given)[0])[0]
    link: Link = given.link

    def both(*tensors: Array) -> Any:
        rows = with_link(tensors, link)
        weights, theta = priced_kernels.weights(backend, rows)
        found = priced_kernels.value(backend, rows, theta)
        return found[0].clone(), (weights, theta, found[1])

    def pullback(cotangent: Array, tensors: Any, kept: Any) -> Any:
        rows = with_link(tensors, link)
        return priced_kernels.slopes_of_value(rows, cotangent, *kept)

    return _by_rule(given, both, pullback, priced_answers.value)


def _traced(given: PricedGiven) -> Array | None:
    """Return the weights by what JAX calls, or None if there is nothing of that kind."""
    if not is_jax(given.scores):
        return None
    from kofn.rows.jax_priced import weights as traced

    return traced(given)


def _serving(given: PricedGiven) -> PricedKernels | None:
    return None if is_jax(given.scores) else serving(given.scores, given.link)


def _operators(given: PricedGiven) -> Any:
    """Return the module of torch's operators for these rows; None if nothing compiles them."""
    if not is_torch(given.scores):
        return None
    from kofn.rows import torch_priced

    return torch_priced if torch_priced.serves(given) else None


def _is_recorded(given: PricedGiven) -> bool:
    if not is_torch(given.scores) or not sys.modules["torch"].is_grad_enabled():
        return False
    return any(tensor.requires_grad for tensor in given[:4])


def _recorded(
    backend: PricedKernels,
    given: PricedGiven,
    value: Callable[..., Any],
    reference: Callable[[PricedGiven], Array],
) -> Array:
    """Return the first of `value`, of which θ is kept, with the gradient of the weights."""
    link: Link = given.link

    def pullback(cotangent: Array, tensors: Any, kept: Any) -> Any:
        rows = with_link(tensors, link)
        wanted = [tensor.requires_grad for tensor in tensors]
        slopes = priced_kernels.gradients(backend, rows, cotangent, kept[0], wanted[1])
        in_x, in_costs, in_rows = slopes
        return in_x, in_costs, *(in_rows[i] if wanted[2 + i] else None for i in range(2))

    return _by_rule(given, value, pullback, reference)


def _by_rule(
    given: PricedGiven,
    value: Callable[..., Any],
    pullback: Callable[..., Any],
    reference: Callable[[PricedGiven], Array],
) -> Array:
    def plain(*tensors: Array) -> Array:
        return reference(with_link(tensors, given.link))

    rule = of_torch("rule")
    return rule.recorded(rule.Rule(value, pullback, plain), *given[:4])

"""Weights and values of rows from fused kernels, with first derivatives for eager torch.

torch.compile, torch.func, forward mode and second derivatives use the reference instead, whose
operations they can see.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kofn import kernels
from kofn.arrays.kinds import Array, is_jax, is_torch
from kofn.rows import answers
from kofn.rows.given import Given
from kofn.rows.kernel_rows import finish, in_memory
from kofn.rows.settled import Rows, rows_of


def weights(given: Given, reference: Callable[[Rows], Array]) -> Array | None:
    """Return the weights of `given` from a kernel, or None if no kernel supports the rows."""
    if is_jax(given.scores):
        from kofn.rows.jax_weights import weights as traced

        return traced(given, reference)
    backend = _serving_eagerly(given)
    if backend is None:
        return None
    if not _recorded(given):
        return _weights(backend, given)[0]
    from kofn.arrays.torch_rule import Rule, by_rule

    def value(x: Array, k: Array, temperature: Array) -> Any:
        found, theta = _weights(backend, Given(x, k, temperature, link))
        return found, (theta,)

    def pullback(cotangent: Array, numbers: Any, kept: Any) -> Any:
        (x, k, temperature), (theta,) = numbers, kept
        in_scores, in_rows = backend.gradients(x, cotangent, theta, k, temperature, link)
        # Taking a tensor apart costs as much as the rest, and most learn the scores alone.
        in_k = in_rows[0] if k.requires_grad else None
        return in_scores, in_k, in_rows[1] if temperature.requires_grad else None

    link = given.link
    return by_rule(Rule(value, pullback, _plain(given, reference)), *given[:3])


def value(given: Given) -> Array | None:
    """Return S_k of rows, with slopes p, θ and −Σ Ω(p); None if no kernel supports the rows."""
    backend = _serving_eagerly(given)
    if backend is None or backend.values is None:
        return None
    if not _recorded(given):
        return backend.values(given.scores, _threshold(backend, given), *given[1:])[0]
    from kofn.arrays.torch_rule import Rule, by_rule

    def value(x: Array, k: Array, temperature: Array) -> Any:
        found, theta = _weights(backend, Given(x, k, temperature, link))
        values, in_temperature = backend.values(x, theta, k, temperature, link)
        center = theta.sum(0) - temperature * link.edge
        return values.clone(), (found, center, in_temperature)

    def pullback(cotangent: Array, numbers: Any, kept: Any) -> Any:
        found, center, in_temperature = kept
        each = cotangent[..., None] * found
        # If nothing or everything is chosen, θ is infinite and S_k is constant in k.
        in_k = cotangent * center.masked_fill(center.isinf(), 0.0)
        return each.masked_fill(numbers[0] == math.inf, 0.0), in_k, cotangent * in_temperature

    link = given.link
    return by_rule(Rule(value, pullback, _plain(given, answers.value)), *given[:3])


def _plain(given: Given, reference: Callable[[Rows], Array]) -> Callable[..., Array]:
    return lambda x, k, temperature: reference(rows_of(Given(x, k, temperature, given.link)))


def _weights(backend: kernels.RowKernels, given: Given) -> tuple[Array, Array]:
    """Return (weights, θ), including the rows that a kernel gave up on."""
    found, theta, lost = backend.weights(*given)
    if lost:
        where, rows, placed = finish(given, theta)
        with np.errstate(all="ignore"):
            in_memory(found)[where] = answers.weights(rows, found=placed)
    return found, theta


def _threshold(backend: kernels.RowKernels, given: Given) -> Array:
    theta, lost = backend.threshold(*given)
    if lost:
        finish(given, theta)
    return theta


def _recorded(given: Given) -> bool:
    if not is_torch(given.scores):
        return False
    from kofn.arrays.torch_state import is_recorded

    x, k, temperature, _ = given
    return is_recorded(x) or is_recorded(k) or is_recorded(temperature)


def _serving_eagerly(given: Given) -> kernels.RowKernels | None:
    """Return the kernels for these rows, or None if something traces or transforms them."""
    if is_torch(given.scores):
        from kofn.arrays.torch_state import is_plain

        # Checked first: torch.compile cannot trace the code below.
        if not is_plain(given.scores):
            return None
    return kernels.serving(given.scores, given.link)

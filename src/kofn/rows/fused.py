"""Weights and values of rows from fused kernels, with first derivatives for eager torch.

torch.compile, torch.func, forward mode and second derivatives use the reference instead, whose
operations they can see.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kofn import kernels
from kofn.arrays.kinds import Array, of_torch
from kofn.rows import answers
from kofn.rows.given import Given
from kofn.rows.kernel_rows import finish, in_memory
from kofn.rows.settled import Rows, rows_of


def weights(given: Given, reference: Callable[[Rows], Array]) -> Array | None:
    """Return the weights of `given` from a kernel, or None if no kernel supports the rows."""
    if given.form.kind == "jax":
        from kofn.rows.jax_weights import weights as traced

        return traced(given, reference)
    backend = _serving_eagerly(given)
    if backend is None:
        return None
    if not _is_recorded(given):
        return _weights(backend, given)[0]

    def value(*_: Array) -> Any:  # of the tensors of `given`
        found, theta = _weights(backend, given)
        return found, (theta,)

    def pullback(cotangent: Array, tensors: Any, kept: Any) -> Any:
        x, k, temperature, link, _ = _with(given, tensors)
        in_scores, in_rows = backend.gradients(x, cotangent, kept[0], k, temperature, link)
        if len(tensors) == 1:
            return (in_scores,)
        # Taking a tensor apart costs as much as the rest, and most learn the scores alone.
        numbers = enumerate((k, temperature))
        each = (in_rows[i] if a.requires_grad else None for i, a in numbers if type(a) is not float)
        return in_scores, *each

    return _by_rule(given, value, pullback, reference)


def value(given: Given) -> Array | None:
    """Return S_k of rows, with slopes p, θ and −Σ Ω(p); None if no kernel supports the rows."""
    backend = _serving_eagerly(given)
    if backend is None or backend.values is None:
        return None
    if not _is_recorded(given):
        return backend.values(given.scores, _threshold(backend, given), *given[1:4])[0]

    def value(*_: Array) -> Any:
        found, theta = _weights(backend, given)
        values, in_temperature = backend.values(given.scores, theta, *given[1:4])
        center = theta.sum(0) - given.temperature * given.link.edge
        return values.clone(), (found, center, in_temperature)

    def pullback(cotangent: Array, tensors: Any, kept: Any) -> Any:
        found, center, in_temperature = kept
        each = cotangent[..., None] * found
        # If nothing or everything is chosen, θ is infinite and S_k is constant in k.
        slopes = zip(
            given[1:3], (center.masked_fill(center.isinf(), 0.0), in_temperature), strict=True
        )
        in_rows = (cotangent * slope for number, slope in slopes if type(number) is not float)
        return each.masked_fill(tensors[0] == math.inf, 0.0), *in_rows

    return _by_rule(given, value, pullback, answers.value)


def _by_rule(given: Given, value: Any, pullback: Any, reference: Callable[[Rows], Array]) -> Array:
    def plain(*tensors: Array) -> Array:
        return reference(rows_of(_with(given, tensors)))

    rule = of_torch("rule")
    return rule.by_rule(rule.Rule(value, pullback, plain), *_tensors(given))


def _tensors(given: Given) -> list[Array]:
    """Return the scores, and k and the temperature where they are no numbers."""
    return [array for array in given[:3] if type(array) is not float]


def _with(given: Given, tensors: Sequence[Array]) -> Given:
    """Return `given` with other `_tensors`."""
    if len(tensors) == 1:
        return Given(tensors[0], *given[1:])
    left = iter(tensors)
    x, k, t = (old if type(old) is float else next(left) for old in given[:3])
    return Given(x, k, t, given.link, given.form)


def _weights(backend: kernels.RowKernels, given: Given) -> tuple[Array, Array]:
    """Return (weights, θ), including the rows that a kernel gave up on."""
    found, theta, lost = backend.weights(*given[:4])
    if lost:
        where, rows, placed = finish(given, theta)
        with np.errstate(all="ignore"):
            in_memory(found)[where] = answers.weights(rows, found=placed)
    return found, theta


def _threshold(backend: kernels.RowKernels, given: Given) -> Array:
    theta, lost = backend.threshold(*given[:4])
    if lost:
        finish(given, theta)
    return theta


def _is_recorded(given: Given) -> bool:
    if given.form.kind != "torch":
        return False
    x, k, temperature, *_ = given
    some = (
        x.requires_grad
        or (type(k) is not float and k.requires_grad)
        or (type(temperature) is not float and temperature.requires_grad)
    )
    return some and sys.modules["torch"].is_grad_enabled()


def _serving_eagerly(given: Given) -> kernels.RowKernels | None:
    """Return the kernels for these rows, or None if something traces or transforms them."""
    kind = given.form.kind
    # Checked first: torch.compile cannot trace the code below.
    if kind == "torch" and not of_torch("state").is_plain(given.scores):
        return None
    return kernels.serving(given.scores, given.link, kind)

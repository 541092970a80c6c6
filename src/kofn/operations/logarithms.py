"""Logarithms of the weights of rows."""

from __future__ import annotations

import math
from typing import Any

from kofn import kernels
from kofn.arrays import torch as of_torch
from kofn.arrays.kinds import Array, cast
from kofn.arrays.operations import at_labels
from kofn.formulas import answers, pullbacks
from kofn.operations.by_kernel import threshold_of, weights_by_kernel
from kofn.operations.closed import closed
from kofn.operations.makers import with_back
from kofn.operations.operation import Operation
from kofn.operations.signatures import ROWS
from kofn.rows.given import Given
from kofn.rows.settled import rows_of
from kofn.solver.reductions import DENSE

Backend = kernels.RowKernels


def _log_weights(backend: Backend, given: Given) -> tuple[Array, Array]:
    if given.is_half:
        p, theta, lost = backend.log_weights(*given[:4])
        if lost:
            wide, theta = _log_weights(backend, given.wide())
            p = cast(wide, p.dtype)
        return p, theta
    p, theta = weights_by_kernel(backend, given)
    return backend.logarithms(given.scores, p, theta, *given[1:4]), theta


def log_weights_back(
    backend: Backend, given: Given, cotangent: Array, theta: Array
) -> tuple[Array, Array | None]:
    x, k, temperature, link = given[:4]
    in_x, in_rows, lost = backend.log_gradients(x, cotangent, theta, k, temperature, link)
    if lost and given.is_half:
        wide = given.wide()
        slopes = log_weights_back(backend, wide, cast(cotangent, wide.scores.dtype), theta)
        return cast(slopes[0], in_x.dtype), slopes[1]
    if lost:
        where = in_rows[0].isnan()
        x, k, temperature = (array[where] for array in given.per_row()[:3])
        rows = rows_of(Given(x, k, temperature, link.map_alpha(lambda alpha: alpha[where])))
        pair = theta[0][where], theta[1][where]
        pulled = of_torch.state.recording(
            pullbacks.in_rows, cotangent[where], rows, pair, pullbacks.of_logarithms
        )
        in_x[where], in_rows[1][where] = pulled
    if type(given.k) is type(given.temperature) is float:
        return in_x, None
    in_rows[0] = 0
    return in_x, in_rows


def _tangents() -> Any:
    from kofn.formulas import log_tangents  # which JAX alone needs

    return log_tangents.log_weights, log_tangents.of_log_weights


LOG_WEIGHTS = with_back(
    name="log_weights",
    gives="log n, theta 2",
    kernel=_log_weights,
    reference=answers.log_weights,
    back=log_weights_back,
    of_back={"xla": lambda: ["log_cotangents"]},
    tangents=_tangents,
    xla=lambda: ["weights", "logarithms"],
    offered="LOGARITHMS",
    constant=("k",),
    each_alpha="LOG_WEIGHTS",
    functions="log_soft_topk, log_entmax, topk_cross_entropy",
    lacks={"segments": "no function for segments"},
    closed=closed("log n", answers.log_weights, pullbacks.of_logarithms),
)


def _at_labels(backend: Backend, given: Given, labels: Array) -> tuple[Array, Array]:
    """Return log p of one label per row, which takes θ, and p of no other entry."""
    k, temperature, link = given[1:4]
    x: Any = given.scores
    theta = threshold_of(backend, given)
    own = x.gather(-1, labels[..., None])
    if math.isfinite((own[..., 0] - theta[0]).sum().item()):  # then each is
        logs = backend.logarithms(own, own.new_empty(own.shape), theta, k, temperature, link)
    else:
        every: Any
        every, theta = _log_weights(backend, given)
        logs = every.gather(-1, labels[..., None])
    return logs[..., 0], theta


def _at_labels_back(
    backend: Backend, given: Given, cotangent: Array, labels: Array, theta: Array
) -> tuple[Array, Array | None]:
    """Pull back by a kernel that knows the label alone, else by one of p, for ∂ log p = ∂p/p.

    Not by p where it is small, as its digits come from e^z, nor where its slope underflows.
    """
    k, temperature, link = given[1:4]
    x: Any = given.scores
    known_label = getattr(backend, "label_gradients", None)
    if known_label is not None:
        in_x, lost = known_label(x, labels, cotangent, theta, temperature, link)
        if not lost:
            return in_x, None
    at = labels[..., None]
    z = ((x.gather(-1, at) - theta[0][..., None]) - theta[1][..., None]) / temperature
    p = link.cdf(z)
    known = (p * _SMALL).minimum(link.pdf(z)).min().item() > _SMALL / 2**20  # not if NaN
    each = cotangent[..., None] / p if known else cotangent[..., None]
    spread = x.new_zeros(x.shape).scatter_(-1, at, each)
    if known:
        return backend.gradients(x, spread, theta, k, temperature, link)[0], None
    return log_weights_back(backend, given, spread, theta)


_SMALL = 2.0**-40

LOG_AT_LABELS = Operation(
    name="",
    takes="x n, labels r, k #, t #, link",
    gives="log r, theta 2",
    of=ROWS,
    kernel=_at_labels,
    reference=lambda rows, labels, over=DENSE, theta=None: at_labels(
        answers.log_weights(rows, over, theta=theta), labels
    ),
    back=(
        Operation(
            name="",
            takes="cotangent r, x n, labels r, theta 2, k #, t #, link",
            gives="x n, k+t 2 if k t",
            of=ROWS,
            kernel=_at_labels_back,
        ),
    ),
    offered="LOGARITHMS",
    constant=("k",),
)
"""The same of one label per row, for eager tensors, where k and the temperature are numbers."""

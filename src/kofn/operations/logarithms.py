"""Logarithms of the weights of rows."""

from __future__ import annotations

from kofn import kernels
from kofn.arrays import torch as of_torch
from kofn.arrays.kinds import Array, cast
from kofn.formulas import answers, pullbacks
from kofn.operations.closed import closed
from kofn.operations.operation import Operation
from kofn.operations.signatures import ROWS
from kofn.operations.topk import weights_by_kernel
from kofn.rows.given import Given
from kofn.rows.settled import rows_of

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


LOG_WEIGHTS = Operation(
    name="log_weights",
    takes="x n, k #, t #, link",
    gives="log n, theta 2",
    of=ROWS,
    kernel=_log_weights,
    reference=answers.log_weights,
    back=(
        Operation(
            name="log_weights_backward",
            takes="cotangent n, x n, theta 2, k #, t #, link",
            gives="x n, k+t 2 if k t",
            of=ROWS,
            kernel=log_weights_back,
            xla=lambda: ["log_cotangents"],
        ),
    ),
    xla=lambda: ["weights", "logarithms"],
    offered="LOGARITHMS",
    constant=("k",),
    each_alpha="LOG_WEIGHTS",
    functions="log_soft_topk, log_entmax, topk_cross_entropy",
    lacks={"segments": "no function for segments"},
    closed=closed("log n", answers.log_weights, pullbacks.of_logarithms),
)

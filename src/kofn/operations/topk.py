"""Weights, thresholds and smoothed sums of rows, with the rows that a kernel gave up on."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from kofn import kernels
from kofn.arrays.kinds import Array, deleted, is_torch, namespace
from kofn.arrays.tracing import is_at_hand
from kofn.arrays.typing import Tensor
from kofn.formulas import answers, implicit, pullbacks, sloped
from kofn.operations.by_kernel import threshold_of, weights_by_kernel
from kofn.operations.makers import AROUND_THETA, with_back
from kofn.operations.operation import Operation
from kofn.operations.signatures import ROWS
from kofn.rows.given import Given
from kofn.rows.settled import rows_of

AT_ONCE = 1 << 16
"""Entries whose cotangents are computed together, so that they stay in a cache."""

Backend = kernels.RowKernels


def _weights_back(backend: Backend, given: Given, cotangent: Array, theta: Array) -> Any:
    x, *rest = given[:4]
    return backend.gradients(x, cotangent, theta, *rest)


def _tangents() -> Any:
    from kofn.formulas import tangents  # which JAX alone needs

    return tangents.weights, tangents.of_weights


def _of_threshold() -> Any:
    from kofn.formulas import tangents

    return None, tangents.of_thresholds


def _of_value() -> Any:
    from kofn.formulas import tangents

    return None, tangents.of_values, tangents.slopes_of_values


WEIGHTS = with_back(
    name="weights",
    gives="p n, theta 2",
    kernel=weights_by_kernel,
    reference=answers.weights,
    back=_weights_back,
    of_back={"xla": lambda: ["cotangents"], "ready": "gradients"},
    pullback=pullbacks.of_weights,
    tangents=_tangents,
    xla=lambda: ["weights"],
    each_alpha="WEIGHTS",
    ready="weights",
    functions="soft_topk, softmax, sparsemax, entmax",
)
(WEIGHTS_BACK,) = WEIGHTS.back
SINGLE_WEIGHTS = replace(
    WEIGHTS,
    name="single_weights",
    gives="p N, theta 2",
    kernel=lambda backend, given: weights_by_kernel(backend, given, single=True),
    back=(
        replace(
            WEIGHTS_BACK,
            name="single_weights_backward",
            takes="cotangent N, x n, theta 2, k #, t #, link",
            xla=None,
        ),
    ),
    xla=None,
    functions="",
    lacks={"JAX": "scores are cast"},
)
"""The same of scores of half precision, as float32."""


def wide_weights(given: Given) -> tuple[Operation, Given]:
    """Return the operation, and its rows, whose weights are in the compute dtype."""
    if given.is_half and given.form.kind != "jax":
        return SINGLE_WEIGHTS, given
    return WEIGHTS, given.wide()


SOFTMAX = replace(WEIGHTS, reference=answers.softmax, at_theta=False, sloped=sloped.softmax)
"""The weights of the exponential link at k = 1, which array code normalises directly."""


def _theta(backend: Backend, given: Given) -> tuple[Array, Array]:
    """Return θ in the units of the scores, NaN without available entries; and as two floats."""
    pair, xp = threshold_of(backend, given), namespace(given.scores)
    answer = pair[0] + pair[1] - given.temperature * given.link.edge
    endless = xp.isinf(pair[0])
    if not is_at_hand(endless) or xp.any(endless):  # to ask a device takes longer than to do it
        answer = xp.where(endless & xp.all(deleted(given.scores), axis=-1), math.nan, answer)
    return answer, pair


def _theta_back(
    backend: Any, given: Given, cotangent: Tensor, theta: Tensor
) -> tuple[Array, Array]:
    """Pull back by array code; 0 for one number. On a device a kernel does but for capped links.

    On a CPU some rows at a time, so that their entries stay in its caches, as float32 if they are
    of half precision.
    """
    x: Any
    x, k, temperature, link = given[:4]
    if not x.is_cpu and link.capped is False and hasattr(backend, "threshold_gradients"):
        return backend.threshold_gradients(x, cotangent, theta, *given[1:4])  # type: ignore[no-any-return]
    n, batch = x.shape[-1], given.batch
    each, x = cotangent.reshape(-1), x.reshape(-1, n)
    high, low = theta.reshape(2, -1)
    in_x: Any = x.new_empty(x.shape)
    in_rows: Any = each.new_zeros((2, len(each)))
    step = max(1, AT_ONCE // n) if x.is_cpu else max(1, len(each))
    for start in range(0, len(each), step):
        some = slice(start, start + step)
        of_k, t = (a if type(a) is float else a.reshape(-1)[some] for a in (k, temperature))
        rows, pair = Given(x[some], of_k, t, link), (high[some], low[some])
        slopes = pullbacks.of_usual_thresholds(each[some], rows, pair) if x.is_cpu else None
        slopes = slopes or pullbacks.of_thresholds(each[some], rows_of(rows), pair)
        in_x[some], in_rows[0, some] = slopes[:2]
        if type(temperature) is not float:
            in_rows[1, some] = slopes[2]
    return in_x.reshape(*batch, n), in_rows.reshape(2, *batch)


THETA = with_back(
    name="located",  # compiled and saved programs know the operator by this name
    gives="answer r, theta 2",
    kernel=_theta,
    reference=implicit.theta,
    back=_theta_back,
    into="x n, k+t 2",
    pullback=pullbacks.of_thresholds,
    tangents=_of_threshold,
    functions="soft_topk_threshold",
    lacks={"JAX": AROUND_THETA},
)


def _value(backend: Backend, given: Given, slopes: int) -> Any:
    """Return S_k and, if `slopes`, its slopes in the scores, k and the temperature."""
    x, rest = given.scores, given[1:4]
    if not slopes:
        answer = backend.values(x, threshold_of(backend, given), *rest)[0]
        return answer.clone() if is_torch(x) else answer, None, None, None
    p, theta = weights_by_kernel(backend, given)
    answer, in_t, *of_k = (each.clone() for each in backend.values(x, theta, *rest))
    if not of_k:
        center = theta.sum(0) - given.temperature * given.link.edge
        # If nothing or everything is chosen, θ is infinite and S_k is constant in k.
        of_k = [center.masked_fill(center.isinf(), 0.0)]
    return answer, p, of_k[0], in_t


VALUE = Operation(
    name="value",
    takes="x n, k #, t #, link, slopes int",
    gives="answer r, in_x n if slopes, in_k r if slopes, in_t r if slopes",
    of=ROWS,
    kernel=_value,
    reference=answers.value,
    back=(
        Operation(
            # A compiler would save where scores are +inf for this, with a loop over single entries.
            name="value_backward",
            takes="cotangent r, x n, in_x n",
            gives="x n",
            of=ROWS,
            kernel=lambda _, given, cotangent, in_x: (
                given.over.expand(cotangent) * in_x
            ).masked_fill_(given.scores == math.inf, 0.0),
            elementwise=True,
        ),
        Operation(
            name="",
            takes="cotangent r, in_k r, in_t r",
            gives="k r, t r",
            of=ROWS,
            kernel=lambda _, __, cotangent, in_k, in_t: (cotangent * in_k, cotangent * in_t),
            elementwise=True,
        ),
    ),
    pullback=pullbacks.of_values,
    tangents=_of_value,
    sloped=sloped.value,
    keeps=("slope",),
    offered="values",
    functions="soft_topk_sum",
    lacks={"JAX": AROUND_THETA},
)

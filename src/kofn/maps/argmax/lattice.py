"""Probabilities of noisy scores by kernels that have no need of nodes, where all is ordinary."""

from __future__ import annotations

import math

from kofn import kernels
from kofn.adapters import route
from kofn.arrays import torch as of_torch
from kofn.arrays.kinds import Array, is_jax, is_torch
from kofn.kernels import contract
from kofn.maps.argmax.weights import weights
from kofn.operations.operation import Operation
from kofn.operations.signatures import ROWS
from kofn.rows.compiled import evaluate
from kofn.rows.given import Given
from kofn.rows.settled import rows_of

ON_LATTICE = Operation(
    name="",
    takes="x n, k #, t #, link",
    gives="p n",
    of=ROWS._replace(kernels="noise"),
    kernel=lambda backend, given: backend.largest(given.scores, given.temperature, given.link),
    plain=lambda given: evaluate(weights, rows_of(given.per_row()), kinks=()),
    back=(
        Operation(
            name="",
            takes="cotangent n, p n, x n, k #, t #, link",
            gives="x n, t r",
            of=ROWS,
            kernel=lambda backend, given, cotangent, p: backend.cotangents(
                given.scores, given.temperature, given.link, cotangent, p
            ),
        ),
    ),
)


def on_lattice(given: Given) -> Array | None:
    """Return p of rows by such kernels; None where they do not serve, or a score is +inf or NaN."""
    x = given.scores
    if is_jax(x) or 0 in x.shape or (is_torch(x) and not of_torch.state.is_plain(x)):
        return None
    backend = kernels.serving_of("noise", x, given.form.kind, given.link)
    if backend is None or not contract.on_lattice(x, given.link) or not x.max() < math.inf:
        return None
    return route.computed(ON_LATTICE, backend, given, ())

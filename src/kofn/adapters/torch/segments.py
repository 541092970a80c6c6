"""Segments by torch operators: compilers would trace a hundred operations for each answer."""

from __future__ import annotations

from typing import Any

from kofn.adapters import segments
from kofn.adapters.torch.segment_threshold import given_of_ids
from kofn.links import exponential
from kofn.operations import topk, truncated
from kofn.operations.makers import with_back
from kofn.operations.operation import Operation, Signature
from kofn.operations.signatures import ROWS
from kofn.rows.given import Given


def _unpack(given: Given) -> tuple[Any, ...]:
    x, k, t, link, form, _ = given.per_row()
    return x, form.over.ids, k, t, link.id, link.static_and_array_alpha()[0]


SEGMENTS: Signature = ROWS._replace(
    takes="x n, ids n, k r, t r, link",
    pack=given_of_ids,
    unpack=_unpack,
    learnable=lambda given: ("x", "k", "t"),
    batch=lambda x, ids, k, *_: k.shape,
)
WEIGHTS = with_back(
    name="segment_weights",
    gives="p n, theta 2",
    of=SEGMENTS,
    kernel=lambda *call: segments.call(topk.WEIGHTS, *call),
    back=lambda *call: segments.call(topk.WEIGHTS_BACK, *call),
    into="x n, k+t 2",
)
LEAST = Operation(
    name="segment_sparse_softmax_least",
    takes="x n, ids n, t r, number SymInt?, p float?, min_p float?",
    gives="least r",
    of=SEGMENTS._replace(
        takes="x n, ids n, t r",
        pack=lambda x, ids, t: given_of_ids(x, ids, t, t, exponential.inner.id, None),
        unpack=lambda given: (given.scores, given.form.over.ids, given.per_row().temperature),
        learnable=lambda given: ("x", "t"),
        batch=lambda x, ids, t: t.shape,
        kernels="choice",
    ),
    kernel=lambda backend, given, *of: segments.call(truncated.LEAST, backend, given, *of),
)
OF_SEGMENTS = {topk.WEIGHTS.name: WEIGHTS, truncated.LEAST.name: LEAST}
"""The operations that serve segments, by the names of operations on dense rows."""

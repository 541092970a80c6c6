"""Logarithms and losses of rows: eager torch has their first derivatives in closed form."""

from __future__ import annotations

from kofn import implicit
from kofn._dispatch import evaluate
from kofn._rows import Given, rows_of
from kofn.arrays.kinds import Array, is_torch


def log_weights(what: Given) -> Array:
    """`kofn.implicit.log_weights` of the rows of `what`."""
    if is_torch(what.scores):
        from kofn._torch_rows import LogWeights, serves

        if serves(what):
            x, k, temperature, link = what
            return LogWeights.apply(x, temperature, k, link)  # type: ignore[no-untyped-call]
    return evaluate(implicit.log_weights, rows_of(what))


def gap(what: Given, target: Array) -> Array:
    """`kofn.implicit.gap` of the rows of `what`."""
    if is_torch(what.scores):
        from kofn._torch_rows import Gap, serves

        if serves(what):
            x, k, temperature, link = what
            return Gap.apply(x, temperature, k, link, target)  # type: ignore[no-untyped-call]
    return evaluate(implicit.gap, rows_of(what), target)

"""Logarithms and losses of rows: eager torch has their first derivatives in closed form."""

from __future__ import annotations

from kofn.arrays.kinds import Array, is_torch
from kofn.rows import answers
from kofn.rows.compiled import evaluate
from kofn.rows.given import Given
from kofn.rows.settled import rows_of


def log_weights(what: Given) -> Array:
    """`kofn.rows.answers.log_weights` of the rows of `what`."""
    if is_torch(what.scores):
        from kofn.rows.closed_form_torch import LogWeights, serves

        if serves(what):
            x, k, temperature, link = what
            return LogWeights.apply(x, temperature, k, link)  # type: ignore[no-untyped-call]
    return evaluate(answers.log_weights, rows_of(what))


def gap(what: Given, target: Array) -> Array:
    """`kofn.rows.answers.gap` of the rows of `what`."""
    if is_torch(what.scores):
        from kofn.rows.closed_form_torch import Gap, serves

        if serves(what):
            x, k, temperature, link = what
            return Gap.apply(x, temperature, k, link, target)  # type: ignore[no-untyped-call]
    return evaluate(answers.gap, rows_of(what), target)

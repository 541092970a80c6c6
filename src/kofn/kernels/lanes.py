"""What is known of a few rows, each in its lane, and how a row is visited."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
from numba import carray

from kofn.kernels.elementary import inline
from kofn.kernels.native import call, pointer
from kofn.kernels.team import PART, SUMS, plain, visit_parts

LANES = 16

LANE = np.dtype(
    [
        *(
            (name, "f8", (LANES,))
            for name in (
                *("state", "k", "temperature", "per_t", "wanted"),
                # What the survey says. `live` counts finite scores, `top` those of +inf, `bad` the
                # NaN. Mean, variance and their count, `usual`, tell where most of the scores are;
                # additive masks such as −1e9 have no say in that. Without ±inf, NaN and masks,
                # least and greatest are only bounds.
                *("pivot", "least", "greatest", "live", "top", "bad", "mean", "variance", "usual"),
                # θ = anchor + Tδ, told to a visit as `base` and `by`; its bracket in units of T
                # from the anchor, with the log-odds there; what a log-odd is worth, and how far a
                # step may leap; whether entries are yet to be prepared for the anchor.
                *("anchor", "delta", "base", "by", "low", "high", "low_gap", "high_gap"),
                *("width", "worth", "leap", "tries", "fresh"),
                # What the last visit saw: a survey total and squares, a look the others.
                *("total", "squares", "below", "above", "weight", "count", "slope"),
            )
        ),
        ("sums", "f8", (SUMS,)),  # of the visit under way
    ]
)
"""What is known of a group of rows, number by number: a loop over lanes is vector code."""

OPEN, ODD, FOUND, LOST, CLOSED = range(5)
"""States of a lane. An odd one waits for this file; a closed row needs no equation; a lost one is
left to the reference."""

Row = namedtuple("Row", "lane visits kind size x g out n sums team memo alpha")
"""A row: its lane; addresses of what visits it (passes.py), of its scores, cotangents and answer,
of the sums, of the team, and of what `quantiles` keeps from one row to the next; the link's kind;
bytes per number; n.
"""


@plain
def visit(row, which, a, b, c, d, e):
    """Go over the row once; return its sums."""
    return _visit(row, which, False, a, b, c, d, e)


@plain
def visit_for_extremes(row, which, a, b, c, d, e):
    """The same, by a visit whose first two sums are a least and a greatest."""
    return _visit(row, which, True, a, b, c, d, e)


@plain
def _visit(row, which, extremes, a, b, c, d, e):
    address = carray(pointer(row.visits), which + 1, np.int64)[which]
    sums = carray(pointer(row.sums), SUMS, np.float64)
    for i in range(SUMS):
        sums[i] = 0
    x, g, out, n, into = row.x, row.g, row.out, row.n, row.sums
    if n <= PART:
        call(address, x, g, out, n, into, a, b, c, d, e)
    else:
        visit_parts(row.team, address, x, g, out, n, into, row.size, extremes, a, b, c, d, e)
    return sums


@plain
def load(address, i, size):
    """The i-th number at `address`."""
    if size == 4:
        return np.float64(carray(pointer(address), i + 1, np.float32)[i])
    return carray(pointer(address), i + 1, np.float64)[i]


@plain
def store(address, i, size, value):
    if size == 4:
        carray(pointer(address), i + 1, np.float32)[i] = value
    else:
        carray(pointer(address), i + 1, np.float64)[i] = value


@inline
def rounded(value, size):
    """`value` as the scores' type holds it."""
    return np.float64(np.float32(value)) if size == 4 else value


@inline
def two_floats(anchor, offset, size):
    """anchor + offset as a number of the scores' type and what it cannot hold (two-sum)."""
    total = anchor + offset
    part = total - anchor
    rest = (anchor - (total - part)) + (offset - part)
    high = rounded(total, size)
    return high, (total - high) + rest

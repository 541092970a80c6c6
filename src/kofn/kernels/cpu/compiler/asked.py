"""What the search asks a link of a user's own: one function of it, whose address comes as its α.

So one search serves all such links, compiled with `INSTEAD` of what it calls for built-in ones. A
float64 holds an address exactly. (Tests: test_kernels_own.py.)
"""

from __future__ import annotations

from kofn.kernels.contract import NEXT, NORMAL
from kofn.kernels.cpu.rows import formulas
from kofn.kernels.cpu.runtime.intrinsics import ask
from kofn.kernels.cpu.runtime.vector_math import inline

QUANTILE, EDGE, BELOW, BELOW_SLOPE, ABOVE, ABOVE_SLOPE = range(6)


def answers(which, z):
    """Answer one of these questions; compiled for each link."""
    if which == QUANTILE:
        return formulas.quantile(NEXT, z, 0.0)
    if which == EDGE:
        return formulas.edge(NEXT, 0.0)
    log_tail, slope = formulas.logs(NEXT, z, which >= ABOVE, 0.0)
    return log_tail if which == BELOW or which == ABOVE else slope


@inline
def its_quantile(kind, q, alpha):
    return normal_quantile(NORMAL, q, alpha) if kind == NORMAL else ask(alpha, QUANTILE, q)


normal_quantile = formulas.quantile


@inline
def its_edge(kind, alpha):
    return ask(alpha, EDGE, 0.0)


@inline
def its_logs(kind, z, upper, alpha):
    first = ABOVE if upper else BELOW
    return ask(alpha, first, z), ask(alpha, first + 1, z)


INSTEAD = (
    (formulas.quantile, its_quantile),
    (formulas.edge, its_edge),
    (formulas.edge_of, its_edge),
    (formulas.logs, its_logs),
)
"""What the search calls, and what it calls in its place."""

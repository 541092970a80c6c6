"""Makers of operations on rows: one with its way back, and a sum over the weights.

(Tests: test_adapters_makers.py.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kofn.arrays.kinds import Array, namespace
from kofn.formulas import answers
from kofn.operations.by_kernel import threshold_of, weights_by_kernel
from kofn.operations.operation import Operation, Signature
from kofn.operations.signatures import ROWS
from kofn.rows.given import Given
from kofn.rows.settled import Rows
from kofn.solver.reductions import DENSE, Reductions

if TYPE_CHECKING:
    from kofn.kernels import RowKernels
    from kofn.kernels.cpu.rows.passes import Pass

AROUND_THETA = "array code, around a threshold by a kernel"


def with_back(
    *, name: str, gives: str, back: Callable[..., Any], into: str = "x n, k+t 2 if k t",
    of: Signature = ROWS, of_back: Mapping[str, Any] | None = None, **more: Any,
) -> Operation:  # fmt: skip
    """Declare an operation on rows, and its way back, which takes all that it gives but the answer.

    back(backend, rows, cotangent, *kept) gives cotangents, `into`. If some is kept only "if
    slopes", the kernel is told whether anything is learned. The way back gives a cotangent "if
    of_costs", say, where an argument of that name asks for it. `more` and `of_back` are other
    fields.
    """
    answer, *others = gives.split(", ")
    x, rest = of.takes.split(", ", 1)
    kept = [each.removesuffix(" if slopes") for each in others]
    asked = [f"{word} int" for word in into.replace(",", "").split() if word.startswith("of_")]
    takes = ", ".join((f"cotangent {answer.partition(' ')[2]}", x, *kept, rest, *asked))
    known = {"name": f"{name}_backward"} | {**(of_back or {})}
    way = Operation(takes=takes, gives=into, of=of, kernel=back, **known)
    slopes = ", slopes int" if kept != others else ""
    return Operation(name, of.takes + slopes, gives, of, back=(way,), **more)


def summed(
    name: str, of: Pass, slope: Callable[[Array], Array], functions: str, **more: Any
) -> Operation:
    """Declare the sum of a pass's first term over the weights of a row, for these `functions`.

    Its array code is the formula of the pass, with 0 for F′. slope(p) is the term's slope in a
    weight, in the same words, finite where the weight cannot move.
    """

    def kernel(backend: RowKernels, given: Given, slopes: int) -> tuple[Array | None, ...]:
        if slopes:
            p, theta = weights_by_kernel(backend, given)
            return total(backend, given, theta), p, theta
        return total(backend, given, threshold_of(backend, given)), None, None

    def total(backend: RowKernels, given: Given, theta: Array) -> Array:
        return backend.sums(of, given.scores, theta, *given[1:4])[0] + 0

    def back(backend: RowKernels, given: Given, cotangent: Array, p: Array, theta: Array) -> Any:
        each = cotangent[..., None] * slope(p)
        return backend.gradients(given.scores, each, theta, *given[1:4])

    def reference(rows: Rows, over: Reductions = DENSE, *, theta: tuple[Array, ...]) -> Array:
        p = answers.weights(rows, over, theta=theta)
        upper = p > 0.5
        return over.sum(of.entry(namespace(p).where(upper, 1 - p, p), upper, 0 * p)[0])

    lacks = {"JAX": AROUND_THETA, "segments": "no function for segments"}
    given: dict[str, Any] = (
        dict(kernel=kernel, reference=reference, offered="sums", lacks=lacks) | more
    )
    gives = "answer r, p n if slopes, theta 2 if slopes"
    return with_back(name=name, gives=gives, back=back, functions=functions, **given)

"""Hard choices of rows: ones at the k largest scores, and where the k largest numbers are."""

from __future__ import annotations

from dataclasses import replace

from kofn import kernels
from kofn.arrays.kinds import Array, cast, is_torch
from kofn.formulas import answers, choice
from kofn.kernels.contract import ANY_ORDER, SMALLEST
from kofn.operations.by_kernel import threshold_of
from kofn.operations.operation import Operation
from kofn.operations.signatures import CHOICES, ROWS, scores
from kofn.operations.topk import WEIGHTS, WEIGHTS_BACK
from kofn.rows.given import Given, without_bad_temperatures

HARD = Operation(
    name="hard",
    takes="x n, k #",
    gives="chosen n",
    of=CHOICES,
    kernel=lambda chooser, given: chooser.hard(given.scores, given.k),
    plain=lambda given: choice.hard(given, given.k),
    ready="hard_weights",
    functions="hard_topk",
    lacks={"JAX": "array code, by XLA's top-k"},
)
LARGEST = Operation(
    name="largest",
    takes="x n, k SymInt",
    gives="indices i",
    of=scores("x", "choice"),
    kernel=lambda chooser, x, k: chooser.largest(x, k),
    plain=choice.largest,
    offered="largest",
    ready="indices",
    functions="topk_gates",
    lacks={
        "JAX": "the weights by a primitive, the choice by XLA's top-k",
        "segments": "no function for segments",
    },
)
FIRST = Operation(
    name="first",
    takes="x n, k SymInt, way int",
    gives="indices i",
    of=scores("x", "choice"),
    kernel=lambda chooser, x, k, way: chooser.largest(x, k, way),
    plain=choice.first,
    offered="ranked",
    functions="topk",
    lacks={"JAX": "array code, by XLA's top-k", "segments": "array code, by sorts"},
)
"""The indices of the k largest numbers of any type, or, by `way`, of the smallest."""
FIRST_OF_MASKED = Operation(
    name="first_of_masked",
    takes="x n, mask n, k SymInt, way int",
    gives="indices i",
    of=scores("x", "choice"),
    kernel=lambda chooser, x, mask, k, way: chooser.largest(x, k, way, mask),
    plain=choice.first_of_masked,
    offered="ranked",
    functions="topk(mask=)",
    lacks=FIRST.lacks,
)
RANKED = Operation(
    name="ranked",
    takes="x n, ranks i",
    gives="indices i",
    of=scores("x", "choice"),
    kernel=lambda chooser, x, ranks: chooser.ranked(x, ranks),
    plain=choice.ranked,
    offered="ranked",
    fake=lambda x, ranks: ranks.new_empty(ranks.shape),
    functions="quantile",
    lacks={"JAX": "array code, by a sort", "segments": "array code, by sorts"},
)
"""The indices of numbers by their ranks."""
RANKED_OF_MASKED = Operation(
    name="ranked_of_masked",
    takes="x n, mask n, ranks i",
    gives="indices i",
    of=scores("x", "choice"),
    kernel=lambda chooser, x, mask, ranks: chooser.ranked(x, ranks, mask),
    plain=choice.ranked_of_masked,
    offered="ranked",
    fake=lambda x, mask, ranks: ranks.new_empty(ranks.shape),
    functions="quantile(mask=)",
    lacks=RANKED.lacks,
)


def way_of(smallest: bool, in_order: bool) -> int:
    """Return the `way` of FIRST: which end of a row it takes, and whether in order."""
    return smallest * SMALLEST + (not in_order) * ANY_ORDER


def _hard_weights(backend: kernels.RowKernels, given: Given) -> tuple[Array, Array]:
    """Return the hard choice, and θ as two floats for its gradient, the gradient of the weights.

    The weights themselves are not needed. Where kernels of rows serve, kernels of choices do, too.
    """
    x, fixed = given.scores, without_bad_temperatures(given)
    chooser = kernels.found("choice", x, "torch" if is_torch(x) else "numpy")
    if chooser is None:
        chosen = cast(choice.hard(fixed, given.k), x.dtype)
    else:
        chosen = chooser.hard(fixed.scores, given.k)
    return chosen, threshold_of(backend, given)


HARD_WEIGHTS = Operation(
    name="hard_weights",
    takes="x n, k #, t #, link",
    gives="p n, theta 2",
    of=ROWS,
    kernel=_hard_weights,
    back=(WEIGHTS_BACK,),
    reference=answers.weights,  # for the derivatives
    ready="hard_weights",
    functions="soft_topk(hard=True)",
    lacks={"JAX": "the weights by a primitive, the choice by array code"},
)
GATES = replace(
    WEIGHTS,
    name="",
    back=(replace(WEIGHTS_BACK, name="", ready="gates_back"),),
    ready="gates",
    functions="",
)
"""The gates of a normalized mixture, for short calls alone: see adapters/torch/gates.py."""

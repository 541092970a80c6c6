"""Compiled kernels for rows: repeated passes over a row that stays in cache (see README.md).

Numba compiles them for a CPU, Triton for a GPU; each is imported at the first call with such an
array. They compute the same results as `solver/threshold.py` and `formulas/implicit.py`, but
faster, and the tests compare the two. KOFN_KERNELS=reference in the environment turns them off;
"on" or no value leaves them on. It is read at every call, and any other value is a ValueError.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from kofn.arrays.kinds import Array
from kofn.arrays.typing import Number
from kofn.kernels import cpu, gpu, missing, own
from kofn.kernels.contract import AGAINST, OF_SCORES, kind_of
from kofn.links.link import Link
from kofn.links.scalar import ScalarLink


class RowKernels(Protocol):
    """The functions of a backend for rows: scores (…, n); k, temperature and the link's alpha per
    row (…), or each a float for all rows. For alphas per row, `contract.is_general` holds.

    Scores may be float16 or bfloat16: weights, gradients and their cotangents are then of that
    type, and all that there is per row is float32. A score is deleted, and an answer rounded, as if
    it were cast.

    θ is a sum of two floats, (2, …). The second is NaN in rows that a kernel gave up on; a bool
    tells whether there are any. The caller solves those rows. For rows with k = 0, k = n or a NaN,
    θ = ∞, −∞ or NaN.
    """

    SERVED: tuple[int, ...]
    """The numbers of contract.py whose links are served."""

    def weights(
        self, x: Array, k: Array, temperature: Array, link: Link, single: bool = False
    ) -> tuple[Array, Array, bool]:
        """Return (weights, θ, whether the kernel gave up on rows).

        Weights of half precision are float32 if `single`.
        """

    def threshold(self, x: Array, k: Array, temperature: Array, link: Link) -> tuple[Array, bool]:
        """Return (θ, whether the kernel gave up on rows)."""

    def gradients(
        self, x: Array, cotangent: Array, theta: Array, k: Array, temperature: Array, link: Link,
        *, of_alpha: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Return the cotangents of the scores, (…, n), of k and temperature, (2, …), and, if
        `of_alpha`, of alpha.

        The cotangents of k and temperature are not read where both are numbers.
        """

    sums: Callable[..., Array]
    """(pass, x, θ, k, temperature, link) -> the two sums of a `Pass` of cpu/rows/passes.py, (2, …),
    where θ is known; a backend need not have it."""

    values: Callable[..., Any]
    """(x, θ, k, temperature, link) -> S_k, its slope in the temperature and, if the backend has it,
    that in k, (2 or 3, …); or None."""

    losses: Any
    """(x, target, k, temperature, link, likely, wanted, known, of_alpha) -> (losses, p − t, whether
    rows are left[, derivatives of the losses in alpha]); or None.

    Fenchel–Young losses and Σ(p − t)z, (2, …); p − t, or None if it is not `wanted`. The target is
    one int64 per row, the index of its one label, or an array like x or of bytes: then its sum is
    taken for k. With `known` weights and θ, k is read, and p becomes p − t. If `likely`, the losses
    are −log p of the labels, and the sums are 0. Rows that the kernel gave up on have a loss of
    NaN. p − t is never of half precision, the target may be.
    """

    LOGARITHMS: tuple[int | None, ...]
    """The numbers of links that the next two functions serve."""

    def logarithms(
        self, x: Array, weights: Array, theta: Array, k: Array, temperature: Array, link: Link
    ) -> Array:
        """Return log p in the memory of p."""

    def log_weights(self, x: Array, k: Array, temperature: Array, link: Link) -> tuple[Any, ...]:
        """Return (log p, θ, whether the kernel gave up on rows), for rows of half precision."""

    def log_gradients(
        self, x: Array, cotangent: Array, theta: Array, k: Array, temperature: Array, link: Link,
        *, of_alpha: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Return the cotangents of the scores, from the ones of log p; (2, …), the second for the
        temperature and the first NaN in rows that the kernel gave up on; whether there are any; of
        alpha, if `of_alpha`.
        """


class SubsetKernels(Protocol):
    """The functions of a backend for k-subsets: rows of logits (…, n); k per row (…).

    `what` is a number of contract.py.
    """

    def evaluate(self, what: int, z: Array, k: Array, v: Array | None = None) -> Array:
        """Return the sum `what` of coins z, and for COVARIANCE of entries v."""

    def at(self, what: int, y: Array, hi: Array, lo: Array, k: Array, v: Any = None) -> Array:
        """Return the same for logits y and their threshold; hi is ±∞ or NaN in rows without one."""

    draw: Callable[[Array, Array, Array], Array] | None
    """(z, k, uniforms) -> booleans, k of each row True; or None."""


class ChoiceKernels(Protocol):
    """The functions of a backend for hard choices: scores (…, n).

    One without `ranked` has no other way of `largest` than of scores, and no mask there.
    """

    def hard(self, x: Array, k: Number) -> Array:
        """Return `formulas.choice.hard`, for k per row (…) or a float for all rows.

        Scores may be of half precision.
        """

    def largest(self, x: Array, k: int, way: int = OF_SCORES, mask: Array | None = None) -> Array:
        """Return the indices of the k largest numbers, (…, k) of int64: `formulas.choice.largest`,
        or, for another `way` of contract.py, `first`, of integers, too.
        """

    tally: Callable[[Array, Array, list[Array]], None]
    """(x, indices, counts) -> None: add to each array of counts how often the indices of rows
    without a NaN name each entry; a backend need not have it."""

    def ranked(self, x: Array, ranks: Array, mask: Array | None = None) -> Array:
        """Return `formulas.choice.ranked`, for ranks (…, m) of int64."""

    def truncated(
        self,
        x: Array,
        k: int | None,
        p: float | None,
        temperature: Number,
        labels: Any,
        wanted: bool,
        min_p: float | None = None,
        what: int = AGAINST,
    ) -> tuple[Array, Any]:
        """Return the weights p of `operations.truncated`, and 0 per row; with labels, int64 per
        row, p − t, or None unless wanted, and the losses; for another `what` of contract.py the
        slopes of the entropy in x/T, and it; or per row the least score of the set. Scores may be
        of half precision, answers are not.
        """

    def truncated_gradients(
        self, x: Array, weights: Array, cotangent: Array, temperature: Number
    ) -> tuple[Any, Any]:
        """Return the cotangents of the scores, (…, n), and of the temperature, (…)."""

    margins: Callable[..., tuple[Any, ...]]
    """(x, labels, margin, whether it is an angle, T, whether losses are wanted, and p − t) ->
    (logits of MARGINED, cosines at labels or ∞, losses, p − t); a GPU has others in its rows.
    """
    margin_gradients: Callable[..., Any]
    """(cotangent of logits, labels, such cosines, margin, whether it is an angle, 1/T) -> that of
    cosines.
    """


class NoiseKernels(Protocol):
    """The functions of a backend for `maps/argmax/quadrature.py`: y (…, n), numbers of quadrature
    nodes (nodes, …, 1), all of one dtype.
    """

    SERVED: tuple[int, ...]
    """The numbers of contract.py whose links are served."""

    def logs(self, y: Array, link: Link, at: Array) -> Array:
        """Return L = Σ log Φ(m − y) of each node."""

    def spread(self, y: Array, link: Link, at: Array, width: Array) -> tuple[Array, Array, Array]:
        """Return (Σ over nodes of width·e^L·φ/Φ like y, L, Σ φ/Φ of each node)."""

    def product(self, y: Array, link: Link, at: Array, mass: Array, total: Array, v: Array) -> Any:
        """Return Σ over nodes of mass·h(v − Σhv/total) like y, h = φ/Φ."""

    def largest(self, x: Array, temperature: Array | float, link: Link) -> Array:
        """Return the chances p of rows that `contract.on_lattice` and have no NaN or +inf.

        These serve in the place of `spread` and `product` there.
        """

    def cotangents(
        self, x: Array, temperature: Array | float, link: Link, v: Array, *p: Array
    ) -> tuple[Array, Array]:
        """Return the cotangents of scores and temperatures, from the cotangents v of p.

        Where p is given, and 0, v is not read.
        """


class KnapsackKernels(Protocol):
    """The functions of a backend for rows with costs, as in RowKernels, where k is the budget
    and θ the price of a unit of cost, with the costs as a last argument, like x or one row for all.

    No scores are of half precision here, and nothing is a number for all rows.
    """

    SERVED: tuple[int, ...]
    weights: Callable[[Array, Array, Array, Link, Array], tuple[Array, Array, bool]]
    threshold: Callable[[Array, Array, Array, Link, Array], tuple[Array, bool]]
    values: Callable[[Array, Array, Array, Array, Link, Array], Any]

    def gradients(
        self, x: Array, cotangent: Array, theta: Array, k: Array, temperature: Array, link: Link,
        costs: Array, of_costs: bool,
    ) -> tuple[Any, Any, Any, bool]:  # fmt: skip
        """Return the cotangents of the scores, of the costs if wanted, of budget and
        temperature, (2, …), the first NaN in rows that the kernel gave up on; whether there are
        any.
        """

    def fill(self, x: Array, costs: Array, budget: Array, temperature: Array) -> tuple[Any, Any]:
        """Return `formulas.knapsack_choice.fill`, and NaN per row given up, or None for all."""

    price: Callable[..., tuple[Array, Array]]
    """(x, k, temperature, link, costs) -> (θ as it is answered, θ as two floats); a backend that
    gives up rows has none, nor the next two.
    """
    price_gradients: Callable[..., tuple[Any, ...]]
    """The arguments and answers of `gradients`, but for the last one, from cotangents of θ."""
    value_gradients: Callable[..., tuple[Any, ...]]
    """(x, cotangent, weights, θ, slopes in T, k, temperature, link, costs) -> such answers, from
    cotangents of values.
    """


class SumKernels(Protocol):
    """The functions of a backend for a `Sum` of cpu/rows/passes.py, of weights (…, n)."""

    def terms(self, of: Any, p: Array, numbers: tuple[float, ...]) -> Array:
        """Return its sums of each row, (…), or (count, …) of more than one."""

    def slopes(self, of: Any, p: Array, cotangent: Array, numbers: tuple[float, ...]) -> Array:
        """Return the cotangents of the weights."""


class Backend(NamedTuple):
    """A folder: the frameworks and arrays that it serves, and the modules that answer RowKernels,
    SubsetKernels and, unless None, ChoiceKernels, NoiseKernels, KnapsackKernels and SumKernels.
    """

    serves: Callable[[Array, str], bool]
    rows: str
    subsets: str | None
    choice: str | None = None
    noise: str | None = None
    knapsack: str | None = None
    sums: str | None = None
    prices: str | None = None  # a `Search`, as that of gpu/doubles/launch.py
    operations: tuple[str, ...] | None = None  # on rows that it is for, None for all


BACKENDS = (
    Backend(
        cpu.serves,
        f"{cpu.__name__}.rows.launch",
        f"{cpu.__name__}.subsets.launch",
        f"{cpu.__name__}.choice.launch",
        f"{cpu.__name__}.passes.noise",
        f"{cpu.__name__}.knapsack.launch",
        f"{cpu.__name__}.passes.sums",
    ),
    Backend(
        gpu.serves,
        f"{gpu.__name__}.rows.launch",
        f"{gpu.__name__}.subsets.launch",
        f"{gpu.__name__}.choice.launch",
        None,
        f"{gpu.__name__}.knapsack.launch",
    ),
    Backend(
        gpu.serves_doubles,
        f"{gpu.__name__}.doubles.launch",
        None,
        prices=f"{gpu.__name__}.doubles.launch",
        operations=("weights", "located"),
    ),
)


def found(which: str, x: Array, framework: str) -> Any:
    """Return the kernels of a field of `Backend` for these arrays, whatever KOFN_KERNELS says."""
    name = next((getattr(each, which) for each in BACKENDS if each.serves(x, framework)), None)
    return None if name is None else module(name)


def serving_of(
    which: str, x: Array, framework: str, link: Any = None, offered: str = "SERVED",
    operation: str | None = None,
) -> Any:  # fmt: skip
    """Return the kernels of a field of `Backend` for these arrays and this link, or None.

    `offered` is the attribute of the kernels that has the links served, or is None or missing.
    `operation` is the name of one on rows, as some backends are only for a few.
    """
    if not wanted():
        return None
    name = None
    for backend in BACKENDS:  # as `found`: short rows wait for every call of a function here
        if backend.serves(x, framework):
            name = getattr(backend, which)
            if which == "rows" and backend.operations and operation not in backend.operations:
                name = None
            break
    kernels = None if name is None else _imported(name) or module(name)
    if kernels is None or link is None:
        return kernels if offered == "SERVED" or hasattr(kernels, offered) else None
    served = getattr(kernels, offered, None)
    kind = kind_of(link)
    if type(served) is tuple:  # nearly always, and a missing attribute takes a microsecond
        known = kind in served
    else:
        known = served is not None and kind in kernels.SERVED
    if kind is None and isinstance(link, ScalarLink):
        known = served is not None and own.serves(kernels, link, offered)
    return kernels if known else None


def copies() -> Any:
    """Return the functions that copy segments to dense rows and back; see cpu/passes."""
    return module(f"{cpu.__name__}.passes.segments")


def named() -> Any:
    """Return the functions of rows with named entries in main memory; see cpu/choice/named.py."""
    return module(f"{cpu.__name__}.choice.named")


def ready() -> Any:
    """Return the kernels of calls like earlier ones on tensors in main memory; see cpu/ready.py."""
    return module(f"{cpu.__name__}.ready")


def blocks(link: Any = None) -> Any:
    """Return the functions of a block of a row, for this link if one is given; see cpu/passes."""
    kernels = module(f"{cpu.__name__}.passes.blocks") if wanted() else None
    served = link is None or kernels is None or kind_of(link) in kernels.SERVED
    return kernels if served else None


def threads() -> int:
    """Return how many threads work on NumPy arrays: KOFN_NUM_THREADS, else one per processor."""
    import numpy as np

    from kofn.kernels.cpu.runtime import pool

    return pool.wanted(np.empty(0))


_CHOICES = {"on": True, "reference": False}
_NAME: Any = os.environ.encodekey("KOFN_KERNELS")


def wanted() -> bool:
    """Return whether the environment variable KOFN_KERNELS allows kernels."""
    # os.environ catches an error for a name that it has not, which takes half a microsecond.
    if _NAME not in getattr(os.environ, "_data", (_NAME,)):
        return True
    chosen = os.environ.get("KOFN_KERNELS") or "on"
    if chosen not in _CHOICES:
        allowed = " or ".join(repr(choice) for choice in _CHOICES)
        raise ValueError(f"KOFN_KERNELS must be {allowed}, got {chosen!r}")
    return _CHOICES[chosen]


def module(name: str) -> Any:
    """Return a module of kernels, or None where a package that it needs is missing."""
    kernels = _imported(name)
    if kernels is None and wanted():
        missing.tell()
    return kernels


@lru_cache
def _imported(name: str) -> Any:
    try:
        if name.startswith(f"{cpu.__name__}."):
            from kofn.kernels.cpu.check import holds

            if not holds():
                return None
        return import_module(name)
    except ImportError as error:  # no library, and Numba, or Triton, is not installed; or no files
        missing.note(error)
        return None

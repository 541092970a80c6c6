"""Sums of functions of weights, Σ f(p) of each row, by the formulas of a `Sum`.

No torch operator: a compiled function has array code, which compilers join with the code before it.
"""

from __future__ import annotations

from functools import lru_cache
from types import FunctionType
from typing import Any

from kofn.arrays.kinds import Array, is_torch, namespace
from kofn.arrays.typing import Namespace
from kofn.kernels import SumKernels
from kofn.kernels.cpu.rows.passes import Sum
from kofn.links import vocabulary
from kofn.links.targets import Target, rebound
from kofn.operations.operation import Operation
from kofn.operations.signatures import scores

Numbers = tuple[float, ...]


def _by_kernel(backend: SumKernels, p: Array, of: Sum, numbers: Numbers) -> Any:
    sums = backend.terms(of, p, numbers)
    return sums if is_torch(p) else sums[()]


def by_arrays(p: Array, of: Sum, numbers: Numbers = ()) -> Array:
    """Return the sums of a row, (…), or (count, …) of more than one."""
    xp = namespace(p)
    sums = [xp.sum(term, axis=-1) for term in of.terms(p, *numbers)]
    return sums[0] if of.count == 1 else xp.stack(sums)


@lru_cache
def terms_in(of: Sum, xp: Namespace[Any]) -> Any:
    """Return its formula in a framework's own functions: words look for them at each call."""
    words = {word: getattr(vocabulary, word) for word in vocabulary.__all__}
    own = {word: getattr(xp, name) for word, name in _NAMES.items()}
    return Target(words | own, _here)(of.terms)


def _here(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    """Keep what else a module has: PyTorch looks for it where anomalies are to be found."""
    return rebound(function, function.__globals__ | names)


_NAMES = {"exp": "exp", "expm1": "expm1", "log": "log", "log_of_any": "log", "where": "where"}


def _back_by_arrays(p: Array, cotangent: Array, of: Sum, numbers: Numbers) -> Array:
    slopes = of.slopes(p, *numbers)
    every = cotangent if of.count > 1 else (cotangent,)
    slope: Array = sum(g[..., None] * slope for g, slope in zip(every, slopes, strict=True))
    return slope


def _back(backend: SumKernels, p: Array, cotangent: Array, of: Sum, numbers: Numbers) -> Any:
    return backend.slopes(of, p, cotangent, numbers)


WEIGHTS = scores("p", "sums")

SUMS = Operation(
    name="",
    takes="p n, of any, numbers any",
    gives="sums r",
    of=WEIGHTS,
    kernel=_by_kernel,
    plain=by_arrays,
    back=(
        Operation(
            name="",
            takes="cotangent r, p n, of any, numbers any",
            gives="p n",
            of=WEIGHTS,
            kernel=_back,
            plain=_back_by_arrays,
        ),
    ),
)

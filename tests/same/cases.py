"""Cases by their names, such as soft_topk/torch/logistic/float32/129/vjp/rows, and which to run.

The full product would take days. A plan draws, for each operation, framework and order of
derivative, some of the links, types, lengths and rows, the same at every call, so that each value
of each of these is drawn before one is drawn again.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import operations

LINKS = ("logistic", "exponential", "laplace", "normal", "linear", "entmax", "entmax(1.3)")
DTYPES = ("float32", "float64", "bfloat16", "float16")
LENGTHS = (129, 64, 9001, 65, 1000, 128, 1)
ORDERS = ("value", "vjp", "jvp", "second")


class Case(NamedTuple):
    """What a name says; `link` is - for an operation without one."""

    operation: str
    framework: str
    link: str
    dtype: str
    n: int
    order: str
    rows: str

    def __str__(self) -> str:
        return "/".join(map(str, self))


def case_of(name: str) -> Case:
    operation, framework, link, dtype, n, order, rows = name.split("/")
    return Case(operation, framework, link, dtype, int(n), order, rows)


class Framework(NamedTuple):
    """What a framework can be asked for, and how many draws the plans make."""

    rows: tuple[str, ...]
    quick: int
    usual: int
    orders: tuple[str, ...] = ORDERS
    dtypes: tuple[str, ...] = DTYPES
    lengths: tuple[int, ...] = LENGTHS
    alike: bool = False
    """All orders of an operation have the same draws: what compiles slowly compiles once."""
    quick_orders: tuple[str, ...] = ()
    """Those of the quick plan, if not all: with a vjp comes the value, with `second` the vjp."""


_EAGER = ("rows", "numbers", "mask", "turned")
_SHARDED = ("rows", "numbers", "mask")
FRAMEWORKS = {
    "numpy": Framework(_EAGER, 3, 30, ("value",), ("float32", "float64", "float16")),
    "torch": Framework(_EAGER, 3, 56),
    "func": Framework(("each",), 1, 14),
    "compile": Framework(_SHARDED, 1, 3, ("value", "vjp"), alike=True, quick_orders=("vjp",)),
    "inductor": Framework(("rows",), 0, 1, ("vjp",), ("float32", "bfloat16"), (129,)),
    "jax": Framework(
        ("rows", "numbers", "mask", "each"), 1, 3, alike=True, quick_orders=("vjp", "jvp")
    ),
    "jit": Framework(("rows", "numbers", "each"), 1, 3, alike=True, quick_orders=("second",)),
    "group": Framework(_SHARDED, 1, 12, (*ORDERS, "messages")),
    "dtensor": Framework(_SHARDED, 1, 8, ("value", "vjp", "second", "messages")),
    "dtensor_compile": Framework(
        ("rows", "numbers"), 1, 2, ("value", "vjp"), alike=True, quick_orders=("vjp",)
    ),
    "axis": Framework(
        _SHARDED,
        *(1, 3, (*ORDERS, "messages"), DTYPES, (64, 1000, 128)),  # shards of one size
        alike=True,
        quick_orders=("vjp", "messages"),
    ),
    "kept": Framework(("rows", "numbers"), 1, 4, ("vjp",), lengths=(128, 1000)),
}
"""`kept` is the memory that eager PyTorch holds for the way back."""


def orders_of(operation: str, framework: str, level: str) -> Sequence[str]:
    """Return the orders of derivative to take of an operation in a framework, none if no cell."""
    found, about = operations.OPERATIONS[operation], FRAMEWORKS[framework]
    if framework not in found.frameworks or not set(found.rows) & set(about.rows):
        return ()
    if not found.learns:
        return [order for order in about.orders if order in ("value", "messages")]
    return about.quick_orders if level == "quick" and about.quick_orders else about.orders


def plan(level: str) -> Iterator[Case]:
    """Draw the cases of a plan: quick, usual or all."""
    for operation, framework in itertools.product(operations.OPERATIONS, FRAMEWORKS):
        about, of = FRAMEWORKS[framework], operations.OPERATIONS[operation]
        axes = (
            LINKS if of.links else ("-",),
            about.dtypes,
            [n for n in about.lengths if n <= of.longest] or [of.longest],
            [rows for rows in about.rows if rows in of.rows],
        )
        size = math.prod(map(len, axes))
        cheap = framework in ("numpy", "torch", "kept")
        count = {"quick": about.quick, "usual": about.usual, "all": size if cheap else 40}[level]
        for order in orders_of(operation, framework, level):
            seed = f"{operation}/{framework}/{'' if about.alike else order}"
            for link, dtype, n, rows in drawn(seed, axes, min(count, size)):
                yield Case(operation, framework, link, dtype, n, order, rows)


def drawn(seed: str, axes: Sequence[Sequence], count: int) -> Sequence[tuple]:
    """Draw different points of a product, with each value of an axis as often as any other."""
    if count == math.prod(map(len, axes)):
        return list(itertools.product(*axes))
    generator = random.Random(seed)

    def values(axis: Sequence) -> Iterator:
        while True:
            yield from generator.sample(axis, len(axis))

    points: dict[tuple, None] = {}
    endless = zip(*map(values, axes), strict=False)
    while len(points) < count:
        points[next(endless)] = None
    return list(points)


def chosen(names: Sequence[str], pattern: str) -> list[str]:
    """Return the names that a pattern matches, from their start; ** in a link is *."""
    return [
        name for name in names if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}/*")
    ]

"""The cases that `kofn bench` times, and their contenders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

Map = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """One problem size, named after its typical use."""

    name: str
    shape: tuple[int, int]
    k: int
    dtypes: tuple[str, ...] = ("float32", "bfloat16")  # unless the user chooses
    device: str = "cpu"
    repeats: int = 1  # calls that are timed together, where one takes microseconds


CASES = (
    Case("router", (4096, 64), 8),
    Case("attention", (1024, 1024), 32),
    Case("vocabulary", (64, 32768), 64),
    Case("pruning", (1, 4_000_000), 400_000),
    Case("losses", (128, 1024), 32),
    Case("compile", (512, 1024), 32, ("float32",)),
    Case("jax", (1024, 1024), 32, ("float32",)),
    Case("half", (512, 1024), 32, ("bfloat16", "float16")),
    Case("knapsack", (512, 1024), 100, ("float32",)),
    Case("segments", (1024, 64), 8, ("float32",)),
    Case("balance", (4096, 64), 8, ("float32",)),
    Case("calls", (256, 6), 2, ("float32",), repeats=20),
    Case("floor", (4096, 64), 8, ("float32",)),
)

EXPERTS = (64, 256)
"""For how many experts `balance` times a router."""

FLOOR = ((16384, 8), (8192, 32), (4096, 64), (2048, 128), (1024, 1024), (1, 1 << 20))
"""Shapes for which `floor` has the nanoseconds of an entry, and the time of reading it."""

CALLS = ((4, 8), (256, 6), (32, 64))
"""Shapes of small calls."""

LARGE = {
    "router": (1 << 20, 64),
    "attention": (1 << 16, 1024),
    "vocabulary": (1 << 11, 32768),
    "pruning": (1, 1 << 26),
}
"""Shapes of 256 MB in float32, beside which the cost of a launch is nothing."""


def on_device(case: Case, device: str) -> Iterator[Case]:
    """Yield the case on a device in each of its shapes, and as large scores where it has one."""
    if case.name == "floor":
        for rows, n in FLOOR:
            yield replace(case, shape=(rows, n), k=n // 8, device=device)
        return
    if case.name == "calls":
        for shape in CALLS:
            yield replace(case, shape=shape, device=device)
        return
    if case.name == "balance":
        for n in EXPERTS:
            yield replace(case, shape=(case.shape[0], n), device=device)
        return
    yield replace(case, device=device)
    if device != "cpu" and case.name in LARGE:
        shape = LARGE[case.name]
        k = case.k * shape[1] // case.shape[1]
        yield replace(case, name=f"{case.name}, large", shape=shape, k=k, device=device)


@dataclass(frozen=True)
class Contender:
    """A function to time; its result must match `exact` in float64 (None: no check)."""

    name: str
    group: str
    function: Map
    exact: Map | None
    framework: str = "torch"
    forward_alone: bool = False


def ours(functions: dict[str, Map], framework: str = "torch") -> Iterator[Contender]:
    """Yield functions of kofn; in float64, each is what its result must match."""
    for name, function in functions.items():
        shown = f"{name} (JAX)" if framework == "jax" else name
        yield Contender(shown, "kofn", function, function, framework)

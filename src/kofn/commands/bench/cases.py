"""What `kofn bench` times: the cases, and what a contender is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Map = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """One problem size, named after its typical use."""

    name: str
    shape: tuple[int, int]
    k: int
    dtypes: tuple[str, ...] = ("float32", "bfloat16")  # unless the user chooses


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
)


@dataclass(frozen=True)
class Contender:
    """A function to time; its result must match `exact` in float64 (None: no check)."""

    name: str
    group: str
    function: Map
    exact: Map | None
    framework: str = "torch"


def ours(functions: dict[str, Map], framework: str = "torch") -> Iterator[Contender]:
    """Yield functions of kofn; in float64, each is what its result must match."""
    for name, function in functions.items():
        shown = f"{name} (JAX)" if framework == "jax" else name
        yield Contender(shown, "kofn", function, function, framework)

"""What a row of the table says of a function, and how it is called."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import distributed as processes

ALL = ("numpy", "torch", "jax")
WITH_GRADIENTS = ("torch", "jax")
TORCH = ("torch",)
FLOAT, INTEGER, BOOLEAN = "f", "i", "b"


@dataclass(frozen=True)
class Call:
    """How to call a function with every argument that may be an array as one.

    `call(framework)` calls it with arrays of a framework, `call(framework, scores=x)` with another
    array in place of its own; the answer is a tuple of arrays.
    """

    name: str
    """As in signatures.txt, with what the example adds in brackets: "kofn.quantile[integers]"."""
    function: Callable[..., Any]
    """Takes `arguments` by name."""
    arguments: Mapping[str, Any]
    """NumPy arrays stand for arrays of the framework, all else for itself."""
    learned: tuple[str, ...] = ()
    """The arrays in which the answer has a derivative."""
    frameworks: tuple[str, ...] = ALL
    random: bool = False
    """Whether it takes a generator as `rng`; each call here starts a new one."""
    together: tuple[str, ...] = ()
    """Why one row's answer may depend on another row: a common answer, segments, tokens."""
    integers: bool = False
    """Whether the first argument may hold integers."""

    @property
    def public(self) -> str:
        """The name without brackets."""
        return self.name.partition("[")[0]

    @property
    def arrays(self) -> tuple[str, ...]:
        """The arguments that may be arrays."""
        return tuple(name for name in self.arguments if self.kind_of(name))

    @property
    def first(self) -> str:
        """The argument that the function is of: scores, logits, x, …"""
        return self.arrays[0]

    def kind_of(self, argument: str) -> str:
        """FLOAT, INTEGER or BOOLEAN for an argument that may be an array, else ""."""
        value = self.arguments[argument]
        if not isinstance(value, np.ndarray):
            return ""
        return INTEGER if value.dtype.kind == "u" else value.dtype.kind

    def made(self, framework: str, dtype: str = "float64") -> dict[str, Any]:
        """The arguments, with arrays of a framework; `dtype` is that of its floats."""
        return {
            name: array_of(framework, value, dtype) if isinstance(value, np.ndarray) else value
            for name, value in self.arguments.items()
        }

    def __call__(self, framework: str, /, dtype: str = "float64", **changed: Any) -> tuple:
        given = {**self.made(framework, dtype), **changed}
        if self.random:
            given = {"rng": generator(framework), **given}
        return flat(self.function(**given))


def array_of(framework: str, value: np.ndarray, dtype: str = "float64") -> Any:
    """An array of a framework; floats in `dtype`, integers and booleans as they are."""
    if value.dtype.kind != "f":
        dtype = value.dtype.name
    if framework == "torch":
        return torch.tensor(np.array(value), dtype=getattr(torch, dtype), device="cpu")
    if framework == "jax":
        return jnp.asarray(value, dtype=dtype)
    return np.array(value, dtype=dtype)


def generator(framework: str) -> Any:
    if framework == "torch":
        return torch.Generator(device="cpu").manual_seed(0)
    return jax.random.key(0) if framework == "jax" else np.random.default_rng(0)


def flat(answer: Any) -> tuple:
    """Every array of an answer: of a tuple, a dict, a record; numbers count as arrays."""
    if isinstance(answer, dict):
        answer = tuple(answer.values())
    if isinstance(answer, (tuple, list)):
        return tuple(each for part in answer for each in flat(part))
    return () if answer is None or isinstance(answer, (str, bool)) else (answer,)


@contextlib.contextmanager
def surroundings(call: Call) -> Iterator[None]:
    """What a call and its derivatives need around them: a group of one process."""
    if ".distributed." not in call.name:
        yield
        return
    processes.init_process_group("gloo", store=processes.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        processes.destroy_process_group()

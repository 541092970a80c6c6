"""Answers for rows whose θ is known, each a value: `worker.answer` does the work of all of them.

An answer is made of three functions of one file, each made for a link and a type of numbers, as in
loops.py. Whoever adds one writes these, its value here, and a function of launch.py.
(Tests: test_kernels_value.py.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kofn.kernels.cpu.runtime.code import PASS, Code


@dataclass(frozen=True, eq=False)
class Answer:
    """What is computed of a row whose θ is known."""

    module: str
    """The file of its functions."""
    entries: str
    """The pass over the entries of a row that has an equation, of (θ, 1/T, α, k)."""
    settled: str
    """The same of a row without one, where θ is ∞, −∞ or NaN; it is the same for all links."""
    row: str = ""
    """What makes two numbers of the row of the sums, in their place, by (θ, T, α, k)."""

    def codes(self, kind: int, size: int) -> list[Code]:
        """Return its functions for a link and numbers of so many bytes."""
        names = (self.entries, kind), (self.settled, 0), (self.row, kind)
        module, number = f"rows.{self.module}", f"float{8 * size}"
        return [Code(module, name, PASS, "", of, number) for name, of in names if name]


PASSES: list[Pass] = []
"""Those of the files that are imported."""


@dataclass(frozen=True, eq=False)
class Pass:
    """Two sums over the weights of a row; it stands beside an operation, and `launch.sums` does it.

    It is known by the file that it stands in, which is the file's `__name__`, and its name there.
    """

    file: str
    name: str
    entry: Callable[..., Any]
    """entry(tail, upper, slope) gives the two terms of a score, in the words of
    links/vocabulary.py: of the smaller of p and 1 − p, whether that is 1 − p, and F′. Scores that
    are infinite or out of play, and those of rows without an equation, have a slope of 0.
    """

    def __post_init__(self) -> None:
        PASSES.append(self)

    def codes(self, kind: int, size: int) -> list[Code]:
        """Return its functions, of pass_loops.py, for a link and numbers of so many bytes."""
        parts, number = (("entries", kind), ("settled", 0), ("row", 0)), f"float{8 * size}"
        names = ((f"{part}@{self.file}:{self.name}", of) for part, of in parts)
        return [Code("rows.pass_loops", name, PASS, "", of, number) for name, of in names]


SUMS: list[Sum] = []
"""Those of the files that are imported."""


@dataclass(frozen=True, eq=False)
class Sum:
    """Σ f(p) over the weights of a row, one or more f; it stands beside the function that takes it.

    All code for it is made of its formulas, in the words of links/vocabulary.py: array code,
    compiled code, and the ways back of both. `metrics/sums.py` evaluates it.
    """

    file: str
    """Its file's `__name__`."""
    name: str
    """Its name there."""
    terms: Callable[..., tuple[Any, ...]]
    """terms(p, *numbers) -> f(p) of each f, 0 at p = 0, as weights that are masked are 0; NaN where
    p is."""
    slopes: Callable[..., tuple[Any, ...]]
    """slopes(p, *numbers) -> their f′(p)."""
    numbers: int = 0
    """How many numbers they take, which are the same for all rows; with the f, five at most."""
    count: int = 1
    """How many f there are."""
    outer: Callable[..., Any] | None = None
    """outer(*sums, *numbers, *more) is the answer, by array code; there may be more per row."""

    def __post_init__(self) -> None:
        SUMS.append(self)

    def code(self, part: str, size: int) -> Code:
        """Return the pass for its "terms" or its "slopes", of numbers of so many bytes."""
        name = f"{part}@{self.file}:{self.name}"
        return Code("passes.sum_loops", name, PASS, "", 0, f"float{8 * size}")


VALUE = Answer("pass_loops", "integrate", "total", "value")
"""S_k and its slope in T."""

LOG_WEIGHTS = Answer("answer_loops", "logs", "logs_of_weights")
"""log p over the weights."""

ANSWERS = tuple(each for each in vars().copy().values() if isinstance(each, Answer))

"""Answers for rows whose θ is known, each a value: `worker.answer` does the work of all of them.

An answer is made of three functions of one file, each made for a link and a type of numbers, as in
loops.py. Whoever adds one writes these, its value here, and a function of launch.py.
(Tests: test_kernels_value.py.)
"""

from __future__ import annotations

from dataclasses import dataclass

from kofn.kernels.cpu.runtime.native import PASS, Code


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


VALUE = Answer("value_loops", "integrate", "total", "value")
"""S_k and its slope in T."""

LOG_WEIGHTS = Answer("answer_loops", "logs", "logs_of_weights")
"""log p over the weights."""

ANSWERS = tuple(each for each in vars().copy().values() if isinstance(each, Answer))

"""Array code for a row in blocks: the solver's expressions, computed a block at a time.

The solver works with whole arrays, and looks at a row only through its reductions. Here the arrays
are expressions, and a reduction computes them block by block, in a pass of its own: slow, but by
the same code, rules and edges as for rows in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kofn.streaming.blocks import Blocks

Context = dict[int, np.ndarray]
"""The results for a block, by the id of their expression."""


class BlockArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array with a number per entry of a row; NumPy's elementwise functions take it."""

    def __init__(self, compute: Callable[[Context], np.ndarray], like: np.ndarray) -> None:
        self.compute, self.like = compute, like

    @property
    def dtype(self) -> np.dtype:
        """Return the type of the numbers."""
        return self.like.dtype

    def astype(self, dtype: Any) -> BlockArray:
        """Return the numbers in another type."""
        return BlockArray(lambda block: self.of(block).astype(dtype), self.like.astype(dtype))

    def of(self, block: Context) -> np.ndarray:
        """Return the numbers of a block."""
        numbers = block.get(id(self))
        if numbers is None:
            numbers = block[id(self)] = self.compute(block)
        return numbers

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return _applied(ufunc, inputs, options) if method == "__call__" else NotImplemented

    def __array_function__(self, function: Any, _: object, inputs: Any, options: Any) -> Any:
        return _applied(function, inputs, options)


def _applied(function: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> BlockArray:
    def compute(block: Context) -> np.ndarray:
        given = (each.of(block) if isinstance(each, BlockArray) else each for each in inputs)
        return function(*given, **options)

    with np.errstate(all="ignore"):
        samples = (each.like if isinstance(each, BlockArray) else each for each in inputs)
        return BlockArray(compute, function(*samples, **options))


SCORES = 0  # no object has this id


class BlockRows:
    """Reductions of a row in blocks; see `solver.reductions`."""

    def __init__(self, blocks: Blocks, scores: Callable[[Any], np.ndarray]) -> None:
        """`scores` turns a block into the scores to solve for, in float64, −inf where excluded."""
        self.blocks, self.scores = blocks, scores
        self.x = BlockArray(lambda block: block[SCORES], np.zeros(1))

    def min(self, values: Any) -> Any:
        return np.float64(min(self._each(values, np.min)))

    def max(self, values: Any) -> Any:
        return np.float64(max(self._each(values, np.max)))

    def sum(self, values: Any) -> Any:
        return np.float64(sum(self._each(values, np.sum)))

    def count(self, flags: Any) -> Any:
        return np.int64(sum(self._each(flags, np.count_nonzero)))

    def any(self, flags: Any) -> Any:
        return np.bool_(self.count(flags) > 0)

    def expand(self, per_row: Any) -> Any:
        return np.asarray(per_row)[..., None]

    def _each(self, values: Any, reduce: Callable[[np.ndarray], Any]) -> list[Any]:
        def see(block: Any, _: object) -> Any:
            known: Context = {SCORES: self.scores(block)}
            numbers = values.of(known) if isinstance(values, BlockArray) else values
            # Numbers without an expression in the scores are one for all entries.
            return reduce(np.broadcast_to(numbers, known[SCORES].shape))

        return list(self.blocks.each("by array code", see))

"""One pass over a block, a NumPy array, of a row that is never held as one array.

The passes are those over parts of long rows (rows/loops.py). They release Python's lock, so threads
may work on one block each.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from kofn.kernels.contract import BOUNDED, EXPONENTIAL, OCTAVES
from kofn.kernels.cpu.rows.launch import pass_code
from kofn.kernels.cpu.rows.layout import SERVED as SERVED
from kofn.kernels.cpu.runtime import native
from kofn.kernels.cpu.runtime.layout import SUMS
from kofn.kernels.cpu.runtime.memory import address
from kofn.kernels.cpu.runtime.native import Code


def code_of(size: int) -> Code:
    """Return what counts digits of numbers of that size."""
    return Code("passes.block_loops", "histogram", "qqqqqqq", "", 0, f"float{8 * size}")


class At(NamedTuple):
    """θ = anchor + offset of a row, its temperature, and the number of its link, with its α."""

    kind: int
    anchor: float  # as the type of the scores holds it
    offset: float
    temperature: float
    alpha: float

    def numbers(self) -> tuple[float, ...]:
        """Return them as passes over a row take them."""
        per_t = 1 / self.temperature
        if self.kind in BOUNDED:
            return self.anchor, per_t, self.offset, self.alpha, 0.0
        by = self.offset * per_t
        if self.kind in OCTAVES:
            by = math.exp(by + 1 if self.kind == EXPONENTIAL else by)
        return self.anchor, per_t, by, self.alpha, 0.0


def histogram(block: np.ndarray, counts: np.ndarray, prefix: int, below: int, width: int) -> None:
    """Count digits of the keys of a block, as block_loops.py does; the first has none before it."""
    first = below + width == 8 * block.itemsize
    run = native.function(code_of(block.itemsize))
    run(address(block), len(block), address(counts), prefix, below, width, first)


def full_statistics(block: np.ndarray) -> np.ndarray:
    """Return the least and the greatest finite score, and how many are finite, +inf and NaN."""
    return _passed("full_statistics", block, 0, (0.0, 0.0, 0.0, 0.0, 0.0), 0)[:5]


def sums(block: np.ndarray, at: At) -> np.ndarray:
    """Return Σ of all smaller tails, and of those above ½, ΣF′ and #{F > ½}."""
    if at.kind in BOUNDED:
        return _passed("evaluate", block, at.kind, at.numbers(), 0)
    kept = np.empty_like(block)
    return _passed("first_evaluation", block, at.kind, at.numbers(), address(kept))


def weights(block: np.ndarray, at: At, out: np.ndarray) -> None:
    """Write F of each entry."""
    if at.kind not in BOUNDED:
        _passed("first_evaluation", block, at.kind, at.numbers(), address(out))
    _passed("write", block, at.kind, at.numbers(), address(out))


def _passed(
    name: str, block: np.ndarray, kind: int, numbers: tuple[float, ...], out: int
) -> np.ndarray:
    sums = np.zeros(SUMS)
    run = native.function(pass_code("loops", name, kind, block.itemsize))
    run(address(block), 0, out, len(block), address(sums), *numbers)
    return sums

"""The hard choice of a row in blocks: its cut in one pass more than the sketch, without a sort."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kofn.arrays.kinds import Array, deleted
from kofn.streaming.blocks import Blocks, Part, Shared, added, in_memory
from kofn.streaming.cut import cut
from kofn.streaming.sketch import DIGIT, Sketch, count, scores_of, sketch_of

FEW = 1 << 20
"""So many scores that may be the last one chosen are kept; more take passes of their own."""


class Cut(NamedTuple):
    """Scores above are chosen, and of those equal to it the first, until `left` is used up."""

    score: float
    left: float
    sketch: Sketch

    def weights(self, block: Array) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights of a block without the ties', and where the ties are."""
        x = in_memory(block)
        playing = ~deleted(x)
        weights = ((x > self.score) & playing).astype(x.dtype)
        if self.sketch.bad:
            weights[playing & (x != math.inf)] = math.nan
        return weights, np.flatnonzero((x == self.score) & playing)


def cut_of(blocks: Blocks, k: float) -> Cut:
    """Return the cut at the k-th largest score, which ends the choice."""
    sketch = sketch_of(blocks)
    if k >= sketch.top + sketch.live:
        return Cut(-math.inf, 0.0, sketch)
    if sketch.bad or k <= sketch.top:  # NaN has no place in the order
        return Cut(math.inf, k, sketch)
    ended = cut(sketch.bits, DIGIT, k, _Digits(blocks, sketch).histogram)
    assert ended is not None, "fewer scores than were counted"
    key, left = ended
    return Cut(float(scores_of(np.array([key]), sketch.bits)[0]), left, sketch)


class _Digits:
    """Histograms of digits: of the sketch, of a pass, or of the few scores that are left."""

    def __init__(self, blocks: Blocks, sketch: Sketch) -> None:
        self.blocks, self.sketch = blocks, sketch
        self.counts = sketch.counts
        self.kept: np.ndarray | None = None

    def histogram(self, prefix: int, below: int, width: int) -> Sequence[float]:
        """Return how many scores whose key begins with the prefix have which next digit."""
        bits = self.sketch.bits
        if below + width == bits:
            return self.counts.tolist()
        digit = prefix & ((1 << DIGIT) - 1)
        if below + width == bits - DIGIT:
            digit ^= 1 << (DIGIT - 1)
        if below and self.kept is None and self.counts[digit] <= FEW:
            self.kept = self._scores(prefix, below + width)
        if self.kept is not None:
            self.counts = np.zeros(1 << width, np.int64)
            count(self.kept, self.counts, prefix, below, width)
        else:
            self.counts = self._pass(prefix, below, width)
        return self.counts.tolist()

    def _pass(self, prefix: int, below: int, width: int) -> np.ndarray:
        every: list[np.ndarray] = []
        shared = Shared(1 << width, every)

        def see(block: Array, _: Part) -> None:
            count(in_memory(block), shared.counts, prefix, below, width)

        self.blocks.run("choice", see)
        return added(every)

    def _scores(self, prefix: int, below: int) -> np.ndarray:
        """Return the scores whose key >> below is the prefix."""
        bits, first = self.sketch.bits, prefix << below
        keys = np.array([first, first + (1 << below) - 1])
        least, greatest = scores_of(keys, bits)

        def see(block: Array, _: Part) -> Any:
            x = in_memory(block)
            return x[(x >= least) & (x <= greatest)]

        return np.concatenate(list(self.blocks.each("choice", see)))

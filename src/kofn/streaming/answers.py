"""The last pass over a row in blocks: weights are written, or indices put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from kofn.arrays.kinds import Array
from kofn.streaming.blocks import Blocks, Part
from kofn.streaming.choice import Cut
from kofn.streaming.threshold import Solved


class Sink(Protocol):
    """Where the weights of a source go; threads write at once."""

    def write(self, start: int, values: np.ndarray) -> None:
        """Write some of them, from an entry on."""


def write_weights(
    solved: Solved, blocks: Blocks, into: Sequence[Sink], first: int = 0
) -> Iterator[int]:
    """Write soft weights, from a block on; yield how many entries are written so far."""

    def write(block: Array, part: Part) -> int:
        weights = solved.weights(block)
        into[part.source].write(part.start, weights)
        return part.place + len(weights)

    yield from blocks.each("weights", write, first)


def write_choice(
    cut: Cut, left: float, blocks: Blocks, into: Sequence[Sink], first: int = 0
) -> Iterator[tuple[int, float]]:
    """Write a hard choice, from a block on; at its start `left` is left for entries equal to the
    cut.

    Yield how many entries are written so far, and the rest then.
    """

    def write(block: Array, part: Part) -> Any:
        weights, tied = cut.weights(block)
        if not len(tied):
            into[part.source].write(part.start, weights)
        return part, weights, tied

    for part, weights, tied in blocks.each("weights", write, first):
        if len(tied):  # in the order of the blocks, as each takes from the rest
            weights[tied] = np.clip(left - np.arange(len(tied)), 0.0, 1.0)
            left = max(left - len(tied), 0.0)
            into[part.source].write(part.start, weights)
        yield part.place + len(weights), left


def indices_of(cut: Cut, blocks: Blocks) -> np.ndarray:
    """Return the indices that a whole choice has, in increasing order."""

    def see(block: Array, part: Part) -> Any:
        weights, tied = cut.weights(block)
        return part.place, np.flatnonzero(weights), tied

    left, chosen = int(cut.left), [np.empty(0, np.int64)]
    for place, above, tied in blocks.each("indices", see):
        first, left = tied[:left], max(left - len(tied), 0)
        chosen.append(place + (np.sort(np.append(above, first)) if len(first) else above))
    return np.concatenate(chosen)

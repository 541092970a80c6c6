"""The weights of one row in two steps that can be interrupted: find θ, then write block by block.

Between two blocks, the state is a `State` of plain values, which can be stored as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kofn.links.link import Link
from kofn.streaming.answers import Sink, write_choice, write_weights
from kofn.streaming.blocks import Blocks
from kofn.streaming.choice import Cut, cut_of
from kofn.streaming.sketch import Sketch
from kofn.streaming.sums import BlockRow, Spot
from kofn.streaming.threshold import Solved, solved

State = dict[str, Any]


def soft(blocks: Blocks, k: float, temperature: float, link: Link) -> State:
    """Return the state of a row before its soft weights are written; "theta" is θ."""
    row = solved(blocks, k, temperature, link.inner)
    numbers = {"k": k, "temperature": row.temperature, "high": row.at.high, "low": row.at.low}
    return {**numbers, "theta": row.theta, **_of_sketch(row.row.sketch)}


def hard(blocks: Blocks, k: float) -> State:
    """Return the state of a row before its hard choice is written."""
    cut = cut_of(blocks, k)
    return {"score": cut.score, "left": cut.left, **_of_sketch(cut.sketch)}


def write(
    blocks: Blocks, state: State, link: Link, into: Sink, first: int
) -> Iterator[tuple[int, State]]:
    """Write weights from the block of entry `first` on.

    Yield how many entries are written so far, and the state from which to continue there.
    """
    sketch = _sketch(state)
    if "score" in state:
        cut = Cut(state["score"], state["left"], sketch)
        for done, left in write_choice(cut, cut.left, blocks, [into], first):
            yield done, {**state, "left": left}
        return
    row = BlockRow(blocks, sketch, link.inner)
    spot = Spot(state["high"], state["low"])
    solution = Solved(row, state["k"], state["temperature"], spot)
    for done in write_weights(solution, blocks, [into], first):
        yield done, state


_NUMBERS = ("least", "greatest", "live", "top", "bad", "bits")


def _of_sketch(sketch: Sketch) -> State:
    numbers = {name: getattr(sketch, name) for name in _NUMBERS}
    return {**numbers, "entries": int(sketch.counts.sum())}


def _sketch(state: State) -> Sketch:
    """Return a sketch that knows how many entries there are, but not where."""
    numbers = {name: state[name] for name in _NUMBERS}
    return Sketch(**numbers, counts=np.array([state["entries"]]))

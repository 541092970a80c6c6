"""θ of a row in blocks, and its weights a block at a time.

A sketch tells nearly where θ is, and an evaluation or two find it. Where the choice is hard, θ
depends on few scores; these are kept, and solved for in memory.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from kofn.arrays.kinds import Array, deleted
from kofn.links.link import BuiltIn, Link
from kofn.rows.numbers import TEMPERATURES
from kofn.solver.neighbours import Place
from kofn.solver.plateau import at_end
from kofn.solver.reductions import DenseRows
from kofn.solver.threshold import solve
from kofn.streaming.arrays import BlockRows
from kofn.streaming.blocks import Blocks, in_memory
from kofn.streaming.equation import Equation
from kofn.streaming.sketch import Sketch, sketch_of
from kofn.streaming.sums import BlockRow, Spot, spot


class Solved(NamedTuple):
    """A row whose θ is known."""

    row: BlockRow
    k: float
    temperature: float
    at: Spot  # θ of the inner link; ±∞ or NaN where none is needed

    @property
    def theta(self) -> float:
        """Return θ in the units of the scores, for the link with mean zero."""
        return self.at.theta - self.temperature * float(self.row.link.edge)

    def weights(self, block: Array) -> np.ndarray:
        """Return the weights of a block, in float32 or float64."""
        theta, sketch = self.at.theta, self.row.sketch
        if math.isfinite(theta):
            return self.row.weights(block, self.at, self.temperature)
        x = in_memory(block)
        plain = math.nan if sketch.bad else float(theta < 0)
        share = min(self.k / sketch.top, 1.0) if sketch.top else 0.0
        weights = np.where(x == math.inf, share, np.where(deleted(x), 0.0, plain))
        return weights.astype(x.dtype)


def solved(blocks: Blocks, k: float, temperature: float, link: Link) -> Solved:
    """Find θ of a row, for numbers k in [0, n] and T > 0 and an inner link."""
    floor, ceiling = TEMPERATURES["float64" if blocks.is_double else "float32"]
    temperature = min(max(temperature, floor), ceiling)
    sketch = sketch_of(blocks)
    row = BlockRow(blocks, sketch, link)
    closed = _closed(sketch, k)
    if closed is not None:
        return Solved(row, k, temperature, Spot(closed, 0.0))
    equation = Equation(row, k - sketch.top, float(sketch.live), temperature, link)
    with np.errstate(all="ignore"):
        return Solved(row, k, temperature, _theta_by_sketch(row, equation))


def _closed(sketch: Sketch, k: float) -> float | None:
    """Return θ where it needs no search: NaN, +∞ or −∞."""
    if sketch.bad or not sketch.live + sketch.top:
        return math.nan
    if k <= sketch.top:
        return math.inf
    return -math.inf if k >= sketch.top + sketch.live else None


def _theta_by_sketch(row: BlockRow, equation: Equation) -> Spot:
    """Return θ by Newton's method from the sketch, or else of the few scores that it depends on."""
    start, low, high = row.bracket(equation)
    start = min(max(start, low), high)
    if row.is_usual and math.isfinite(start):
        state = equation.search(start, low, high, LOOKS)
        start, low, high = (float(sum(place)) for place in (state.at, state.low, state.high))
        slope = row.last.weight if row.last else 0.0
        if state.converged and not state.flat and (slope > 0 or not row.link.capped):
            return spot(float(state.at.anchor), float(state.at.offset), row.blocks)
    # A link of the user's for tensors cannot read the solver's NumPy arrays.
    if not row.blocks.is_of_numpy and not isinstance(row.link, BuiltIn):
        return spot(start, 0.0, row.blocks)
    return _of_few(row, equation, start, low, high) or _by_solver(row, equation)


LOOKS = 8
"""Evaluations after which Newton's method is given up."""

FEW = 1 << 20
"""Scores that are kept in memory, where θ depends on no more; equal ones are kept once."""


def _of_few(row: BlockRow, equation: Equation, at: float, low: float, high: float) -> Spot | None:
    """Return θ of the scores whose weight is not certain to rounding; None if they are many.

    θ is between low and high. In a wide gap it is the nearest scores that it depends on.
    """
    reach = _reach(row, equation)
    if not math.isfinite(low + high) or reach is None:
        return None
    neighbours = row.blocks.each("gap", lambda block, _: _neighbours(_finite(block), at))
    below, above = np.array(list(neighbours)).T
    least, most = min(low, below.max()) + reach[0], max(high, above.min()) + reach[1]

    def see(block: Array, _: object) -> Any:
        scores = _finite(block)
        inside = scores[(scores >= least) & (scores <= most)]
        return np.unique(inside, return_counts=True), np.count_nonzero(scores > most)

    kept, certain = _Kept(), 0
    for scores, number in row.blocks.each("scores next to the threshold", see):
        certain += number
        if not kept.add(*scores):
            return None
    few, numbers = kept.merged()
    wanted = equation.budget - certain
    if wanted <= 0 or wanted >= numbers.sum():  # all of them are on one side of the root
        return spot(high if wanted <= 0 else low, 0.0, row.blocks)
    return _solution(few, wanted, equation, Weighted(numbers), row)


class _Kept:
    """Scores and how often each occurs."""

    def __init__(self) -> None:
        self.scores, self.numbers, self.size = [np.empty(0)], [np.empty(0)], 0

    def add(self, scores: np.ndarray, numbers: np.ndarray) -> bool:
        """Keep some more; return whether they are few."""
        self.scores.append(scores)
        self.numbers.append(numbers)
        self.size += len(scores)
        if self.size > 2 * FEW:
            scores, numbers = self.merged()
            self.scores, self.numbers, self.size = [scores], [numbers], len(scores)
        return self.size <= FEW or len(self.scores) > 1

    def merged(self) -> tuple[np.ndarray, np.ndarray]:
        """Return each score once, with its number."""
        scores, place = np.unique(np.concatenate(self.scores), return_inverse=True)
        return scores, np.bincount(place, np.concatenate(self.numbers), len(scores))


class Weighted(DenseRows):
    """Reductions of a row where entry i stands for `numbers[i]` entries."""

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers = numbers

    def sum(self, values: Any) -> Any:  # type: ignore[override]
        return (values * self.numbers).sum(axis=-1)

    def count(self, flags: Any) -> Any:  # type: ignore[override]
        return (flags * self.numbers).sum(axis=-1)


def _reach(row: BlockRow, equation: Equation) -> tuple[float, float] | None:
    """Return how far from θ, below and above, a weight may be other than 0 and 1."""
    ends = [float(row.link.quantile(np.asarray(q))) for q in (0.0, 1.0)]
    if not all(map(math.isfinite, ends)) and not isinstance(row.link, BuiltIn):
        return None  # no bound is known for its tails
    # The tails of the built-in links fall by e per temperature, or faster.
    fewest = min(equation.budget, equation.total - equation.budget, 1.0)
    far = 45 + math.log(equation.total) - math.log(fewest)
    first, last = (end if math.isfinite(end) else far for end in ends)
    first = first if math.isfinite(ends[0]) else -far
    slack = 1e-6 * (1 + abs(first) + abs(last))
    return equation.temperature * (first - slack), equation.temperature * (last + slack)


def _neighbours(x: np.ndarray, at: float) -> tuple[float, float]:
    below, above = x[(x < at) & (x > -math.inf)], x[x >= at]
    return np.max(below, initial=-math.inf), np.min(above, initial=math.inf)


def _by_solver(row: BlockRow, equation: Equation) -> Spot:
    """Return θ by the solver's own code over blocks, in many passes."""
    rows = BlockRows(row.blocks, _finite)
    return _solution(rows.x, equation.budget, equation, rows, row)


def _finite(block: Any) -> np.ndarray:
    """Return the scores of a block in float64, −inf where they are not in play."""
    x = in_memory(block)
    return np.where(np.isinf(x) | deleted(x), -math.inf, x.astype(np.float64))


def _solution(x: Any, k: float, equation: Equation, over: Any, row: BlockRow) -> Spot:
    """Return θ by the solver, in float64."""
    number, scale, link = np.asarray(k), np.asarray(equation.temperature), equation.link
    pair = solve(x, number, scale, link, over)
    if link.capped is not False:
        pair = at_end(x, number, scale, link, *pair, over)
    place = Place(pair[0], np.zeros(())).stepped(pair[1])
    return spot(float(place.anchor), float(place.offset), row.blocks)

"""Thresholds of the columns of a matrix whose rows come in blocks, all of them in the same passes.

A pass gives the sums of every column at its θ, and the solver's search takes them. Where it does
not end at once, as in hard choices, the solver's array code runs over the blocks: that takes a
hundred passes or more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from kofn.arrays.kinds import Array
from kofn.links.link import Link
from kofn.solver.bracket import bell, widening
from kofn.solver.equation import far
from kofn.solver.neighbours import Place
from kofn.solver.plateau import at_end
from kofn.solver.threshold import (
    Newton,
    Sums,
    answered,
    begun,
    bisections,
    newton_of,
    newton_search,
    solve,
)
from kofn.streaming.arrays import SCORES, BlockArray, Context


class Passes(Protocol):
    """A pass over the scores of a matrix: function(y) of some rows y, of shape (rows, n).

    −inf is no entry, and entries of +inf are taken before the others.
    """

    def __call__(self, function: Callable[[np.ndarray], Any]) -> Iterator[Any]:
        """Yield what it returns, in the order of the rows."""


class Columns(NamedTuple):
    """The equations of columns, as the solver's search sees them."""

    x: np.ndarray  # any numbers of their dtype
    k: np.ndarray
    n: np.ndarray
    temperature: np.ndarray
    link: Link

    @property
    def row_link(self) -> Link:
        return self.link

    @staticmethod
    def z(anchor: Array, offset: Array) -> Any:
        """Return the place itself, by which `look` takes the sums."""
        return Place(anchor, offset)


def thresholds(each: Passes, c: np.ndarray, temperature: np.ndarray, link: Link) -> np.ndarray:
    """Return θ of columns that are to sum to c, as `soft_topk_threshold` gives it."""
    inner = link.inner
    with np.errstate(all="ignore"):
        seen = _surveyed(each, len(c))
        k = np.where(seen.top < c, c - seen.top, np.where(np.isnan(c), c, 0.0))
        p: Any = Columns(c, k, seen.number, np.broadcast_to(temperature, c.shape), inner)
        open_, bad = (k > 0) & (k < p.n), np.isnan(c) | np.isnan(seen.high)
        at = _searched(p, each, seen, open_ & ~bad)
        bad = bad | (seen.number + seen.top == 0)
        theta: Any = answered(p, at, open_, bad)
        return np.asarray(theta.anchor + theta.offset - temperature * float(inner.edge))


class Survey(NamedTuple):
    """Numbers of the finite scores of each column."""

    top: np.ndarray  # how many are +inf
    number: np.ndarray
    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray
    spread: np.ndarray  # Σ(y − mean)²


def _surveyed(each: Passes, n: int) -> Survey:
    def see(y: np.ndarray) -> Survey:
        top, live = y == math.inf, np.abs(y) != math.inf
        number = live.sum(0)
        mean = np.sum(y, axis=0, where=live) / np.maximum(number, 1)
        spread = np.sum((np.where(live, y, mean) - mean) ** 2, axis=0)
        low = np.min(y, axis=0, initial=math.inf, where=live)
        high = np.max(y, axis=0, initial=-math.inf, where=live)
        return Survey(top.sum(0), number.astype(np.float64), low, high, mean, spread)

    zero = np.zeros(n)
    a = Survey(zero, zero, zero + math.inf, zero - math.inf, zero, zero)
    for b in each(see):
        number = a.number + b.number
        part, away = b.number / np.maximum(number, 1), b.mean - a.mean
        spread = a.spread + b.spread + away**2 * a.number * part
        ends = np.minimum(a.low, b.low), np.maximum(a.high, b.high)
        a = Survey(a.top + b.top, number, *ends, a.mean + away * part, spread)
    return a


def _searched(p: Columns, each: Passes, seen: Survey, open_: np.ndarray) -> Place:
    """Return θ of the columns that are open."""
    if not open_.any():
        return Place(np.zeros_like(p.k), np.zeros_like(p.k))
    slopes = p.k

    def look(_: Columns, at: Any) -> Newton:
        nonlocal slopes
        upper, below, above, slopes, lower = sum(each(lambda y: _sums(p, y, at)))
        return newton_of(p, at.anchor, Sums(upper - p.k, below, above, slopes), lambda: lower)

    start, low, high = _bracket(p, seen, open_)
    search = newton_search(p, begun(start, low, high, open_), look, bisections(p.k))
    sure = search.converged & ~search.flat & ((slopes > 0) | (p.link.capped is False))
    lost = open_ & ~sure
    if not lost.any():
        return search.at
    high, low = (np.array(part) for part in search.at)
    rows: Any = _Reductions(each, lost)
    few, t = p.k[lost], p.temperature[lost]
    pair = solve(rows.x, few, t, p.link, rows)
    if p.link.capped is not False:
        pair = at_end(rows.x, few, t, p.link, *pair, rows)
    high[lost], low[lost] = pair
    return Place(high, low)


def _sums(p: Columns, y: np.ndarray, at: Place) -> np.ndarray:
    limit = far(np.finfo(y.dtype))
    live = np.abs(y) < math.inf
    z = np.clip(((y - at.anchor) - at.offset) / p.temperature, -limit, limit)
    upper: Any
    upper, tail, density = p.link.tails(np.where(live, z, 0.0))
    upper, tail = upper & live, np.where(live & (tail > 0), tail, 0.0)
    density, low = np.where(live, density, 0.0), ~upper
    parts = (upper, np.where(low, tail, 0.0), np.where(upper, tail, 0.0), density)
    return np.stack([np.sum(each, axis=0) for each in (*parts, np.where(low, density, 0.0))])


def _bracket(p: Columns, seen: Survey, open_: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return (start, low, high) as `solver.bracket` does."""
    info = np.finfo(np.float64)
    share = np.where(open_, p.k / np.where(open_, p.n, 1.0), 0.5)
    quantile = p.link.quantile(share)
    reach = p.temperature * quantile
    sizes = (seen.low, seen.high, p.temperature, reach)
    slack = sum(4 * info.eps * np.abs(size) for size in sizes)
    low = np.clip(seen.low - reach - slack, -info.max, info.max)
    high = np.clip(seen.high - reach + slack, -info.max, info.max)
    wide = bell(share) * np.sqrt(seen.spread / np.maximum(p.n, 1)) / p.temperature
    start = seen.mean - reach - p.temperature * widening(quantile + p.link.edge, wide)
    return np.where(np.isfinite(start), np.clip(start, low, high), low / 2 + high / 2), low, high


class _Reductions:
    """Reductions of some columns, a pass for each; see `streaming.arrays`."""

    def __init__(self, each: Passes, some: np.ndarray) -> None:
        self.each, self.some = each, some
        self.x = BlockArray(lambda block: block[SCORES], np.zeros((int(some.sum()), 1)))

    def min(self, values: Any) -> Any:
        return np.min(self._each(values, np.min), axis=0)

    def max(self, values: Any) -> Any:
        return np.max(self._each(values, np.max), axis=0)

    def sum(self, values: Any) -> Any:
        return np.sum(self._each(values, np.sum), axis=0)

    def count(self, flags: Any) -> Any:
        return np.sum(self._each(flags, np.count_nonzero), axis=0)

    def any(self, flags: Any) -> Any:
        return self.count(flags) > 0

    def expand(self, per_row: Any) -> Any:
        return np.asarray(per_row)[..., None]

    def _each(self, values: Any, reduce: Any) -> list[Any]:
        def see(y: np.ndarray) -> Any:
            x = y[:, self.some].T
            known: Context = {SCORES: np.where(np.abs(x) == math.inf, -math.inf, x)}
            numbers = values.of(known) if isinstance(values, BlockArray) else values
            return reduce(np.broadcast_to(numbers, x.shape), axis=-1)

        return list(self.each(see))

"""A matrix whose rows come in blocks, and what its margins settle.

Between passes there is a number or a few for each column, and none for rows: what margins and
prices mean for a row is computed again in each pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from kofn.arrays.checks import check_broadcasts, check_real, check_scores
from kofn.arrays.kinds import cast, contiguous, framework, is_jax, is_torch, namespace
from kofn.arrays.unfit import refuse_unfit
from kofn.maps.assignment.arguments import check_margin, refuse_unmet, summing_to, tolerance_of
from kofn.maps.assignment.margins import Open, closed, closing, impossible
from kofn.maps.assignment.sight import apart
from kofn.rows.given import without_deleted
from kofn.rows.numbers import TEMPERATURES
from kofn.streaming.blocks import BLOCK, Pages, in_memory

LARGE = 1 << 22
"""Entries of a block of 256 rows at most: S is added to once for each block."""

R = TypeVar("R")
Tell = Callable[[str, int, int], None]


class Matrix:
    """The rows of some arrays, one after another, read as often as there are passes."""

    def __init__(self, arrays: Any, tell: Tell | None) -> None:
        self.given, self.tell = arrays, tell
        self.m, self.n, self.passes = -1, -1, 0  # not known yet
        if isinstance(arrays, list):
            for _ in self.arrays():
                pass

    def arrays(self) -> Iterator[Any]:
        """Yield the arrays of a pass."""
        m = 0
        for array in self.given:
            check_scores(array)
            shape = tuple(array.shape)
            if len(shape) != 2 or self.n not in (-1, shape[1]):
                wanted = "(rows, columns)" if self.n < 0 else f"(rows, {self.n}), as the first has"
                raise ValueError(f"scores must be matrices of shape {wanted}; got shape {shape}")
            self.n, m = shape[1], m + shape[0]
            yield array
        if self.m not in (-1, m):
            raise ValueError(
                f"scores must give the same rows in each pass; got {self.m} rows, then {m}"
            )
        self.m, self.n = m, max(self.n, 0)

    def each(self, what: str, function: Callable[[np.ndarray, int], R]) -> Iterator[R]:
        """Yield function(x, first) of some rows at a time, in order; `what` names the pass.

        x has the shape (1, rows, n), in float64, −inf where masked; `first` is the place of the
        first of these rows.
        """
        for _, results in self.by_arrays(what, function):
            yield from results

    def by_arrays(
        self, what: str, function: Callable[[np.ndarray, int], R]
    ) -> Iterator[tuple[Any, Iterator[R]]]:
        """Yield each array, with an iterator over what `each` yields of its rows."""
        self.passes += 1
        place = 0
        for array in self.arrays():
            yield array, self._of_array(array, place, what, function)
            place += array.shape[0]

    def _of_array(
        self, array: Any, place: int, what: str, function: Callable[[np.ndarray, int], R]
    ) -> Iterator[R]:
        pages = pages_of(array)
        for start, stop in pieces(array.shape):
            with np.errstate(all="ignore"):
                result = function(read(array, start, stop)[None], place + start)
            if pages is not None:
                pages.release(start * self.n, stop * self.n)
            if self.tell is not None:
                whole = max(self.m, place + array.shape[0])
                self.tell(what, (place + stop) * self.n, whole * self.n)
            yield result


def pages_of(array: Any) -> Pages | None:
    """Return the pages of a file whose rows follow one another."""
    of_file = isinstance(array, np.memmap) and array.flags.c_contiguous
    return Pages(array) if of_file else None


def pieces(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield where some rows at a time begin and end."""
    m, n = shape[0], max(shape[1], 1)
    step = max(BLOCK // n, min(256, LARGE // n), 1)
    return ((start, min(start + step, m)) for start in range(0, m, step))


def read(array: Any, start: int, stop: int) -> np.ndarray:
    """Return rows in NumPy's float64, −inf where the least number of their dtype masks them."""
    rows = np.asarray(array[start:stop]) if is_jax(array) else array[start:stop]
    rows = without_deleted(contiguous(rows.detach() if is_torch(rows) else rows))
    return in_memory(cast(rows, namespace(rows).float64))


def in_float64(array: Any) -> np.ndarray:
    """Return an array of any kind as one of NumPy in float64."""
    if is_torch(array):
        return in_memory(array.detach().double())
    return np.asarray(array, np.float64)


class Survey(NamedTuple):
    """What a pass tells of a matrix that is settled in part."""

    number: np.ndarray  # (1, n), how many entries of each column are open
    full: np.ndarray  # (1, n), how many are settled as 1
    total: float  # Σk over rows with entries
    rows: int  # that have entries that are open
    least: float  # the fewest of one of these
    closes: bool  # whether a row takes nothing, or all, of its open entries
    bad: bool  # whether a row cannot have its k
    low: float  # of open entries
    high: float  # NaN or ∞ where a score is


class Part(NamedTuple):
    """Some rows; margins settle some of their entries."""

    x: np.ndarray  # (1, rows, n), −inf where excluded
    live: np.ndarray  # the entries that are open
    full: np.ndarray  # those settled as 1
    k: np.ndarray  # (1, rows), k of rows with entries, 0 of others
    rest: np.ndarray  # the part of it that is left
    first: int


class Assignment:
    """A matrix and its margins, checked; the part of it that these leave open, step by step.

    What is settled of a row follows from the columns that were closed before.
    """

    def __init__(self, matrix: Matrix, k: Any, capacity: Any, temperature: float) -> None:
        self.matrix, self.k, self.unit = matrix, k, 1.0
        self.closed: list[tuple[Any, ...]] = []  # columns, by steps
        if matrix.m >= 0:
            self._check(k, capacity)
        seen = self.seen = self._survey()
        self._check(k, capacity)
        if framework(k) is framework(capacity) is None and seen.rows:
            some = seen.number[seen.number > 0]
            number = None if capacity is None else float(capacity)
            columns = (len(some), int(some.min()))
            refuse_unmet(float(k), number, (seen.rows, int(seen.least)), columns)
        c = None
        if capacity is not None:
            c = np.broadcast_to(in_float64(capacity), (1, matrix.n))
        total = np.array([seen.total])
        self.c: Any = summing_to(total, c, seen.number > 0, tolerance_of(k, capacity))
        self.lost = not seen.high < math.inf  # no finite price, or a NaN
        if self.lost:
            self.c = self.c * math.nan
        floor, ceiling = TEMPERATURES["float64"]
        self.t = np.array([min(max(temperature, floor), ceiling)])

    def _check(self, k: Any, capacity: Any) -> None:
        m, n = self.matrix.m, self.matrix.n
        margins = (("k", k, m, n, "row"), ("capacity", capacity, n, m, "column"))
        for name, value, size, most, of in margins:
            kind = framework(value)
            if kind is not None:
                refuse_unfit(kind, name, value)
                check_real(name, value)
                check_broadcasts(name, tuple(value.shape), (size,), f"one number per {of}")
            elif name == "k" or value is not None:
                check_margin(name, value, most)

    def settle(self) -> bool:
        """Find what margins settle, in a pass for each step; return whether they may be met.

        Then c and t are of the open part, and scores are in a unit whose squares are floats.
        """
        given = self.c
        seen = self.seen
        possible = not (seen.bad or np.any(impossible(np, given, seen.number)))
        self.spread: Any = apart(np, np.array([seen.low]), np.array([seen.high]))
        if self.spread[0] > float(np.finfo(np.float64).max) ** 0.5:
            self.unit = float(self.spread[0])
            least = float(np.finfo(np.float64).smallest_normal)
            self.t = np.maximum(self.t / self.unit, least)
        while possible:
            columns = closing(np, self.c, given, seen.number)
            if not (seen.closes or any(flags.any() for flags in columns)):
                break
            self.closed.append(columns)
            seen = self._survey()
            self.c = given - seen.full
        self.of_columns, self.full, self.number = self.seen.number, seen.full, seen.number
        possible = possible and not (seen.bad or np.any(impossible(np, self.c, seen.number)))
        self.c = np.where(seen.number > 0, self.c, 0.0)
        low, high = np.array([seen.low]) / self.unit, np.array([seen.high]) / self.unit
        self.spread = apart(np, low, high)
        return possible

    def parts(self, what: str, function: Callable[[Part], R]) -> Iterator[R]:
        """Yield function(part) of all rows, in their order."""
        return self.matrix.each(what, lambda x, first: function(self.part(x, first)))

    def by_arrays(
        self, what: str, function: Callable[[Part], R]
    ) -> Iterator[tuple[Any, Iterator[R]]]:
        """Yield each array, with an iterator over what `parts` yields of its rows."""
        return self.matrix.by_arrays(what, lambda x, first: function(self.part(x, first)))

    def each(self, what: str, function: Callable[[Open], R]) -> Iterator[R]:
        """Yield function(rows) of the open part of all rows."""
        return self.parts(what, lambda part: function(self.open(part)))

    def open(self, part: Part) -> Open:
        """Return the open part of some rows."""
        x = np.where(part.live, part.x / self.unit if self.unit != 1 else part.x, -math.inf)
        k = np.where(part.live.any(-1), part.rest, 0.0)
        return Open(x, k, self.c, self.t, self.number)

    def part(self, x: np.ndarray, first: int) -> Part:
        live = (x > -math.inf) | np.isnan(x)
        number, full = live.sum(-1), np.zeros_like(live)
        k = rest = np.where(number > 0, self._k_of(first, x.shape[1]), 0.0)
        for columns in self.closed:
            none: Any
            every: Any
            none, every = closed(live, closing(np, rest, k, number), columns)
            live, full, rest = live & ~none & ~every, full | every, rest - every.sum(-1)
            number = live.sum(-1)
        return Part(x, live, full, k, rest, first)

    def _k_of(self, first: int, rows: int) -> np.ndarray:
        if framework(self.k) is None:
            return np.full((1, rows), float(self.k))
        k = self.k
        if k.ndim == 1 and k.shape[0] > 1:
            k = k[first : first + rows]
            if k.shape[0] < rows:  # of an object that yields blocks
                check_broadcasts("k", tuple(self.k.shape), (first + rows,), "one number per row")
        return np.broadcast_to(in_float64(k), (1, rows))

    def _survey(self) -> Survey:
        def see(part: Part) -> Survey:
            x, live, full = part.x, part.live, part.full
            number = live.sum(-1)
            flags = closing(np, part.rest, part.k, number)
            some = number[number > 0].astype(np.float64)
            return Survey(
                live.sum(-2), full.sum(-2), float(part.k.sum()), len(some),
                float(some.min(initial=math.inf)), bool((flags[0] | flags[1]).any()),
                bool(np.any(impossible(np, part.rest, number))),
                float(np.min(x, initial=math.inf, where=live)),
                float(np.max(x, initial=-math.inf, where=live)),
            )  # fmt: skip

        zero = np.zeros((1, 1), np.int64)
        whole = Survey(zero, zero, 0.0, 0, math.inf, False, False, math.inf, -math.inf)
        for part in self.parts("survey", see):
            whole = merged(whole, part)
        number, full = (np.broadcast_to(each, (1, self.matrix.n)) for each in whole[:2])
        return whole._replace(number=number, full=full)


def merged(a: Survey, b: Survey) -> Survey:
    """Return what a pass tells of the rows of both."""
    return Survey(
        a.number + b.number,
        a.full + b.full,
        a.total + b.total,
        a.rows + b.rows,
        min(a.least, b.least),
        a.closes or b.closes,
        a.bad or b.bad,
        float(np.minimum(a.low, b.low)),
        float(np.maximum(a.high, b.high)),
    )

"""From .npy file to .npy file in little memory: rows some at a time, long rows by blocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kofn.commands.apply.partial import Partial
from kofn.commands.compare import integers, table
from kofn.commands.files import InputError, shortened
from kofn.streaming import resumable
from kofn.streaming.blocks import Blocks, OfArray

LONG = 1 << 22
"""Entries from which on a row is read by blocks; of shorter ones, as many are read at once."""

SMALL = 1 << 26
"""Bytes up to which a file in another order than by rows is read whole."""

Update = Callable[..., None]


@dataclass(frozen=True)
class Job:
    """The work to do on each row."""

    k: float
    temperature: float
    link: Any
    """The link of soft_topk; None for other maps and for the hard choice."""
    hard: bool
    weights: Callable[[np.ndarray], np.ndarray]
    """The same for rows in memory."""
    thresholds: Callable[[np.ndarray], np.ndarray]


class Scores:
    """The scores of an .npy file, as rows."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        self.name, self.shape, self.n = shortened(name), array.shape, array.shape[-1]
        self.rows = array.reshape(-1, self.n)
        is_float = array.dtype.kind == "f"
        self.dtype = array.dtype.newbyteorder("=") if is_float else np.dtype(np.float64)
        self.every = OfArray(self.rows)

    @property
    def is_long(self) -> bool:
        """Return whether a row is to be read by blocks."""
        return self.n > LONG

    def read(self, first: int, last: int, exact: bool) -> np.ndarray:
        """Return some rows, integers as they are if `exact`; InputError for a NaN."""
        numbers = self.rows[first:last]
        if numbers.dtype.kind == "f":
            numbers = numbers.astype(self.dtype)
        else:
            numbers = np.array(numbers) if exact else integers.as_floats(self.name, numbers)
        self.every.release(first * self.n, last * self.n)
        bad = np.isnan(numbers)
        if bad.any():
            row, column = np.argwhere(bad)[0]
            self.refuse((first + row) * self.n + column)
        return numbers

    def refuse(self, place: int) -> None:
        """Raise InputError for a NaN."""
        raise InputError(table.nan_in(self.name, np.unravel_index(place, self.shape)))

    def blocks(self, row: int, tell: Any, exact: bool) -> Blocks:
        """Return a row by blocks; of integers only the order counts, if `exact`."""
        values, source = self.rows[row], OfArray(self.rows[row])
        if values.dtype.kind != "f":
            less = integers.offset(self.name, values, LONG) if exact else 0
            source = _OfIntegers(self.name, values, less)
        return Blocks([source], tell)


class _OfIntegers(OfArray):
    """Integers, which are taken for float64, less a number."""

    def __init__(self, name: str, array: np.ndarray, less: int) -> None:
        super().__init__(array)
        self.is_double = True
        self.name, self.less = name, array.dtype.type(less)

    def read(self, start: int, stop: int) -> np.ndarray:
        return integers.as_floats(self.name, self.flat[start:stop] - self.less)


def opened(name: str) -> Scores | None:
    """Return the scores of an .npy file, which stay on disk; None for other files."""
    if not os.path.isfile(name):  # a pipe could not be read again
        return None
    try:
        with open(name, "rb") as file:
            if file.read(6) != b"\x93NUMPY":
                return None
    except OSError:
        return None  # table.read names the fault
    array = table.loaded(shortened(name), name, mmap_mode="r")
    if array.flags.c_contiguous:
        return Scores(name, array)
    if array.nbytes <= SMALL:
        return None
    raise InputError(
        f"{shortened(name)} is in Fortran order, so its rows are spread over the file; save it in "
        "C order: numpy.save(name, numpy.ascontiguousarray(array))"
    )


def write(scores: Scores, job: Job, to: Partial, update: Update) -> None:
    """Write the weights of all rows from where the file ends."""
    n = scores.n
    first, inside = divmod(to.done, n)
    update(total=_shown(scores.rows.size), completed=_shown(to.done))
    if scores.is_long:
        for row in range(first, len(scores.rows)):
            _write_row(scores, row, job, to, update, inside if row == first else 0)
        return
    for begin, end in _some_rows(scores, first):
        to.write(begin * n, job.weights(scores.read(begin, end, job.hard)))
        to.reached(end * n, None)
        update(completed=_shown(end * n), description="")


def _write_row(scores: Scores, row: int, job: Job, to: Partial, update: Update, first: int) -> None:
    start, which = row * scores.n, f"row {row + 1} of {len(scores.rows)}: "
    which = which if len(scores.rows) > 1 else ""
    if job.link is None and not job.hard:  # a map that needs the whole row
        to.write(start, job.weights(scores.read(row, row + 1, exact=False)))
        to.reached(start + scores.n, None)
        return
    blocks = scores.blocks(row, _teller(update, which), job.hard)
    state = to.state if first else _solved(scores, row, blocks, job)
    into = _At(to, start)
    for done, now in resumable.write(blocks, state, job.link, into, first):
        to.reached(start + done, now if done < scores.n else None)


def _solved(scores: Scores, row: int, blocks: Blocks, job: Job) -> resumable.State:
    """Return the state of a row before it is written; InputError for a NaN."""
    if job.hard:
        state = resumable.hard(blocks, job.k)
    else:
        state = resumable.soft(blocks, job.k, job.temperature, job.link)
    if state["bad"]:
        for place in blocks.each("looking for the NaN", _first_nan):
            if place is not None:
                scores.refuse(row * scores.n + place)
    return state


def _first_nan(block: Any, part: Any) -> int | None:
    bad = np.flatnonzero(np.isnan(block))
    return part.place + int(bad[0]) if len(bad) else None


def thresholds(scores: Scores, job: Job, update: Update) -> list[float]:
    """Return θ of every row."""
    if scores.is_long:
        tell = _teller(update, "")
        every = range(len(scores.rows))
        solved = (_solved(scores, row, scores.blocks(row, tell, False), job) for row in every)
        return [each["theta"] for each in solved]
    every_theta: list[float] = []
    update(total=len(scores.rows))
    for begin, end in _some_rows(scores, 0):
        every_theta += np.atleast_1d(job.thresholds(scores.read(begin, end, False))).tolist()
        update(completed=end)
    return every_theta


def _some_rows(scores: Scores, first: int) -> Iterator[tuple[int, int]]:
    count, step = len(scores.rows), max(1, LONG // 4 // scores.n)
    for begin in range(first, count, step):
        yield begin, min(begin + step, count)


def _teller(update: Update, which: str) -> Callable[[str, int, int], None]:
    def tell(what: str, done: int, entries: int) -> None:
        update(total=_shown(entries), completed=_shown(done), description=f"{which}{what}")

    return tell


def _shown(entries: int) -> int:
    """Return entries in the unit of the progress bar, a million."""
    return -(-entries // 10**6)


class _At:
    """A part of the file: one row."""

    def __init__(self, to: Partial, start: int) -> None:
        self.to, self.start = to, start

    def write(self, start: int, values: np.ndarray) -> None:
        self.to.write(self.start + start, values)

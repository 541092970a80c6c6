"""The work of one thread: its rows, group after group."""

from __future__ import annotations

import numpy as np
from numba import carray

from kofn.kernels.cpu.rows.backward import cotangents, value
from kofn.kernels.cpu.rows.forward import weights
from kofn.kernels.cpu.rows.interleaved import PLANES, SHORT
from kofn.kernels.cpu.rows.lanes import LANE, LANES, PLACE, Group, Row, load_all, nth, store_all
from kofn.kernels.cpu.rows.search_lanes import begin_all
from kofn.kernels.cpu.runtime.intrinsics import fetch_add, pointer
from kofn.kernels.cpu.runtime.shares import joined, report, take, wait
from kofn.kernels.cpu.runtime.split_row import dismiss, plain

# A job, the integers that every thread on it is told: those of shares.py; how many rows were given
# up; the shape, the address of a team, if there is one, and those of visits and arrays.
GIVEN_UP, TOGETHER, N, SIZE, KIND, TEAM, VISITS = range(4, 11)
X, G, OUT, HI, LO, K, TEMPERATURE, ONE, TWO = range(11, 20)
WORDS = 20

_K, _T, _HI, _LO = (PLACE[name] for name in ("k", "temperature", "hi", "lo"))
_IN_K, _IN_T = PLACE["in_k"], PLACE["in_t"]

# What a thread has of its own: the lanes of a group of rows, the search's memo, the entries as
# prepared where there is no memory of an answer to keep them in, and what it shares with a team.
_SUMS = PLACE["sums"]
_MEMO = LANE.itemsize // 8
_HEAD = -(-(_MEMO + 7) // 8) * 8


def together(n: int, arrays: int) -> int:
    """How many rows of n are a group: as many as stay in the nearest cache with so many arrays."""
    return LANES if n <= SHORT else max(1, min(LANES, 8192 // arrays // n))


def room(n: int, group: int, answers: bool) -> int:
    """Words of memory a thread needs for rows of n."""
    if n <= SHORT:
        return _HEAD + PLANES * LANES * n
    return _HEAD + (0 if answers else group * n)


def forward(job, own, alpha, leads):
    """Take rows until there are none; write their thresholds, and their weights if wanted."""
    if not joined(job, leads):
        return
    words = carray(pointer(job), WORDS, np.int64)
    lanes, size = carray(pointer(own), 1, LANE)[0], words[SIZE]
    first, last = take(job)
    while first < last:
        for start in range(first, last, words[TOGETHER]):
            group = _group(words, own, start, min(words[TOGETHER], last - start), alpha)
            _tell(words, own, start, group.count)
            if not weights(group, lanes, words[OUT] != 0):
                fetch_add(job + 8 * GIVEN_UP, 1)
            store_all(words[HI], start, group.count, size, own + _HI)
            store_all(words[LO], start, group.count, size, own + _LO)
        report(job, last - first)
        first, last = take(job)
    if leads:
        _leave(job, words)


def after(job, own, alpha, leads):
    """Take rows whose θ is known until there are none; write two numbers of each.

    With cotangents those of k and T, and of the scores where an answer goes; else S_k and its slope
    in T.
    """
    if not joined(job, leads):
        return
    words = carray(pointer(job), WORDS, np.int64)
    lanes, size = carray(pointer(own), 1, LANE)[0], words[SIZE]
    first, last = take(job)
    while first < last:
        for start in range(first, last, words[TOGETHER]):
            group = _group(words, own, start, min(words[TOGETHER], last - start), alpha)
            _tell(words, own, start, group.count)
            load_all(words[HI], start, group.count, size, own + _HI)
            load_all(words[LO], start, group.count, size, own + _LO)
            if words[G]:
                cotangents(group, lanes)
            else:
                for r in range(group.count):
                    lanes.in_k[r], lanes.in_t[r] = value(nth(group, r), lanes)
            store_all(words[ONE], start, group.count, size, own + _IN_K)
            store_all(words[TWO], start, group.count, size, own + _IN_T)
        report(job, last - first)
        first, last = take(job)
    if leads:
        _leave(job, words)


@plain
def _leave(job, words):
    """Who leads is the last to go."""
    wait(job)
    if words[TEAM]:
        dismiss(words[TEAM])


@plain
def _group(words, own, first, count, alpha):
    """Some rows from the first on."""
    n, size = words[N], words[SIZE]
    at = first * n * size
    x, g = words[X] + at, words[G] + at if words[G] else 0
    sums, memo, kept = own + _SUMS, own + 8 * _MEMO, own + 8 * _HEAD
    out = words[OUT] + at if words[OUT] else kept
    entries = kept if n <= SHORT else 0
    team = kept if words[OUT] or entries else kept + 8 * words[TOGETHER] * n
    row = Row(0, words[VISITS], words[KIND], size, x, g, out, n, sums, team, memo, alpha)
    return Group(row, count, own, entries)


@plain
def _tell(words, own, first, count):
    """k and T of some rows to their lanes."""
    load_all(words[K], first, count, words[SIZE], own + _K)
    load_all(words[TEMPERATURE], first, count, words[SIZE], own + _T)
    begin_all(own)

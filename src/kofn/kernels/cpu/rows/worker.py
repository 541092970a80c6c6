"""The work of one thread: its rows, group after group."""

from __future__ import annotations

import numpy as np
from numba import carray

from kofn.kernels.cpu.rows.backward import cotangents, in_alphas, value
from kofn.kernels.cpu.rows.forward import weights
from kofn.kernels.cpu.rows.lanes import PLACE, Group, Row, load_all, nth, store_all
from kofn.kernels.cpu.rows.layout import (
    ALPHA,
    BYTES,
    GIVEN_UP,
    HEAD,
    HI,
    KIND,
    LABELS,
    LANE,
    LANES,
    LIKELY,
    LO,
    MEMO,
    ONE,
    OUT,
    PLANES,
    SHORT,
    SIZE,
    TEAM,
    TEMPERATURE,
    THREE,
    TOGETHER,
    TWO,
    VISITS,
    WORDS,
    G,
    K,
    N,
    X,
)
from kofn.kernels.cpu.rows.logarithms import log_cotangents, logarithms
from kofn.kernels.cpu.rows.losses import count, gaps, likelihoods
from kofn.kernels.cpu.rows.search_lanes import begin_all
from kofn.kernels.cpu.runtime.intrinsics import fetch_add, pointer
from kofn.kernels.cpu.runtime.shares import served, wait
from kofn.kernels.cpu.runtime.split_row import dismiss, plain

_K, _T, _ALPHA, _HI, _LO = (PLACE[name] for name in ("k", "temperature", "alpha", "hi", "lo"))
_IN_K, _IN_T, _IN_ALPHA = PLACE["in_k"], PLACE["in_t"], PLACE["in_alpha"]

_SUMS = PLACE["sums"]


@plain
def _leave(job):
    """Who leads is the last to go."""
    wait(job)
    team = carray(pointer(job), WORDS, np.int64)[TEAM]
    if team:
        dismiss(team)


def on_rows(work):
    """What a thread calls, (job, own, alpha, leads), of its work on some rows."""
    return served(plain(work), _leave)


@on_rows
def forward(job, own, first, last, alpha):
    """Write thresholds, and weights if wanted."""
    words = carray(pointer(job), WORDS, np.int64)
    lanes, size = carray(pointer(own), 1, LANE)[0], words[SIZE]
    for start in range(first, last, words[TOGETHER]):
        group = _group(words, own, start, min(words[TOGETHER], last - start))
        _tell(words, own, start, group.count, alpha)
        if not weights(group, lanes, words[OUT] != 0):
            fetch_add(job + 8 * GIVEN_UP, 1)
        store_all(words[HI], start, group.count, size, own + _HI)
        store_all(words[LO], start, group.count, size, own + _LO)


@on_rows
def after(job, own, first, last, alpha):
    """Of rows whose θ is known, write two numbers of each.

    With cotangents those of k and T, and of the scores where an answer goes, and of α if there is a
    place for them; else S_k and its slope in T.
    """
    words = carray(pointer(job), WORDS, np.int64)
    lanes = carray(pointer(own), 1, LANE)[0]
    for start in range(first, last, words[TOGETHER]):
        group = _searched(words, own, start, last, alpha)
        if words[G]:
            cotangents(group, lanes)
            if words[THREE]:
                in_alphas(group, lanes)
        else:
            for r in range(group.count):
                lanes.in_k[r], lanes.in_t[r] = value(nth(group, r), lanes)
        _write_two(words, own, start, group.count)


@on_rows
def compare(job, own, first, last, alpha):
    """Write the losses of rows; losses.py says what is written.

    Their targets are where cotangents would be, or labels. θ and the weights are known, or there
    is no memory for θ: then they are found first, for k = Σt where the targets are no labels.
    """
    words = carray(pointer(job), WORDS, np.int64)
    lanes = carray(pointer(own), 1, LANE)[0]
    for start in range(first, last, words[TOGETHER]):
        lost = False
        if words[HI]:
            group = _searched(words, own, start, last, alpha)
        else:
            group = _group(words, own, start, min(words[TOGETHER], last - start))
            if words[G]:
                at = words[G] + start * words[N] if words[BYTES] else 0
                count(group, at, words[K] + start * words[SIZE])
            _tell(words, own, start, group.count, alpha)
            lost = not weights(group, lanes, words[OUT] != 0 or not words[LIKELY])
        labels = words[LABELS] + 8 * start if words[LABELS] else 0
        if words[LIKELY]:
            lost |= likelihoods(group, lanes, labels, words[OUT] != 0)
        else:
            lost |= gaps(group, lanes, labels, words[HI] == 0, words[THREE] != 0)
        if lost:
            fetch_add(job + 8 * GIVEN_UP, 1)
        _write_two(words, own, start, group.count)


@on_rows
def logs(job, own, first, last, alpha):
    """Of rows whose θ is known, write log p over their weights.

    With cotangents of those, write the cotangents of the scores, and that of T.
    """
    words = carray(pointer(job), WORDS, np.int64)
    lanes = carray(pointer(own), 1, LANE)[0]
    for start in range(first, last, words[TOGETHER]):
        group = _searched(words, own, start, last, alpha)
        if words[G]:
            if log_cotangents(group, lanes, words[THREE] != 0):
                fetch_add(job + 8 * GIVEN_UP, 1)
            _write_two(words, own, start, group.count)
        else:
            logarithms(group, lanes)


@plain
def _group(words, own, first, count):
    """Some rows from the first on."""
    n, size = words[N], words[SIZE]
    at = first * n * size
    x, g = words[X] + at, words[G] + at if words[G] else 0
    sums, memo, kept = own + _SUMS, own + 8 * MEMO, own + 8 * HEAD
    out = words[OUT] + at if words[OUT] else kept
    entries = kept if n <= SHORT else 0
    used = PLANES * LANES if entries else (0 if words[OUT] else words[TOGETHER])
    team = kept + -(-used * n * size // 8) * 8
    if words[BYTES]:
        g, team = team, team + -(-words[TOGETHER] * n * size // 8) * 8
    row = Row(0, words[VISITS], words[KIND], size, x, g, out, n, sums, team, memo)
    return Group(row, count, own, entries)


@plain
def _searched(words, own, start, last, alpha):
    """Some rows whose θ is known, with their numbers in their lanes."""
    group = _group(words, own, start, min(words[TOGETHER], last - start))
    _tell(words, own, start, group.count, alpha)
    load_all(words[HI], start, group.count, words[SIZE], own + _HI)
    load_all(words[LO], start, group.count, words[SIZE], own + _LO)
    return group


@plain
def _write_two(words, own, first, count):
    """The two numbers of some rows from their lanes, or three."""
    store_all(words[ONE], first, count, words[SIZE], own + _IN_K)
    store_all(words[TWO], first, count, words[SIZE], own + _IN_T)
    if words[THREE]:
        store_all(words[THREE], first, count, words[SIZE], own + _IN_ALPHA)


@plain
def _tell(words, own, first, count, alpha):
    """k, T and α of some rows to their lanes."""
    load_all(words[K], first, count, words[SIZE], own + _K)
    load_all(words[TEMPERATURE], first, count, words[SIZE], own + _T)
    if words[ALPHA]:
        load_all(words[ALPHA], first, count, words[SIZE], own + _ALPHA)
    begin_all(own, alpha, words[ALPHA] != 0)

"""The work of one thread: its rows, group after group."""

from __future__ import annotations

import math

import numpy as np
from numba import carray

from kofn.kernels.cpu.rows import layout
from kofn.kernels.cpu.rows.answers import (
    count,
    label_cotangents,
    likelihoods,
    log_cotangents,
    losses,
)
from kofn.kernels.cpu.rows.backward import cotangents, in_alphas
from kofn.kernels.cpu.rows.forward import weights
from kofn.kernels.cpu.rows.lanes import (
    PLACE,
    Group,
    Row,
    load_all,
    nth,
    pass_over,
    store_all,
)
from kofn.kernels.cpu.rows.search_lanes import begin_all
from kofn.kernels.cpu.runtime.intrinsics import call, fetch_add, pointer
from kofn.kernels.cpu.runtime.layout import PART
from kofn.kernels.cpu.runtime.shares import served
from kofn.kernels.cpu.runtime.split_row import leaving, plain
from kofn.kernels.cpu.short.few import spread

_K, _T, _ALPHA, _HI, _LO = (PLACE[name] for name in ("k", "temperature", "alpha", "hi", "lo"))
_IN_K, _IN_T, _IN_ALPHA = PLACE["in_k"], PLACE["in_t"], PLACE["in_alpha"]

_SUMS = PLACE["sums"]

_leave = leaving(layout.TEAM)


def on_rows(work):
    """Make the function that a thread calls, (job, own, alpha, leads), of its work on some rows."""
    return served(plain(work), _leave)


@on_rows
def forward(job, own, first, last, alpha):
    """Write thresholds, and weights if wanted."""
    words = carray(pointer(job), layout.WORDS, np.int64)
    lanes, size = carray(pointer(own), 1, layout.LANE)[0], words[layout.SIZE]
    for start in range(first, last, abs(words[layout.TOGETHER])):
        group = _group(words, own, start, last - start)
        _tell(words, own, start, group.count, alpha)
        if not weights(group, lanes, words[layout.OUT] != 0, 0, False):
            fetch_add(job + 8 * layout.GIVEN_UP, 1)
        if words[layout.OUT] and group.few:
            spread(group, lanes)
        store_all(words[layout.HI], start, group.count, size, own + _HI)
        store_all(words[layout.LO], start, group.count, size, own + _LO)


@on_rows
def after(job, own, first, last, alpha):
    """From a known θ, write two numbers of each row.

    They are the cotangents of k and T; the scores' go where an answer goes, α's to their place if
    there is one.
    """
    words = carray(pointer(job), layout.WORDS, np.int64)
    lanes = carray(pointer(own), 1, layout.LANE)[0]
    for start in range(first, last, abs(words[layout.TOGETHER])):
        group = _searched(words, own, start, last, alpha)
        cotangents(group, lanes)
        if words[layout.THREE]:
            in_alphas(group, lanes)
        _write_two(words, own, start, group.count)


@on_rows
def answer(job, own, first, last, alpha):
    """From a known θ, do a pass of passes.py; write the two numbers of each row, if it has any."""
    words = carray(pointer(job), layout.WORDS, np.int64)
    lanes = carray(pointer(own), 1, layout.LANE)[0]
    of_row = carray(pointer(words[layout.PASSES]), layout.ROW + 1, np.int64)[layout.ROW]
    for start in range(first, last, abs(words[layout.TOGETHER])):
        group = _searched(words, own, start, last, alpha)
        for r in range(group.count):
            row, k, each_alpha = nth(group, r), lanes.k[r], lanes.alpha[r]
            hi, lo, temperature = lanes.hi[r], lanes.lo[r], lanes.temperature[r]
            which = layout.ENTRIES if abs(hi) < math.inf else layout.SETTLED
            sums = pass_over(row, which, hi, lo, 1 / temperature, each_alpha, k)
            if of_row:
                call(of_row, 0, 0, 0, row.n, row.sums, hi, lo, temperature, each_alpha, k)
                lanes.in_k[r], lanes.in_t[r] = sums[0], sums[1]
        if of_row:
            _write_two(words, own, start, group.count)


@on_rows
def compare(job, own, first, last, alpha):
    """Write the losses of rows; answers.py says what is written.

    Their targets are where cotangents would be, or labels. θ and the weights are known, or there
    is no memory for θ: then they are found first, for k = Σt where the targets are no labels.
    """
    words = carray(pointer(job), layout.WORDS, np.int64)
    lanes = carray(pointer(own), 1, layout.LANE)[0]
    for start in range(first, last, abs(words[layout.TOGETHER])):
        lost = False
        labels = words[layout.LABELS] + 8 * start if words[layout.LABELS] else 0
        if words[layout.HI]:
            group = _searched(words, own, start, last, alpha)
        else:
            group = _group(words, own, start, last - start)
            if words[layout.G]:
                group = Group(group.row, group.count, group.lanes, group.entries, 0)
                at = words[layout.G] + start * words[layout.N] if words[layout.BYTES] else 0
                count(group, at, words[layout.K] + start * words[layout.SIZE])
            _tell(words, own, start, group.count, alpha)
            wanted = words[layout.OUT] != 0 or not words[layout.LIKELY]
            at_once = group.row.kind in layout.ONE_LOG and not group.entries
            at_once = at_once and not words[layout.LIKELY]
            lost = not weights(group, lanes, wanted, labels, at_once)
        if words[layout.LIKELY]:
            lost |= likelihoods(group, lanes, labels, words[layout.OUT] != 0)
        else:
            lost |= losses(group, lanes, labels, words[layout.HI] == 0, words[layout.THREE] != 0)
            if words[layout.OUT]:
                if group.few:
                    spread(group, lanes)
                _share(group, 0 if words[layout.HI] else words[layout.SHARE])
            if words[layout.G] and not _all_cost(lanes, group.count):
                fetch_add(job + 8 * layout.COSTLESS, 1)
        if lost:
            fetch_add(job + 8 * layout.GIVEN_UP, 1)
        _write_two(words, own, start, group.count)


@on_rows
def logs(job, own, first, last, alpha):
    """From a known θ and cotangents of log p, write those of the scores, and of T."""
    words = carray(pointer(job), layout.WORDS, np.int64)
    lanes = carray(pointer(own), 1, layout.LANE)[0]
    for start in range(first, last, abs(words[layout.TOGETHER])):
        group = _searched(words, own, start, last, alpha)
        if log_cotangents(group, lanes, words[layout.THREE] != 0):
            fetch_add(job + 8 * layout.GIVEN_UP, 1)
        _write_two(words, own, start, group.count)


@on_rows
def label_logs(job, own, first, last, alpha):
    """The same for the logarithm of one label's weight, whose cotangents are in the place of k."""
    words = carray(pointer(job), layout.WORDS, np.int64)
    lanes = carray(pointer(own), 1, layout.LANE)[0]
    for start in range(first, last, abs(words[layout.TOGETHER])):
        group = _searched(words, own, start, last, alpha)
        if label_cotangents(group, lanes, words[layout.LABELS] + 8 * start):
            fetch_add(job + 8 * layout.GIVEN_UP, 1)


@plain
def _all_cost(lanes, count):
    """Whether all losses are above 0."""
    for r in range(count):  # noqa: SIM110  (compiled)
        if not lanes.in_k[r] > 0:
            return False
    return True


@plain
def _share(group, parts):
    """Divide what there is of p − t by so many parts, unless there are none."""
    which = layout.SCALE_ABREAST if group.entries else layout.SCALE
    for r in range(group.count if parts else 0):
        pass_over(nth(group, r), which, 1 / parts, 0.0, 0.0, 0.0, 0.0)


@plain
def _group(words, own, first, left):
    """Return some of the rows that are left, from the first on."""
    n, size, together = words[layout.N], words[layout.SIZE], abs(words[layout.TOGETHER])
    count = min(together, left)
    at = first * n * size
    x, g = words[layout.X] + at, words[layout.G] + at if words[layout.G] else 0
    sums, memo, kept = own + _SUMS, own + 8 * layout.MEMO, own + 8 * layout.HEAD
    out = words[layout.OUT] + at if words[layout.OUT] else kept
    entries = kept if words[layout.TOGETHER] < 0 else 0
    used = 0 if words[layout.OUT] else together
    used = layout.PLANES * layout.LANES if entries else used
    team = kept + -(-used * n * size // 8) * 8
    if words[layout.BYTES]:
        g, team = team, team + -(-together * n * size // 8) * 8
    few = team if not entries and n <= PART else 0  # no team has rows as short as these
    row = Row(0, words[layout.PASSES], words[layout.KIND], size, x, g, out, n, sums, team, memo)
    return Group(row, count, own, entries, few)


@plain
def _searched(words, own, start, last, alpha):
    """Return some rows whose θ is known, with their numbers in their lanes."""
    group = _group(words, own, start, last - start)
    _tell(words, own, start, group.count, alpha)
    load_all(words[layout.HI], start, group.count, words[layout.SIZE], own + _HI)
    load_all(words[layout.LO], start, group.count, words[layout.SIZE], own + _LO)
    return group


@plain
def _write_two(words, own, first, count):
    """Store the two numbers of some rows from their lanes, or three."""
    store_all(words[layout.ONE], first, count, words[layout.SIZE], own + _IN_K)
    store_all(words[layout.TWO], first, count, words[layout.SIZE], own + _IN_T)
    if words[layout.THREE]:
        store_all(words[layout.THREE], first, count, words[layout.SIZE], own + _IN_ALPHA)


@plain
def _tell(words, own, first, count, alpha):
    """k, T and α of some rows to their lanes."""
    load_all(words[layout.K], first, count, words[layout.SIZE], own + _K)
    load_all(words[layout.TEMPERATURE], first, count, words[layout.SIZE], own + _T)
    if words[layout.ALPHA]:
        load_all(words[layout.ALPHA], first, count, words[layout.SIZE], own + _ALPHA)
    begin_all(own, alpha, words[layout.ALPHA] != 0)

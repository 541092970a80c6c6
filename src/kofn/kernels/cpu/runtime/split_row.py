"""One pass over a long row, shared by several threads.

A row longer than `PART` has parts, always the same ones, whose sums are added in their order: no
answer depends on the number of threads. The thread that solves the row publishes each
pass; others, if there are any, wait in `assist` and take parts by a common counter.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from kofn.kernels.cpu.runtime.intrinsics import call, exchange, fetch, fetch_add, pointer
from kofn.kernels.cpu.runtime.layout import HEAD, NUMBERS, PART, SUMS
from kofn.kernels.cpu.runtime.shares import begun, plain, wait

# The integers of a team.
TICKET, DONE, PARTS, ADDRESS, X, G, OUT, N, SIZE = range(9)
_PASS = 1 << 32  # a ticket is the number of the pass times this, plus the next part
_OVER = -(1 << 62)


@plain
def pass_over_parts(team, address, x, g, out, n, into, size, extremes, hi, lo, per_t, alpha, rest):
    """Go over a row once, adding to sums that are 0; the first two may be extremes."""
    sums = carray(pointer(into), SUMS, np.float64)
    words, numbers = carray(pointer(team), HEAD, np.int64), carray(pointer(team), HEAD, np.float64)
    parts = -(-n // PART)
    every = carray(pointer(team + 8 * HEAD), (parts, SUMS), np.float64)
    every[:] = 0
    words[DONE], words[PARTS], words[ADDRESS] = 0, parts, address
    words[X], words[G], words[OUT], words[N], words[SIZE] = x, g, out, n, size
    numbers[NUMBERS], numbers[NUMBERS + 1], numbers[NUMBERS + 2] = hi, lo, per_t
    numbers[NUMBERS + 3], numbers[NUMBERS + 4] = alpha, rest
    exchange(team + 8 * TICKET, (words[TICKET] // _PASS + 1) * _PASS)
    _take_parts(team)
    while fetch(team + 8 * DONE) < parts:
        pass
    for part in range(parts):
        for i in range(SUMS):
            if extremes and part > 0 and i == 0:
                sums[i] = min(sums[i], every[part, i])
            elif extremes and part > 0 and i == 1:
                sums[i] = max(sums[i], every[part, i])
            else:
                sums[i] += every[part, i]


@plain
def _take_parts(team):
    """Work on the published pass until none of its parts is left."""
    words, numbers = carray(pointer(team), HEAD, np.int64), carray(pointer(team), HEAD, np.float64)
    ticket = fetch(team + 8 * TICKET)
    while ticket >= _PASS and ticket % _PASS < words[PARTS]:
        # Since this test the pass may have ended, and another begun: then this takes a part of
        # the other one, all of which is in place before its ticket is.
        ticket = fetch_add(team + 8 * TICKET, 1)
        part = ticket % _PASS
        if ticket >= _PASS and part < words[PARTS]:
            at = part * PART
            x, out = words[X] + at * words[SIZE], words[OUT] + at * words[SIZE]
            g = words[G] + at * words[SIZE] if words[G] else 0
            sums = team + 8 * (HEAD + SUMS * part)
            a, b, c = numbers[NUMBERS], numbers[NUMBERS + 1], numbers[NUMBERS + 2]
            d, e = numbers[NUMBERS + 3], numbers[NUMBERS + 4]
            call(words[ADDRESS], x, g, out, min(PART, words[N] - at), sums, a, b, c, d, e)
            fetch_add(team + 8 * DONE, 1)
        ticket = fetch(team + 8 * TICKET)


def assist(team):
    """Help whoever solves rows with this team until it is dismissed, if they begin."""
    if not begun(team + 8 * TICKET):
        return
    while fetch(team + 8 * TICKET) >= 0:
        _take_parts(team)


@plain
def dismiss(team):
    exchange(team + 8 * TICKET, _OVER)


def leaving(which):
    """For `served`: who leads is the last to go, and dismisses the team at that word of a job."""

    @plain
    def leave(job):
        wait(job)
        team = carray(pointer(job), which + 1, np.int64)[which]
        if team:
            dismiss(team)

    return leave

"""Shared counters of threads: the next piece of work, the finished work, and the start signal.

A caller may be gone before it begins, or as soon as it is back: a signal's handler raises between
any two steps of Python. So what must not come apart is one compiled call, which nothing interrupts:
the caller leads from the first chunk it takes until every other thread is done. Those wait for it
to begin, but not for ever, and have the memory they work on to themselves.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit

from kofn.kernels.cpu.runtime.intrinsics import fetch, fetch_add, pointer, run
from kofn.kernels.cpu.runtime.layout import (
    CHUNK,
    COUNT,
    DONE,
    MOST,
    NEXT,
    NUMBER,
    PLACE,
    PLACES,
    TAKEN,
)

PATIENCE = 1 << 16  # tries to see a caller begin: some tens of microseconds

plain = njit(error_model="numpy", nogil=True, fastmath=False)
"""For all but loops. By itself, Numba would compile a function with the options of the one
that calls it first.
"""


@plain
def begun(address):
    """Wait a while until a caller has set the integer at `address`; return whether it has."""
    tries = 0
    while fetch(address) == 0 and tries < PATIENCE:
        tries += 1
    return fetch(address) != 0


@plain
def joined(job, leads):
    """Return whether to take rows: always for the leader, for others once the leader has."""
    return leads != 0 or begun(job + 8 * NEXT)


@plain
def take(job):
    """Take the next rows: return the first and the one after the last, equal if none are left."""
    words = carray(pointer(job), CHUNK + 1, np.int64)
    first = min(fetch_add(job + 8 * NEXT, words[CHUNK]), words[COUNT])
    return first, min(first + words[CHUNK], words[COUNT])


@plain
def report(job, count):
    """Add `count` to the finished rows."""
    fetch_add(job + 8 * DONE, count)


@plain
def wait(job):
    """Wait until the rows that other threads have taken are done too."""
    words = carray(pointer(job), CHUNK + 1, np.int64)
    while fetch(job + 8 * DONE) < words[COUNT]:
        pass


def served(work, leave=wait):
    """Make the function that a thread calls, (job, own, number, leads): it takes rows until there
    are none, and does the `work`, (job, own, first, last, number), on them; the caller is the last
    to `leave`.
    """

    def serve(job, own, number, leads):
        if not joined(job, leads):
            return
        first, last = take(job)
        while first < last:
            work(job, own, first, last, number)
            report(job, last - first)
            first, last = take(job)
        if leads:
            leave(job)

    return serve


def take_a_place(team):
    """Do one of the works of a team, if one is left; whichever thread comes first leads.

    A function that takes one argument leaves the others unread.
    """
    place = fetch_add(team + 8 * TAKEN, 1)
    words = carray(pointer(team), PLACES, np.int64)
    if place < words[MOST]:
        number = carray(pointer(words[NUMBER]), 1, np.float64)[0]
        own = carray(pointer(team + 8 * (PLACES + PLACE * place)), PLACE, np.int64)
        run(own[0], own[1], own[2], number, own[3])

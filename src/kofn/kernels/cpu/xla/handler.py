"""Rows of a call from XLA, dealt out to threads of XLA's own pool, without Python's lock.

A handler never waits for a thread that has not begun: all of the pool may be handlers. It works
itself until no row is left. A task that starts later finds nothing to do, and the memory that it
reads is freed by whoever is last.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from kofn.kernels.cpu.knapsack import layout as knapsack
from kofn.kernels.cpu.rows import layout as rows
from kofn.kernels.cpu.runtime.intrinsics import fetch_add, pointer
from kofn.kernels.cpu.runtime.layout import CHUNK as CHUNK_OF
from kofn.kernels.cpu.runtime.layout import COUNT, PART, REGISTER
from kofn.kernels.cpu.runtime.shares import plain
from kofn.kernels.cpu.subsets import sums
from kofn.kernels.cpu.xla import frame as xla
from kofn.kernels.cpu.xla.frame import foreign, integers, nth, words_at
from kofn.kernels.cpu.xla.layout import (
    ALONE,
    ALPHA,
    ALPHA_AT,
    ALPHAS,
    ASSIST,
    BLOCK,
    CALLOC,
    CHUNK,
    CODE,
    ENTRIES,
    FAILED,
    FILLS,
    FINISH,
    FORWARD,
    FREE,
    GROUP,
    JOB,
    KIND,
    KNAPSACK,
    LABELS,
    LEADS,
    LIKELY,
    MEMORY,
    MISSING,
    OF_ALPHA,
    OF_KNAPSACKS,
    OF_ROWS,
    OWN,
    PLAN,
    PLAN_AT,
    REFERENCES,
    ROOM,
    RUN,
    SIXTH,
    SIZE,
    SLOT,
    SYMBOL,
    TABLE,
    TASK,
    TICKET,
    TICKETS,
    WIDTH,
)


@intrinsic
def table(typingctx):
    """The address of the table."""

    def codegen(context, builder, signature, arguments):
        known = builder.module.globals.get(SYMBOL)
        kind = ir.ArrayType(ir.IntType(64), TABLE)
        place = known or ir.GlobalVariable(builder.module, kind, name=SYMBOL)
        return builder.ptrtoint(place, ir.IntType(64))

    return types.int64(), codegen


@plain
def _release(block):
    """Free the memory of a call if nobody else may read it."""
    if fetch_add(block + 8 * REFERENCES, -1) == 1:
        foreign(words_at(table(), TABLE)[FREE], (block,))


@plain
def _alpha(block):
    return carray(pointer(block), JOB, np.float64)[ALPHA]


@intrinsic
def _run_rows(typingctx, address, job, own, alpha, leads):
    """Call a function of rows/worker.py by its address."""

    def codegen(context, builder, signature, arguments):
        kinds = [each.type for each in arguments[1:]]
        function = ir.FunctionType(ir.VoidType(), kinds).as_pointer()
        builder.call(builder.inttoptr(arguments[0], function), arguments[1:])
        return context.get_dummy_value()

    word = types.int64
    return types.none(word, word, word, types.float64, word), codegen


@plain
def _done(words):
    """A thread other than the caller's has no more to do with a call."""
    if words[LEADS] == 0:
        _release(words[BLOCK])


def on_rows(ticket):
    """A thread's share of rows."""
    words = words_at(ticket, TICKET)
    block = words[BLOCK]
    _run_rows(words[CODE], block + 8 * JOB, words[OWN], _alpha(block), words[LEADS])
    _done(words)
    return 0


def on_sums(ticket):
    """A thread's share of sums of k-subsets."""
    words = words_at(ticket, TICKET)
    foreign(words[CODE], (words[BLOCK] + 8 * JOB, words[OWN], words[LEADS]))
    _done(words)
    return 0


def on_long_rows(ticket):
    """Help whoever solves long rows."""
    words = words_at(ticket, TICKET)
    foreign(words[CODE], (words[OWN],))
    _done(words)
    return 0


def serve(frame):
    """Answer a call from XLA: 0, or the address of its error."""
    words = words_at(frame, xla.FRAME)
    if words[xla.EXTENSION] != 0:
        xla.tell_version(words[xla.EXTENSION])
        return 0
    plan, known = integers(frame, PLAN_AT, PLAN), words_at(table(), TABLE)
    if known[plan[SLOT]] == 0:
        return xla.error(frame, known[MISSING])
    count, n = xla.rows_and_entries(words[xla.ARGUMENTS], 0)
    if count == 0 or n == 0:
        return 0
    return _deal(frame, plan, known, count, n)


@plain
def _deal(frame, plan, known, count, n):
    of_prices = plan[TASK] in OF_KNAPSACKS
    of_rows = plan[TASK] in OF_ROWS or of_prices
    crew = 1 if n * count < plan[ALONE] else xla.threads(frame)
    shared = of_rows and crew > count and n > PART and plan[TASK] not in FILLS
    crew = crew if shared else min(crew, -(-count // plan[CHUNK]))
    first = -(-8 * (TICKETS + TICKET * crew) // REGISTER) * REGISTER
    block = foreign(known[CALLOC], (1, first + REGISTER + 8 * crew * plan[WIDTH]))
    if block == 0:
        return xla.error(frame, known[MEMORY])
    memory = block + first
    memory += -memory % REGISTER
    words = words_at(block, TICKETS + TICKET * crew)
    words[REFERENCES] = 1
    carray(pointer(block), JOB, np.float64)[ALPHA] = xla.number(frame, ALPHA_AT)
    job = words[JOB:TICKETS]
    job[COUNT], job[CHUNK_OF] = count, plan[CHUNK]
    team = memory + 8 * plan[ROOM] if shared else 0
    if of_rows:
        job[rows.TOGETHER], job[rows.N], job[rows.SIZE] = plan[GROUP], n, plan[SIZE]
        job[rows.KIND], job[rows.TEAM], job[rows.VISITS] = plan[KIND], team, known[plan[SLOT]]
    if of_prices:
        _fill_knapsack(frame, plan, n, job)
    elif of_rows:
        _fill(frame, plan, job)
    else:
        _fill_sums(frame, plan, n, job)
    for i in range(crew):
        at = TICKETS + TICKET * i
        words[at + BLOCK], words[at + LEADS] = block, 1 if i == 0 else 0
        words[at + CODE] = known[RUN + (ASSIST if shared and i else plan[TASK])]
        words[at + OWN] = team if shared and i else memory + 8 * plan[WIDTH] * i
    task = known[plan[TASK]]
    for i in range(1, crew):
        fetch_add(block + 8 * REFERENCES, 1)
        ticket = block + 8 * (TICKETS + TICKET * i)
        if not xla.schedule(frame, known[ASSIST] if shared else task, ticket):
            fetch_add(block + 8 * REFERENCES, -1)
    foreign(task, (block + 8 * TICKETS,))
    problem, finish = 0, known[FINISH + plan[TASK]]
    lost = of_rows and finish != 0 and job[rows.GIVEN_UP] != 0
    if lost and foreign(finish, (block + 8 * ALPHA,)) != 0:
        problem = xla.error(frame, known[FAILED])
    _release(block)
    return problem


@plain
def _fill(frame, plan, job):
    """Write the arrays of rows to their job; they stand as threshold/jax_operators.py has them."""
    words = words_at(frame, xla.FRAME)
    given, found = words[xla.ARGUMENTS], words[xla.RESULTS]
    job[rows.X], job[rows.K], job[rows.TEMPERATURE] = (
        nth(given, 0),
        nth(given, 1),
        nth(given, 2),
    )
    last, results = words[xla.ARGUMENT_COUNT] - 1, words[xla.RESULT_COUNT]
    job[rows.ALPHA] = nth(given, last) if plan[ALPHAS] else 0
    job[rows.THREE] = nth(found, results - 1) if plan[OF_ALPHA] else 0
    if plan[TASK] == FORWARD:
        job[rows.HI], job[rows.LO] = nth(found, 0), nth(found, 1)
        job[rows.OUT] = nth(found, 2) if results > 2 else 0
        return
    job[rows.HI], job[rows.LO], sixth = nth(given, 3), nth(given, 4), nth(given, 5)
    job[rows.G] = sixth if plan[SIXTH] == ENTRIES else 0
    job[rows.LABELS] = sixth if plan[SIXTH] == LABELS or plan[SIXTH] == LIKELY else 0
    job[rows.LIKELY], job[rows.OUT] = plan[SIXTH] == LIKELY, nth(found, 0)
    if results > 1:
        job[rows.ONE], job[rows.TWO] = nth(found, 1), nth(found, 2)


@plain
def _fill_knapsack(frame, plan, n, job):
    """The same of rows of n with costs; they stand as operations/knapsack.py has them."""
    words = words_at(frame, xla.FRAME)
    given, found = words[xla.ARGUMENTS], words[xla.RESULTS]
    job[rows.X], job[knapsack.COSTS], job[knapsack.APART] = (
        nth(given, 0),
        nth(given, 1),
        n * plan[SIZE],
    )
    job[rows.K], job[rows.TEMPERATURE] = nth(given, 2), nth(given, 3)
    if plan[TASK] in FILLS:
        job[rows.HI], job[rows.OUT] = nth(found, 0), nth(found, 1)
        return
    if plan[TASK] == KNAPSACK:
        job[rows.HI], job[rows.LO] = nth(found, 0), nth(found, 1)
        job[rows.OUT] = nth(found, 2) if words[xla.RESULT_COUNT] > 2 else 0
        return
    job[rows.HI], job[rows.LO] = nth(given, 4), nth(given, 5)
    job[rows.G], job[rows.OUT] = nth(given, 6), nth(found, 0)
    job[rows.ONE], job[rows.TWO] = nth(found, 1), nth(found, 2)
    job[knapsack.IN_COSTS] = nth(found, 3) if words[xla.RESULT_COUNT] > 3 else 0


@plain
def _fill_sums(frame, plan, n, job):
    """Write the job of k-subsets of n; the buffers stand as subsets/jax_marginals.py has them."""
    words = words_at(frame, xla.FRAME)
    given, last = words[xla.ARGUMENTS], words[xla.ARGUMENT_COUNT] - 1
    job[sums.N], job[sums.SIZE], job[sums.WHAT] = n, plan[SIZE], plan[KIND]
    job[sums.Y], job[sums.K] = nth(given, 0), nth(given, 1)
    job[sums.HI], job[sums.LO] = nth(given, 2), nth(given, 3)
    job[sums.V] = nth(given, last if last > 3 else 0)
    job[sums.OUT] = nth(words[xla.RESULTS], 0)

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
from kofn.kernels.cpu.runtime.intrinsics import fetch_add, pointer, run
from kofn.kernels.cpu.runtime.layout import CHUNK, COUNT, PART, REGISTER
from kofn.kernels.cpu.runtime.shares import plain
from kofn.kernels.cpu.subsets import sums
from kofn.kernels.cpu.xla import frame as xla
from kofn.kernels.cpu.xla import layout as call
from kofn.kernels.cpu.xla.frame import foreign, integers, nth, words_at


@intrinsic
def table(typingctx):
    """The address of the table."""

    def codegen(context, builder, signature, arguments):
        known = builder.module.globals.get(call.SYMBOL)
        kind = ir.ArrayType(ir.IntType(64), call.TABLE)
        place = known or ir.GlobalVariable(builder.module, kind, name=call.SYMBOL)
        return builder.ptrtoint(place, ir.IntType(64))

    return types.int64(), codegen


@plain
def _release(block):
    """Free the memory of a call if nobody else may read it."""
    if fetch_add(block + 8 * call.REFERENCES, -1) == 1:
        foreign(words_at(table(), call.TABLE)[call.FREE], (block,))


@plain
def _alpha(block):
    return carray(pointer(block), call.JOB, np.float64)[call.ALPHA]


@plain
def _done(words):
    """A thread other than the caller's has no more to do with a call."""
    if words[call.LEADS] == 0:
        _release(words[call.BLOCK])


def on_rows(ticket):
    """A thread's share of rows, or of sums of k-subsets."""
    words = words_at(ticket, call.TICKET)
    block = words[call.BLOCK]
    job, own, leads = block + 8 * call.JOB, words[call.OWN], words[call.LEADS]
    run(words[call.CODE], job, own, _alpha(block), leads)
    _done(words)
    return 0


def on_long_rows(ticket):
    """Help whoever solves long rows."""
    words = words_at(ticket, call.TICKET)
    foreign(words[call.CODE], (words[call.OWN],))
    _done(words)
    return 0


def serve(frame):
    """Answer a call from XLA: 0, or the address of its error."""
    words = words_at(frame, xla.FRAME)
    if words[xla.EXTENSION] != 0:
        xla.tell_version(words[xla.EXTENSION])
        return 0
    plan, known = integers(frame, call.PLAN_AT, call.PLAN), words_at(table(), call.TABLE)
    if known[plan[call.SLOT]] == 0:
        return xla.error(frame, known[call.MISSING])
    count, n = xla.rows_and_entries(words[xla.ARGUMENTS], 0)
    if count == 0 or n == 0:
        return 0
    return _deal(frame, plan, known, count, n)


@plain
def _deal(frame, plan, known, count, n):
    of_prices = plan[call.TASK] in call.OF_KNAPSACKS
    of_rows = plan[call.TASK] in call.OF_ROWS or of_prices
    crew = 1 if n * count < plan[call.ALONE] else xla.threads(frame)
    shared = of_rows and crew > count and n > PART and plan[call.TASK] not in call.FILLS
    crew = crew if shared else min(crew, -(-count // plan[call.CHUNK]))
    first = -(-8 * (call.TICKETS + call.TICKET * crew) // REGISTER) * REGISTER
    block = foreign(known[call.CALLOC], (1, first + REGISTER + 8 * crew * plan[call.WIDTH]))
    if block == 0:
        return xla.error(frame, known[call.MEMORY])
    memory = block + first
    memory += -memory % REGISTER
    words = words_at(block, call.TICKETS + call.TICKET * crew)
    words[call.REFERENCES] = 1
    numbers = carray(pointer(block), call.JOB, np.float64)
    numbers[call.ALPHA] = xla.number(frame, call.ALPHA_AT)
    job = words[call.JOB : call.TICKETS]
    job[COUNT], job[CHUNK] = count, plan[call.CHUNK]
    team = memory + 8 * plan[call.ROOM] if shared else 0
    if of_rows:
        job[rows.TOGETHER], job[rows.N], job[rows.SIZE] = plan[call.GROUP], n, plan[call.SIZE]
        job[rows.KIND], job[rows.TEAM] = plan[call.KIND], team
        job[rows.PASSES] = known[plan[call.SLOT]]
    if of_prices:
        _fill_knapsack(frame, plan, n, job)
    elif of_rows:
        _fill(frame, plan, job)
    else:
        _fill_sums(frame, plan, n, job)
    for i in range(crew):
        at = call.TICKETS + call.TICKET * i
        words[at + call.BLOCK], words[at + call.LEADS] = block, 1 if i == 0 else 0
        helps = shared and i > 0
        words[at + call.CODE] = known[call.RUN + (call.ASSIST if helps else plan[call.TASK])]
        words[at + call.OWN] = team if helps else memory + 8 * plan[call.WIDTH] * i
    task = known[plan[call.TASK]]
    for i in range(1, crew):
        fetch_add(block + 8 * call.REFERENCES, 1)
        ticket = block + 8 * (call.TICKETS + call.TICKET * i)
        if not xla.schedule(frame, known[call.ASSIST] if shared else task, ticket):
            fetch_add(block + 8 * call.REFERENCES, -1)
    foreign(task, (block + 8 * call.TICKETS,))
    problem, finish = 0, known[call.FINISH + plan[call.TASK]]
    lost = of_rows and finish != 0 and job[rows.GIVEN_UP] != 0
    if lost and foreign(finish, (block + 8 * call.ALPHA,)) != 0:
        problem = xla.error(frame, known[call.FAILED])
    _release(block)
    return problem


@plain
def _fill(frame, plan, job):
    """Write the arrays of rows to their job; they stand as threshold/jax_operators.py has them."""
    words = words_at(frame, xla.FRAME)
    given, found = words[xla.ARGUMENTS], words[xla.RESULTS]
    job[rows.X], job[rows.K], job[rows.TEMPERATURE] = nth(given, 0), nth(given, 1), nth(given, 2)
    last, results = words[xla.ARGUMENT_COUNT] - 1, words[xla.RESULT_COUNT]
    job[rows.ALPHA] = nth(given, last) if plan[call.ALPHAS] else 0
    job[rows.THREE] = nth(found, results - 1) if plan[call.OF_ALPHA] else 0
    if plan[call.TASK] == call.FORWARD:
        job[rows.HI], job[rows.LO] = nth(found, 0), nth(found, 1)
        job[rows.OUT] = nth(found, 2) if results > 2 else 0
        return
    job[rows.HI], job[rows.LO], sixth = nth(given, 3), nth(given, 4), nth(given, 5)
    job[rows.G] = sixth if plan[call.SIXTH] == call.ENTRIES else 0
    likely = plan[call.SIXTH] == call.LIKELY
    job[rows.LABELS] = sixth if plan[call.SIXTH] == call.LABELS or likely else 0
    job[rows.LIKELY], job[rows.OUT] = likely, nth(found, 0)
    if results > 1:
        job[rows.ONE], job[rows.TWO] = nth(found, 1), nth(found, 2)


@plain
def _fill_knapsack(frame, plan, n, job):
    """The same of rows of n with costs; they stand as operations/knapsack.py has them."""
    words = words_at(frame, xla.FRAME)
    given, found = words[xla.ARGUMENTS], words[xla.RESULTS]
    job[rows.X], job[knapsack.COSTS] = nth(given, 0), nth(given, 1)
    job[knapsack.APART] = n * plan[call.SIZE]
    job[rows.K], job[rows.TEMPERATURE] = nth(given, 2), nth(given, 3)
    if plan[call.TASK] in call.FILLS:
        job[rows.HI], job[rows.OUT] = nth(found, 0), nth(found, 1)
        return
    if plan[call.TASK] == call.KNAPSACK:
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
    job[sums.N], job[sums.SIZE], job[sums.WHAT] = n, plan[call.SIZE], plan[call.KIND]
    job[sums.Y], job[sums.K] = nth(given, 0), nth(given, 1)
    job[sums.HI], job[sums.LO] = nth(given, 2), nth(given, 3)
    job[sums.V] = nth(given, last if last > 3 else 0)
    job[sums.OUT] = nth(words[xla.RESULTS], 0)

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

from kofn.kernels.cpu.rows import worker
from kofn.kernels.cpu.runtime import intrinsics, split_row
from kofn.kernels.cpu.runtime.compile import compiled
from kofn.kernels.cpu.runtime.intrinsics import fetch_add, pointer
from kofn.kernels.cpu.runtime.shares import CHUNK as CHUNK_OF
from kofn.kernels.cpu.runtime.shares import COUNT, plain
from kofn.kernels.cpu.subsets import sums
from kofn.kernels.cpu.xla import frame as xla
from kofn.kernels.cpu.xla.frame import foreign, integers, nth, words_at

# What Python tells this code, by a table whose address is that of a symbol: then no address is in
# a compiled program, and this code may be kept on disk.
SYMBOL = "kofn_xla_table"
FINISH, CALLOC, FREE, FORWARD, AFTER, ASSIST, SINGLE, DOUBLE, MISSING, MEMORY, FAILED = range(11)
VISITS = 16
TABLE = 128

# The attribute "plan" of a call, after "alpha".
TASK, SLOT, KIND, SIZE, GROUP, CHUNK, ROOM, WIDTH, ALONE = range(9)
PLAN = 9
_ALPHA_AT, _PLAN_AT = 0, 1

# The memory of a call: how many threads may read it, α, a job, a ticket of each thread.
_REFERENCES, _ALPHA, _JOB = 0, 1, 2
_TICKETS = _JOB + worker.WORDS
_BLOCK, _OWN, _LEADS = range(3)
_TICKET = 3
_REGISTER = intrinsics.REGISTER


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
    if fetch_add(block + 8 * _REFERENCES, -1) == 1:
        foreign(words_at(table(), TABLE)[FREE], (block,))


@plain
def _alpha(block):
    return carray(pointer(block), _JOB, np.float64)[_ALPHA]


_forward, _after, _assist = map(compiled, (worker.forward, worker.after, split_row.assist))
_single, _double = map(compiled, (sums.serve_single, sums.serve_double))


def forward(ticket):
    """A thread's share of thresholds, and of weights if wanted."""
    words = words_at(ticket, _TICKET)
    block, leads = words[_BLOCK], words[_LEADS] != 0
    _forward(block + 8 * _JOB, words[_OWN], _alpha(block), leads)
    if not leads:
        _release(block)
    return 0


def after(ticket):
    """A thread's share of cotangents."""
    words = words_at(ticket, _TICKET)
    block, leads = words[_BLOCK], words[_LEADS] != 0
    _after(block + 8 * _JOB, words[_OWN], _alpha(block), leads)
    if not leads:
        _release(block)
    return 0


def single(ticket):
    """A thread's share of sums of k-subsets, in float32."""
    words = words_at(ticket, _TICKET)
    block, leads = words[_BLOCK], words[_LEADS] != 0
    _single(block + 8 * _JOB, leads)
    if not leads:
        _release(block)
    return 0


def double(ticket):
    """The same in float64."""
    words = words_at(ticket, _TICKET)
    block, leads = words[_BLOCK], words[_LEADS] != 0
    _double(block + 8 * _JOB, leads)
    if not leads:
        _release(block)
    return 0


def assist(ticket):
    """Help whoever solves long rows."""
    words = words_at(ticket, _TICKET)
    _assist(words[_OWN])
    _release(words[_BLOCK])
    return 0


def serve(frame):
    """Answer a call from XLA: 0, or the address of its error."""
    words = words_at(frame, xla.FRAME)
    if words[xla.EXTENSION] != 0:
        xla.tell_version(words[xla.EXTENSION])
        return 0
    plan, known = integers(frame, _PLAN_AT, PLAN), words_at(table(), TABLE)
    if known[plan[SLOT]] == 0:
        return xla.error(frame, known[MISSING])
    count, n = xla.rows_and_entries(words[xla.ARGUMENTS], 0)
    if count == 0 or n == 0:
        return 0
    return _deal(frame, plan, known, count, n)


@plain
def _deal(frame, plan, known, count, n):
    of_rows = plan[TASK] == FORWARD or plan[TASK] == AFTER
    crew = 1 if n * count < plan[ALONE] else xla.threads(frame)
    shared = of_rows and crew > count and n > split_row.PART
    crew = crew if shared else min(crew, -(-count // plan[CHUNK]))
    first = -(-8 * (_TICKETS + _TICKET * crew) // _REGISTER) * _REGISTER
    block = foreign(known[CALLOC], (1, first + _REGISTER + 8 * crew * plan[WIDTH]))
    if block == 0:
        return xla.error(frame, known[MEMORY])
    memory = block + first
    memory += -memory % _REGISTER
    words = words_at(block, _TICKETS + _TICKET * crew)
    words[_REFERENCES] = 1
    carray(pointer(block), _JOB, np.float64)[_ALPHA] = xla.number(frame, _ALPHA_AT)
    job = words[_JOB:_TICKETS]
    job[COUNT], job[CHUNK_OF] = count, plan[CHUNK]
    team = memory + 8 * plan[ROOM] if shared else 0
    if of_rows:
        _fill(frame, plan, known, n, job)
        job[worker.TEAM] = team
    else:
        _fill_sums(frame, plan, n, job)
    for i in range(crew):
        at = _TICKETS + _TICKET * i
        words[at + _BLOCK], words[at + _LEADS] = block, i == 0
        words[at + _OWN] = team if shared and i else memory + 8 * plan[WIDTH] * i
    task = known[plan[TASK]]
    for i in range(1, crew):
        fetch_add(block + 8 * _REFERENCES, 1)
        ticket = block + 8 * (_TICKETS + _TICKET * i)
        if not xla.schedule(frame, known[ASSIST] if shared else task, ticket):
            fetch_add(block + 8 * _REFERENCES, -1)
    foreign(task, (block + 8 * _TICKETS,))
    problem, lost = 0, plan[TASK] == FORWARD and job[worker.GIVEN_UP] != 0
    if lost and foreign(known[FINISH], (block + 8 * _ALPHA,)) != 0:
        problem = xla.error(frame, known[FAILED])
    _release(block)
    return problem


@plain
def _fill(frame, plan, known, n, job):
    """Write the job of rows of n; the buffers stand as rows/jax_weights.py has them."""
    words = words_at(frame, xla.FRAME)
    given, found = words[xla.ARGUMENTS], words[xla.RESULTS]
    job[worker.TOGETHER], job[worker.N], job[worker.KIND] = plan[GROUP], n, plan[KIND]
    job[worker.SIZE], job[worker.VISITS] = plan[SIZE], known[plan[SLOT]]
    job[worker.X], job[worker.K], job[worker.TEMPERATURE] = (
        nth(given, 0),
        nth(given, 1),
        nth(given, 2),
    )
    if plan[TASK] == FORWARD:
        job[worker.HI], job[worker.LO] = nth(found, 0), nth(found, 1)
        job[worker.OUT] = nth(found, 2) if words[xla.RESULT_COUNT] > 2 else 0
    else:
        job[worker.HI], job[worker.LO], job[worker.G] = nth(given, 3), nth(given, 4), nth(given, 5)
        job[worker.OUT], job[worker.ONE], job[worker.TWO] = (
            nth(found, 0),
            nth(found, 1),
            nth(found, 2),
        )


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

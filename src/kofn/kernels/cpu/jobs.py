"""Jobs on rows, written by launch.py and kept_jobs.py: how they are planned and done by threads.

(Tests: test_kernels_threads.py, test_adapters_short.py.)
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from kofn.kernels.cpu.rows import layout
from kofn.kernels.cpu.runtime import half, native, pool
from kofn.kernels.cpu.runtime import layout as shared_layout
from kofn.kernels.cpu.runtime.layout import CHUNK, COPIED, COTANGENTS, COUNT, PART, REGISTER
from kofn.kernels.cpu.runtime.memory import FEW, address, per_row, rooms
from kofn.kernels.cpu.runtime.native import Code

ASSIST = Code("runtime.split_row", "assist", "q")
GRAIN = 16_384  # entries a thread takes at once; work is offered to others from twice as many on
HALF_GRAIN = 4_096  # the same of 16-bit numbers, so that their copies stay in its nearer caches

_WORDS = REGISTER // 8
_UNUSED: Any = None


class Plan(NamedTuple):
    """How rows of one length, link and precision are dealt out: the same at every call."""

    run: Callable[..., Any]
    address: int
    passes: np.ndarray
    passes_at: int
    group: int  # rows that a thread searches together, as `layout.together` has it
    chunk: int  # rows that a thread takes at once
    room: int  # words of its own memory that are not shared with a team
    width: int  # words of its own memory
    cleared: tuple[range, ...]  # those that are to be 0 at first
    told: tuple[int, float] | None = None  # of a user's own link, its kind, and what is its α


def planned(
    code: Code, passes: list[Code], n: int, group: int, grain: int, room: int, begun: int
) -> Plan:
    """Plan how rows of n are dealt out: of a thread's `room` in words, so many are 0 at first."""
    addresses = np.array([*map(native.address, passes), 0], np.int64)
    chunk = max(abs(group), grain // n // abs(group) * abs(group))
    width = -(-(room + shared_layout.room(n)) // _WORDS) * _WORDS
    run, at = native.function(code), native.address(code)
    cleared = range(begun), range(room, room + min(shared_layout.HEAD, shared_layout.room(n)))
    return Plan(run, at, addresses, address(addresses), group, chunk, room, width, cleared)


def go(
    plans: list[Plan], words: array[int], alpha: float, arrays: tuple[Any, ...], others: Any,
    numbers: Any = None,
) -> bool:  # fmt: skip
    """Have threads do a job that has all but what is said here; return whether a row was given up.

    `arrays` are scores, cotangents and answers, or None; they and the others are kept meanwhile.
    The `numbers` are k and T of all rows where the job has no addresses of them.
    """
    plan, x = plans[0], arrays[0]
    count, n, size = words[COUNT], words[layout.N], words[layout.SIZE]
    crew = 1 if n * count < 2 * GRAIN else pool.wanted(x)
    room = None
    if x.itemsize < size:
        entries, slots = n * min(plan.chunk, count), 2 if arrays[1] is None else 3
        room = half.room_of(plan.width, layout.WORDS, entries, slots)
    width = plan.width if room is None else room.width
    # One thread leads, others take parts for it.
    together = crew > count and n > PART and plan.passes[0] != 0
    apart = 1 if together else crew
    own, scratch = rooms(apart, width, 2 * min(count, FEW), plan.cleared)
    shared = scratch + 8 * plan.room if together else 0
    words[CHUNK], words[layout.TOGETHER] = plan.chunk, plan.group
    words[layout.TEAM] = shared if room is None else 0  # else dismissed after all jobs of halves
    words[layout.PASSES] = plan.passes_at
    if numbers is not None and not words[layout.K]:
        numbers = [per_row(number, _UNUSED, count, size) for number in numbers]
        (_, words[layout.K]), (_, words[layout.TEMPERATURE]) = numbers
    # Two numbers of each row are written after θ, wanted or not. If not, then after the threads'
    # own memory, or over k and T of many rows, which nobody else reads.
    if not words[layout.ONE] and count > FEW:
        words[layout.ONE], words[layout.TWO] = words[layout.K], words[layout.TEMPERATURE]
    elif not words[layout.ONE]:
        words[layout.ONE] = one = scratch + 8 * apart * width
        words[layout.TWO] = one + count * size
    job, run, kept = words, plan.run, None
    if room is not None:
        job, kept = halves_of(plans, room, words, arrays, shared)
        run = native.function(half.DRIVER)
    first = job.buffer_info()[0]
    if crew == 1:
        run(first, scratch, alpha, True)
    else:
        leads = [(run, (first, scratch + 8 * width * i, alpha, i == 0)) for i in range(apart)]
        works = [*leads, *[(native.function(ASSIST), (shared,))] * (crew - apart)]
        pool.together(x, works, (words, job, kept, own, arrays, others, numbers))
    return job[layout.GIVEN_UP] != 0


def halves_of(
    plans: list[Plan], room: half.Room, words: array[int], arrays: tuple[Any, ...], shared: int
) -> tuple[array[int], Any]:
    """The job of 16-bit numbers, from the job of all rows as if they were float32 already.

    The functions of all plans work on each block.
    """
    x, count, chunk = arrays[0], words[COUNT], words[CHUNK]
    sizes = tuple(0 if a is None else a.itemsize for a in arrays)
    places = zip(words[layout.X : layout.HI], sizes, strict=True)
    x_at, g_at, out_at = (at if each == 2 else 0 for at, each in places)
    modes, steps, of_half = _modes(x.shape[-1], sizes), [], (x_at, out_at, g_at)
    for plan in plans:
        own = words[:]
        own[layout.TOGETHER], own[layout.PASSES] = plan.group, plan.passes_at
        steps.append(half.Step(plan.address, own, modes, layout.GIVEN_UP))
    return half.job_of(x, of_half, steps, room, count, chunk, shared, 8 * plans[0].room)


@lru_cache(maxsize=512)
def _modes(n: int, sizes: tuple[int, ...]) -> array[int]:
    """How the words of a job change from one block of halves to the next (runtime/layout.py)."""
    arrays = zip((shared_layout.SCORES, COTANGENTS, shared_layout.ANSWERS), sizes, strict=True)
    places = (shared_layout.in_slot(which) if each == 2 else each * n for which, each in arrays)
    per_row = [4] * (layout.LABELS - layout.HI)
    return array("q", (*[COPIED] * layout.X, *places, *per_row, 8, COPIED, COPIED, COPIED))

"""Jobs on rows, which launch.py has threads do: how they are planned, and those of 16-bit numbers.

(Tests: test_kernels_threads.py, test_adapters_short.py.)
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from kofn.kernels.cpu.rows import layout
from kofn.kernels.cpu.runtime import half, native
from kofn.kernels.cpu.runtime import layout as shared_layout
from kofn.kernels.cpu.runtime.layout import CHUNK, COPIED, COTANGENTS, COUNT, REGISTER
from kofn.kernels.cpu.runtime.memory import address
from kofn.kernels.cpu.runtime.native import Code

GRAIN = 16_384  # entries a thread takes at once; work is offered to others from twice as many on
HALF_GRAIN = 4_096  # the same of 16-bit numbers, so that their copies stay in its nearer caches

_WORDS = REGISTER // 8


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
    modes, steps, of_half = modes_of(x.shape[-1], sizes), [], (x_at, out_at, g_at)
    for plan in plans:
        own = words[:]
        own[layout.TOGETHER], own[layout.PASSES] = plan.group, plan.passes_at
        steps.append(half.Step(plan.address, own, modes, layout.GIVEN_UP))
    return half.job_of(x, of_half, steps, room, count, chunk, shared, 8 * plans[0].room)


@lru_cache(maxsize=512)
def modes_of(n: int, sizes: tuple[int, ...]) -> array[int]:
    """How the words of a job change from one block of halves to the next (runtime/layout.py)."""
    arrays = zip((shared_layout.SCORES, COTANGENTS, shared_layout.ANSWERS), sizes, strict=True)
    places = (shared_layout.in_slot(which) if each == 2 else each * n for which, each in arrays)
    per_row = [4] * (layout.LABELS - layout.HI)
    return array("q", (*[COPIED] * layout.X, *places, *per_row, 8, COPIED, COPIED, COPIED))

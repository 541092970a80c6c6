"""Jobs on rows of 16-bit numbers, of jobs on rows as if they were float32 (test_kernels_half.py)."""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kofn.arrays.typing import Array
from kofn.kernels.cpu.rows import layout
from kofn.kernels.cpu.runtime import half
from kofn.kernels.cpu.runtime import layout as shared_layout
from kofn.kernels.cpu.runtime.layout import CHUNK, COPIED, COTANGENTS, COUNT, SCORES, in_slot

if TYPE_CHECKING:
    from kofn.kernels.cpu.rows.launch import Plan


def room_of_halves(plan: Plan, x: Array, cotangent: Array | None, count: int) -> half.Room:
    entries = x.shape[-1] * min(plan.chunk, count)
    return half.room_of(plan.width, layout.WORDS, entries, 2 if cotangent is None else 3)


def job_of_halves(
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
    arrays = zip((SCORES, COTANGENTS, shared_layout.ANSWERS), sizes, strict=True)
    places = (in_slot(which) if each == 2 else each * n for which, each in arrays)
    per_row = [4] * (layout.LABELS - layout.HI)
    return array("q", (*[COPIED] * layout.X, *places, *per_row, 8, COPIED, COPIED))

"""Rows of 16-bit numbers, described for half_rows.py: functions for float32 rows serve them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from kofn.kernels.cpu.runtime import native
from kofn.kernels.cpu.runtime.layout import (
    ANSWERS,
    COTANGENTS,
    HALF_TYPES,
    HALF_WORDS,
    REGISTER,
    SCORES,
    START,
    STEP,
    SUMS,
    TABLE,
)
from kofn.kernels.cpu.runtime.native import Code

DRIVER = Code("runtime.half_rows", "in_singles", native.WORK)

_WORDS = REGISTER // 8


def conversion(name: str, kind: int) -> Code:
    """The code that converts from, or to, a type by its place in HALF_TYPES."""
    return Code("runtime.half_rows", name, native.PASS, "", kind, "float32")


def codes() -> list[Code]:
    """All that rows of 16-bit numbers need beyond what float32 does."""
    kinds = range(len(HALF_TYPES))
    return [DRIVER, *(conversion(name, kind) for name in ("widen", "narrow") for kind in kinds)]


def is_half(x: Any) -> bool:
    return bool(x.itemsize == 2)


class Room(NamedTuple):
    """A thread's own memory: the functions' part first, then the rest."""

    made: int  # words from the thread's memory to the jobs that it makes
    converted: int  # words from there to the converted arrays
    slot: int  # words of each of these
    width: int  # words in all


def room_of(width: int, words: int, entries: int, arrays: int) -> Room:
    """For jobs of so many words and blocks of so many entries, after `width` words."""
    converted, slot = _rounded(SUMS + words), _rounded(-(-entries // 2))
    return Room(width, converted, slot, width + converted + arrays * slot)


class Step(NamedTuple):
    """A function for float32 rows, and its job for all of them: words and modes (layout.py)."""

    address: int
    words: array[int]
    modes: array[int]
    given_up: int = 0  # which of the words counts rows given up, if one does


def job_of(
    x: Any, arrays: tuple[int, ...], steps: Sequence[Step], room: Room, count: int, chunk: int,
    team: int, team_at: int,
) -> tuple[array[int], Any]:  # fmt: skip
    """The job for `DRIVER`, and the memory that it refers to.

    `arrays` are the addresses of scores, answers and cotangents of 16 bits, or 0.
    """
    table = array("q")
    for address, words, modes, given_up in steps:
        at = words.buffer_info()[0], modes.buffer_info()[0]
        table.extend((address, len(words), given_up, *at))
    places = 8 * room.made, 8 * room.converted, 8 * room.slot
    job = (0, 0, count, chunk, 0, team, team_at, x.shape[-1], *_conversions(x.dtype), *places)
    return array("q", (*job, *arrays, len(steps), table.buffer_info()[0])), (table, steps)


def again_of(
    x: Any, step: Step, room: Room, count: int, chunk: int
) -> Callable[[array[int], tuple[int, int, int]], tuple[array[int], int]]:
    """Return what makes the job of one thread, and its address, of the words of a step, and of the
    addresses of scores, answers and cotangents, or 0: a job like others but for these.
    """
    head, (table, (kept,)) = job_of(x, (0, 0, 0), [step], room, count, chunk, 0, 0)
    head += table

    def again(
        words: array[int], arrays: tuple[int, int, int], _: Any = kept
    ) -> tuple[array[int], int]:
        job = head + words
        at = job.buffer_info()[0]
        job[SCORES], job[ANSWERS], job[COTANGENTS] = arrays
        job[TABLE], job[_START] = at + 8 * HALF_WORDS, at + 8 * (HALF_WORDS + STEP)
        return job, at

    return again


_START = HALF_WORDS + START


@lru_cache
def _conversions(dtype: Any) -> tuple[int, int]:
    """The addresses of what converts a type to float32 and back."""
    kind = HALF_TYPES.index(str(dtype).rpartition(".")[2])
    widen, narrow = (native.address(conversion(name, kind)) for name in ("widen", "narrow"))
    return widen, narrow


def _rounded(words: int) -> int:
    return -(-words // _WORDS) * _WORDS

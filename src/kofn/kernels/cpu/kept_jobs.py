"""Jobs on rows of one shape that are written once, but for the addresses of tensors: what ready.py
calls, and parts of other jobs (test_adapters_short.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn.kernels.contract import kind_of
from kofn.kernels.cpu.rows import layout
from kofn.kernels.cpu.rows.launch import AFTER, ASSIST, FORWARD, GRAIN, halves_of, plan_of
from kofn.kernels.cpu.runtime import half, native, pool
from kofn.kernels.cpu.runtime import layout as shared
from kofn.kernels.cpu.runtime.layout import CHUNK, COUNT, PART
from kofn.kernels.cpu.runtime.memory import per_row, rooms

MOST = 1024
"""Rows for which k and the temperature are kept as arrays."""

_UNUSED: Any = None


class Rows(NamedTuple):
    """Rows of one shape, with one k and temperature. They are packed, and no tensor is changed."""

    shape: tuple[int, ...]
    size: int  # bytes of a number
    k: float
    temperature: float
    link: Any
    dtype: Any = None  # of numbers of two bytes


class Part(NamedTuple):
    """A kernel that is called with a job."""

    address: int
    words: array[int]  # of the job
    width: int  # words of memory
    kept: Any  # whose addresses are in the words


def part_of(rows: Rows, answers: bool, back: bool = False) -> Part:
    """Return a kernel of rows, of which only addresses are to be written, as launch.deal has it."""
    n, size, kind = rows.shape[-1], rows.size, kind_of(rows.link)
    assert kind is not None  # the caller has asked for kernels
    plan = plan_of(AFTER if back else FORWARD, kind, size, n, back, answers, not back)
    words, kept = words_of(rows, plan, kind, min(prod(rows.shape[:-1]), MOST))
    return Part(plan.address, words, plan.width, (*kept, plan))


def words_of(rows: Rows, plan: Any, kind: int, kept: int) -> tuple[array[int], Any]:
    """Return the words of a job but for the addresses of arrays; and k and T, `kept` times."""
    (*batch, n), size, words = rows.shape, max(rows.size, 4), array("q", bytes(8 * layout.WORDS))
    k, words[layout.K] = per_row(rows.k, _UNUSED, kept, size)
    temperature, words[layout.TEMPERATURE] = per_row(rows.temperature, _UNUSED, kept, size)
    words[COUNT], words[CHUNK], words[layout.TOGETHER] = prod(batch), plan.chunk, plan.group
    words[layout.N], words[layout.SIZE], words[layout.KIND] = n, size, kind
    words[layout.PASSES] = plan.passes_at
    return words, (k, temperature)


def on_rows(rows: Rows, answers: bool, back: bool = False) -> Callable[..., bool]:
    """Return work(x, θ, address of answers or 0, address of cotangents or 0), as launch.deal.

    It returns whether a row was given up.
    """
    part = part_of(rows, answers, back)
    words, plan, n, count = part.words, part.kept[2], rows.shape[-1], prod(rows.shape[:-1])
    size, alpha, is_half = max(rows.size, 4), rows.link.alpha or 0.0, rows.size == 2
    low, more, letter = count * size, 2 * count, "f" if size == 4 else "d"
    single, are_kept, lone = n * count < 2 * GRAIN, count <= MOST, n <= PART
    run, width, assist = plan.run, plan.width, native.function(ASSIST)
    if is_half:
        like, entries = halves_like(rows), n * min(plan.chunk, count)
        room = half.room_of(plan.width, layout.WORDS, entries, 3 if back else 2)
        arrays = like, like if back else None, like if answers else None
        wrapped = Halves(*halves_of([plan], room, words, arrays, 0))
        run, width = native.function(half.DRIVER), room.width

    def work(
        x: Tensor, theta: Tensor, answers_at: int, cotangents_at: int,
        each: Any = None, _: Any = part,
    ) -> bool:  # fmt: skip
        threads, made = 1 if single else torch.get_num_threads(), None
        team = not lone and threads > count  # one leads, others take parts of a row for it
        crew = 1 if team else min(threads, count)
        own, scratch = rooms(crew, width, more if are_kept or each else 0, plan.cleared)
        job, high = words[:], theta.data_ptr()
        job[layout.X], job[layout.G], job[layout.OUT] = x.data_ptr(), cotangents_at, answers_at
        job[layout.HI], job[layout.LO] = high, high + low
        if are_kept or each:
            job[layout.ONE] = one = scratch + 8 * crew * width
            job[layout.TWO] = one + low
        if each:  # the addresses of k and T
            job[layout.K], job[layout.TEMPERATURE] = each
        elif not are_kept:  # nobody reads those of a row after what is written over them
            made = array(letter, (rows.k,)) * count, array(letter, (rows.temperature,)) * count
            job[layout.K], job[layout.TEMPERATURE] = (one.buffer_info()[0] for one in made)
            job[layout.ONE], job[layout.TWO] = job[layout.K], job[layout.TEMPERATURE]
        shares = scratch + 8 * plan.room if team else 0
        if is_half:
            job, inner = wrapped.around(job, x.data_ptr(), answers_at, cotangents_at, shares)
        else:
            job[layout.TEAM], inner = shares, None
        first = job.buffer_info()[0]
        if threads == 1:
            run(first, scratch, alpha, True)
        else:
            leads = [(run, (first, scratch + 8 * width * i, alpha, i == 0)) for i in range(crew)]
            works = [*leads, *[(assist, (shares,))] * (threads - 1)] if team else leads
            pool.together(x, works, (job, inner, own, made, x, theta, part))
        return job[layout.GIVEN_UP] != 0 and own is not None

    return work


class Halves:
    """The job that has rows of 16-bit numbers worked on as float32, around the job of these."""

    def __init__(self, job: array[int], kept: Any) -> None:
        self._job, (self._table, self._kept) = job, kept

    def around(
        self, words: array[int], x: int, out: int, cotangents: int = 0, team: int = 0
    ) -> tuple[array[int], Any]:
        """Return it for arrays at these addresses, and what it refers to."""
        job, table = self._job[:], self._table[:]
        table[shared.START] = words.buffer_info()[0]
        job[shared.TEAM], job[shared.TABLE] = team, table.buffer_info()[0]
        job[shared.SCORES], job[shared.ANSWERS], job[shared.COTANGENTS] = x, out, cotangents
        return job, (words, table)


def halves_like(rows: Rows) -> Tensor:
    """Return a tensor of such rows, of which there are none."""
    return torch.empty((0, rows.shape[-1]), dtype=rows.dtype, device="cpu")

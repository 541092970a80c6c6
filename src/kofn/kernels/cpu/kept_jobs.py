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
from kofn.kernels.cpu.jobs import GRAIN, Plan, modes_of
from kofn.kernels.cpu.rows import layout
from kofn.kernels.cpu.rows.launch import AFTER, FORWARD, go, plan_of
from kofn.kernels.cpu.runtime import half, native
from kofn.kernels.cpu.runtime.layout import CHUNK, COUNT, HALF_GIVEN_UP
from kofn.kernels.cpu.runtime.memory import FEW, each_per_row, rooms

MOST = 1024
"""Rows for which k and the temperature are kept as arrays."""

_UNUSED: Any = None


class Rows(NamedTuple):
    """Rows of one shape, with one k and temperature. They are packed, and no tensor is changed."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    k: float
    temperature: float
    link: Any

    @property
    def size(self) -> int:
        """Return the bytes of a number."""
        return self.dtype.itemsize


class Part(NamedTuple):
    """A kernel that is called with a job."""

    address: int
    words: array[int]  # of the job
    width: int  # words of memory
    kept: Any  # whose addresses are in the words


def part_of(rows: Rows, answers: bool, back: bool = False) -> Part:
    """Return a kernel of rows, of which only addresses are to be written, as launch.deal has it.

    For more than MOST rows, those of k and T are among them.
    """
    n, size, kind = rows.shape[-1], rows.size, kind_of(rows.link)
    assert kind is not None  # the caller has asked for kernels
    plan = plan_of(AFTER if back else FORWARD, kind, size, n, back, answers, not back)
    words, kept = words_of(rows, plan, kind, min(prod(rows.shape[:-1]), MOST))
    return Part(plan.address, words, plan.width, (plan, kept))


def words_of(rows: Rows, plan: Plan, kind: int, count: int) -> tuple[array[int], Any]:
    """Return the words of a job but for the addresses of tensors; k and T for so many rows."""
    (*batch, n), words = rows.shape, array("q", bytes(8 * layout.WORDS))
    size = max(rows.size, 4)
    kept = each_per_row((rows.k, rows.temperature), _UNUSED, count, size)
    (_, words[layout.K]), (_, words[layout.TEMPERATURE]) = kept
    words[COUNT], words[CHUNK], words[layout.TOGETHER] = prod(batch), plan.chunk, plan.group
    words[layout.N], words[layout.SIZE], words[layout.KIND] = n, size, kind
    words[layout.PASSES] = plan.passes_at
    return words, kept


def forward_on(rows: Rows, answers: bool) -> Callable[..., tuple[Any, Tensor, bool]]:
    """Return the function of scores that returns weights, θ, and whether a row was given up; None
    for weights without `answers`.

    With a temperature, it takes k and T of each row; a second argument alone is not read.
    """
    words, do = _written(rows, answers, False)
    like, empty_like = pair_of(rows), torch.empty_like
    low = prod(rows.shape[:-1]) * max(rows.size, 4)

    def found(
        x: Tensor, k: Any = None, temperature: Any = None, *_: Any
    ) -> tuple[Any, Tensor, bool]:
        if temperature is not None:
            x, k, temperature = x.contiguous(), k.contiguous(), temperature.contiguous()
        job, theta, out = words[:], empty_like(like), empty_like(x) if answers else None
        high = job[layout.HI] = theta.data_ptr()
        job[layout.X], job[layout.LO] = x.data_ptr(), high + low
        if out is not None:
            job[layout.OUT] = out.data_ptr()
        if temperature is not None:
            job[layout.K], job[layout.TEMPERATURE] = k.data_ptr(), temperature.data_ptr()
        return out, theta, do(job, (x, None, out), (theta, k, temperature))

    return found


def back_on(rows: Rows) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the function of scores, cotangents of weights, and θ, that returns those of scores."""
    words, do = _written(rows, True, True)
    low, empty_like = prod(rows.shape[:-1]) * max(rows.size, 4), torch.empty_like

    def found(x: Tensor, cotangent: Tensor, theta: Tensor) -> Tensor:
        cotangent, slopes, job = cotangent.resolve_neg().contiguous(), empty_like(x), words[:]
        high = job[layout.HI] = theta.data_ptr()
        job[layout.X], job[layout.LO] = x.data_ptr(), high + low
        job[layout.G], job[layout.OUT] = cotangent.data_ptr(), slopes.data_ptr()
        do(job, (x, cotangent, slopes), theta)
        return slopes

    return found


def pair_of(rows: Rows) -> Tensor:
    """Return a tensor like one of two numbers per row."""
    dtype = rows.dtype if rows.size > 2 else torch.float32
    return like_of((2, *rows.shape[:-1]), dtype)


def like_of(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor without memory of its own, for torch.empty_like: a shape takes it as long
    again.
    """
    return torch.empty((), dtype=dtype, device="cpu").expand(shape)


def _written(rows: Rows, answers: bool, back: bool) -> tuple[array[int], Callable[..., bool]]:
    """Return the words of a job, and the function that does it: (job, scores, cotangents and
    answers, what is kept meanwhile) -> whether a row was given up.
    """
    _, words, _, (plan, kept) = part_of(rows, answers, back)
    n, count, size, again = rows.shape[-1], prod(rows.shape[:-1]), rows.size, None
    run, width, cleared, more = plan.run, plan.width, plan.cleared, 2 * count
    alpha, low, given_up = rows.link.alpha or 0.0, count * words[layout.SIZE], layout.GIVEN_UP
    if size == 2:
        sizes = 2, 2 if back else 0, 2 if answers else 0
        room = half.room_of(width, layout.WORDS, n * min(plan.chunk, count), 3 if back else 2)
        step = half.Step(plan.address, words, modes_of(n, sizes), given_up)
        again = half.again_of(like_of(rows.shape, rows.dtype), step, room, count, plan.chunk)
        run, width, given_up = native.function(half.DRIVER), room.width, HALF_GIVEN_UP

    def alone(job: array[int], _: Any, __: Any, kept: Any = (plan, kept)) -> bool:
        own, scratch = rooms(1, width, more, cleared)
        job[layout.ONE] = one = scratch + 8 * width
        job[layout.TWO], at = one + low, job.buffer_info()[0]
        if again is not None:
            job, at = again(job, (job[layout.X], job[layout.OUT], job[layout.G]))
        run(at, scratch, alpha, True)
        return job[given_up] != 0 and own is not None

    if n * count < 2 * GRAIN and count <= MOST:
        return words, alone  # as `go`, whose questions take a fifth of the time of a few rows
    if count > FEW:  # k and T are written over, so that each call has its own
        words[layout.K] = 0
    numbers = (rows.k, rows.temperature) if count > FEW else kept
    return words, lambda job, arrays, others: go([plan], job, alpha, arrays, others, numbers)

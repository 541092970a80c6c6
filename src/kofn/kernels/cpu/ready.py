"""Kernels of short calls on torch tensors: one thread, and jobs that are written once but for the
addresses, which takes longer than to do one of few rows (test_adapters_short.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn.kernels.contract import OF_SCORES, kind_of
from kofn.kernels.cpu.choice.launch import GRAIN as CHOICES
from kofn.kernels.cpu.choice.launch import code_of
from kofn.kernels.cpu.choice.layout import room_of, room_of_choices
from kofn.kernels.cpu.rows import layout
from kofn.kernels.cpu.rows.launch import AFTER, FORWARD, GRAIN, plan_of
from kofn.kernels.cpu.runtime import native
from kofn.kernels.cpu.runtime.layout import CHUNK, COUNT
from kofn.kernels.cpu.runtime.memory import per_row, rooms
from kofn.links import exponential

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


def serves(shape: tuple[int, ...]) -> bool:
    """Return whether rows are so few and short that one thread does them."""
    return 0 < prod(shape) < 2 * min(GRAIN, CHOICES) and prod(shape[:-1]) <= MOST


def weights(rows: Rows) -> Callable[[Tensor, bool], tuple[Tensor, Tensor, bool]]:
    """Return the function of scores that returns weights, θ, and whether a row was given up."""
    find, pair = _of_rows(rows, True), (2, *rows.shape[:-1])

    def found(x: Tensor, learned: bool) -> tuple[Tensor, Tensor, bool]:
        p, theta = torch.empty_like(x), x.new_empty(pair)
        return p, theta, find(x, theta, p.data_ptr(), 0)

    return found


def hard_weights(rows: Rows) -> Callable[[Tensor, bool], tuple[Tensor, Tensor, bool]]:
    """Return the same for the hard choice; θ, of which the gradient is, is wanted if `learned`."""
    find, choose, pair = _of_rows(rows, False), _of_choice(rows), (2, *rows.shape[:-1])

    def found(x: Tensor, learned: bool) -> tuple[Tensor, Tensor, bool]:
        chosen, theta = torch.empty_like(x), x.new_empty(pair)
        choose(x, chosen)
        return chosen, theta, learned and find(x, theta, 0, 0)

    return found


def gradients(rows: Rows) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the function of scores, cotangents of weights, and θ, that returns those of scores."""
    pull_back = _of_rows(rows, True, back=True)

    def found(x: Tensor, cotangent: Tensor, theta: Tensor) -> Tensor:
        cotangent, slopes = cotangent.resolve_neg().contiguous(), torch.empty_like(x)
        pull_back(x, theta, slopes.data_ptr(), cotangent.data_ptr())
        return slopes

    return found


def gates(rows: Rows) -> Callable[[Tensor, Tensor], tuple[Any, ...]]:
    """Return the function of scores, and of what decides the choice, that returns the softmax of
    the k largest scores, their indices, θ of the soft choice, the scores and θ of the softmax, and
    whether a row was given up.
    """
    find, first, few = _of_rows(rows, False), _of_largest(rows), _few(rows)
    share, pair, shape = weights(few), (2, *rows.shape[:-1]), few.shape

    def found(x: Tensor, compared: Tensor) -> tuple[Any, ...]:
        indices, theta = x.new_empty(shape, dtype=torch.int64), x.new_empty(pair)
        first(compared, indices)
        lost = find(x, theta, 0, 0)
        chosen = x.gather(-1, indices)
        p, own, also_lost = share(chosen, True)
        return p, indices, theta, chosen, own, lost or also_lost

    return found


def gates_back(rows: Rows) -> Callable[..., Tensor]:
    """Return the function that returns the cotangent of scores from that of the gates."""
    of_weights, of_shares = gradients(rows), gradients(_few(rows))

    def found(
        x: Tensor, cotangent: Tensor, indices: Tensor, p: Tensor, theta: Tensor, chosen: Tensor,
        own: Tensor,
    ) -> Tensor:  # fmt: skip
        spread = torch.zeros_like(x).scatter_(-1, indices, cotangent * p)
        slopes = of_weights(x, spread, theta)
        return slopes.scatter_add_(-1, indices, of_shares(chosen, cotangent, own))

    return found


def _few(rows: Rows) -> Rows:
    """Return the rows of a softmax of the k largest."""
    shape = (*rows.shape[:-1], int(rows.k))
    return Rows(shape, rows.size, 1.0, 1.0, exponential.inner)


def _of_rows(rows: Rows, answers: bool, back: bool = False) -> Callable[..., bool]:
    """Return work(x, θ, address of answers or 0, address of cotangents or 0), as launch.deal."""
    (*batch, n), size, alpha = rows.shape, rows.size, rows.link.alpha or 0.0
    count, kind = prod(batch), kind_of(rows.link)
    assert kind is not None  # the caller has asked for kernels
    plan = plan_of(AFTER if back else FORWARD, kind, size, n, back, answers, not back)
    words, run, width, cleared = array("q", bytes(8 * layout.WORDS)), *plan[:1], *plan[7:]
    k, words[layout.K] = per_row(rows.k, _UNUSED, count, size)
    temperature, words[layout.TEMPERATURE] = per_row(rows.temperature, _UNUSED, count, size)
    words[COUNT], words[CHUNK], words[layout.TOGETHER] = count, plan.chunk, plan.group
    words[layout.N], words[layout.SIZE], words[layout.KIND] = n, size, kind
    words[layout.PASSES], more, low = plan.passes_at, 2 * count, count * size
    kept = k, temperature, plan  # whose addresses are in the words

    def work(x: Tensor, theta: Tensor, answers_at: int, cotangents_at: int, _: Any = kept) -> bool:
        own, scratch = rooms(1, width, more, cleared)
        job, high, one = words[:], theta.data_ptr(), scratch + 8 * width
        job[layout.X], job[layout.G], job[layout.OUT] = x.data_ptr(), cotangents_at, answers_at
        job[layout.HI], job[layout.LO], job[layout.ONE], job[layout.TWO] = (
            high, high + low, one, one + low,
        )  # fmt: skip
        run(job.buffer_info()[0], scratch, alpha, True)
        return job[layout.GIVEN_UP] != 0 and own is not None

    return work


def _of_choice(rows: Rows) -> Callable[[Tensor, Tensor], None]:
    """Return work(x, answers), as choice.launch.hard."""
    (*batch, n), number = rows.shape, rows.k
    run = native.function(code_of("choices", rows.size))
    room = room_of_choices(n, number, rows.size)
    words = array("q", (0, 0, prod(batch), max(1, CHOICES // n), n, 0, 0, 0))

    def work(x: Tensor, out: Tensor) -> None:
        own, job = rooms(1, room, cleared=()), words[:]
        job[5], job[7] = x.data_ptr(), out.data_ptr()
        run(job.buffer_info()[0], own[1], number, True)

    return work


def _of_largest(rows: Rows) -> Callable[[Tensor, Tensor], None]:
    """Return work(x, indices), as choice.launch.largest."""
    (*batch, n), k = rows.shape, int(rows.k)
    run, room = native.function(code_of("largest", rows.size)), room_of(n, k)
    words = array("q", (0, 0, prod(batch), max(1, CHOICES // n), n, 0, k, 0, 0, OF_SCORES))

    def work(x: Tensor, indices: Tensor) -> None:
        own, job = rooms(1, room, cleared=()), words[:]
        job[5], job[7] = x.data_ptr(), indices.data_ptr()
        run(job.buffer_info()[0], own[1], 0.0, True)

    return work

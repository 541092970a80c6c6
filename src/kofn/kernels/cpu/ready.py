"""Kernels of calls on torch tensors like those of a call before: their jobs are written once but
for the addresses, which takes longer than to do one of few rows (test_adapters_short.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from kofn.kernels.contract import OF_SCORES, kind_of
from kofn.kernels.cpu.choice import layout as mixed
from kofn.kernels.cpu.choice import loads as loads
from kofn.kernels.cpu.choice.launch import CHOSEN, chunk_of, code_of, offer, step_of
from kofn.kernels.cpu.choice.launch import GRAIN as CHOICES
from kofn.kernels.cpu.jobs import GRAIN
from kofn.kernels.cpu.kept_jobs import (
    MOST,
    Part,
    back_on,
    forward_on,
    like_of,
    pair_of,
    part_of,
    words_of,
)
from kofn.kernels.cpu.kept_jobs import Rows as Rows
from kofn.kernels.cpu.rows import layout
from kofn.kernels.cpu.rows.launch import COMPARE, abreast_up_to, plan_of
from kofn.kernels.cpu.runtime import half, native
from kofn.kernels.cpu.runtime.layout import (
    CHUNK,
    COPIED,
    COUNT,
    HALF_TYPES,
    REGISTER,
    SCORES,
    in_slot,
)
from kofn.kernels.cpu.runtime.memory import rooms
from kofn.links import exponential

LARGE = 1 << 20
"""Entries of the largest calls that come here: checks are some hundredths of their time."""

AS_ARRAYS = 2
"""Threads of array code that need as long for many tokens as one of choice/loads.py, or longer."""

_NO_JOB = array("q", bytes(8 * mixed.MIXTURE_WORDS))


def serves(name: str, shape: tuple[int, ...], size: int) -> bool:
    """Return whether the function of that name is for such rows of numbers of so many bytes."""
    if name in ("gates", "gates_back"):
        return size > 2 and are_few(shape)
    if name == "indices":
        return are_few(shape)
    return 0 < prod(shape) <= LARGE


def are_few(shape: tuple[int, ...]) -> bool:
    """Return whether rows are so few and short that one thread does them."""
    return 0 < prod(shape) < 2 * min(GRAIN, CHOICES) and prod(shape[:-1]) <= MOST


def takes(tokens: tuple[int, ...]) -> bool:
    """Return whether one thread finds what tokens [T, E] require; see choice/loads.py."""
    return are_few(tokens) or torch.get_num_threads() <= AS_ARRAYS


def is_for_one(entries: int) -> bool:
    """Return whether one thread works on so many entries, as `go` of rows/launch.py has it."""
    return entries < 2 * GRAIN or torch.get_num_threads() == 1


def weights(rows: Rows) -> Callable[..., tuple[Tensor, Tensor, bool]]:
    """Return the function of scores that returns weights, θ, and whether a row was given up."""
    return forward_on(rows, True)


class weights_again:
    """Kernels of one shape for weights alone, with arrays of k and T: a search looks many times."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, link: Any) -> None:
        self.weights = forward_on(Rows(shape, dtype, 0.0, 1.0, link), True)


def hard_weights(rows: Rows) -> Callable[[Tensor, bool], tuple[Tensor, Tensor, bool]]:
    """Return the same for the hard choice; θ, of which the gradient is, is wanted if `learned`."""
    (*batch, n), number, size = rows.shape, rows.k, rows.size
    find, pair, empty_like = forward_on(rows, False), pair_of(rows), torch.empty_like
    room = mixed.room_of_choices(n, number, max(size, 4))
    words = array("q", (0, 0, prod(batch), chunk_of(n, size == 2), n, 0, 0, 0))
    few = prod(rows.shape) < 2 * CHOICES
    run, width, written = _of_choice("choices", rows, words, room, CHOSEN)

    def found(x: Tensor, learned: bool) -> tuple[Tensor, Tensor, bool]:
        chosen = empty_like(x)
        at, into = x.data_ptr(), chosen.data_ptr()
        if few:
            (own, scratch), job = rooms(1, width, cleared=()), words[:]
            job[mixed.X], job[mixed.OUT] = at, into
            if written is not None:
                job, _ = written(job, (at, into, 0))
            run(job.buffer_info()[0], scratch, number, own is not None)
        else:
            offer("choices", x, (at, 0, into), number, room, (chosen,), cleared=())
        if not learned:
            return chosen, empty_like(pair), False
        _, theta, lost = find(x, learned)
        return chosen, theta, lost

    return found


def indices(rows: Rows) -> Callable[[Tensor], Tensor]:
    """Return the function of scores that returns the indices of the k largest, k an integer."""
    (*batch, n), k, (_, words, room, _) = rows.shape, int(rows.k), _largest_part(rows)
    words[CHUNK] = chunk_of(n, rows.size == 2)
    modes = [in_slot(SCORES), COPIED, 8 * k, COPIED, COPIED]
    run, width, written = _of_choice("largest", rows, words, room, modes)
    like, empty_like = like_of((*batch, k), torch.int64), torch.empty_like

    def found(x: Tensor) -> Tensor:
        chosen, (own, scratch), job = empty_like(like), rooms(1, width, cleared=()), words[:]
        job[mixed.X], job[mixed.OUT] = at, _ = x.data_ptr(), chosen.data_ptr()
        if written is not None:
            job, _ = written(job, (at, 0, 0))
        run(job.buffer_info()[0], scratch, 0.0, own is not None)
        return chosen

    return found


def _of_choice(
    name: str, rows: Rows, words: array[int], room: int, modes: list[int]
) -> tuple[Callable[..., Any], int, Any]:
    """Return the function that makes a choice, the words of memory it needs, and, of 16-bit
    numbers, what writes its job: `half.again_of`, of words that change by those `modes`.
    """
    code = code_of(name, max(rows.size, 4))
    if rows.size > 2:
        return native.function(code), room, None
    step, place = step_of(code, words, room, modes)
    like, count, chunk = like_of(rows.shape, rows.dtype), words[COUNT], words[CHUNK]
    written = half.again_of(like, step, place, count, chunk)
    return native.function(half.DRIVER), place.width, written


def gradients(rows: Rows) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the function of scores, cotangents of weights, and θ, that returns those of scores."""
    return back_on(rows)


def losses(rows: Rows, target: Tensor, share: int) -> Callable[[Tensor, Tensor, bool], Any] | None:
    """Return the function of scores, a target as this one, and whether slopes are wanted, that
    returns losses, (p − t)/share, for a power of 2, and a number per row. It returns None if a row
    was given up, or several threads would work, and () if a loss of weights is not above 0.

    It is for rows of any length: even long ones wait for Python. None if soft targets, which
    weights may be, are for array code.
    """
    (*batch, n), size, dense = rows.shape, rows.size, target.ndim == len(rows.shape)
    count, in_bytes, alpha = prod(batch), target.itemsize == 1, rows.link.alpha or 0.0
    kind = kind_of(rows.link)
    assert kind is not None  # the caller has asked for kernels
    short = n <= abreast_up_to(COMPARE, kind)
    if dense and kind not in layout.KNOWS_OMEGA:
        return None
    which, jobs = layout.G if dense else layout.LABELS, []
    for answers in (short, True):
        plan = plan_of(COMPARE, kind, size, n, dense, answers, False, in_bytes)
        jobs.append((plan, *words_of(rows, plan, kind, count)))
        jobs[-1][1][layout.BYTES] = in_bytes
    jobs[True][1][layout.SHARE] = share if share > 1 else 0

    def found(x: Tensor, target: Tensor, learned: bool) -> Any:
        if not is_for_one(count * n):
            return None
        plan, words, _ = jobs[learned]
        x, target, job = x.resolve_neg().contiguous(), target.resolve_neg().contiguous(), words[:]
        loss, lever = x.new_empty(batch), x.new_empty(batch)
        residual = x.new_empty(x.shape) if learned or short else None
        own, scratch = rooms(1, plan.width, count, plan.cleared)
        job[layout.X], job[which] = x.data_ptr(), target.data_ptr()
        job[layout.OUT] = 0 if residual is None else residual.data_ptr()
        job[layout.ONE], job[layout.TWO] = loss.data_ptr(), lever.data_ptr()
        if dense:  # k is the sum of the target, which is written there
            job[layout.K] = scratch + 8 * plan.width
        plan.run(job.buffer_info()[0], scratch, alpha, True)
        if job[layout.COSTLESS]:
            return ()
        return None if job[layout.GIVEN_UP] or own is None else (loss, residual, lever)

    return found


def wider(like: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function of 16-bit scores that copies them to float32, −inf where one is out of
    play.
    """
    count, kind = like.numel(), HALF_TYPES.index(str(like.dtype).rpartition(".")[2])
    widen, empty_like = native.function(half.conversion("widen", kind)), torch.empty_like
    copy = like_of(like.shape, torch.float32)

    def found(x: Tensor) -> Tensor:
        x, into = x.resolve_neg().contiguous(), empty_like(copy)
        at = x.data_ptr()
        widen(at, 0, 0, count, 0, 1.0, float(at), float(into.data_ptr()), 0.0, 0.0)
        return into

    return found


def gates(rows: Rows) -> Callable[..., tuple[Any, ...]]:
    """Return the function of scores, of a bias or None, and of up to two tensors that count, that
    returns the softmax of the k largest scores, their indices, and what the way back takes; None
    for this, and nothing is counted, where a row was given up or has a NaN.
    """
    few, count, k, n = _few(rows), prod(rows.shape[:-1]), int(rows.k), rows.shape[-1]
    parts = _largest_part(rows), part_of(rows, False), part_of(few, True)
    words = _joined(rows, *parts)
    own_room = parts[0].width
    if n <= mixed.FEW:
        words[mixed.OF_LARGEST] = own_room = 0
    width, size, kept = max(part.width for part in parts[1:]), rows.size, 2 * count * (k + 2)
    biased = count * n * size // 8 + REGISTER // 8
    first, second, third = _starts(parts)
    alpha, room, apart = rows.link.alpha or 0.0, width + 2 * count + own_room, count * size
    like_gates, like_indices = like_of(few.shape, rows.dtype), like_of(few.shape, torch.int64)
    like_kept = like_of((kept,), rows.dtype)

    def found(x: Tensor, bias: Tensor | None, counts: Any = (), _: Any = parts) -> tuple[Any, ...]:
        gates, indices, some = (
            empty_like(like_gates),
            empty_like(like_indices),
            empty_like(like_kept),
        )
        own, scratch = rooms(1, room if bias is None else room + biased)
        job, x_at, at, chosen = words[:], x.data_ptr(), indices.data_ptr(), some.data_ptr()
        start, one = job.buffer_info()[0], scratch + 8 * width
        two, of_own, shares = one + apart, one + 16 * count, chosen + k * apart
        high = shares + k * apart
        compared = x_at
        if bias is not None:
            compared = of_own + 8 * own_room
            job[mixed.BIAS], job[mixed.BIASED] = bias.data_ptr(), compared
        for place, each in zip(mixed.COUNTS, counts, strict=False):
            job[place] = each.data_ptr()
        job[mixed.X], job[mixed.INDICES], job[mixed.CHOSEN] = x_at, at, chosen
        job[mixed.SHARES], job[mixed.COPY] = shares, gates.data_ptr()
        job[_LARGEST_JOB], job[_LARGEST_ROOM] = start + 8 * first, of_own
        job[_WEIGHTS_JOB], job[_WEIGHTS_ROOM] = start + 8 * second, scratch
        job[_SHARES_JOB], job[_SHARES_ROOM] = start + 8 * third, scratch
        job[first + mixed.X], job[first + mixed.OUT] = compared, at
        _set(job, second, x_at, 0, 0, high, apart, one, two)
        _set(job, third, chosen, 0, shares, high + 2 * apart, apart, one, two)
        run(start, scratch, alpha, True)
        return gates, indices, None if job[mixed.SPOILT] or own is None else some

    empty_like, run = torch.empty_like, native.function(code_of("mixture", size))
    return found


def gates_back(rows: Rows) -> Callable[..., Tensor]:
    """Return the function that returns the cotangent of scores from that of the gates."""
    few, count, k = _few(rows), prod(rows.shape[:-1]), int(rows.k)
    parts = part_of(rows, True, True), part_of(few, True, True)
    words, apart = _joined(rows, *parts), count * rows.size
    width, of_own = max(part.width for part in parts), k * apart
    of_spread = count * rows.shape[-1] * rows.size
    second, third = _starts(parts)
    room = width + 2 * count + (of_own + of_spread) // 8 + 2
    alpha = rows.link.alpha or 0.0

    def found(
        x: Tensor, cotangent: Tensor, indices: Tensor, some: Tensor, _: Any = parts
    ) -> Tensor:
        cotangent, slopes = cotangent.resolve_neg().contiguous(), empty_like(x)
        own, scratch = rooms(1, room)
        job, chosen, given = words[:], some.data_ptr(), cotangent.data_ptr()
        start, one, into = job.buffer_info()[0], scratch + 8 * width, slopes.data_ptr()
        two, out, x_at = one + apart, one + 16 * count, x.data_ptr()
        spread, high = out + of_own, chosen + 2 * of_own
        job[mixed.X], job[mixed.INDICES], job[mixed.CHOSEN] = given, indices.data_ptr(), out
        job[mixed.SHARES], job[mixed.SPREAD], job[mixed.SLOPES] = chosen + of_own, spread, into
        job[_WEIGHTS_JOB], job[_WEIGHTS_ROOM] = start + 8 * second, scratch
        job[_SHARES_JOB], job[_SHARES_ROOM] = start + 8 * third, scratch
        _set(job, second, x_at, spread, into, high, apart, one, two)
        _set(job, third, chosen, given, out, high + 2 * apart, apart, one, two)
        run(start, scratch, alpha, own is not None)
        return slopes

    empty_like, run = torch.empty_like, native.function(code_of("mixture_back", rows.size))
    return found


def _joined(rows: Rows, *parts: Part) -> array[int]:
    """Return the words of a job of mixture.py, and after them those of its parts."""
    words, count = _NO_JOB[:], prod(rows.shape[:-1])
    words[COUNT] = words[CHUNK] = count
    words[mixed.N], words[mixed.K] = rows.shape[-1], int(rows.k)
    for place, part in zip(reversed(_PLACES), reversed(parts), strict=False):
        words[place] = part.address
    for part in parts:
        words += part.words
    return words


_PLACES = mixed.OF_LARGEST, mixed.OF_WEIGHTS, mixed.OF_SHARES
_LARGEST_JOB, _WEIGHTS_JOB, _SHARES_JOB = (place + 1 for place in _PLACES)
_LARGEST_ROOM, _WEIGHTS_ROOM, _SHARES_ROOM = (place + 2 for place in _PLACES)


def _starts(parts: tuple[Part, ...]) -> list[int]:
    """Return where the job of each part begins."""
    starts = [mixed.MIXTURE_WORDS]
    for part in parts[:-1]:
        starts.append(starts[-1] + len(part.words))
    return starts


def _set(
    job: Any,
    part: int,
    x: int,
    cotangents: int,
    out: int,
    high: int,
    apart: int,
    one: int,
    two: int,
) -> None:
    """Write the addresses of a job on rows."""
    job[part + layout.X], job[part + layout.G], job[part + layout.OUT] = x, cotangents, out
    job[part + layout.HI], job[part + layout.LO] = high, high + apart
    job[part + layout.ONE], job[part + layout.TWO] = one, two


def _few(rows: Rows) -> Rows:
    """Return the rows of a softmax of the k largest."""
    shape = (*rows.shape[:-1], int(rows.k))
    return Rows(shape, rows.dtype, 1.0, 1.0, exponential.inner)


def _largest_part(rows: Rows) -> Part:
    """Return the kernel of the indices of the k largest, as choice.launch.largest has it."""
    (*batch, n), k = rows.shape, int(rows.k)
    words = array("q", (0, 0, prod(batch), chunk_of(n), n, 0, k, 0, 0, OF_SCORES))
    at = native.address(code_of("largest", max(rows.size, 4)))
    return Part(at, words, mixed.room_of(n, k), None)

"""Hard choices of rows in main memory: dealt out to threads, each row by worker.py.

As in rows/launch.py, kernels take addresses: one compiled version serves NumPy and torch.
"""

from __future__ import annotations

import struct
import sys
from array import array
from math import cos, inf, log, prod, sin
from typing import Any

import numpy as np

from kofn.arrays.kinds import cast, compute_dtype, is_torch
from kofn.arrays.typing import Array, Number
from kofn.kernels.contract import AGAINST, OF_SCORES
from kofn.kernels.cpu.choice.layout import ABREAST, ROWS, ranks_from, room_of, room_of_choices
from kofn.kernels.cpu.runtime import half, native, pool
from kofn.kernels.cpu.runtime.layout import ANSWERS, COPIED, HEAD, SCORES, in_slot
from kofn.kernels.cpu.runtime.layout import room as team_room
from kofn.kernels.cpu.runtime.memory import memory_of, per_row
from kofn.kernels.cpu.runtime.native import Code

GRAIN = 16_384  # entries a thread takes at once
HALF_GRAIN = 4_096  # the same of 16-bit numbers, so that their copies stay in its nearer caches


_MODULES = {
    "choices": "choice.worker",
    "largest": "choice.largest",
    "ranked": "choice.ranked",
    "quantile": "choice.ranked",
    "quantile_back": "choice.ranked",
    "truncated": "choice.truncated",
    "back": "choice.truncated",
    "margins": "choice.margins",
    "margins_back": "choice.margins",
    "rest": "choice.rest",
    "rest_back": "choice.rest",
    "required": "choice.required",
    "cutoffs": "choice.binned",
    "binned": "choice.binned",
    "mixture": "choice.mixture",
    "mixture_back": "choice.mixture",
    "tally": "choice.mixture",
}


def code_of(name: str, size: int, kind: str = "float") -> Code:
    """The function that a thread calls, for numbers of that size."""
    return Code(_MODULES[name], name, native.WORK, "", 0, f"{kind}{8 * size}")


def codes(size: int) -> list[Code]:
    """All that choices need for numbers of that size."""
    of_integers = [code_of(name, size, "int") for name in ("largest", "ranked")]
    single = "required", "cutoffs", "binned", "tally"
    served = (name for name in _MODULES if size == 4 or name not in single)
    return [*(code_of(name, size) for name in served), *of_integers]


def hard(x: Array, k: Number) -> Array:
    """The hard top-k of rows, for k per row or one float."""
    memory = memory_of(x)
    x = memory.packed(x)
    out = memory.empty_like(x)
    each, k_at, number = None, 0, 0.0
    if isinstance(k, float):
        number = k
    else:
        each = memory.packed(k)
        k_at = memory.address(each)
    job = memory.address(x), k_at, memory.address(out)
    room = room_of_choices(x.shape[-1], number, max(x.itemsize, 4))
    offer("choices", x, job, number, room, (out, each), cleared=())
    return out


def largest(x: Array, k: int, way: int = OF_SCORES, mask: Array | None = None) -> Array:
    """The indices of the k largest numbers of rows, (…, k); `way` has the bits of contract.py.

    Where fewer than k are in play, others follow, at last those that the mask, of booleans like x,
    leaves out.
    """
    return _indices("largest", x, k, way, mask, room_of(x.shape[-1], k))


def ranked(x: Array, ranks: Array, mask: Array | None = None) -> Array:
    """The indices of numbers of rows by their ranks, (…, k) of int64: 0 for the smallest.

    A rank that is too large stands for the rank of the largest number in play.
    """
    memory = memory_of(x)
    ranks = memory.packed(ranks)
    room = ranks_from(x.shape[-1])
    return _indices("ranked", x, ranks.shape[-1], memory.address(ranks), mask, room, ranks)


def quantile(x: Array, low: int, high: int, share: float) -> tuple[Array, Array, Array]:
    """The number at a share of the way between two ranks' numbers, its slopes in these, (2, …), NaN
    in a row with one, and their places, (2, …). No answer is of half precision.
    """
    memory = memory_of(x)
    x = memory.packed(cast(x, compute_dtype(x)))
    batch = x.shape[:-1]
    out, slopes = memory.empty(x, batch), memory.empty(x, (2, *batch))
    places = _int64(x, (2, *batch))
    made = out, slopes, places
    job = (memory.address(x), *map(memory.address, made), low, high)
    offer("quantile", x, job, share, ranks_from(x.shape[-1]) + 4, made, cleared=())
    return made


def quantile_gradients(x: Array, cotangent: Array, slopes: Array, places: Array) -> Array:
    """Cotangents of the scores from those of `quantile`, whose other answers are given."""
    memory = memory_of(x)
    out, given = memory.empty(x, x.shape), tuple(map(memory.packed, (cotangent, slopes, places)))
    job = (memory.address(out), *map(memory.address, given), 0, 0)
    offer("quantile_back", out, job, 0.0, 0, given, cleared=())
    return cast(out, x.dtype)


def _int64(like: Array, shape: tuple[int, ...]) -> Array:
    if is_torch(like):
        return like.new_empty(shape, dtype=sys.modules["torch"].int64)
    return np.empty(shape, np.int64)


def _indices(
    name: str, x: Array, k: int, last: int, mask: Array | None, room: int, keep: Any = None
) -> Array:
    """Have a worker answer k numbers of each row; `last` is the last word of its job."""
    memory = memory_of(x)
    x = memory.packed(cast(x, compute_dtype(x)) if half.is_half(x) else x)
    shape = (*x.shape[:-1], k)
    out = _int64(x, shape)
    if k == 0:
        return out
    mask = None if mask is None else memory.packed(mask)
    mask_at = 0 if mask is None else memory.address(mask)
    kind = "float" if "float" in str(x.dtype) else "int"
    places = memory.address(x), k, memory.address(out), mask_at, last
    offer(name, x, places, 0.0, room, (out, mask, keep), kind, cleared=())
    return out


def truncated(
    x: Array,
    k: int | None,
    p: float | None,
    temperature: Number,
    labels: Array | None,
    wanted: bool,
    min_p: float | None = None,
    what: int = AGAINST,
) -> tuple[Array | None, Array]:
    """(weights of the softmax over a set of the largest scores, 0 per row), or what is asked for.

    With labels, int64 per row, weights less 1 at the label, or None if nobody wants these, and the
    loss. Nothing of this is of half precision, though x may be.
    """
    memory = memory_of(x)
    x = memory.packed(x)
    out, each = memory.empty(x, x.shape) if wanted else None, memory.empty(x, x.shape[:-1])
    labels = None if labels is None else memory.packed(labels)
    share, least = 1.0 if p is None else p, log(min_p) if min_p else -inf
    _deal_truncated("truncated", x, temperature, labels, out, each, k or 0, share, least, what)
    return out, each


def truncated_gradients(
    x: Array, weights: Array, cotangent: Array, temperature: Number
) -> tuple[Array, Array]:
    """Cotangents of the scores, and of the temperature per row, for one of these weights."""
    memory = memory_of(x)
    x, weights, cotangent = (memory.packed(one) for one in (x, weights, cotangent))
    out, each = memory.empty_like(x), memory.empty(x, x.shape[:-1])
    _deal_truncated("back", x, temperature, weights, out, each, 0, 1.0, cotangent=cotangent)
    return out, each


def margins(
    x: Array, labels: Array, margin: float, turned: int, temperature: float,
    with_losses: bool = False, slopes: bool = False,
) -> tuple[Array | None, ...]:  # fmt: skip
    """Logits with a margin at labels, int64 per row, and the cosines there, ∞ where there is none;
    if wanted, the cross-entropy of logits, and p − t.

    No scores are of half precision.
    """
    memory = memory_of(x)
    x, batch = memory.packed(x), x.shape[:-1]
    out, cosines = memory.empty(x, x.shape), memory.empty(x, batch)
    loss = memory.empty(x, batch) if with_losses else None
    residual = memory.empty(x, x.shape) if slopes else None
    made, how = (out, cosines, loss, residual), (margin, turned)
    _deal_margins("margins", x, labels, made, how, temperature, x.shape[-1])
    return made


def margin_gradients(
    cotangent: Array, labels: Array, cosines: Array, margin: float, turned: int, by: float
) -> Array:
    """The cotangents of logits times a number, and at labels times the slope of their cosines."""
    memory = memory_of(cotangent)
    cotangent = memory.packed(cotangent)
    out = memory.empty(cotangent, cotangent.shape)
    made = out, memory.packed(cosines), None, None
    _deal_margins("margins_back", cotangent, labels, made, (margin, turned), by, 0)
    return out


def _deal_margins(
    name: str, x: Array, labels: Array, made: tuple[Array | None, ...], how: tuple[float, int],
    number: float, room: int,
) -> None:  # fmt: skip
    memory, (margin, turned) = memory_of(x), how
    labels = memory.packed(labels)
    places = (0 if one is None else memory.address(one) for one in made)
    bits = struct.unpack("3q", struct.pack("3d", margin, sin(margin), cos(margin)))
    job = memory.address(x), memory.address(labels), *places, turned, *bits
    offer(name, x, job, number, room, (x, labels, made), cleared=())


def _deal_truncated(
    name: str, x: Array, temperature: Number, given: Array | None, out: Array | None, each: Array,
    k: int, share: float, least: float = -inf, what: int = AGAINST,
    cotangent: Array | None = None,
) -> None:  # fmt: skip
    """Rows to threads; `given` are labels or weights."""
    memory, n, count = memory_of(x), x.shape[-1], prod(x.shape[:-1])
    size = max(x.itemsize, 4)
    temperature, at = per_row(temperature, memory, count, size)
    places = (0 if one is None else memory.address(one) for one in (given, out, each, cotangent))
    (bits,) = struct.unpack("q", struct.pack("d", least))
    room, job = n if out is None else 0, (memory.address(x), at, *places, k, bits, what)
    offer(name, x, job, share, room, (temperature, given, out, each, cotangent))


def offer(
    name: str, x: Any, places: tuple[int, ...], number: float, room: int, keep: tuple[Any, ...],
    kind: str = "float", cleared: tuple[range, ...] | None = None,
) -> None:  # fmt: skip
    """Rows to threads, each with `room` words; no answer depends on who works on it."""
    n, count = x.shape[-1], prod(x.shape[:-1])
    if count == 0:
        return
    code = code_of(name, max(x.itemsize, 4), kind)
    words = array("q", (0, 0, count, chunk_of(n, half.is_half(x)), n, *places))
    job, run, kept = words, native.function(code), None
    if half.is_half(x):
        if cleared is not None:  # a team counts from 0
            cleared = *cleared, range(room, room + min(HEAD, team_room(n)))
        job, kept, room = halves_of(code, words, x, room)
        run = native.function(half.DRIVER)
    pool.work_on(x, GRAIN, run, job, room, number, (words, kept, keep), cleared)


def chunk_of(n: int, is_half: bool = False) -> int:
    """Return how many rows a thread takes at once."""
    grain, together = HALF_GRAIN if is_half else GRAIN, ROWS if n <= ABREAST else 1
    return max(together, grain // n // together * together)


def halves_of(code: Code, words: array[int], x: Array, room: int) -> tuple[array[int], Any, int]:
    """The job of 16-bit numbers, what it refers to, and a thread's room in words.

    How its words change from one block to the next: the answers of `choices` are rounded, the ones
    of `truncated`, which has labels, are not.
    """
    _, _, count, chunk, n, x_at, _, *others = words
    rounded = len(others) == 1
    modes = CHOSEN if rounded else [in_slot(SCORES), 4, 8, 4 * n, 4, *[COPIED] * 4]
    step, place = step_of(code, words, room, modes)
    arrays = x_at, others[0] if rounded else 0, 0
    job, kept = half.job_of(x, arrays, [step], place, count, chunk, 0, 8 * room)
    return job, kept, place.width


CHOSEN = [in_slot(SCORES), 4, in_slot(ANSWERS)]
"""How the words of a job of `choices`, from its scores on, change from one block to the next."""


def step_of(
    code: Code, words: array[int], room: int, modes: list[int]
) -> tuple[half.Step, half.Room]:
    """Return the function for blocks of 16-bit numbers, and the memory that a thread needs."""
    _, _, count, chunk, n, *_ = words
    place = half.room_of(room + team_room(n), len(words), n * min(chunk, count), 2)
    return half.Step(native.address(code), words, array("q", [*[COPIED] * 5, *modes])), place

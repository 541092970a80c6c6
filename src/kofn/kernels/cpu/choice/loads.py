"""What tokens require of the bias of experts, by required.py or binned.py, and how often each is
chosen: one thread, on tensors (test_nn_router_quantile_limits.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import cache
from math import ceil, floor
from typing import Any

from torch import Tensor

from kofn.kernels.cpu.choice import layout
from kofn.kernels.cpu.choice.launch import code_of
from kofn.kernels.cpu.runtime import native
from kofn.kernels.cpu.runtime.layout import CHUNK, COUNT
from kofn.kernels.cpu.runtime.memory import rooms


def required(shape: tuple[int, ...], k: int) -> Callable[..., bool] | None:
    """Return the function of scores [T, E] of float32, the bias that they are chosen with, the mean
    of biases, and the tokens of this, that adds what even loads require; or None.

    It returns whether it could.
    """
    count, n = shape
    room = layout.room_of_required(n, k + 1, count, 4)
    if not room:
        return None
    run, words = native.function(code_of("required", 4)), _words(count, n, k + 1)
    place = count * k / n
    low, high = (min(each, count - 1) for each in (floor(place), ceil(place)))
    words[layout.FIRST], words[layout.LAST] = low, high

    def work(x: Tensor, bias: Tensor, mean: Tensor, tokens: Tensor) -> bool:
        own, job = rooms(1, room, cleared=()), words[:]
        job[layout.X], job[layout.BIAS] = x.data_ptr(), bias.data_ptr()
        job[layout.MEAN], job[layout.TOKENS] = mean.data_ptr(), tokens.data_ptr()
        run(job.buffer_info()[0], own[1], place - low, True)
        return job[layout.SETTLED] != 0

    return work


def binned(shape: tuple[int, ...], k: int, left_out: int, far: float) -> Callable[..., bool] | None:
    """Return the function of scores [T, E] of float32, the bias that they are chosen with, counts
    [E, bins], and a function of the range that returns a width and the first bin, that counts what
    even loads require; or None.

    It returns whether it could: whether of each token more than `left_out` numbers, times `far`,
    are as far from the bias as the farthest.
    """
    count, n = shape
    room = layout.room_of_cutoffs(n, k + 1, 4)
    if not room:
        return None
    find, add = (native.function(code_of(name, 4)) for name in ("cutoffs", "binned"))
    words = _words(count, n, k + 1)
    words[layout.LEFT_OUT] = left_out

    def work(
        x: Tensor,
        bias: Tensor,
        histogram: Tensor,
        bins_of: Callable[[float, float], tuple[float, float]],
    ) -> bool:
        own, job, span = rooms(1, room, cleared=()), words[:], array("d", (0.0, 0.0))
        cutoffs = x.new_empty(count)
        job[layout.X], job[layout.BIAS] = x.data_ptr(), bias.data_ptr()
        job[layout.CUTOFFS], job[layout.SPAN] = cutoffs.data_ptr(), span.buffer_info()[0]
        find(job.buffer_info()[0], own[1], far, True)
        if not job[layout.SETTLED]:
            return False
        span[0], span[1] = bins_of(span[0], span[1])
        job[:CHUNK] = words[:CHUNK]
        job[layout.HISTOGRAM], job[layout.BINS] = histogram.data_ptr(), histogram.shape[-1]
        add(job.buffer_info()[0], own[1], 0.0, True)
        return True

    return work


def _words(count: int, n: int, k: int) -> array[int]:
    words = array("q", bytes(8 * layout.REQUIRED_WORDS))
    words[COUNT] = words[CHUNK] = count
    words[layout.N], words[layout.K] = n, k
    return words


@cache
def _tally() -> Callable[..., Any]:
    return native.function(code_of("tally", 4))


def tally(indices: Tensor, counts: Tensor) -> None:
    """Add to counts how often they are named."""
    job = array("q", bytes(8 * layout.MIXTURE_WORDS))
    job[COUNT] = job[CHUNK] = indices.numel()
    job[layout.X], job[layout.INDICES] = indices.data_ptr(), counts.data_ptr()
    job[layout.N] = len(counts)
    _tally()(job.buffer_info()[0], 0, 0.0, True)

"""The work of one thread: logits of cosines with a margin at the label of a row, and the way back.

(Tests: test_losses_family.py.)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.contract import AGAINST
from kofn.kernels.cpu.choice.truncated import softmax
from kofn.kernels.cpu.choice.worker import lowest_of
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.shares import COUNT, plain, served
from kofn.kernels.cpu.runtime.vector_math import real, widest_vectors

# A job, the integers that every thread on it reads: those of shares.py first. EACH is the address
# of the cosines at the labels, LOSS and RESIDUAL are 0 where nobody wants these. MARGIN and the
# next two have the bits of floats.
N, X, LABELS, OUT, EACH, LOSS, RESIDUAL, TURNED, MARGIN, SINE, COSINE = range(4, 15)
WORDS = 15


@plain
def _over(x, t, lowest, out):
    """x/T, and −∞ of scores that count as masked."""
    widest_vectors()
    for i in range(x.size):
        out[i] = real(t, -math.inf) if x[i] <= lowest else x[i] / t


@plain
def _times(x, by, out):
    widest_vectors()
    for i in range(x.size):
        out[i] = x[i] * by


@plain
def _root(c, eps):
    """sin φ of cos φ; 0 within rounding of ±1, where the dtype would decide the slope."""
    square = (1.0 - c) * (1.0 + c)
    return math.sqrt(square) if square > 4.0 * eps else 0.0


@plain
def _moved(job, c, eps):
    """The cosine of a label with its margin."""
    each = carray(pointer(job + 8 * MARGIN), 3, np.float64)  # to unpack it might raise an error
    margin, sine, cosine = each[0], each[1], each[2]
    if carray(pointer(job), WORDS, np.int64)[TURNED] == 0:
        return c - margin
    return c * cosine - _root(c, eps) * sine if c > -cosine else c - margin * sine


@plain
def _steep(job, c, eps):
    """The slope of `_moved` in the cosine."""
    each = carray(pointer(job + 8 * MARGIN), 3, np.float64)
    sine, cosine = each[1], each[2]
    if carray(pointer(job), WORDS, np.int64)[TURNED] == 0 or not c > -cosine:
        return 1.0
    root = _root(c, eps)
    return cosine + (c / root * sine if root > 0.0 else 0.0)


def margins(kind: int, number: Any) -> Any:
    """The work of a thread: logits, and the cosines at labels, ∞ of rows without one in play; if
    they are wanted, cross-entropy and p − t of the logits.
    """
    eps = float(np.finfo(number).eps)

    @plain
    def work(job, own, first, last, t):
        words = carray(pointer(job), WORDS, np.int64)
        n, rows, of_loss, wanted = words[N], words[COUNT], words[LOSS] != 0, words[RESIDUAL] != 0
        xs = carray(pointer(words[X]), rows * n, number)
        outs = carray(pointer(words[OUT]), rows * n, number)
        labels = carray(pointer(words[LABELS]), rows, np.int64)
        each, lowest, per = carray(pointer(words[EACH]), rows, number), lowest_of(xs), number(t)
        losses = carray(pointer(words[LOSS] if of_loss else own), rows, number)
        residual = carray(pointer(words[RESIDUAL] if wanted else own), rows * n, number)
        for r in range(first, last):
            at, stop, label = r * n, r * n + n, labels[r]
            x, out = xs[at:stop], outs[at:stop]
            _over(x, per, lowest, out)
            inside = 0 <= label < n
            each[r] = x[label] if inside and x[label] > lowest else number(math.inf)
            if abs(each[r]) < math.inf:
                out[label] = number(_moved(job, np.float64(each[r]), eps) / t)
            if of_loss:
                e, one = residual[at:stop] if wanted else residual[:n], number(1)
                losses[r] = number(math.nan)
                if inside:
                    logits = words[OUT] + at * out.itemsize
                    losses[r] = softmax(
                        out, logits, 0, 1.0, -math.inf, one, label, AGAINST, lowest, e, wanted
                    )

    return served(work)


def margins_back(kind: int, number: Any) -> Any:
    """The work of a thread: the cotangents of logits, which stand at X, times a number, and times
    the slope at the label.
    """
    eps = float(np.finfo(number).eps)

    @plain
    def work(job, own, first, last, by):
        words = carray(pointer(job), WORDS, np.int64)
        n, rows = words[N], words[COUNT]
        gs = carray(pointer(words[X]), rows * n, number)
        outs = carray(pointer(words[OUT]), rows * n, number)
        labels = carray(pointer(words[LABELS]), rows, np.int64)
        each = carray(pointer(words[EACH]), rows, number)
        for r in range(first, last):
            g, out, label = gs[r * n : r * n + n], outs[r * n : r * n + n], labels[r]
            _times(g, number(by), out)
            if abs(each[r]) < math.inf:
                out[label] *= number(_steep(job, np.float64(each[r]), eps))

    return served(work)

"""Softmax over a set of a row's largest scores in Triton, its loss, its entropy, and the way back.

It is the set of cpu/choice/truncated.py. Its least score is found bit by bit in the order of all
floats, by counts for the k largest and by sums of weights for the nucleus: sums of fewer of the
same numbers in the same order are never greater. (Tests: test_kernels_gpu.py.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kofn.kernels import contract
from kofn.kernels.gpu.choice.programs import LAST, keys
from kofn.kernels.gpu.rows.answers import put
from kofn.kernels.gpu.rows.formulas import DELETED, INF
from kofn.kernels.gpu.rows.loops import entries, scores
from kofn.kernels.gpu.rows.losses import is_label
from kofn.kernels.gpu.rows.one_program import per_row, row_of, rows_here
from kofn.kernels.gpu.rows.words import log1p, number_at, place_of

ENTROPY, INFINITE = tl.constexpr(contract.ENTROPY), tl.constexpr(contract.INFINITE)
KEPT, LEAST = tl.constexpr(contract.KEPT), tl.constexpr(contract.LAST)


class Sets(NamedTuple):
    """The rows, what says how large their sets are, and where the answers go."""

    x_at: Any  # scores, (count, n)
    temperature: Any  # one number, or the address of one per row
    own_at: Any  # a label per row; for the way back the weights
    out_at: Any  # weights, with a label p − t, or slopes of the entropy
    each_at: Any  # the loss, the entropy, or the least score of the set
    k: Any
    share: Any
    log_least: Any  # of the least weight, as a share of the greatest
    count: Any
    n: Any


@triton.jit
def _rows_of(given, ROWS: tl.constexpr):
    rows, here, stretch = rows_here(given, ROWS)
    return rows, here, per_row(given.temperature, rows, here, 1.0), stretch


@triton.jit
def _raised(x, highest, per_t):
    """e^{(x − the highest)/T} of scores in play."""
    z = (x - highest[:, None]) * per_t[:, None]
    return tl.where((x > DELETED) & (x < INF), tl.exp(tl.minimum(z, 0.0)), 0.0)


@triton.jit
def _last_key(stretch, low, highest, per_t, wanted, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the greatest key from which on the scores whose key is at least `low` are as many as
    wanted, or weigh as much.
    """
    last, bit = low * 0, 31
    while bit >= 0:
        tried = last | (low * 0 + 1 << bit)
        amount = tl.zeros((low.shape[0], BLOCK), tl.float32)
        for at in range(0, stretch.last, BLOCK):
            key, filled, x = keys(stretch, at, BLOCK)
            inside = filled & (key >= (tried ^ ~LAST)[:, None]) & (key >= low[:, None])
            one = 1.0
            if MASS:
                one = _raised(x, highest, per_t)
            amount += tl.where(inside, one, 0.0)
        last = tl.where(tl.sum(amount, axis=1) >= wanted, tried, last)
        bit -= 1
    return last ^ ~LAST


@triton.jit
def truncated(
    given: Sets,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WHAT: tl.constexpr,
    OF_K: tl.constexpr,
    NUCLEUS: tl.constexpr,
    LABELS: tl.constexpr,
    WANTED: tl.constexpr,
):
    """Write what WHAT names. With labels and k alone ties for the k-th place share the places."""
    rows, here, t, stretch = _rows_of(given, ROWS)
    nothing = tl.zeros((ROWS, BLOCK), tl.float32)
    label = rows * 0 - 1
    if LABELS:
        label = tl.load(given.own_at + rows, mask=here, other=0)
    most, least, tops, bad, own = nothing - INF, nothing + INF, nothing, nothing, nothing - INF
    for at in range(0, given.n, BLOCK):
        x, filled = scores(stretch, at, -INF, BLOCK)
        playing = filled & ~(x <= DELETED)
        finite = playing & (tl.abs(x) < INF)
        most = tl.maximum(most, tl.where(finite, x, -INF))
        least = tl.minimum(least, tl.where(finite, x, INF))
        tops += tl.where(x == INF, 1.0, 0.0)
        bad += tl.where(x != x, 1.0, 0.0)
        if LABELS:
            own = tl.maximum(own, tl.where(playing & is_label(at, label, BLOCK), x, -INF))
    highest, lowest = tl.max(most, axis=1), tl.min(least, axis=1)
    number, x_own = tl.sum(tops, axis=1), tl.max(own, axis=1)
    is_bad = (tl.sum(bad, axis=1) > 0.0) | ((t != t) & (highest > -INF) & (number == 0.0))
    plain = (highest > -INF) & (number == 0.0) & ~is_bad
    highest, lowest = tl.where(plain, highest, 0.0), tl.where(plain, lowest, 0.0)
    per_t = 1.0 / tl.where(plain, t, 1.0)
    last = place_of(tl.where(lowest == 0.0, 0.0, lowest))
    if OF_K:
        wanted = rows * 0.0 + given.k
        last = tl.maximum(last, _last_key(stretch, last, highest, per_t, wanted, False, BLOCK))
    if NUCLEUS:
        total = nothing
        for at in range(0, given.n, BLOCK):
            key, filled, x = keys(stretch, at, BLOCK)
            inside = filled & (key >= last[:, None])
            total += tl.where(inside, _raised(x, highest, per_t), 0.0)
        wanted = tl.sum(total, axis=1) * given.share
        last = tl.maximum(last, _last_key(stretch, last, highest, per_t, wanted, True, BLOCK))
    last = tl.maximum(number_at(last), highest + given.log_least * tl.where(plain, t, 1.0))
    if WHAT == LEAST:
        found = tl.where(is_bad, float("nan"), tl.where(plain, last, -INF))
        tl.store(given.each_at + rows, found, mask=here)
    else:
        share = rows * 0.0 + 1.0
        if OF_K and LABELS and not NUCLEUS and WHAT != ENTROPY:
            above, equal = nothing, nothing
            for at in range(0, given.n, BLOCK):
                x, _ = scores(stretch, at, -INF, BLOCK)
                above += tl.where(x > last[:, None], 1.0, 0.0)
                equal += tl.where(x == last[:, None], 1.0, 0.0)
            places = (given.k - tl.sum(above, axis=1)) / tl.maximum(tl.sum(equal, axis=1), 1.0)
            share = tl.where(given.log_least == -INF, tl.minimum(places, 1.0), 1.0)
        outside = x_own < last
        total, tilt = nothing, nothing
        for at in range(0, given.n, BLOCK):
            x, _ = scores(stretch, at, -INF, BLOCK)
            e = _kept(x, last, share, highest, per_t)
            if LABELS:
                e = tl.where(is_label(at, label, BLOCK), 0.0, e)
            total += e
            tilt += tl.where(e > 0.0, e * (x - highest[:, None]) * per_t[:, None], 0.0)
        others = tl.sum(total, axis=1)
        mine, behind = others * 0.0, (highest - x_own) * per_t
        if LABELS:
            raised = tl.where(x_own > -INF, tl.exp(tl.minimum(-behind, 0.0)), 0.0)
            kept = tl.where(x_own == last, share, 1.0)
            if WHAT != KEPT:
                kept = tl.where(outside, 0.0, kept)
            mine = raised * kept
        whole = tl.maximum(others + mine, 1.0)
        mean = tl.sum(tilt, axis=1) / whole
        if WANTED:
            for at in range(0, given.n, BLOCK):
                x, filled = scores(stretch, at, -INF, BLOCK)
                e = _kept(x, last, share, highest, per_t)
                out = e / whole[:, None]
                if WHAT == ENTROPY:
                    z = (x - highest[:, None]) * per_t[:, None]
                    out = tl.where(e > 0.0, out * (mean[:, None] - z), 0.0)
                still = tl.where(x == INF, 1.0 / tl.maximum(number, 1.0)[:, None], 0.0)
                if LABELS:
                    is_own = is_label(at, label, BLOCK)
                    out = tl.where(is_own, -(others / whole)[:, None], out)
                    moves = x_own > -INF
                    if WHAT == INFINITE:
                        moves &= ~outside
                    out = tl.where(moves[:, None], out, 0.0)
                if LABELS or WHAT == ENTROPY:
                    still = tl.zeros_like(still)
                hidden = is_bad[:, None] & (x != INF) & ~(x <= DELETED)
                out = tl.where(plain[:, None], out, tl.where(hidden, float("nan"), still))
                put(row_of(given.out_at, rows, given), at, out, filled, BLOCK)
        if LABELS:
            # The rounding of 1 + others would hide a small loss.
            small = (behind == 0.0) & (others + mine <= 2.0)
            each = tl.where(small, log1p(others + (mine - 1.0)), tl.log(whole) + behind)
            if WHAT == INFINITE:
                each = tl.where(outside, INF, each)
            each = tl.where(x_own == -INF, INF, each)
            at_top = tl.where(x_own == INF, tl.log(tl.maximum(number, 1.0)), INF)
            each = tl.where(plain, each, tl.where(is_bad, float("nan"), at_top))
            each = tl.where((label < 0) | (label >= given.n), float("nan"), each)
        else:
            each = whole * 0.0
            if WHAT == ENTROPY:
                each = tl.where(plain, tl.log(whole) - mean, tl.log(tl.maximum(number, 1.0)))
                each = tl.where(is_bad, float("nan"), each)
        tl.store(given.each_at + rows, each, mask=here)


@triton.jit
def _kept(x, last, share, highest, per_t):
    """The weights of scores above the last, that share of those at it, 0 of others."""
    e = _raised(x, highest, per_t)
    return tl.where(x > last[:, None], e, tl.where(x == last[:, None], e * share[:, None], 0.0))


@triton.jit
def truncated_back(given: Sets, g_at, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write u = p(g − Σpg)/T for the scores, and −Σu·z for T.

    As Σu is 0, z may count from any score in the set: it does from their mean.
    """
    rows, here, t, stretch = _rows_of(given, ROWS)
    p_row, g_row = row_of(given.own_at, rows, given), row_of(g_at, rows, given)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    center, lever = total, total
    for at in range(0, given.n, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        p, _ = entries(p_row, stretch, at, 0.0, BLOCK)
        g, _ = entries(g_row, stretch, at, 0.0, BLOCK)
        total += tl.where(p != 0.0, p * g, 0.0)
        center += tl.where((p != 0.0) & (x < INF), p * x, 0.0)
    mean, middle = tl.sum(total, axis=1), tl.sum(center, axis=1)
    for at in range(0, given.n, BLOCK):
        x, filled = scores(stretch, at, -INF, BLOCK)
        p, _ = entries(p_row, stretch, at, 0.0, BLOCK)
        g, _ = entries(g_row, stretch, at, 0.0, BLOCK)
        moves = (p != 0.0) & (x != INF)
        u = tl.where(moves, p * (g - mean[:, None]) / t[:, None], 0.0)
        lever += tl.where(moves, u * ((x - middle[:, None]) / t[:, None]), 0.0)
        put(row_of(given.out_at, rows, given), at, u, filled, BLOCK)
    tl.store(given.each_at + rows, -tl.sum(lever, axis=1), mask=here)

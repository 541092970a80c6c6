"""Rows shared out by a polynomial without real zeros in Triton, and the way back.

The polynomial of z is the product of (z − a)² + b² over its pairs of zeros a ± ib. Scores and zeros
are taken in units of the largest of either, so that nothing overflows.

(Tests: test_kernels_gpu.py.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kofn.kernels.gpu.rows.answers import put
from kofn.kernels.gpu.rows.formulas import DELETED, INF
from kofn.kernels.gpu.rows.loops import entries, scores
from kofn.kernels.gpu.rows.one_program import per_row, row_of, rows_here


class Shared(NamedTuple):
    """The rows, the zeros, and where the answers go."""

    x_at: Any  # scores, (count, n)
    temperature: Any  # one number, or the address of one per row
    zeros: Any  # a and b of each pair, one after the other
    farthest: Any  # the size of the largest zero
    p_at: Any  # weights
    count: Any
    n: Any


class Scale(NamedTuple):
    """What holds for whole rows."""

    root: Any  # of the unit, by which one divides twice: the unit may be the largest number
    unit: Any  # a temperature in that unit
    t: Any
    tops: Any  # scores of +inf, which share the row
    is_bad: Any  # nothing else of it is known


@triton.jit
def _rows_of(given, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows, here, stretch = rows_here(given, ROWS)
    t = per_row(given.temperature, rows, here, 1.0)
    most = tl.zeros((ROWS, BLOCK), tl.float32)
    tops, bad = most, most
    for at in range(0, given.n, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        most = tl.maximum(most, tl.where((x > DELETED) & (x < INF), tl.abs(x), 0.0))
        tops += tl.where(x == INF, 1.0, 0.0)
        bad += tl.where(x != x, 1.0, 0.0)
    number, known = tl.sum(tops, axis=1), tl.where(t == t, t, 1.0)
    root = tl.sqrt(tl.maximum(tl.max(most, axis=1), known * given.farthest))
    is_bad = (number == 0.0) & ((tl.sum(bad, axis=1) > 0.0) | (t != t))
    return rows, here, stretch, Scale(root, known / root / root, known, number, is_bad)


@triton.jit
def _polynomial(x, scale, zeros):
    """Return (whether scores are shared out, them in units, f there, f′/f in units)."""
    live = (x > DELETED) & (x < INF) & (scale.tops == 0.0)[:, None]
    u = tl.where(live, x, 0.0) / scale.root[:, None] / scale.root[:, None]
    f, slope = u * 0.0 + 1.0, u * 0.0
    for i in tl.static_range(len(zeros) // 2):
        apart = u - zeros[2 * i] * scale.unit[:, None]
        away = zeros[2 * i + 1] * scale.unit[:, None]
        square = apart * apart + away * away
        f *= square
        slope += tl.where(square > 0.0, 2.0 * apart / tl.where(square > 0.0, square, 1.0), 0.0)
    return live, u, tl.where(live, f, 0.0), slope


@triton.jit
def taylor(given: Shared, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write f/Σf of the scores in play."""
    rows, _, stretch, scale = _rows_of(given, ROWS, BLOCK)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for at in range(0, given.n, BLOCK):
        x, filled = scores(stretch, at, -INF, BLOCK)
        total += _polynomial(x, scale, given.zeros)[2]
    whole = tl.sum(total, axis=1)
    whole, top = tl.where(whole > 0.0, whole, 1.0), 1.0 / tl.maximum(scale.tops, 1.0)
    for at in range(0, given.n, BLOCK):
        x, filled = scores(stretch, at, -INF, BLOCK)
        shared = _polynomial(x, scale, given.zeros)
        unknown = (x != x) | (shared[0] & scale.is_bad[:, None])
        p = tl.where(x == INF, top[:, None], shared[2] / whole[:, None])
        p = tl.where(unknown, float("nan"), p)
        put(row_of(given.p_at, rows, given), at, p, filled, BLOCK)


@triton.jit
def taylor_back(given: Shared, g_at, out_at, in_rows_at, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write p(g − Σpg)f′/f for the scores, and −Σ of these times z for T."""
    rows, here, stretch, scale = _rows_of(given, ROWS, BLOCK)
    p_row, g_row = row_of(given.p_at, rows, given), row_of(g_at, rows, given)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    lever, hidden = total, tl.where(scale.is_bad, float("nan"), 0.0)
    for at in range(0, given.n, BLOCK):
        p, _ = entries(p_row, stretch, at, 0.0, BLOCK)
        g, _ = entries(g_row, stretch, at, 0.0, BLOCK)
        total += tl.where(p != 0.0, p * g, 0.0)
    mean = tl.sum(total, axis=1)
    for at in range(0, given.n, BLOCK):
        x, filled = scores(stretch, at, -INF, BLOCK)
        p, _ = entries(p_row, stretch, at, 0.0, BLOCK)
        g, _ = entries(g_row, stretch, at, 0.0, BLOCK)
        live, u, f, slope = _polynomial(x, scale, given.zeros)
        moved = tl.where(live & (f > 0.0), p * (g - mean[:, None]) * slope, 0.0)
        moved += tl.where(live, hidden[:, None], 0.0)
        lever += moved * u
        out = moved / scale.root[:, None] / scale.root[:, None]
        put(row_of(out_at, rows, given), at, out, filled, BLOCK)
    tl.store(in_rows_at + rows, -tl.sum(lever, axis=1) / scale.t, mask=here)

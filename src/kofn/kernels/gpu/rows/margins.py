"""Logits of cosines with a margin on one of each row, and the way back, a launch each.

(Tests: test_kernels_gpu.py.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kofn.kernels.gpu.rows.answers import put
from kofn.kernels.gpu.rows.formulas import DELETED, EPS, INF
from kofn.kernels.gpu.rows.loops import entries, scores
from kofn.kernels.gpu.rows.losses import is_label, label_of
from kofn.kernels.gpu.rows.one_program import row_of, rows_here


class Cosines(NamedTuple):
    """The rows, their margin, and where the answers go."""

    x_at: Any
    target_at: Any  # a label per row
    out_at: Any
    slope_at: Any  # of each row the slope of its logit at the label in the cosine, times T
    temperature: Any
    margin: Any
    sine: Any  # of the margin, where it is an angle
    cosine: Any
    ignored: Any  # the label of rows that do not count
    count: Any
    n: Any


@triton.jit
def margins(given: Cosines, ROWS: tl.constexpr, BLOCK: tl.constexpr, TURNED: tl.constexpr):
    """Write x/T, at the label (cos(φ + margin))/T of cos φ if TURNED, else (x − margin)/T.

    Beyond φ = π − margin the former falls on as cos φ − margin·sin margin does.
    """
    rows, here, stretch = rows_here(given, ROWS)
    label, used, wrong = label_of(given, given, rows, here)
    c = tl.load(stretch.x + label, mask=here, other=0.0).to(tl.float32)
    some = used & ~wrong & ~(c <= DELETED) & ~(c == INF)
    moved, slope = c - given.margin, c * 0.0 + 1.0
    if TURNED:
        square = (1.0 - c) * (1.0 + c)
        # Within rounding of ±1 the dtype would decide the slope of the root.
        inside = square > 4.0 * EPS
        sine = tl.sqrt(tl.where(inside, square, 1.0))
        turned = c * given.cosine - tl.where(inside, sine, 0.0) * given.sine
        tilt = given.cosine + tl.where(inside, c / sine * given.sine, 0.0)
        before = c > c * 0.0 - given.cosine
        moved = tl.where(before, turned, c - given.margin * given.sine)
        slope = tl.where(before, tilt, 1.0)
    moved, slope = tl.where(some, moved, c), tl.where(some, slope, 1.0)
    for at in range(stretch.first, stretch.last, BLOCK):
        x, filled = scores(stretch, at, 0.0, BLOCK)
        x = tl.where(is_label(at, label, BLOCK), moved[:, None], x)
        x = tl.where(x <= DELETED, -INF, x / given.temperature)
        put(row_of(given.out_at, rows, given), at, x, filled, BLOCK)
    tl.store(given.slope_at + rows, slope, mask=here)


@triton.jit
def margins_back(given: Cosines, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Turn cotangents of the logits, in place, into cotangents of the cosines."""
    rows, here, stretch = rows_here(given, ROWS)
    label, _, _ = label_of(given, given, rows, here)
    slope = tl.load(given.slope_at + rows, mask=here, other=1.0)
    for at in range(stretch.first, stretch.last, BLOCK):
        g, filled = entries(stretch.x, stretch, at, 0.0, BLOCK)
        g = g * tl.where(is_label(at, label, BLOCK), slope[:, None], 1.0) / given.temperature
        put(row_of(given.out_at, rows, given), at, g, filled, BLOCK)

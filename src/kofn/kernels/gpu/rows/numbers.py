"""Numbers per row, k and temperatures, as a call gives them: checked, cast and limited in Triton.

(Tests: test_kernels_gpu.py.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kofn.kernels.gpu.rows.formulas import INF


class Numbers(NamedTuple):
    """Tensors of any type, a number per row or, with a step of 0, one for all; their limits."""

    k_at: Any
    k_step: Any
    t_at: Any
    t_step: Any
    inside_at: Any  # where k and T are within their limits, (2, count)
    n: Any
    least: Any
    greatest: Any
    count: Any


@triton.jit
def limit(
    given: Numbers, k_out_at, t_out_at, OF_K: tl.constexpr, OF_T: tl.constexpr, BLOCK: tl.constexpr
):
    """Write k and T per row as float32: NaN out of range, and T no less and no more than it may be.

    T is compared before it is rounded: a float64 that float32 takes for 0 or infinity is valid.
    """
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = rows < given.count
    if OF_K:
        k = tl.load(given.k_at + rows * given.k_step, mask=here, other=0).to(tl.float32)
        good = (k >= 0.0) & (k <= given.n)
        tl.store(k_out_at + rows, tl.where(good, k, float("nan")), mask=here)
        tl.store(given.inside_at + rows, good.to(tl.int8), mask=here)
    if OF_T:
        given_t = tl.load(given.t_at + rows * given.t_step, mask=here, other=1)
        good, t = (given_t > 0) & (given_t < INF), given_t.to(tl.float32)
        out = tl.minimum(tl.maximum(t, given.least), given.greatest)
        tl.store(t_out_at + rows, tl.where(good, out, float("nan")), mask=here)
        tl.store(given.inside_at + given.count + rows, (good & (out == t)).to(tl.int8), mask=here)


@triton.jit
def limit_back(
    given: Numbers, k_out_at, t_out_at, OF_K: tl.constexpr, OF_T: tl.constexpr, BLOCK: tl.constexpr
):
    """Turn cotangents of k and T, in place, into cotangents of the tensors."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = rows < given.count
    if OF_K:
        g = tl.load(given.k_at + rows * given.k_step, mask=here, other=0)
        inside = tl.load(given.inside_at + rows, mask=here, other=0) != 0
        tl.store(k_out_at + rows, tl.where(inside, g, 0.0), mask=here)
    if OF_T:
        g = tl.load(given.t_at + rows * given.t_step, mask=here, other=0)
        inside = tl.load(given.inside_at + given.count + rows, mask=here, other=0) != 0
        tl.store(t_out_at + rows, tl.where(inside, g, 0.0), mask=here)

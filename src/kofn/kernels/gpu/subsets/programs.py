"""Rows of k-subsets on a GPU in three launches, four for the covariance; to a program a part.

What a part adds up goes to memory, at places that depend on nothing but the part, and every program
of the next launch adds it up again in the same order. Short rows are one part.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kofn.kernels.gpu.rows.formulas import INF
from kofn.kernels.gpu.subsets.loops import (
    COVARIANCE,
    GROUP,
    LOG_COUNT,
    NODES,
    close,
    grid,
    multiply,
    others,
    product,
    spectrum,
    tally,
    write,
    write_covariance,
)

# Where a part keeps its four tallies, its product per node, and for the covariance a sum and then
# two per node; how many numbers that is.
PRODUCT = tl.constexpr(4)
OTHERS = tl.constexpr(4 + 2 * NODES.value)
SUMS = tl.constexpr(5 + 4 * NODES.value)


@triton.jit
def tally_parts(
    y_at,
    v_at,
    hi_at,
    lo_at,
    k_at,
    sums_at,
    n,
    parts,
    WHAT: tl.constexpr,
    PART: tl.constexpr,
    LANES: tl.constexpr,
):
    row, at, first, last = _place(n, parts, PART)
    hi, lo, _, _ = _ends(hi_at, lo_at, k_at, row)
    found = tally(y_at + row * n, v_at + row * n, first, last, hi, lo, WHAT == COVARIANCE, LANES)
    for i in tl.static_range(4):
        tl.store(sums_at + at + i, found[i])


@triton.jit
def multiply_parts(
    y_at,
    hi_at,
    lo_at,
    k_at,
    sums_at,
    n,
    parts,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
):
    row, at, first, last = _place(n, parts, PART)
    hi, lo, _, k = _ends(hi_at, lo_at, k_at, row)
    tallies = _tallies(sums_at, row, parts, PARTS)
    for some in tl.static_range(0, NODES, GROUP):
        node = some + tl.arange(0, GROUP)
        sin, versine, _, _ = grid(tallies[0], tallies[1], k, n, node)
        real, imag = tl.zeros_like(sin) + 1.0, tl.zeros_like(sin)
        if tl.max(sin) > 0.0:  # else none of these counts
            real, imag = multiply(y_at + row * n, first, last, hi, lo, sin, versine, LANES)
        tl.store(sums_at + at + PRODUCT + node, real)
        tl.store(sums_at + at + PRODUCT + NODES + node, imag)


@triton.jit
def others_parts(
    y_at,
    v_at,
    hi_at,
    lo_at,
    k_at,
    sums_at,
    n,
    parts,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
):
    row, at, first, last = _place(n, parts, PART)
    hi, lo, _, k = _ends(hi_at, lo_at, k_at, row)
    tallies = _tallies(sums_at, row, parts, PARTS)
    sin, versine, real, imag, _ = _spectrum(sums_at, row, parts, k, n, tallies, PARTS)
    mean = _mean(tallies[3], tallies[0])
    total, first_sums, second_sums = others(
        y_at + row * n, v_at + row * n, first, last, hi, lo, mean, sin, versine, real, imag, LANES
    )
    node = tl.arange(0, NODES)
    tl.store(sums_at + at + OTHERS, total)
    tl.store(sums_at + at + OTHERS + 1 + node, first_sums)
    tl.store(sums_at + at + OTHERS + 1 + NODES + node, second_sums)


@triton.jit
def write_parts(
    y_at,
    v_at,
    hi_at,
    lo_at,
    k_at,
    sums_at,
    out_at,
    n,
    parts,
    WHAT: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
):
    row, _, first, last = _place(n, parts, PART)
    hi, lo, theta, k = _ends(hi_at, lo_at, k_at, row)
    tallies = _tallies(sums_at, row, parts, PARTS)
    sin, versine, real, imag, count = _spectrum(sums_at, row, parts, k, n, tallies, PARTS)
    y_row, v_row, out_row = y_at + row * n, v_at + row * n, out_at + row * n
    if WHAT == LOG_COUNT:
        _store_log(out_at + row, theta, count)  # each part the same
    elif tl.abs(theta) >= INF or theta != theta:
        close(WHAT, y_row, out_row, first, last, theta, k, tallies[2], LANES)
    elif WHAT == COVARIANCE:
        write_covariance(
            y_row,
            v_row,
            out_row,
            first,
            last,
            hi,
            lo,
            _mean(tallies[3], tallies[0]),
            _total(sums_at, row, parts, OTHERS, PARTS).to(tl.float32),
            _totals(sums_at, row, parts, OTHERS + 1, PARTS).to(tl.float32),
            _totals(sums_at, row, parts, OTHERS + 1 + NODES, PARTS).to(tl.float32),
            sin,
            versine,
            real,
            imag,
            LANES,
        )
    else:
        write(WHAT, y_row, out_row, first, last, hi, lo, sin, versine, real, imag, LANES)


@triton.jit
def _ends(hi_at, lo_at, k_at, row):
    """(λ as two floats, 0 where there is none; λ as it came; k)."""
    theta = tl.load(hi_at + row)
    solved = tl.abs(theta) < INF
    lo = tl.where(solved, tl.load(lo_at + row), 0.0)
    return tl.where(solved, theta, 0.0), lo, theta, tl.load(k_at + row)


@triton.jit
def _store_log(at, theta, count):
    tl.store(at, tl.where(tl.abs(theta) < INF, tl.log(count.to(tl.float32)), 0.0))


@triton.jit
def _mean(weighted, variance):
    return tl.where(variance > 0.0, weighted / variance, 0.0).to(tl.float32)


@triton.jit
def _place(n, parts, PART: tl.constexpr):
    """(the row of this program, where its part keeps its sums, where that begins and ends)."""
    row, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    first = part * PART
    return row, (row * parts + part) * SUMS, first, tl.minimum(first + PART, n)


@triton.jit
def _total(sums_at, row, parts, i, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)
    return tl.sum(tl.load(sums_at + (row * parts + part) * SUMS + i, mask=part < parts, other=0.0))


@triton.jit
def _every(sums_at, row, parts, i, other, PARTS: tl.constexpr):
    """A number per node of each part, (NODES, PARTS)."""
    node, part = tl.arange(0, NODES), tl.arange(0, PARTS)
    at = ((row * parts + part) * SUMS)[None, :] + (node + i)[:, None]
    return tl.load(sums_at + at, mask=(part < parts)[None, :], other=other)


@triton.jit
def _totals(sums_at, row, parts, i, PARTS: tl.constexpr):
    return tl.sum(_every(sums_at, row, parts, i, 0.0, PARTS), axis=1)


@triton.jit
def _tallies(sums_at, row, parts, PARTS: tl.constexpr):
    return (
        _total(sums_at, row, parts, 0, PARTS),
        _total(sums_at, row, parts, 1, PARTS),
        _total(sums_at, row, parts, 2, PARTS),
        _total(sums_at, row, parts, 3, PARTS),
    )


@triton.jit
def _spectrum(sums_at, row, parts, k, n, tallies, PARTS: tl.constexpr):
    """(sin ω, 1 − cos ω and the spectrum in float32, Pr(N = k))."""
    sin, versine, weight_real, weight_imag = grid(tallies[0], tallies[1], k, n, tl.arange(0, NODES))
    real, imag = product(
        _every(sums_at, row, parts, PRODUCT, 1.0, PARTS),
        _every(sums_at, row, parts, PRODUCT + NODES, 0.0, PARTS),
    )
    real, imag, count = spectrum(real, imag, weight_real, weight_imag)
    return sin.to(tl.float32), versine.to(tl.float32), real, imag, count

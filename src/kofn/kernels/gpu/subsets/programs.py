"""Rows of k-subsets on a GPU in three launches, four for the covariance; to a program a part.

What a part adds up goes to memory, at places that depend on nothing but the part, and every program
of the next launch adds it up again in the same order. Short rows are one part.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kofn.kernels.gpu.rows.formulas import INF
from kofn.kernels.gpu.subsets import loops
from kofn.kernels.gpu.subsets.loops import COVARIANCE, GROUP, LOG_COUNT, NODES, Stretch, Totals

# Where a part keeps its four tallies, its product per node, and for the covariance a sum and then
# two per node; how many numbers that is.
PRODUCT = tl.constexpr(4)
OTHERS = tl.constexpr(4 + 2 * NODES.value)
SUMS = tl.constexpr(5 + 4 * NODES.value)


class Given(NamedTuple):
    """The arguments of every kernel: where rows and the sums of parts are, and their numbers."""

    y_at: Any  # logits
    v_at: Any  # the vector that the covariance is multiplied with
    hi_at: Any  # λ in two floats; ±∞ or NaN in rows without one
    lo_at: Any
    k_at: Any
    sums_at: Any
    n: Any
    parts: Any


class Place(NamedTuple):
    """The part that a program works on."""

    row: Any
    own_at: Any  # where it keeps its sums
    theta: Any  # λ as it was given
    k: Any
    stretch: Any


@triton.jit
def tally_parts(given: Given, WHAT: tl.constexpr, PART: tl.constexpr, LANES: tl.constexpr):
    here = _place(given, PART)
    v_row = given.v_at + here.row * given.n
    tallies = loops.tally(here.stretch, v_row, WHAT == COVARIANCE, LANES)
    for i in tl.static_range(4):
        tl.store(here.own_at + i, tallies[i])


@triton.jit
def multiply_parts(given: Given, PART: tl.constexpr, PARTS: tl.constexpr, LANES: tl.constexpr):
    here = _place(given, PART)
    tallies = _tallies(given, here.row, PARTS)
    for some in tl.static_range(0, NODES, GROUP):
        node = some + tl.arange(0, GROUP)
        nodes = loops.grid(tallies[0], tallies[1], here.k, given.n, node)
        real, imag = tl.zeros_like(nodes.sin) + 1.0, tl.zeros_like(nodes.sin)
        if tl.max(nodes.sin) > 0.0:  # else none of these counts
            real, imag = loops.multiply(here.stretch, nodes.sin, nodes.versine, LANES)
        tl.store(here.own_at + PRODUCT + node, real)
        tl.store(here.own_at + PRODUCT + NODES + node, imag)


@triton.jit
def others_parts(given: Given, PART: tl.constexpr, PARTS: tl.constexpr, LANES: tl.constexpr):
    here = _place(given, PART)
    tallies = _tallies(given, here.row, PARTS)
    nodes, _ = _spectrum(given, here, tallies, PARTS)
    v_row, mean = given.v_at + here.row * given.n, _mean(tallies)
    total, real, imag = loops.others(here.stretch, v_row, mean, nodes, LANES)
    node = tl.arange(0, NODES)
    tl.store(here.own_at + OTHERS, total)
    tl.store(here.own_at + OTHERS + 1 + node, real)
    tl.store(here.own_at + OTHERS + 1 + NODES + node, imag)


@triton.jit
def write_parts(
    given: Given,
    out_at,
    WHAT: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
):
    here = _place(given, PART)
    theta, stretch = here.theta, here.stretch
    tallies = _tallies(given, here.row, PARTS)
    nodes, count = _spectrum(given, here, tallies, PARTS)
    v_row, out_row = given.v_at + here.row * given.n, out_at + here.row * given.n
    if WHAT == LOG_COUNT:
        _store_log(out_at + here.row, theta, count)  # each part the same
    elif tl.abs(theta) >= INF or theta != theta:
        loops.close(WHAT, stretch, out_row, theta, here.k, tallies[2], LANES)
    elif WHAT == COVARIANCE:
        total = _total(given, here.row, OTHERS, PARTS).to(tl.float32)
        real = _totals(given, here.row, OTHERS + 1, PARTS).to(tl.float32)
        imag = _totals(given, here.row, OTHERS + 1 + NODES, PARTS).to(tl.float32)
        totals = Totals(_mean(tallies), total, real, imag)
        loops.write_covariance(stretch, v_row, out_row, totals, nodes, LANES)
    else:
        loops.write(WHAT, stretch, out_row, nodes, LANES)


@triton.jit
def _place(given, PART: tl.constexpr):
    row = (tl.program_id(0) // given.parts).to(tl.int64)
    part = tl.program_id(0) % given.parts
    first = part * PART
    last = tl.minimum(first + PART, given.n)
    theta, k = tl.load(given.hi_at + row), tl.load(given.k_at + row)
    solved = tl.abs(theta) < INF
    hi, lo = tl.where(solved, theta, 0.0), tl.where(solved, tl.load(given.lo_at + row), 0.0)
    stretch = Stretch(given.y_at + row * given.n, first, last, hi, lo)
    return Place(row, given.sums_at + (row * given.parts + part) * SUMS, theta, k, stretch)


@triton.jit
def _store_log(at, theta, count):
    tl.store(at, tl.where(tl.abs(theta) < INF, tl.log(count.to(tl.float32)), 0.0))


@triton.jit
def _mean(tallies):
    """Return the mean of v, weighted by pq."""
    variance = tallies[0]
    return tl.where(variance > 0.0, tallies[3] / variance, 0.0).to(tl.float32)


@triton.jit
def _total(given, row, i, PARTS: tl.constexpr):
    """Return the sum of one number of each part."""
    part = tl.arange(0, PARTS)
    at = given.sums_at + (row * given.parts + part) * SUMS + i
    return tl.sum(tl.load(at, mask=part < given.parts, other=0.0))


@triton.jit
def _every(given, row, i, other, PARTS: tl.constexpr):
    """Return a number per node of each part, (NODES, PARTS)."""
    node, part = tl.arange(0, NODES), tl.arange(0, PARTS)
    at = ((row * given.parts + part) * SUMS)[None, :] + (node + i)[:, None]
    return tl.load(given.sums_at + at, mask=(part < given.parts)[None, :], other=other)


@triton.jit
def _totals(given, row, i, PARTS: tl.constexpr):
    return tl.sum(_every(given, row, i, 0.0, PARTS), axis=1)


@triton.jit
def _tallies(given, row, PARTS: tl.constexpr):
    totals = ()
    for i in tl.static_range(4):
        totals += (_total(given, row, i, PARTS),)
    return totals


@triton.jit
def _spectrum(given, here, tallies, PARTS: tl.constexpr):
    """Return (`Nodes` with the spectrum, Pr(N = k))."""
    nodes = loops.grid(tallies[0], tallies[1], here.k, given.n, tl.arange(0, NODES))
    real, imag = loops.product(
        _every(given, here.row, PRODUCT, 1.0, PARTS),
        _every(given, here.row, PRODUCT + NODES, 0.0, PARTS),
    )
    return loops.spectrum(real, imag, nodes)

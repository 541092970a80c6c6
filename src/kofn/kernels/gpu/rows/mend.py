"""The threshold of a row that the usual search has left wrong, by bisection, on a GPU.

θ may be next to a score of 1e30 and T be 1, so it bisects as the tests' oracles do: in the
order of floats between all of them, then, between two neighbours, by the distance from one.
All numbers here are per row. one_program.py evaluates the sums.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kofn.kernels.gpu.rows.formulas import EPS, INF, has_two_tails, is_capped
from kofn.kernels.gpu.rows.search import is_flat
from kofn.kernels.gpu.rows.words import between_places, number_at, place_of

MOST = tl.constexpr(float((2.0 - 2.0**-23) * 2.0**127))
LINE = tl.constexpr(33)  # rounds until two neighbours are left of all floats, with the first
ENOUGH = tl.constexpr(33 + 32)  # the last round


@triton.jit
def is_doubtful(row, s):
    """Return whether a search that is over may have ended in a wrong place, and is to be checked.

    Searches with few rounds, whose θ is not far from 0, never ended in a wrong place.
    """
    near = tl.abs(s.hi) < row.temperature * 1e5
    return ~near | (s.rounds >= 8) | (row.k - row.top < 1e-2)


@triton.jit
def whole_line(hi):
    """Return (the ends of the bracket as places, the origin of distances, and their direction)."""
    zero = tl.zeros_like(hi)
    return place_of(zero - MOST), place_of(zero + INF), zero, zero + 1.0


@triton.jit
def judge(KIND: tl.constexpr, row, at, sums):
    """Return (whether θ is found, whether both tails have underflowed, whether the exponential
    link's choice is hard, ΣF − k), from the sums of a round. Round 0 is at the search's θ.
    """
    below, above, count = sums.below, sums.above, sums.count
    excess, wanted = (count - row.k) + below - above, row.k - row.top
    bar = tl.where(at == 0, 1e-6 * wanted, EPS * 0.25 * tl.minimum(wanted, below + above))
    is_met = tl.abs(excess) <= bar
    whole = count == row.k
    flat = whole & is_flat(below, above) & has_two_tails(KIND)
    hard = whole & (excess == 0.0) & (sums.weight == 0.0) & is_capped(KIND)
    return is_met | flat, flat, hard, excess


@triton.jit
def halve(at, excess, low, high, anchor, sign):
    """Return the bracket after the evaluation where `between_ends` said."""
    beyond = (excess > 0.0) == (sign > 0.0)
    middle = between_places(low, high)
    if at == LINE:
        half = _half(low, high)
        sign = tl.where(excess > 0.0, -1.0, 1.0)
        anchor = tl.where(excess > 0.0, number_at(high), number_at(low))
        low, high = low * 0, place_of(half)
    elif at > 0:
        low, high = tl.where(beyond, middle, low), tl.where(beyond, high, middle)
    return low, high, anchor, sign


@triton.jit
def between_ends(at, low, high, anchor, sign):
    """Return the next place to evaluate, in two floats."""
    hi, lo = anchor, sign * number_at(between_places(low, high))
    if at < LINE:
        hi, lo = lo, tl.zeros_like(lo)
    elif at == LINE:
        hi, lo = number_at(low), _half(low, high)
    return hi, lo


@triton.jit
def _half(low, high):
    """Return half of the distance between two neighbours."""
    return tl.minimum(number_at(high) * 0.5 - number_at(low) * 0.5, MOST * 0.25)

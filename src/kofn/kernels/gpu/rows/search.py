"""The threshold of a row on a GPU: what to do next, from the sums of one look at it.

The rules are those of threshold.py and search.py (log-odds Newton by Halley's step, residual split
at F > ½, plateau in logs, stop on the step, always end), in float32 alone. θ is always a pair of
floats, and so are the ends of its bracket, which are places that were looked at: nothing has to be
shifted when θ moves. Distances between them are a quarter of what they are, or those between
additive masks of ±finfo.max would overflow.

All numbers here are per row. one_program.py and many_programs.py add up what they need.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kofn.kernels import constants, contract
from kofn.kernels.gpu.rows.formulas import (
    EPS,
    INF,
    NAN,
    NORMAL,
    TINY,
    edge,
    has_two_tails,
    inverse,
    is_bounded,
    is_capped,
    quantile,
)

ROUNDS = tl.constexpr(128)  # looks before the search ends wherever it is
FAINT = tl.constexpr(constants.FAINT_SINGLE)
FLAT = tl.constexpr(2)  # sums say no more: there logs will
HARD = tl.constexpr(3)  # k entries are beyond the end of an exponential, the others out of reach
SPREAD = tl.constexpr(constants.SPREAD)
NEAR_TOP = tl.constexpr(constants.NEAR_TOP)
USUAL = tl.constexpr(constants.USUAL)
LAST = tl.constexpr(contract.LAST_SINGLE)
LAST_BY_LOGS = tl.constexpr(contract.LAST_BY_LOGS[0])
STEPS = tl.constexpr(contract.STEPS)


class Row(NamedTuple):
    """What a search may not change; the tensors are one number per row."""

    k: Any  # what to choose, scores of +inf included
    live: Any  # finite scores
    top: Any  # scores of +inf
    temperature: Any


class Search(NamedTuple):
    """Where a search is: θ and its bracket's ends, two floats each, and what decides on a step."""

    hi: Any
    lo: Any
    low_hi: Any
    low_lo: Any
    high_hi: Any
    high_lo: Any
    low_gap: Any  # log-odds at the ends, 0 and 1 until they have been looked at
    high_gap: Any
    width: Any  # of the bracket when it was last judged
    worth: Any  # of a log-odd, in units of T
    leap: Any  # how far to go beyond the first bracket's inside
    tries: Any  # steps that the bracket has decided
    looks: Any
    state: Any  # 1 while it goes on, 0 when over, else FLAT or HARD


@triton.jit
def two_sum(a, b):
    """a + b as a float and what its rounding leaves over, exactly."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@triton.jit
def step_to(hi, lo, move):
    """θ plus a move, in two floats."""
    return two_sum(hi, lo + move)


@triton.jit
def end_of(k, live, top, bad, temperature):
    """(whether a row needs no equation, the weight of its finite scores then, its θ; the weight
    that each score of +inf has in any case).
    """
    playing = live + top + bad > 0.0
    spoiled = playing & ((bad > 0.0) | (k != k) | (temperature != temperature))
    none = (k <= top) | (playing == 0)
    every = k >= top + live
    shared = tl.where(top > 0.0, k / tl.maximum(top, 1.0), 0.0)
    share = tl.where(k != k, k, tl.where(none, shared, 1.0))
    weight = tl.where(spoiled, NAN, tl.where(none, 0.0, 1.0))
    theta = tl.where(spoiled, NAN, tl.where(none, INF, -INF))
    return spoiled | none | every, weight, theta, share


@triton.jit
def mean_and_variance(pivot, number, total, square):
    """Of `number` scores, from the sums of d and d² with d = x − pivot."""
    mean = total / tl.maximum(number, 1.0)
    return pivot + mean, tl.maximum(square / tl.maximum(number, 1.0) - mean * mean, 0.0)


@triton.jit
def start(KIND: tl.constexpr, row, closed, usual, mean, variance, least, greatest, alpha):
    """Where to begin. `usual` counts the scores that mean and variance tell of.

    A sum of links at normal scores is close to one wide link, whose quantile is between those of
    the two; for the normal link it is exact.
    """
    # A row that needs no equation is given one that has an answer.
    live, usual = tl.where(closed, 1.0, row.live), tl.where(closed, 1.0, usual)
    k, t = tl.where(closed, 0.5, row.k - row.top), row.temperature
    left = live - k
    few = k / tl.maximum(usual, 1.0)
    many = 0.5 + 0.5 * (k / live)
    share = tl.minimum(few, many)
    rest = tl.where(few < many, (usual - k) / tl.maximum(usual, 1.0), 0.5 * (left / live))
    normal = quantile(NORMAL, share, rest, alpha)
    own = normal if KIND == NORMAL else quantile(KIND, share, rest, alpha) + edge(KIND, alpha)
    deviation = tl.sqrt(variance)
    far, own = normal * deviation, t * own
    away = tl.sqrt(far * far + own * own)
    away = tl.where(far + own > 0.0, away, -away)
    spread = tl.minimum(deviation / t, 1e15)
    worth = tl.sqrt((spread * spread + 2.56) / (2.56 + normal * normal))

    reach = t * quantile(KIND, k / live, left / live, alpha)
    slack = 1e-6 * (tl.abs(least) + tl.abs(greatest)) + 1e-3 * (t + tl.abs(reach))
    low_lo, high_lo = -reach - slack, slack - reach
    # In two floats: among scores of 1e9 one cannot tell θ from them.
    guess, rest = two_sum(mean, t * edge(KIND, alpha) - away)
    hi = tl.minimum(tl.maximum(guess, least + low_lo), greatest + high_lo)
    # More is wanted than there are usual scores: θ is among the masks, and they are alike.
    amid = (k > usual) & (usual < live)
    hidden = tl.maximum(live - usual, 1.0)
    among = t * quantile(KIND, (k - usual) / hidden, left / hidden, alpha)
    lo = tl.where(hi == guess, rest, 0.0)
    hi, lo = tl.where(amid, least, hi), tl.where(amid, -among, lo)
    zero = tl.zeros_like(hi)
    return Search(
        hi,
        lo,
        least,
        low_lo,
        greatest,
        high_lo,
        zero,
        zero + 1.0,
        zero + INF,
        worth,
        zero + 1.0,
        closed.to(tl.int32) * 0,
        closed.to(tl.int32) * 0,
        tl.where(closed, 0, 1),
    )


@triton.jit
def halley(k, live, total, rest, excess, weight, slope):
    """(log-odds of ΣF/n less those of k/n, the step in units of T that would close them).

    total and rest are ΣF and n − ΣF, which no cancellation has touched.
    """
    # Where ΣF is all there is, as far as its digits tell, no step follows from its slope.
    known = (weight > 1e-30) & (rest > 0.0)
    total, rest = tl.maximum(total, 1e-37), tl.maximum(rest, 1e-37)
    per_rest, per_k = inverse(rest), inverse(k)
    ratio = (excess * per_k) * (live * per_rest)
    # log(1 + r) by Padé's quotient, to 3e-4.
    gap = ratio * (30.0 + ratio * (21.0 + ratio)) / (30.0 + ratio * (36.0 + 9.0 * ratio))
    far = ~(tl.abs(ratio) < 0.5)
    if tl.max(far.to(tl.int32)) > 0:
        odds = (total * per_k) * ((live - k) * per_rest)
        gap = tl.where(far, tl.log(tl.minimum(tl.maximum(odds, 1e-37), 1e37)), gap)
    per_weight = inverse(tl.maximum(weight, 1e-30))
    newton = gap * ((total * per_weight) * (rest * inverse(live)))
    bend = slope * per_weight + weight * (per_rest - inverse(total))
    step = newton * inverse(tl.minimum(tl.maximum(1.0 - newton * bend * 0.5, 0.5), 2.0))
    # Without a slope only the side is known.
    far = tl.where(excess > 0.0, INF, -INF)
    return gap, tl.where(excess == 0.0, 0.0, tl.where(known, step, far))


@triton.constexpr_function
def last_step(kind):
    """The step after which no further look is needed: its cube, or square at a kink, is lost."""
    return LAST.value[kind]


@triton.constexpr_function
def steps_beyond(kind):
    """How many steps go beyond the end of a link's support, from close by."""
    return STEPS.value[kind]


@triton.jit
def is_flat(below, above):
    """Whether the tails of a plateau are so small that underflow may have taken from them."""
    return below + above < tl.where(tl.minimum(below, above) > FAINT, 2.0, 1e3) * FAINT


@triton.jit
def advance(KIND: tl.constexpr, row, s, below, above, weight, count, slope):
    """A search after one more look.

    below and above are Σ F and Σ (1 − F) of the entries up to ½ and above it, weight is ΣF′, count
    #{F > ½}, slope ΣF″.
    """
    active, state, leap = s.state == 1, s.state, s.leap
    wanted, quarter = row.k - row.top, 0.25 * row.temperature
    excess = (count - row.k) + below - above
    total = (count - row.top - above) + below
    rest = ((row.live + row.top - count) - below) + above
    gap, step = halley(wanted, row.live, total, rest, excess, weight, slope)
    enough = tl.zeros_like(step) + last_step(KIND)
    if has_two_tails(KIND):
        # ΣF − k is flat here, but the two tails still balance on a logarithmic scale.
        plateau = active & (count == row.k) & (below + above < 1.0)
        if tl.max(plateau.to(tl.int32)) > 0:
            least = tl.minimum(below, above)
            ratio = tl.maximum(below, FAINT) / tl.maximum(above, FAINT)
            by_logs = tl.log(ratio) * ((below + above) / tl.maximum(2.0 * weight, TINY))
            step = tl.where(plateau, by_logs, step)
            enough = tl.where(plateau, tl.where(least > 0.0, LAST_BY_LOGS, 0.0), enough)
            leap = tl.where(plateau, INF, leap)
            state = tl.where(plateau & is_flat(below, above), FLAT, state)
        stay = state == FLAT
    else:
        stay = excess == 0.0
        if is_capped(KIND):
            hard = active & stay & (weight == 0.0) & (count == row.k)
            state = tl.where(hard, HARD, state)
    tolerance = tl.maximum(tl.minimum(weight, wanted), 4.0 * (below + above)) * EPS
    near = (tl.abs(step) <= enough) | (tl.abs(step) * tl.maximum(weight, TINY) <= tolerance)

    raised, lowered = active & (excess > 0.0), active & ~(excess > 0.0)
    low_hi, low_lo = tl.where(raised, s.hi, s.low_hi), tl.where(raised, s.lo, s.low_lo)
    high_hi, high_lo = tl.where(lowered, s.hi, s.high_hi), tl.where(lowered, s.lo, s.high_lo)
    low_gap = tl.where(raised, tl.maximum(gap, 1e-30), s.low_gap)
    high_gap = tl.where(lowered, gap, s.high_gap)
    low = (low_hi * 0.25 - s.hi * 0.25) + (low_lo * 0.25 - s.lo * 0.25)
    high = (high_hi * 0.25 - s.hi * 0.25) + (high_lo * 0.25 - s.lo * 0.25)
    span = high - low
    if is_bounded(KIND):  # as in search.py: k entries have all their weight and others nearly none
        done = near & (above == 0.0) & (count == row.k)
        step = tl.where(done, step * steps_beyond(KIND) + 2 * EPS, step)
    target = step * quarter

    # Most steps are taken as they are. Others are decided by the bracket.
    both = (low_gap > 0.0) & (high_gap <= 0.0)
    judged = active & both & (s.looks % 3 == 2)
    beyond = ~both & ~(tl.abs(step) <= tl.maximum(3.0 * tl.abs(gap) * s.worth, leap))
    inside = (target > low) & (target < high)
    odd = active & ~(near | stay) & (judged | beyond | ~inside)
    width, worth, tries = s.width, s.worth, s.tries
    if tl.max(odd.to(tl.int32)) > 0:
        other, tries = _by_bracket(
            s.hi,
            target,
            low,
            high,
            both,
            judged & (span > width * 0.5) & (tl.abs(step) > 0.1),
            low_gap,
            high_gap,
            quarter,
            odd,
            tries,
        )
        # A step beyond what the spread of the scores suggests; go past the root to hold it.
        stride = tl.maximum(1.5 * tl.abs(gap) * worth, leap) * quarter
        other = tl.where(beyond, tl.where(excess > 0.0, stride, -stride), other)
        other = tl.where((other > low) & (other < high), other, low + span * 0.5)
        target = tl.where(odd, other, target)
        width = tl.where(judged, span, width)
        worth = tl.where(odd & beyond, 2.0 * worth, worth)
        leap = tl.where(odd & beyond, leap * tl.maximum(leap, 8.0), leap)

    stuck = (tl.abs(target) <= quarter * (EPS * 1e-3)) | ~(span > quarter * (EPS * 0.5))
    # After many looks: all that is between the ends is rounding.
    rounding = (weight > 0.0) & (span * weight <= tolerance * row.temperature)
    stuck = stuck | (both & rounding & (span <= quarter * (EPS * 8.0)) & (s.looks >= 16))
    move = tl.minimum(tl.maximum(target, -8e37), 8e37) * 4.0
    hi, lo = step_to(s.hi, s.lo, move)
    go, over = active & ~stay, near | stay | stuck | (s.looks + 1 >= ROUNDS)
    return Search(
        tl.where(go, hi, s.hi),
        tl.where(go, lo, s.lo),
        low_hi,
        low_lo,
        high_hi,
        high_lo,
        low_gap,
        high_gap,
        width,
        worth,
        leap,
        tries,
        s.looks + active.to(tl.int32),
        tl.where((state == 1) & over, 0, state),
    )


@triton.jit
def _by_bracket(theta, target, low, high, both, slow, low_gap, high_gap, quarter, odd, tries):
    """A step that the bracket allows, where both its ends are known, and how many it has decided.

    Twice in three looks the bracket may do as it likes; then it must have halved, or is `slow`.
    """
    span = high - low
    # A little outside the bracket is as good as just inside.
    under = both & (target <= low) & (target > low - 0.1 * span)
    over = both & (target >= high) & (target < high + 0.1 * span)
    target = tl.where(under, low + 0.01 * span, tl.where(over, high - 0.01 * span, target))
    # First where the straight line between the log-odds at the bracket's ends crosses; then in
    # turn by exponents from either end, where masks of −1e9 have stretched it, and in the middle.
    share = tl.minimum(tl.maximum(low_gap / (low_gap - high_gap), 0.02), 0.98)
    turn = tl.where(tries < 24, tries % 3, 0)
    deep = tl.sqrt(span) * tl.sqrt(quarter)
    middle = _middle(theta * 0.25, low, high, quarter)
    halved = (turn == 0) | (span < 16.0 * quarter)
    by_turn = tl.where(halved, middle, tl.where(turn == 1, high - deep, low + deep))
    fall = odd & both & (slow | ~((target > low) & (target < high)))
    target = tl.where(fall, tl.where(tries < 3, low + span * share, by_turn), target)
    return target, tl.where(fall, tries + 1, tries)


@triton.jit
def _middle(theta, low, high, least):
    """The middle of a bracket around θ, of the exponents where its ends differ in them."""
    left, right = theta + low, theta + high
    larger = tl.maximum(tl.abs(left), tl.abs(right))
    smaller = tl.maximum(tl.minimum(tl.abs(left), tl.abs(right)), least)
    geometric = tl.sqrt(larger) * tl.sqrt(smaller)
    geometric = tl.where(left + right > 0.0, geometric, -geometric)
    by_exponent = tl.where((left < 0.0) & (right > 0.0), 0.0, geometric) - theta
    use = (larger > 4.0 * smaller) & (by_exponent > low) & (by_exponent < high)
    return tl.where(use, by_exponent, low + (high - low) * 0.5)


@triton.jit
def between(left, right):
    """The middle of two scores, in two floats."""
    return two_sum(left * 0.5, right * 0.5)


@triton.jit
def normal_balance(shift, gap, below, above, below_slope, above_slope):
    """The next shift of θ from the middle of a plateau's edges, by Newton on the log of its tails.

    The edges are `gap` temperatures apart. below = Σ Mills(u + a)·e^{−a(2u+a)/2} over the entries
    a temperatures below the lower edge, u temperatures from θ; below_slope the same without Mills'
    ratio, the slope; above likewise.
    """
    ratio = tl.log(below / above) - shift * gap
    shift += ratio / (below_slope / below + above_slope / above)
    return tl.minimum(tl.maximum(shift, -0.4 * gap), 0.4 * gap)

"""The search for the threshold of a row on a GPU: each step follows from one evaluation's sums.

The rules are as in solver/threshold.py and cpu/rows/search.py (Newton on the log-odds with
Halley's correction, residual split at F > ½, plateau in logs, stop on the step, always end), in
float32 alone. θ is always a pair of floats, and so are the ends of its bracket, which are earlier
values of θ: nothing has to be shifted when θ moves. Distances between them are held as a quarter,
or those between additive masks of ±finfo.max would overflow.

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
    LINEAR,
    NORMAL,
    TINY,
    edge,
    has_two_tails,
    is_bounded,
    is_capped,
    quantile,
)
from kofn.kernels.gpu.rows.own import Own
from kofn.kernels.gpu.rows.words import inverse

ROUNDS = tl.constexpr(128)  # evaluations before the search ends wherever it is
FAINT = tl.constexpr(constants.FAINT_SINGLE)
FLAT = tl.constexpr(2)  # both tails are rounding: the search goes on by logarithms
HARD = tl.constexpr(3)  # k entries are beyond the end of an exponential, the others out of reach
SPREAD = tl.constexpr(constants.SPREAD)
NEAR_TOP = tl.constexpr(constants.NEAR_TOP)
USUAL = tl.constexpr(constants.USUAL)
LAST = tl.constexpr(contract.LAST_SINGLE)
LAST_BY_LOGS = tl.constexpr(contract.LAST_BY_LOGS[0])
STEPS = tl.constexpr(contract.STEPS)


class Row(NamedTuple):
    """The constants of a search; the tensors are one number per row."""

    k: Any  # what to choose, scores of +inf included
    live: Any  # finite scores
    top: Any  # scores of +inf
    temperature: Any


class Statistics(NamedTuple):
    """The statistics that a search starts from, one number per row."""

    live: Any  # finite scores
    top: Any  # scores of +inf
    bad: Any  # NaN
    usual: Any  # the scores that mean and variance describe, without additive masks such as −1e9
    mean: Any
    variance: Any
    least: Any
    greatest: Any


class End(NamedTuple):
    """The answer of a row that needs no equation."""

    closed: Any  # whether the row is such a one
    weight: Any  # of its finite scores
    theta: Any
    share: Any  # the weight of each score of +inf, in other rows too


class Search(NamedTuple):
    """The state of a search: θ and its bracket's ends, two floats each, and what a step needs."""

    hi: Any
    lo: Any
    low_hi: Any
    low_lo: Any
    high_hi: Any
    high_lo: Any
    low_odds: Any  # log-odds at the ends, 0 and 1 until they are known
    high_odds: Any
    width: Any  # of the bracket when it was last compared
    worth: Any  # how far θ moves per unit of log-odds, in units of T
    leap: Any  # the longest step while an end is unknown
    tries: Any  # steps that the bracket has decided
    rounds: Any  # evaluations
    state: Any  # 1 while the search goes on, 0 when it is over, else FLAT or HARD


class Bracket(NamedTuple):
    """The fields of a search that make its bracket."""

    low_hi: Any
    low_lo: Any
    high_hi: Any
    high_lo: Any
    low_odds: Any
    high_odds: Any


class Ends(NamedTuple):
    """A bracket's ends, counted from θ, a quarter of each; and whether both have been evaluated."""

    low: Any
    high: Any
    both: Any


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
    """Return the `End` of each row."""
    playing = live + top + bad > 0.0
    has_nan = playing & ((bad > 0.0) | (k != k) | (temperature != temperature))
    none = (k <= top) | (playing == 0)
    every = k >= top + live
    shared = tl.where(top > 0.0, k / tl.maximum(top, 1.0), 0.0)
    share = tl.where(k != k, k, tl.where(none, shared, 1.0))
    # Triton compares globals with what they were, and no NaN is equal to itself: so it is none.
    nan = float("nan")
    weight = tl.where(has_nan, nan, tl.where(none, 0.0, 1.0))
    theta = tl.where(has_nan, nan, tl.where(none, INF, -INF))
    return End(has_nan | none | every, weight, theta, share)


@triton.jit
def mean_and_variance(pivot, number, total, square):
    """Return mean and variance of `number` scores, from the sums of d and d², d = x − pivot."""
    mean = total / tl.maximum(number, 1.0)
    return pivot + mean, tl.maximum(square / tl.maximum(number, 1.0) - mean * mean, 0.0)


@triton.jit
def start(KIND: tl.constexpr, row, seen, closed, alpha):
    """Return the search before its first evaluation.

    A sum of links at normal scores is close to one wide link, whose quantile is between the two
    quantiles; for the normal link it is exact.
    """
    # A row that needs no equation is given one that has an answer.
    live, usual = tl.where(closed, 1.0, row.live), tl.where(closed, 1.0, seen.usual)
    least, greatest = seen.least, seen.greatest
    k, t = tl.where(closed, 0.5, row.k - row.top), row.temperature
    left = live - k
    few = k / tl.maximum(usual, 1.0)
    many = 0.5 + 0.5 * (k / live)
    share = tl.minimum(few, many)
    rest = tl.where(few < many, (usual - k) / tl.maximum(usual, 1.0), 0.5 * (left / live))
    normal = quantile(NORMAL, share, rest, alpha)
    own = normal if KIND == NORMAL else quantile(KIND, share, rest, alpha) + edge(KIND, alpha)
    deviation = tl.sqrt(seen.variance)
    far, own = normal * deviation, t * own
    depth = tl.sqrt(far * far + own * own)
    depth = tl.where(far + own > 0.0, depth, -depth)
    spread = tl.minimum(deviation / t, 1e15)
    worth = tl.sqrt((spread * spread + 2.56) / (2.56 + normal * normal))

    reach = t * quantile(KIND, k / live, left / live, alpha)
    slack = 1e-6 * (tl.abs(least) + tl.abs(greatest)) + 1e-3 * (t + tl.abs(reach))
    low_lo, high_lo = -reach - slack, slack - reach
    # In two floats: among scores of 1e9 one float does not tell θ from its neighbours.
    guess, rest = two_sum(seen.mean, t * edge(KIND, alpha) - depth)
    hi = tl.minimum(tl.maximum(guess, least + low_lo), greatest + high_lo)
    # More is wanted than there are usual scores: θ is among the masks, and they are alike.
    amid = (k > usual) & (usual < live)
    hidden = tl.maximum(live - usual, 1.0)
    among = t * quantile(KIND, (k - usual) / hidden, left / hidden, alpha)
    lo = tl.where(hi == guess, rest, 0.0)
    hi, lo = tl.where(amid, least, hi), tl.where(amid, -among, lo)
    zero, none = tl.zeros_like(hi), closed.to(tl.int32) * 0
    bracket = Bracket(least, low_lo, greatest, high_lo, zero, zero + 1.0)
    state = tl.where(closed, 0, 1)
    return Search(hi, lo, *bracket, zero + INF, worth, zero + 1.0, none, none, state)


@triton.jit
def halley(k, live, total, rest, excess, weight, slope):
    """Return (log-odds of ΣF/n less log-odds of k/n, the step in units of T that closes them).

    total and rest are ΣF and n − ΣF, which no cancellation has touched.
    """
    # Where ΣF is all there is, as far as its digits tell, no step follows from its slope.
    known = (weight > 1e-30) & (rest > 0.0)
    total, rest = tl.maximum(total, 1e-37), tl.maximum(rest, 1e-37)
    per_rest, per_k = inverse(rest), inverse(k)
    ratio = (excess * per_k) * (live * per_rest)
    # log(1 + r) by Padé's quotient, to 3e-4.
    log_odds = ratio * (30.0 + ratio * (21.0 + ratio)) / (30.0 + ratio * (36.0 + 9.0 * ratio))
    far = ~(tl.abs(ratio) < 0.5)
    if tl.max(far.to(tl.int32)) > 0:
        odds = (total * per_k) * ((live - k) * per_rest)
        log_odds = tl.where(far, tl.log(tl.minimum(tl.maximum(odds, 1e-37), 1e37)), log_odds)
    per_weight = inverse(tl.maximum(weight, 1e-30))
    newton = log_odds * ((total * per_weight) * (rest * inverse(live)))
    bend = slope * per_weight + weight * (per_rest - inverse(total))
    step = newton * inverse(tl.minimum(tl.maximum(1.0 - newton * bend * 0.5, 0.5), 2.0))
    # Without a slope only the side is known.
    far = tl.where(excess > 0.0, INF, -INF)
    return log_odds, tl.where(excess == 0.0, 0.0, tl.where(known, step, far))


@triton.constexpr_function
def last_step(kind):
    """Return the longest last step: its cube, or its square at a kink, is below rounding."""
    return kind.last if isinstance(kind, Own) else LAST.value[kind]


@triton.constexpr_function
def steps_beyond(kind):
    """Return the number of steps that go beyond the end of a link's support, from close by."""
    return kind.traits.kind.steps if isinstance(kind, Own) else STEPS.value[kind]


@triton.jit
def is_flat(below, above):
    """Return whether a plateau's tails are so small that underflow may have taken from them."""
    return below + above < tl.where(tl.minimum(below, above) > FAINT, 2.0, 1e3) * FAINT


@triton.jit
def advance(KIND: tl.constexpr, row, s, sums):
    """Return the search after one more evaluation."""
    active, quarter = s.state == 1, 0.25 * row.temperature
    excess = (sums.count - row.k) + sums.below - sums.above
    log_odds, step, enough, leap, state = _step(KIND, row, s.leap, s.state, active, sums, excess)
    stay = state == FLAT if has_two_tails(KIND) else excess == 0.0
    tails = sums.below + sums.above
    tolerance = tl.maximum(tl.minimum(sums.weight, row.k - row.top), 4.0 * tails) * EPS
    slope, least = _slope(KIND, row, step, sums)
    near = (tl.abs(step) <= enough) | (tl.abs(step) * slope <= tolerance)
    if is_bounded(KIND):  # as in search.py: k entries have all their weight and others nearly none
        done = near & (sums.above == 0.0) & (sums.count == row.k)
        step = tl.where(done, step * steps_beyond(KIND) + 2 * EPS, step)

    bracket = _narrowed(s, active, excess, log_odds)
    ends = _ends(bracket, s.hi, s.lo)
    span, free = ends.high - ends.low, active & ~(near | stay)
    target, width, worth, leap, tries = _held(
        s, bracket, ends, step, log_odds, excess, leap, active, free, quarter
    )
    stuck = (tl.abs(target) <= quarter * (EPS * 1e-3)) | ~(span > quarter * least)
    # After many evaluations: all that is between the ends is rounding.
    rounding = (sums.weight > 0.0) & (span * slope <= tolerance * row.temperature)
    stuck = stuck | (ends.both & rounding & (span <= quarter * (EPS * 8.0)) & (s.rounds >= 16))
    move = tl.minimum(tl.maximum(target, -8e37), 8e37) * 4.0
    hi, lo = step_to(s.hi, s.lo, move)
    go, over = active & ~stay, near | stay | stuck | (s.rounds + 1 >= ROUNDS)
    hi, lo = tl.where(go, hi, s.hi), tl.where(go, lo, s.lo)
    rounds, state = s.rounds + active.to(tl.int32), tl.where((state == 1) & over, 0, state)
    return Search(hi, lo, *bracket, width, worth, leap, tries, rounds, state)


@triton.jit
def _slope(KIND: tl.constexpr, row, step, sums):
    """Return (the most that ΣF may change with θ; the width of a bracket that is rounding, in T).

    As search.py's `most_change`: many scores may be next to the end of the linear link's support.
    """
    slope, least = tl.maximum(sums.weight, TINY), tl.zeros_like(step) + EPS * 0.5
    if KIND == LINEAR:
        wanted = row.k - row.top
        others = row.live - wanted
        enter = (step < 0.0) & (sums.below == 0.0)
        slope = tl.where(enter, tl.maximum(slope, others), slope)
        least *= tl.minimum(wanted / tl.maximum(others, TINY), 1.0)
    return slope, least


@triton.jit
def _step(KIND: tl.constexpr, row, leap, state, active, sums, excess):
    """Return (log-odds to close, the step that closes them, a last step's size; `leap`, `state`).

    Steps are in units of T.
    """
    below, above, weight, count = sums.below, sums.above, sums.weight, sums.count
    total = (count - row.top - above) + below
    rest = ((row.live + row.top - count) - below) + above
    log_odds, step = halley(row.k - row.top, row.live, total, rest, excess, weight, sums.slope)
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
    elif is_capped(KIND):
        hard = active & (excess == 0.0) & (weight == 0.0) & (count == row.k)
        state = tl.where(hard, HARD, state)
    return log_odds, step, enough, leap, state


@triton.jit
def _narrowed(s, active, excess, log_odds):
    """Return the bracket with θ as one of its ends."""
    raised, lowered = active & (excess > 0.0), active & ~(excess > 0.0)
    low_hi, low_lo = tl.where(raised, s.hi, s.low_hi), tl.where(raised, s.lo, s.low_lo)
    high_hi, high_lo = tl.where(lowered, s.hi, s.high_hi), tl.where(lowered, s.lo, s.high_lo)
    low_odds = tl.where(raised, tl.maximum(log_odds, 1e-30), s.low_odds)
    high_odds = tl.where(lowered, log_odds, s.high_odds)
    return Bracket(low_hi, low_lo, high_hi, high_lo, low_odds, high_odds)


@triton.jit
def _ends(b, hi, lo):
    low = (b.low_hi * 0.25 - hi * 0.25) + (b.low_lo * 0.25 - lo * 0.25)
    high = (b.high_hi * 0.25 - hi * 0.25) + (b.high_lo * 0.25 - lo * 0.25)
    return Ends(low, high, (b.low_odds > 0.0) & (b.high_odds <= 0.0))


@triton.jit
def _held(s, bracket, ends, step, log_odds, excess, leap, active, free, quarter):
    """Return (a quarter of the move, and the width, worth, leap and tries of a search after it).

    Most steps are taken as they are. Of those that are `free` some are decided by the bracket.
    """
    low, high, both, target = ends.low, ends.high, ends.both, step * quarter
    span, width, worth, tries = high - low, s.width, s.worth, s.tries
    judged = active & both & (s.rounds % 3 == 2)
    beyond = ~both & ~(tl.abs(step) <= tl.maximum(3.0 * tl.abs(log_odds) * worth, leap))
    special = free & (judged | beyond | ~((target > low) & (target < high)))
    if tl.max(special.to(tl.int32)) > 0:
        # The bracket decides two steps in three; before the third it must have halved.
        slow = judged & (span > width * 0.5) & (tl.abs(step) > 0.1)
        other, tries = _by_bracket(s.hi, target, bracket, ends, slow, special, quarter, tries)
        # A step beyond what the spread of the scores suggests; go past the root to hold it.
        stride = tl.maximum(1.5 * tl.abs(log_odds) * worth, leap) * quarter
        other = tl.where(beyond, tl.where(excess > 0.0, stride, -stride), other)
        other = tl.where((other > low) & (other < high), other, low + span * 0.5)
        target = tl.where(special, other, target)
        width = tl.where(judged, span, width)
        worth = tl.where(special & beyond, 2.0 * worth, worth)
        leap = tl.where(special & beyond, leap * tl.maximum(leap, 8.0), leap)
    return target, width, worth, leap, tries


@triton.jit
def _by_bracket(theta, target, bracket, ends, slow, special, quarter, tries):
    """Return (a step inside the bracket where both its ends are known, how many it has decided)."""
    low, high, both = ends.low, ends.high, ends.both
    low_odds, high_odds = bracket.low_odds, bracket.high_odds
    span = high - low
    # A little outside the bracket is as good as just inside.
    under = both & (target <= low) & (target > low - 0.1 * span)
    over = both & (target >= high) & (target < high + 0.1 * span)
    target = tl.where(under, low + 0.01 * span, tl.where(over, high - 0.01 * span, target))
    # First where the straight line between the log-odds at the bracket's ends crosses; then in
    # turn by exponents from either end, where masks of −1e9 have stretched it, and in the middle.
    share = tl.minimum(tl.maximum(low_odds / (low_odds - high_odds), 0.02), 0.98)
    turn = tl.where(tries < 24, tries % 3, 0)
    deep = tl.sqrt(span) * tl.sqrt(quarter)
    middle = _middle(theta * 0.25, low, high, quarter)
    halved = (turn == 0) | (span < 16.0 * quarter)
    by_turn = tl.where(halved, middle, tl.where(turn == 1, high - deep, low + deep))
    fall = special & both & (slow | ~((target > low) & (target < high)))
    target = tl.where(fall, tl.where(tries < 3, low + span * share, by_turn), target)
    return target, tl.where(fall, tries + 1, tries)


@triton.jit
def _middle(theta, low, high, least):
    """Return the middle of a bracket around θ, of the exponents where its ends differ in them."""
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
    """Return the middle of two scores, in two floats."""
    return two_sum(left * 0.5, right * 0.5)

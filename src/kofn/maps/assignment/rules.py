"""What becomes of each matrix in a pass of the search for prices, by a few numbers of it.

No number of an array is read here, so that compiled code can be made of it: `on_device.py`.
(Tests: test_maps_assignment_search.py.)
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kofn.arrays.kinds import Array
from kofn.maps.assignment.sight import Matrix

COLD = 60
"""Passes over the matrix at the temperature given, from prices of 0; most need four to ten."""
WIDE = 1e4
"""Where scores are spread over more temperatures, few of these passes are tried."""
COOLING = 4.0
"""Where these do not suffice, by what the temperature falls from stage to stage, from the spread of
the scores to the one given. Each stage starts at the prices of the one before."""
HOTTER = 1e16
"""By what it is raised where it fails at the spread of the scores: links with infinite slopes. The
scores hardly count there, so that a few passes meet the margins."""
QUICK = 5
"""Passes below which a stage is followed by a fall of the temperature by the square of the last."""
STAGE = 40
"""Passes at each of these temperatures."""
CLOSEST = 1.2
"""A stage that fails is tried again nearer to the last that did not, down to this ratio."""
STALLED = 8
"""Passes without progress after which an error that is small is taken."""

SHORTEST = 0.2
"""A shorter part of Newton's step makes less progress than a threshold of the columns alone."""
PATIENT = 10
"""Passes after which the step is shortened to where the convex function is least along it."""
LEAST = 1e-9
"""The least width of a bracket of this part, as a part of it."""


class State(NamedTuple):
    """What is kept of each matrix from pass to pass."""

    base: Array  # prices
    step: Array  # from there
    length: Array  # the part of the step that is tried
    gain: Array  # R·step at `base`
    damping: Array
    retried: Array
    low: Array  # where it is shortened step by step, a bracket of the part
    high: Array
    best: Array  # the least error at this temperature
    stalled: Array  # passes since it fell by half
    passes: Array  # at this temperature
    t: Array  # the temperature of this stage
    hot: Array  # the last at which the sums were met, 0 if none
    kept: Array  # the prices there
    ratio: Array  # by what it falls next
    active: Array
    met: Array


class Task(NamedTuple):
    """What is the same in all passes."""

    xp: Any  # the namespace of the arrays
    matrix: Matrix
    t: Array  # the temperature given
    room: Any  # what the error of a column is relative to
    spread: Array  # of the scores
    when: Any  # only_if of flow.py, for these arrays
    late: Any  # the same for what few passes need
    zeros: Any  # zeros_of of flow.py

    def pick(self, otherwise: Array, *cases: tuple[Array, Any]) -> Array:
        """Return the value of the last case whose flag of a matrix is set, or else `otherwise`."""
        for flags, value in cases:
            flags = flags[..., None] if otherwise.ndim > flags.ndim else flags
            otherwise = self.xp.where(flags, value, otherwise)
        return otherwise


class Look(NamedTuple):
    """What a pass tells of the prices that are tried."""

    beta: Array  # these prices
    of: Any  # what the matrix keeps of them
    excess: Any  # R: what columns have in excess
    error: Array  # the greatest of it, in parts of the columns' room
    rest: Array  # R·step


class Verdict(NamedTuple):
    """What becomes of each matrix.

    ============  ====================================================  =========================
    flag          set where                                             what follows
    ============  ====================================================  =========================
    `good`        the step does not go far beyond the least value       the step is accepted
    `careful`     passes have been many, or T is not the one given      the part of a step is sought
    `far`         a stage begins with an error above 1                  `by_columns`, from there
    `stay`        the step was too long, and part of it may do          a shorter part of it
    `by_columns`  `far`, or no part of the step does                    thresholds of the columns
    `moving`      the step is accepted                                  Newton's next step
    `met`         the error is small, or as small as rounding allows    kept; the end at the T given
    `cold`        no other temperature than the one given was tried
    `cooler`      met, at a temperature above the one given             a lower temperature
    `nearer`      not met, but at a temperature above this one          one between the two
    `changed`     `cooler`, `nearer`, or not met at the first           another temperature
    `stops`       not met, and no other temperature is left             the end, with what was kept
    ============  ====================================================  =========================
    """

    good: Array
    careful: Array
    far: Array
    stay: Array
    by_columns: Array
    moving: Array
    met: Array
    cold: Array
    cooler: Array
    nearer: Array
    changed: Array
    stops: Array
    length: Array  # what the state has next, at the same temperature
    low: Array
    high: Array
    best: Array
    stalled: Array
    passes: Array
    least: Array  # the temperature that floats resolve


def begun(xp: Any, c: Array, t: Array) -> State:
    """Return the state before the first pass."""
    zero = xp.zeros_like(t)
    largest = float(xp.finfo(c.dtype).max)
    none = xp.zeros_like(t, dtype=xp.bool)
    nothing = xp.zeros_like(c)
    return State(
        *(nothing, nothing, zero, zero, zero + 1, none, zero, zero + 1),
        *(zero + largest, zero, zero, t + 0, zero, nothing, zero + COOLING, ~none, none),
    )


def ended(xp: Any, s: State) -> tuple[Array, Array, Array]:
    """Return the answer of `searched` after the last pass."""
    late = s.active & (s.hot > 0)
    base = xp.where(late[..., None], s.kept, s.base)
    # As they were tried: where prices are large, to centre them again would round them.
    return base, xp.where(late, s.hot, s.t), s.met | late


def verdict_of(task: Task, s: State, seen: Look) -> Verdict:
    xp, matrix, t, error = task.xp, task.matrix, s.t, seen.error
    where = xp.where
    tolerance, most = (1e-12, 1e-4) if float(xp.finfo(t.dtype).eps) < 1e-12 else (5e-7, 2e-3)
    good, retry, careful, part, low, high = _shortened(task, s, seen)
    far = (s.passes == 0) & (error > 1)
    alone = (~good & ~retry) | far
    # Next to the root, rounding errors decide the sign of R·step.
    counts = good | (error < 1e5 * tolerance)
    stalled = where(counts & ~(error < s.best / 2), s.stalled + 1, 0.0)
    passes, cold = s.passes + 1, (s.hot == 0) & (t == task.t)
    enough = where(task.spread > WIDE * t, PATIENT, COLD)
    spent = passes >= where(cold, enough, STAGE)
    # Prices are floats: at a temperature far below them, the sums cannot be met any closer.
    slow = s.active & (spent | (stalled >= 2) | (t > task.t))
    rounding = task.late(slow, lambda: matrix.rounding(seen.of, seen.beta, t), xp.zeros_like(t))
    close = (error < 1e-4) & spent & ~cold
    for limit, least in ((4, 1), (1e3, 3), (1e5, STALLED)):
        close = close | (error < limit * tolerance) & (stalled >= least)
    close = close | (error < xp.clip(rounding, 0.0, 1e-4)) & (stalled >= 2)
    met, unknown = (error < tolerance) | (counts & close), xp.isnan(error)
    lost = ~met & (spent | unknown)
    least = xp.maximum(task.t, t * rounding / most)
    # A stage that fails is followed by the hottest, or by one between it and the last that did not.
    cooler = s.active & met & (t > task.t) & ((t > least * CLOSEST) | (least == task.t))
    nearer = lost & (s.hot > 0) & (s.hot > t * CLOSEST) & ~(rounding > most)
    changed = cooler | (s.active & lost & ~unknown & ((s.hot == 0) | nearer))
    stops, goes_on = lost & (s.hot > 0) & ~changed, s.active & ~(met | lost)
    what_next = goes_on & retry, goes_on & alone, goes_on & good & ~alone
    flags = far, *what_next, met, cold, cooler, nearer, changed, stops
    best = where(counts & (error < s.best), error, s.best)
    return Verdict(good, careful, *flags, part, low, high, best, stalled, passes, least)


def _shortened(task: Task, s: State, seen: Look) -> tuple[Array, ...]:
    """Return `good`, whether a part of the step is tried, `careful`, and the part, low and high."""
    xp, where, gain, rest = task.xp, task.xp.where, s.gain, seen.rest
    # R·step falls along the step, to 0 where the convex function is least.
    good = ~(rest < -gain / 2)
    shorter = s.length * xp.clip(gain / where(good, 1.0, gain - rest), 0.1, 0.5)
    careful = (s.passes >= PATIENT) | (s.t > task.t) | (s.hot > 0)
    retry = ~good & ~s.retried & (shorter > SHORTEST)

    def bracketed() -> Any:
        """Narrow a bracket of the part of the step at which R·step is 0."""
        short = good & (s.high < 1) & (rest > 0.9 * gain)
        high, low = where(good, s.high, s.length), where(short, s.length, s.low)
        curved = task.matrix.curvature(seen.of, s.step) / s.t
        newton = s.length + rest / where(curved > 0, curved, 1.0)
        inside = (curved > 0) & (newton > low) & (newton < high) & (s.passes % 2 == 0)
        part = where(inside, newton, low + (high - low) / 2)
        again = (~good | short) & (high - low > LEAST * high)
        pairs = (again, retry), (part, shorter), (low, s.low), (high, s.high)
        return tuple(where(careful, *pair) for pair in pairs)

    wanted = s.active & careful & (~good | (s.high < 1))
    plain = retry & ~careful, shorter, s.low, s.high
    retry, *part = task.late(wanted, bracketed, plain)
    return good & ~retry, retry, careful, *part


def decided(
    xp: Any, matrix: Any, s: State, t: Array, spread: Array, seen: Look
) -> tuple[State, Verdict]:
    """Return the state after a pass in which steps, and prices by columns, are yet to be found."""
    task = Task(xp, matrix, t, None, spread, _always, _always, xp.zeros_like)
    verdict, zero = verdict_of(task, s, seen), xp.zeros_like(s.t)
    damping = damping_of(task, s, seen, verdict)
    moved = going_on(s, seen, verdict, damping, s.step, s.gain, zero)
    return replaced(task, s, seen, verdict, moved), verdict


def _always(_: Array, function: Any, __: Any) -> Any:
    return function()


def going_on(
    s: State, seen: Look, verdict: Verdict, damping: Array, step: Array, gain: Array, zero: Array
) -> State:
    """Return the state of matrices that take this step."""
    return s._replace(
        base=seen.beta,
        step=step,
        length=zero + 1,
        gain=gain,
        damping=damping,
        retried=verdict.stay,
        low=zero,
        high=zero + 1,
        best=verdict.best,
        stalled=verdict.stalled,
        passes=verdict.passes,
    )


def replaced(task: Task, s: State, seen: Look, verdict: Verdict, moved: State) -> State:
    """Return the state after a pass in which some matrices do not take Newton's step."""
    xp, zero, pick = task.xp, moved.low, task.pick
    _, _, far, stay, by_columns, moving, met, _, cooler, _, changed, stops, *_ = verdict
    kept, idle = xp.where(met[..., None], seen.beta, s.kept), ~s.active
    same = s.t, kept, s.ratio
    t, ahead, ratio = task.late(changed, lambda: _stage(task, s, seen, verdict, kept), same)

    def columns() -> Array:
        return task.matrix.alternated(xp.where(far[..., None], seen.beta, s.base), s.t)

    placed = task.when(by_columns, columns, s.base)
    base = pick(moved.base, (by_columns, placed), (changed | stops, kept), (cooler, ahead))
    return State(
        base=pick(base, (idle | stay, s.base)),
        step=pick(xp.zeros_like(s.step), (moving, moved.step), (stay, s.step)),
        length=pick(zero, (moving, 1.0), (stay, verdict.length)),
        gain=pick(zero, (moving, moved.gain), (stay, s.gain)),
        damping=pick(moved.damping, (changed, 1.0)),
        retried=stay,
        low=pick(zero, (stay, verdict.low)),
        high=pick(moved.high, (stay, verdict.high)),
        best=pick(moved.best, (changed, float(xp.finfo(s.t.dtype).max))),
        stalled=pick(moved.stalled, (changed, 0.0)),
        passes=pick(moved.passes, (changed, 0.0)),
        t=pick(s.t, (stops, s.hot), (changed, t), (idle, s.t)),
        hot=pick(s.hot, (met, s.t), (idle, s.hot)),
        kept=pick(kept, (idle, s.kept)),
        ratio=ratio,
        active=stay | by_columns | moving | changed,
        met=s.met | (s.active & (met & ~changed | stops)),
    )


def damping_of(task: Task, s: State, seen: Look, verdict: Verdict) -> Array:
    where, good = task.xp.where, verdict.good
    full = good & (s.length == 1)
    damping = where(full, s.damping / 4, where(good | verdict.careful, s.damping, s.damping * 4))
    damping = where(full & ~(seen.error < s.best), damping / 16, damping)
    return task.xp.clip(damping, 1e-9, 1e6)


def _stage(task: Task, s: State, seen: Look, verdict: Verdict, kept: Array) -> Any:
    """Return the next temperature, prices for it, and by what it falls after that."""
    xp, t, cooler, least = task.xp, s.t, verdict.cooler, verdict.least
    hottest = xp.maximum(xp.where(verdict.cold, COOLING * t, HOTTER * t), task.spread / 2)
    between = xp.where(verdict.nearer, xp.sqrt(s.hot) * xp.sqrt(t), hottest)
    quick = cooler & (verdict.passes < QUICK)
    ratio = xp.where(quick, xp.clip(s.ratio**2, COOLING, 1e6), COOLING)
    following = xp.where(cooler, xp.maximum(least, t / ratio), between)
    # Prices are nearly linear in T where the same entries stay between 0 and 1.
    since = xp.where(cooler & (s.hot > t), s.hot - t, math.inf)
    ahead = kept - ((t - following) / since)[..., None] * (s.kept - seen.beta)
    return following, ahead, xp.where(verdict.changed, ratio, s.ratio)

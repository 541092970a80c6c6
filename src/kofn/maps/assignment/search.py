"""The search for the prices of columns at which soft top-k rows fill every column.

The rows' own thresholds α follow from the prices β by `soft_topk`. What is left is the root β of
R(β) = Σ_i F((s_ij − α_i − β_j)/T) − c_j, the slope of a convex function, so R is monotone. Newton's
step solves S·step = T·R with S = D_c − WᵀD_r⁻¹W, where W is F′ and D_r, D_c are its sums over rows
and columns. docs/maps_assignment.md derives it.

Nothing here has a derivative; `implicit.py` attaches them.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

from kofn.arrays.flow import namespace_like, only_if_like, while_loop, zeros_of
from kofn.arrays.kinds import Array, is_jax, is_torch
from kofn.links.link import Link
from kofn.maps.assignment.margins import opened, settled
from kofn.maps.assignment.newton import room_of
from kofn.maps.assignment.sight import Matrix, in_memory

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
MOST = 200
"""Passes in all; then what was met at the lowest temperature so far is the answer."""
STALLED = 8
"""Passes without progress after which an error that is small is taken."""

SHORTEST = 0.2
"""A shorter part of Newton's step makes less progress than a threshold of the columns alone."""
PATIENT = 10
"""Passes after which the step is shortened to where the convex function is least along it."""
LEAST = 1e-9
"""The least width of a bracket of this part, as a part of it."""


class Prices(NamedTuple):
    """What the search finds."""

    beta: Array  # (…, n), of mean 0 over the columns that are open; NaN if there are no weights
    t: Array  # (…,), the temperature: a greater one where floats cannot resolve the one given
    live: Array  # (…, m, n), as in `Settled`
    full: Array


class _State(NamedTuple):
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


class _Task(NamedTuple):
    """What is the same in all passes."""

    xp: Any  # the namespace of the arrays
    matrix: Matrix
    t: Array  # the temperature given
    room: Array  # what the error of a column is relative to
    spread: Array  # of the scores
    when: Any  # only_if of flow.py, for these arrays
    late: _Late  # the same for what few passes need
    zeros: Any  # zeros_of of flow.py

    def pick(self, otherwise: Array, *cases: tuple[Array, Any]) -> Array:
        """Return the value of the last case whose flag of a matrix is set, or else `otherwise`."""
        for flags, value in cases:
            flags = flags[..., None] if otherwise.ndim > flags.ndim else flags
            otherwise = self.xp.where(flags, value, otherwise)
        return otherwise


class _Late:
    """`only_if` for what only late passes need: those of `_is_late`.

    On a device, to ask for every flag would be to wait for it, and to do all without to ask is most
    of the work; so the host asks once a pass, together with whether any matrix is left.
    """

    def __init__(self, when: Any) -> None:
        self._when, self.is_now = when, True

    def __call__(self, flags: Array, function: Any, otherwise: Any) -> Any:
        return self._when(flags, function, otherwise) if self.is_now else otherwise


class Look(NamedTuple):
    """What a pass tells of the prices that are tried."""

    beta: Array  # these prices
    of: Any  # what the matrix keeps of them
    excess: Array  # R: what columns have in excess
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


def prices(x: Array, k: Array, c: Array, t: Array, link: Link) -> Prices:
    """Return the prices of columns at which they have their sums, and rows theirs."""
    xp = namespace_like(x)
    of = settled(xp, x, k, c)
    beta, warm, met = searched(in_memory(opened(xp, x, k, c, t, of), link))
    good = (of.possible & met)[..., None]
    return Prices(xp.where(good, beta, math.nan), warm, of.live, of.full)


def searched(p: Matrix) -> tuple[Array, Array, Array]:
    """Return the prices of open columns, the temperature, and whether the sums are met."""
    xp = namespace_like(p.c)
    zero = xp.zeros_like(p.t)
    largest = float(xp.finfo(p.c.dtype).max)
    none = xp.zeros_like(p.t, dtype=xp.bool)
    nothing = xp.zeros_like(p.c)
    state = _State(
        *(nothing, nothing, zero, zero, zero + 1, none, zero, zero + 1),
        *(zero + largest, zero, zero, p.t + 0, zero, nothing, zero + COOLING, ~none, none),
    )
    zeros = zeros_of if is_jax(p.c) else xp.zeros_like
    when = only_if_like(p.c)
    task = _Task(xp, p, p.t, room_of(xp, p), p.spread, when, _Late(when), zeros)
    elsewhere = is_torch(p.c) and not p.c.is_cpu

    def unfinished(s: _State) -> Any:
        going = xp.any(s.active)
        if elsewhere:
            going, task.late.is_now = xp.stack([going, xp.any(_is_late(task, s))]).tolist()
        return going

    s = while_loop(p.c, unfinished, partial(_advanced, task), state, MOST)
    late = s.active & (s.hot > 0)
    s = s._replace(
        base=xp.where(late[..., None], s.kept, s.base),
        t=xp.where(late, s.hot, s.t),
        met=s.met | late,
    )
    # As they were tried: where prices are large, to centre them again would round them.
    return s.base, s.t, s.met


def _is_late(task: _Task, s: _State) -> Array:
    """Return which matrices may ask for more than Newton's next step in the pass that follows."""
    warm = (s.t > task.t) | (s.hot > 0)
    return s.active & (warm | (s.passes >= PATIENT - 1) | (s.stalled >= 1))


def _advanced(task: _Task, s: _State) -> _State:
    """Take one pass: look at the step that is tried, and accept, shorten or replace it."""
    seen = _look(task, s)
    return _next(task, s, seen, _verdict(task, s, seen))


def _look(task: _Task, s: _State) -> Look:
    xp = task.xp
    beta = s.base + s.length[..., None] * s.step
    of, excess = task.matrix.look(beta, s.t)
    error = xp.max(xp.abs(excess) / task.room, axis=-1)
    return Look(beta, of, excess, error, xp.sum(excess * s.step, axis=-1))


def _verdict(task: _Task, s: _State, seen: Look) -> Verdict:
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


def _shortened(task: _Task, s: _State, seen: Look) -> tuple[Array, ...]:
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


def _next(task: _Task, s: _State, seen: Look, verdict: Verdict) -> _State:
    """Return the state after a pass; after most, each matrix takes Newton's next step in full."""
    damping = _damping(task, s, seen, verdict)
    same = s.step, s.gain
    step, gain = task.when(verdict.moving, lambda: _newton(task, s, seen, damping), same)
    zero = task.zeros(s.t)
    moved = s._replace(
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
    return task.when(~verdict.moving, lambda: _otherwise(task, s, seen, verdict, moved), moved)


def _otherwise(task: _Task, s: _State, seen: Look, verdict: Verdict, moved: _State) -> _State:
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
    return _State(
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


def _damping(task: _Task, s: _State, seen: Look, verdict: Verdict) -> Array:
    where, good = task.xp.where, verdict.good
    full = good & (s.length == 1)
    damping = where(full, s.damping / 4, where(good | verdict.careful, s.damping, s.damping * 4))
    damping = where(full & ~(seen.error < s.best), damping / 16, damping)
    return task.xp.clip(damping, 1e-9, 1e6)


def _newton(task: _Task, s: _State, seen: Look, damping: Array) -> tuple[Array, Array]:
    """Return the next step, and R·step."""
    xp, where = task.xp, task.xp.where
    errors = seen.excess, seen.error, task.room, damping
    step = task.matrix.newton_step(seen.of, *errors) * s.t[..., None]
    # On flat ground, where S is nearly singular, it would leap far beyond all prices.
    length = xp.max(xp.abs(step), axis=-1)
    reach = xp.clip((task.spread + 2 * s.t) / where(length > 0, length, 1.0), 0.0, 1.0)
    step = where(length > 0, reach, 1.0)[..., None] * step
    return step, xp.sum(seen.excess * step, axis=-1)


def _stage(task: _Task, s: _State, seen: Look, verdict: Verdict, kept: Array) -> Any:
    """Return the next temperature, prices for it, and by what it falls after that."""
    xp, t, cooler, least = task.xp, s.t, verdict.cooler, verdict.least
    hottest = xp.maximum(xp.where(verdict.cold, COOLING, HOTTER) * t, task.spread / 2)
    between = xp.where(verdict.nearer, xp.sqrt(s.hot) * xp.sqrt(t), hottest)
    quick = cooler & (verdict.passes < QUICK)
    ratio = xp.where(quick, xp.clip(s.ratio**2, COOLING, 1e6), COOLING)
    following = xp.where(cooler, xp.maximum(least, t / ratio), between)
    # Prices are nearly linear in T where the same entries stay between 0 and 1.
    since = xp.where(cooler & (s.hot > t), s.hot - t, math.inf)
    ahead = kept - ((t - following) / since)[..., None] * (s.kept - seen.beta)
    return following, ahead, xp.where(verdict.changed, ratio, s.ratio)

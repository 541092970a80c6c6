"""The search for the prices of columns at which soft top-k rows fill every column.

The rows' own thresholds α follow from the prices β by `soft_topk`. What is left is the root β of
R(β) = Σ_i F((s_ij − α_i − β_j)/T) − c_j, the slope of a convex function, so R is monotone. Newton's
step solves S·step = T·R with S = D_c − WᵀD_r⁻¹W, where W is F′ and D_r, D_c are its sums over rows
and columns. docs/maps_assignment.md derives it.

Nothing here has a derivative; `implicit.py` attaches them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kofn.adapters import route
from kofn.arrays.flow import only_if, while_loop
from kofn.arrays.kinds import Array, full_like, namespace
from kofn.links.link import Link
from kofn.maps.assignment.margins import Open, opened, settled
from kofn.maps.assignment.newton import centred, curvature, newton_step, room_of, slopes_of
from kofn.maps.assignment.wide import near
from kofn.operations.topk import THETA, WEIGHTS
from kofn.rows.given import given_again

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


def prices(x: Array, k: Array, c: Array, t: Array, link: Link) -> Prices:
    """Return the prices of columns at which they have their sums, and rows theirs."""
    xp, of = namespace(x), settled(x, k, c)
    beta, warm, met = _searched(opened(x, k, c, t, of), link)
    good = (of.possible & met)[..., None]
    return Prices(xp.where(good, beta, math.nan), warm, of.live, of.full)


def _searched(p: Open, link: Link) -> tuple[Array, Array, Array]:
    """Return the prices of open columns, the temperature, and whether the sums are met."""
    xp = namespace(p.x)
    zero = xp.zeros_like(p.t)
    largest = float(xp.finfo(p.x.dtype).max)
    none = xp.zeros_like(p.t, dtype=xp.bool)
    nothing = xp.zeros_like(p.c)
    state = _State(
        *(nothing, nothing, zero, zero, zero + 1, none, zero, zero + 1),
        *(zero + largest, zero, zero, p.t + 0, zero, nothing, zero + COOLING, ~none, none),
    )
    room, spread = room_of(p), spread_of(p.x)

    def unfinished(s: _State) -> Array:
        return xp.any(s.active)

    def advance(s: _State) -> _State:
        return _advanced(p, link, room, spread, s)

    s = while_loop(p.x, unfinished, advance, state, MOST)
    late = s.active & (s.hot > 0)
    s = s._replace(
        base=xp.where(late[..., None], s.kept, s.base),
        t=xp.where(late, s.hot, s.t),
        met=s.met | late,
    )
    # As they were tried: where prices are large, to centre them again would round them anew.
    return s.base, s.t, s.met


def spread_of(x: Array) -> Array:
    """Return the difference between the greatest and the least score of each matrix, half of the
    greatest float at most; 0 if no entry is open.
    """
    xp = namespace(x)
    high = xp.max(x, axis=(-2, -1))
    low = xp.min(xp.where(x > -math.inf, x, math.inf), axis=(-2, -1))
    most = float(xp.finfo(x.dtype).max) / 2
    return xp.where(
        high > low, xp.minimum(high / 2 - low / 2, full_like(high, (), most / 2)) * 2, 0.0
    )


def _advanced(p: Open, link: Link, room: Array, spread: Array, s: _State) -> _State:
    """Take one pass: look at the step that is tried, and accept, shorten or replace it."""
    xp = namespace(p.x)
    info = xp.finfo(p.x.dtype)
    tolerance, t = 1e-12 if float(info.eps) < 1e-12 else 5e-7, s.t
    beta = s.base + s.length[..., None] * s.step
    rows = near(p.x - beta[..., None, :], p.k, t, spread, link)
    weights = route.answer(WEIGHTS, given_again(rows.y, p.k, rows.t, link))
    excess = xp.sum(weights, axis=-2) - p.c
    error = xp.max(xp.abs(excess) / room, axis=-1)
    rest = xp.sum(excess * s.step, axis=-1)
    # R·step falls along the step, to 0 where the convex function is least.
    good = ~(rest < -s.gain / 2)
    shorter = s.length * xp.clip(s.gain / xp.where(good, 1.0, s.gain - rest), 0.1, 0.5)
    careful = (s.passes >= PATIENT) | (s.t > p.t) | (s.hot > 0)
    retry = ~good & ~s.retried & (shorter > SHORTEST)

    def bracketed() -> Any:
        """Narrow a bracket of the part of the step at which R·step is 0."""
        short = good & (s.high < 1) & (rest > 0.9 * s.gain)
        high, low = xp.where(good, s.high, s.length), xp.where(short, s.length, s.low)
        curved = curvature(slopes_of(link, weights, rows.y, p.k, rows.t[..., 0]), s.step) / t
        newton = s.length + rest / xp.where(curved > 0, curved, 1.0)
        inside = (curved > 0) & (newton > low) & (newton < high) & (s.passes % 2 == 0)
        part = xp.where(inside, newton, low + (high - low) / 2)
        again = (~good | short) & (high - low > LEAST * high)
        pairs = (again, retry), (part, shorter), (low, s.low), (high, s.high)
        return tuple(xp.where(careful, *pair) for pair in pairs)

    wanted = s.active & careful & (~good | (s.high < 1))
    retry, shorter, low, high = only_if(
        wanted, bracketed, (retry & ~careful, shorter, s.low, s.high)
    )
    good = good & ~retry
    far = (s.passes == 0) & (error > 1)
    alone = (~good & ~retry) | far

    # Next to the root, the sign of R·step is that of rounding errors.
    counts = good | (error < 1e5 * tolerance)
    stalled = xp.where(counts & ~(error < s.best / 2), s.stalled + 1, xp.zeros_like(s.stalled))
    best = xp.where(counts & (error < s.best), error, s.best)
    passes = s.passes + 1
    cold = (s.hot == 0) & (t == p.t)
    enough = xp.where(spread > WIDE * t, PATIENT, COLD)
    spent = passes >= xp.where(cold, enough, STAGE)
    # Prices are floats: at a temperature far below them, the sums cannot be met any closer.
    slow = s.active & (spent | (stalled >= 2) | (t > p.t))
    rounding = only_if(slow, lambda: _rounding(p, beta, weights, t), xp.zeros_like(t))
    close = (error < 4 * tolerance) & (stalled >= 1)
    close = close | (error < 1e3 * tolerance) & (stalled >= 3)
    close = close | (error < 1e5 * tolerance) & (stalled >= STALLED)
    close = close | (error < 1e-4) & spent & ~cold
    close = close | (error < xp.clip(rounding, 0.0, 1e-4)) & (stalled >= 2)
    met = (error < tolerance) | (counts & close)
    unknown = xp.isnan(error)
    lost = ~met & (spent | unknown)
    most = 1e-4 if float(info.eps) < 1e-12 else 2e-3
    least = xp.maximum(p.t, t * rounding / most)  # the temperature that floats resolve
    # A stage that fails is followed by the hottest, or by one between it and the last that did not.
    cooler = s.active & met & (t > p.t) & ((t > least * CLOSEST) | (least == p.t))
    nearer = lost & (s.hot > 0) & (s.hot > t * CLOSEST) & ~(rounding > most)
    changed = cooler | (s.active & lost & ~unknown & ((s.hot == 0) | nearer))
    stops = lost & (s.hot > 0) & ~changed
    done = met | lost
    goes_on = s.active & ~done
    stay, by_columns, moving = goes_on & retry, goes_on & alone, goes_on & good & ~alone
    hot, kept = xp.where(met, t, s.hot), xp.where(met[..., None], beta, s.kept)

    def fallen() -> Any:
        """Return the next temperature, prices for it, and by what it falls after that."""
        hottest = xp.maximum(xp.where(cold, COOLING, HOTTER) * t, spread / 2)
        between = xp.where(nearer, xp.sqrt(s.hot) * xp.sqrt(t), hottest)
        quick = cooler & (passes < QUICK)
        ratio = xp.where(quick, xp.clip(s.ratio**2, COOLING, 1e6), COOLING)
        following = xp.where(cooler, xp.maximum(least, t / ratio), between)
        # Prices are nearly linear in T where the same entries stay between 0 and 1.
        since = xp.where(cooler & (s.hot > t), s.hot - t, math.inf)
        ahead = kept - ((t - following) / since)[..., None] * (s.kept - beta)
        return following, ahead, xp.where(changed, ratio, s.ratio)

    following, ahead, ratio = only_if(changed, fallen, (t, kept, s.ratio))
    full = good & (s.length == 1)
    damping = xp.where(full, s.damping / 4, xp.where(good | careful, s.damping, s.damping * 4))
    damping = xp.where(full & ~(error < s.best), damping / 16, damping)
    damping = xp.clip(damping, 1e-9, 1e6)

    def newton() -> tuple[Array, Array]:
        slopes = slopes_of(link, weights, rows.y, p.k, rows.t[..., 0])
        step = newton_step(p, slopes, excess, error, room, damping) * t[..., None]
        # On flat ground, where S is nearly singular, it would leap far beyond all prices.
        length = xp.max(xp.abs(step), axis=-1)
        reach = xp.clip((spread + 2 * t) / xp.where(length > 0, length, 1.0), 0.0, 1.0)
        step = xp.where(length > 0, reach, 1.0)[..., None] * step
        return step, xp.sum(excess * step, axis=-1)

    step, gain = only_if(moving, newton, (s.step, s.gain))

    def columns() -> Array:
        start = xp.where(far[..., None], beta, s.base)
        return _alternated(p, link, t, spread, start)

    placed = only_if(by_columns, columns, s.base)

    def pick(*cases: tuple[Array, Any], otherwise: Array) -> Array:
        found = otherwise
        for where, value in reversed(cases):
            flags = where[..., None] if found.ndim > where.ndim else where
            found = xp.where(flags, value, found)
        return found

    zero = xp.zeros_like(t)
    return _State(
        base=pick(
            *(
                (~s.active | stay, s.base),
                (cooler, ahead),
                (changed | stops, kept),
                (by_columns, placed),
            ),
            otherwise=beta,
        ),
        step=pick((stay, s.step), (moving, step), otherwise=xp.zeros_like(step)),
        length=pick((stay, shorter), (moving, 1.0), otherwise=zero),
        gain=pick((stay, s.gain), (moving, gain), otherwise=zero),
        damping=pick((changed, 1.0), otherwise=damping),
        retried=stay,
        low=pick((stay, low), otherwise=zero),
        high=pick((stay, high), otherwise=zero + 1),
        best=pick((changed, float(info.max)), otherwise=best),
        stalled=pick((changed, 0.0), otherwise=stalled),
        passes=pick((changed, 0.0), otherwise=passes),
        t=pick((~s.active, s.t), (changed, following), (stops, s.hot), otherwise=t),
        hot=pick((~s.active, s.hot), otherwise=hot),
        kept=pick((~s.active, s.kept), otherwise=kept),
        ratio=ratio,
        active=goes_on | changed,
        met=s.met | (s.active & (met & ~changed | stops)),
    )


def _rounding(p: Open, beta: Array, weights: Array, t: Array) -> Array:
    """Return how far rounded prices move weights between 0 and 1, roughly."""
    xp = namespace(p.x)
    inside = (weights > 0) & (weights < 1) & (p.x > -math.inf)
    size = xp.where(inside, xp.abs(p.x), 0.0) + xp.where(inside, xp.abs(beta)[..., None, :], 0.0)
    return 8 * float(xp.finfo(p.x.dtype).eps) / t * xp.max(size, axis=(-2, -1))


def _alternated(p: Open, link: Link, t: Array, spread: Array, beta: Array) -> Array:
    """Return the prices by the columns' own thresholds, at the rows' thresholds for β.

    This minimises the convex function over β alone: slower than Newton's method, but sure.
    """
    xp = namespace(p.x)

    def thresholds(y: Array, k: Array) -> Array:
        rows = near(y, k, t, spread, link)
        found = route.answer(THETA, given_again(rows.y, k, rows.t, link))
        return xp.where(xp.isfinite(found), rows.origin + found * rows.unit, 0.0)

    alpha = thresholds(p.x - beta[..., None, :], p.k)
    return centred(p, thresholds(xp.moveaxis(p.x - alpha[..., :, None], (-1,), (-2,)), p.c))

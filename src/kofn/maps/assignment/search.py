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

from kofn.arrays.flow import only_if, while_loop
from kofn.arrays.kinds import Array, full_like, namespace, scalar
from kofn.links.link import Link
from kofn.maps.assignment.margins import Open, opened, settled
from kofn.maps.assignment.newton import centred, newton_step, room_of, slopes_of
from kofn.maps.topk import soft_topk, soft_topk_threshold

COLD = 30
"""Passes over the matrix at the temperature given, from prices of 0; most need four to ten."""
COOLING = 4.0
"""Where these do not suffice, by what the temperature falls from stage to stage, from the spread of
the scores to the one given. Each stage starts at the prices of the one before."""
STAGE = 40
"""Passes at each of these temperatures."""
CLOSEST = 1.2
"""A stage that fails is tried again nearer to the last that did not, down to this ratio."""
MOST = 4000
"""Passes in all."""
STALLED = 8
"""Passes without progress after which an error that is small is taken."""

SHORTEST = 0.2
"""A shorter part of Newton's step makes less progress than a threshold of the columns alone."""


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
    best: Array  # the least error at this temperature
    stalled: Array  # passes since it fell by half
    passes: Array  # at this temperature
    t: Array  # the temperature of this stage
    hot: Array  # the last at which the sums were met, 0 if none
    kept: Array  # the prices there
    active: Array
    met: Array


def prices(x: Array, k: Array, c: Array, t: Array, link: Link) -> Prices:
    """Return the prices of columns at which they have their sums, and rows theirs."""
    of = settled(x, k, c)
    beta, warm, met = _searched(opened(x, k, c, t, of), link)
    good = (of.possible & met)[..., None]
    return Prices(namespace(x).where(good, beta, math.nan), warm, of.live, of.full)


def _searched(p: Open, link: Link) -> tuple[Array, Array, Array]:
    """Return the prices of open columns, the temperature, and whether the sums are met."""
    xp = namespace(p.x)
    zero = xp.zeros_like(p.t)
    largest = float(xp.finfo(p.x.dtype).max)
    none = xp.zeros_like(p.t, dtype=xp.bool)
    nothing = xp.zeros_like(p.c)
    state = _State(
        *(nothing, nothing, zero, zero, zero + 1, none),
        *(zero + largest, zero, zero, p.t + 0, zero, nothing, ~none, none),
    )
    room, spread = room_of(p), _spread(p)

    def unfinished(s: _State) -> Array:
        return xp.any(s.active)

    def advance(s: _State) -> _State:
        return _advanced(p, link, room, spread, s)

    s = while_loop(p.x, unfinished, advance, state, MOST)
    # As they were tried: where prices are large, to centre them again would round them anew.
    return s.base, s.t, s.met


def _spread(p: Open) -> Array:
    """Return the difference between the greatest and the least score, half of the greatest float
    at most; 0 if no entry is open.
    """
    xp = namespace(p.x)
    high = xp.max(p.x, axis=(-2, -1))
    low = xp.min(xp.where(p.x > -math.inf, p.x, math.inf), axis=(-2, -1))
    most = float(xp.finfo(p.x.dtype).max) / 2
    return xp.where(
        high > low, xp.minimum(high / 2 - low / 2, full_like(high, (), most / 2)) * 2, 0.0
    )


def _advanced(p: Open, link: Link, room: Array, spread: Array, s: _State) -> _State:
    """Take one pass: look at the step that is tried, and accept, shorten or replace it."""
    xp = namespace(p.x)
    info = xp.finfo(p.x.dtype)
    tolerance, t = 1e-12 if float(info.eps) < 1e-12 else 5e-7, s.t
    beta = s.base + s.length[..., None] * s.step
    y = p.x - beta[..., None, :]
    weights = soft_topk(y, p.k, link=link, temperature=t[..., None])
    excess = xp.sum(weights, axis=-2) - p.c
    error = xp.max(xp.abs(excess) / room, axis=-1)
    rest = xp.sum(excess * s.step, axis=-1)
    # R·step falls along the step, to 0 where the convex function is least.
    good = ~(rest < -s.gain / 2)
    shorter = s.length * xp.clip(s.gain / xp.where(good, 1.0, s.gain - rest), 0.1, 0.5)
    retry = ~good & ~s.retried & (shorter > SHORTEST)
    far = (s.passes == 0) & (error > 1)
    alone = (~good & ~retry) | far

    stalled = xp.where(good & ~(error < s.best / 2), s.stalled + 1, xp.zeros_like(s.stalled))
    best = xp.where(good & (error < s.best), error, s.best)
    passes = s.passes + 1
    cold = (s.hot == 0) & (t == p.t)
    last = xp.where(best < 1e-3, scalar(best, 2.0 * COLD), COLD)
    spent = passes >= xp.where(cold, last, STAGE)
    # Prices are floats: at a temperature far below them, the sums cannot be met any closer.
    slow = s.active & (spent | (stalled >= 2) | (t > p.t))
    rounding = only_if(slow, lambda: _rounding(p, beta, weights, t), xp.zeros_like(t))
    close = (error < 4 * tolerance) & (stalled >= 1)
    close = close | (error < 1e3 * tolerance) & (stalled >= 3)
    close = close | (error < 1e5 * tolerance) & (stalled >= STALLED)
    close = close | (error < 1e-4) & spent & ~cold
    close = close | (error < xp.clip(rounding, 0.0, 1e-4)) & (stalled >= 2)
    met = good & ((error < tolerance) | close)
    unknown = xp.isnan(error)
    lost = ~met & (spent | unknown)
    most = 1e-4 if float(info.eps) < 1e-12 else 2e-3
    least = xp.maximum(p.t, t * rounding / most)  # the temperature that floats resolve
    # A stage that fails is followed by the hottest, or by one between it and the last that did not.
    cooler = s.active & met & (t > p.t) & ((t > least * CLOSEST) | (least == p.t))
    nearer = lost & (s.hot > 0) & (s.hot > t * CLOSEST) & ~(rounding > most)
    changed = cooler | (s.active & lost & ~unknown & (cold | nearer))
    stops = lost & (s.hot > 0) & ~changed
    done = met | lost
    goes_on = s.active & ~done
    stay, by_columns, moving = goes_on & retry, goes_on & alone, goes_on & good & ~alone
    hot, kept = xp.where(met, t, s.hot), xp.where(met[..., None], beta, s.kept)

    def next_t() -> Array:
        hottest = xp.maximum(COOLING * p.t, spread / 4)
        between = xp.where(nearer, xp.sqrt(s.hot) * xp.sqrt(t), hottest)
        return xp.where(cooler, xp.maximum(least, t / COOLING), between)

    following = only_if(changed, next_t, t)

    full = good & (s.length == 1)
    damping = xp.where(full, s.damping / 4, xp.where(good, s.damping, s.damping * 4))
    damping = xp.clip(damping, 1e-3, 1e6)

    def newton() -> tuple[Array, Array]:
        slopes = slopes_of(link, weights, y, p.k, t)
        step = newton_step(p, slopes, excess, error, room, damping) * t[..., None]
        # On flat ground, where S is nearly singular, it would leap far beyond all prices.
        length = xp.max(xp.abs(step), axis=-1)
        reach = xp.clip((spread + 2 * t) / xp.where(length > 0, length, 1.0), 0.0, 1.0)
        step = xp.where(length > 0, reach, 1.0)[..., None] * step
        return step, xp.sum(excess * step, axis=-1)

    step, gain = only_if(moving, newton, (s.step, s.gain))

    def columns() -> Array:
        start = xp.where(far[..., None], beta, s.base)
        return _alternated(p, link, t, start)

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
            *((~s.active | stay, s.base), (changed | stops, kept), (by_columns, placed)),
            otherwise=beta,
        ),
        step=pick((stay, s.step), (moving, step), otherwise=xp.zeros_like(step)),
        length=pick((stay, shorter), (moving, 1.0), otherwise=zero),
        gain=pick((stay, s.gain), (moving, gain), otherwise=zero),
        damping=pick((changed, 1.0), otherwise=damping),
        retried=stay,
        best=pick((changed, float(info.max)), otherwise=best),
        stalled=pick((changed, 0.0), otherwise=stalled),
        passes=pick((changed, 0.0), otherwise=passes),
        t=pick((~s.active, s.t), (changed, following), (stops, s.hot), otherwise=t),
        hot=pick((~s.active, s.hot), otherwise=hot),
        kept=pick((~s.active, s.kept), otherwise=kept),
        active=goes_on | changed,
        met=s.met | (s.active & (met & ~changed | stops)),
    )


def _rounding(p: Open, beta: Array, weights: Array, t: Array) -> Array:
    """Return how far rounded prices move weights between 0 and 1, roughly."""
    xp = namespace(p.x)
    inside = (weights > 0) & (weights < 1) & (p.x > -math.inf)
    size = xp.where(inside, xp.abs(p.x), 0.0) + xp.where(inside, xp.abs(beta)[..., None, :], 0.0)
    return 8 * float(xp.finfo(p.x.dtype).eps) / t * xp.max(size, axis=(-2, -1))


def _alternated(p: Open, link: Link, t: Array, beta: Array) -> Array:
    """Return the prices by the columns' own thresholds, at the rows' thresholds for β.

    This minimises the convex function over β alone: slower than Newton's method, but sure.
    """
    xp = namespace(p.x)
    t = t[..., None]
    alpha = soft_topk_threshold(p.x - beta[..., None, :], p.k, link=link, temperature=t)
    alpha = xp.where(xp.isfinite(alpha), alpha, 0.0)
    y = xp.moveaxis(p.x - alpha[..., :, None], (-1,), (-2,))
    beta = soft_topk_threshold(y, p.c, link=link, temperature=t)
    return centred(p, xp.where(xp.isfinite(beta), beta, 0.0))

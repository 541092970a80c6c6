"""How weights, θ and S_k, and the cotangents of their rows, change with the rows, in closed form.
For JAX.

With w = F′(z), W = Σw, z = (x − θ)/T and tangents ẋ, k̇ and Ṫ, z changes by

    e = s − Σws/W + k̇/W,   s = (ẋ − zṪ)/T,

and p by we. With u = w(v − v̄) and v̄ = Σwv/W, the cotangents u/T, v̄ and −Σuz/T of x, k and T for
one of the weights, v, change by

    (u̇ − uṪ/T)/T,   Σc/W   and   −(Σu̇z + Σue − Σuz·Ṫ/T)/T,   c = F″(v − v̄)e,   u̇ = c − wΣc/W.

These are the second derivatives of Σvp, a symmetric matrix, times the tangents. The slopes q = w/W,
−T/W and −Σqz of θ change by

    q̇ = f − qΣf,   (TΣf − Ṫ)/W   and   −(Σq̇z + Σqe),   f = F″e/W,

and those of S_k, which are p, θ and −ΣΩ(p), by ṗ, θ̇ and −Σzṗ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kofn.arrays.autodiff import gradient, nan_where
from kofn.arrays.flow import only_if
from kofn.arrays.kinds import Array, cast, namespace
from kofn.formulas import pullbacks
from kofn.formulas.implicit import distances, place, with_ends_outside
from kofn.formulas.pivot import pivot_at
from kofn.formulas.root import balanced_shares, slope_shares
from kofn.links.link import Link
from kofn.rows.given import Given
from kofn.rows.settled import Rows, rows_of, uncounted
from kofn.solver.equation import far, least_weight, split
from kofn.solver.plateau import Entries, at_end
from kofn.solver.reductions import DENSE, Reductions, sums_of

Tangents = Sequence[Array | None]
"""Of x, k and T; None is for zeros."""
Shares = Callable[[Link, Entries, Array], Array]
"""(link, rows, flags) -> what stands for w in the rows in which each has underflowed."""


class Sloped(NamedTuple):
    """Rows with F′ and F″, in units per row."""

    rows: Rows
    link: Link  # with its parameter per entry
    z: Array
    exact: Array  # z, which is beyond what any link's tails need where it is not cut
    moves: Array  # entries whose z is no constant
    w: Array  # 0 where z is a constant
    turn: Array  # F″/F′, 0 where w is
    unit: Array  # 1; the greatest F′ where ΣF′ has underflowed
    hard: Array  # rows where it has: k does not move θ
    divisor: Array  # the sum of w
    per_k: Array  # 1/ΣF′, or 0
    pivot: Array  # a number per row to measure z from: scores may be closer to each other than to θ
    shift: Array  # (θ − pivot)/T
    has_nan: Array
    over: Reductions

    @property
    def share(self) -> Array:
        """Return the slopes of θ in the scores."""
        return self.w / self.over.expand(self.divisor)

    def lever(self) -> Array:
        """Return z less a number per row, exactly."""
        pivot, t = map(self.over.expand, (self.pivot, self.rows.temperature))
        return (namespace(pivot).where(self.moves, self.rows.scores, pivot) - pivot) / t

    def change(self, tangents: Tangents, *others: Array) -> tuple[Array, ...]:
        """Return the tangent of z, and others less their means by w.

        The means are improved once, as in `pullbacks.of_weights`.
        """
        xp, expand, (dx, dk, dt) = namespace(self.z), self.over.expand, tangents
        s = xp.zeros_like(self.z) if dx is None else dx
        s = s if dt is None else s - self.lever() * expand(dt)
        values = [
            xp.where(self.moves, each, 0.0) for each in (s / expand(self.rows.temperature), *others)
        ]
        fixed = self.w == 0
        for _ in range(2):
            totals = sums_of(self.over, *(xp.where(fixed, 0.0, self.w * v) for v in values))
            means = (expand(total / self.divisor) for total in totals)
            pairs = zip(values, means, strict=True)
            values = [xp.where(self.moves, each - mean, 0.0) for each, mean in pairs]
        if dk is not None:
            values[0] = values[0] + expand(dk * self.per_k)
        return tuple(values)


def sloped(
    given: Given,
    theta: tuple[Array, Array],
    over: Reductions,
    counted: bool,
    shares: Shares | None = None,
    ends_outside: bool = False,
) -> Sloped:
    """Return slopes at θ, which is two numbers; `counted` if scores of +inf are to be counted.

    In rows in which all F′ have underflowed w are `shares`, or else F′ in units of the greatest.
    """
    at_ends = given.link.capped is not False and over is DENSE  # in shards, θ is at an end already
    rows = rows_of(given, over) if at_ends or counted else uncounted(given)
    x, t, link = rows.scores, rows.temperature, rows.link
    xp, expand, (hi, lo) = namespace(x), over.expand, theta
    open_, has_nan = xp.isfinite(hi), xp.isnan(hi)
    hi, lo = xp.where(open_, hi, 0.0), xp.where(open_, lo, 0.0)
    if at_ends:
        hi, lo = at_end(x, rows.k, t, link, hi, lo, over)
    inside, limit = rows.live & expand(open_), far(xp.finfo(x.dtype))
    exact = ((xp.where(inside, x, expand(hi)) - expand(hi)) - expand(lo)) / expand(t)
    z, link = xp.clip(exact, -limit, limit), link.map_alpha(expand)
    z = with_ends_outside(link, z) if ends_outside else z
    w = xp.where(inside, link.pdf(z), 0.0)
    weight, moment = sums_of(over, w, w * z)
    hard, unit = open_ & (weight < least_weight(w)), xp.ones_like(weight)
    slopes: tuple[Array, ...] = w, unit, weight, moment

    def in_hard_rows() -> tuple[Array, ...]:
        raised, unit = by_logarithms() if shares is None else by_shares(shares)
        return raised, unit, *sums_of(over, raised, raised * z)

    def by_logarithms() -> tuple[Array, Array]:
        logs = xp.where(inside & expand(hard), link.log_pdf(z), -math.inf)
        greatest = over.max(logs)
        some = hard & (xp.exp(greatest) > 0)  # else the weights are constants
        greatest, rest = xp.where(some, greatest, 0.0), expand(hard & ~some)
        raised = xp.where(expand(some), xp.exp(logs - expand(greatest)), w)
        return xp.where(rest, 0.0, raised), xp.exp(greatest)

    def by_shares(shares: Shares) -> tuple[Array, Array]:
        row = Entries(z, x, t, rows.live, over)
        return xp.where(expand(hard), shares(link, row, hard), w), unit

    if shares is not None or link.has_infinite_tails(z) is not False:
        slopes = only_if(hard, in_hard_rows, slopes)
    w, unit, weight, moment = slopes
    some = weight > 0
    divisor = xp.where(some, weight, 1.0)
    per_k = xp.where(some & ~hard, 1 / divisor, 0.0)
    turn = gradient(link.log_pdf, xp.where(w == 0, link.median(z), z))
    turn = xp.where(w == 0, 0.0, turn)
    pivot, shift = pivot_at(moment / divisor, hi, lo, t)
    shift = xp.where(some, shift, 0.0)
    known = hard, divisor, per_k, pivot, shift, has_nan, over
    return Sloped(rows, link, z, exact, w != 0, w, turn, unit, *known)


def weights(
    tangents: Tangents, given: Given, theta: tuple[Array, Array], over: Reductions = DENSE
) -> Array:
    """Return the tangent of the weights."""
    return _moved(tangents, sloped(given, theta, over, counted=tangents[1] is not None))


def _moved(tangents: Tangents, s: Sloped) -> Array:
    dk, over, rows = tangents[1], s.over, s.rows
    xp, expand = namespace(s.z), over.expand
    (e,) = s.change(tangents)
    tangent = xp.where(s.w == 0, 0.0, s.w * e) * expand(s.unit)
    if dk is not None:
        row = Entries(s.z, rows.scores, rows.temperature, rows.live, over)
        share = only_if(s.hard, lambda: slope_shares(s.link, row, s.hard), xp.zeros_like(s.z))
        tops = over.sum(cast(rows.top, s.z.dtype))
        shared = (tops > 0) & (rows.k <= 0)
        of_top = xp.where(shared, 1 / xp.where(shared, tops, 1.0), 0.0)
        tangent = tangent + xp.where(rows.top, expand(of_top), share) * expand(dk)
    return nan_where(tangent, rows.live & expand(s.has_nan))


def of_weights(
    v: Array,
    tangents: Tangents,
    given: Given,
    theta: tuple[Array, Array],
    over: Reductions = DENSE,
) -> tuple[Array, Array, Array]:
    """Return how the cotangents of x, k and T change, where one of the weights is v."""
    s, dt = sloped(given, theta, over, counted=False), tangents[2]
    xp, expand, t = namespace(s.z), over.expand, s.rows.temperature
    e, v = s.change(tangents, v)
    u, c = s.w * v, s.turn * v * e
    (total,) = sums_of(over, xp.where(s.w == 0, 0.0, s.w * c))
    du = xp.where(s.w == 0, 0.0, s.w * (c - expand(total / s.divisor)))
    lever = s.lever()
    (tilt,) = sums_of(over, du * lever + u * e)
    if dt is not None:
        (moment,) = sums_of(over, u * lever)
        du, tilt = du - u * expand(dt / t), tilt - moment * (dt / t)
    in_x = nan_where(du * expand(s.unit / t), s.rows.live & expand(s.has_nan))
    in_k, in_t = total * s.per_k, -tilt * (s.unit / t)
    return in_x, nan_where(in_k, s.has_nan), nan_where(in_t, s.has_nan)


def of_thresholds(
    v: Array,
    tangents: Tangents,
    given: Given,
    theta: tuple[Array, Array],
    over: Reductions = DENSE,
) -> tuple[Array, Array, Array]:
    """Return how the cotangents of x, k and T change, where θ's is v."""
    dx, dk, dt = tangents
    if dx is not None and dt is not None:  # z, by which dt moves it, may take the digits of dx
        one, other = (
            of_thresholds(v, some, given, theta, over)
            for some in ((dx, dk, None), (None, None, dt))
        )
        return one[0] + other[0], one[1] + other[1], one[2] + other[2]
    s = sloped(given, theta, over, False, balanced_shares, ends_outside=True)
    expand, share = over.expand, s.share
    (e,) = s.change((dx, None, dt))
    c = s.turn * e
    (total,) = sums_of(over, share * c)
    change = share * (c - expand(total))
    if dk is not None:  # apart from e, whose digits it may take
        by_k, (mean,) = dk * s.per_k, sums_of(over, share * s.turn)
        change = change + expand(by_k) * (share * (s.turn - expand(mean)))
        total = total + by_k * mean
    (tilt,) = sums_of(over, change * s.lever())
    tilt = tilt if dk is None else tilt + by_k
    of_k = s.rows.temperature * total if dt is None else s.rows.temperature * total - dt
    in_x = nan_where(expand(v) * change, s.rows.live & expand(s.has_nan))
    return in_x, nan_where(v * of_k * s.per_k, s.has_nan), nan_where(-v * tilt, s.has_nan)


def of_values(
    v: Array,
    tangents: Tangents,
    given: Given,
    theta: tuple[Array, Array],
    over: Reductions = DENSE,
) -> tuple[Array, Array, Array]:
    """Return how the cotangents p, θ and −ΣΩ(p) of S_k change, where its own is v."""
    dx, dk, dt = tangents
    moved = weights(tangents, given, theta, over)
    s = sloped(given, theta, over, False, balanced_shares)
    xp, expand, t, share = namespace(s.z), over.expand, s.rows.temperature, s.share
    (tilt,) = sums_of(over, xp.where(s.moves, moved * s.lever(), 0.0))
    in_k, edge = xp.zeros_like(tilt), xp.where(xp.isfinite(theta[0]), s.link.edge, 0.0)
    if dx is not None:
        in_k = in_k + over.sum(xp.where(s.moves, share * dx, 0.0))
    if dt is not None:
        in_k = in_k - dt * (over.sum(share * s.z) + edge)
    if dk is not None:  # on a plateau no weight moves, but θ with the edge
        in_k, tilt = in_k - t * s.per_k * dk, tilt + (edge - s.shift) * dk
    in_x = xp.where(s.rows.live, expand(v) * moved, 0.0)
    return in_x, nan_where(v * in_k, s.has_nan), nan_where(-v * tilt, s.has_nan)


def slopes_of_values(
    v: Array, rows: Rows, theta: tuple[Array, Array], over: Reductions
) -> tuple[Array, Array, Array]:
    """Return the cotangents of x, k and T, where S_k's is v."""
    p = place(rows, over, theta)
    xp, z, upper = namespace(p.z), distances(rows, p), p.upper
    _, low, high = split(p.link, p.z, rows.live)
    area = xp.where(upper, p.link.upper_integral(p.z), p.link.integral(p.z))
    # −Ω(p) by the smaller of p and 1 − p
    terms = area + xp.where(low + high == 0, 0.0, (high - low) * z)
    moves = rows.live & ~over.expand(p.settled)
    slope = nan_where(over.sum(xp.where(moves, terms, 0.0)), p.has_nan)
    in_x, in_k, in_t = pullbacks.of_values(v, rows, theta, over, slope)
    return xp.where(rows.live, in_x, 0.0), in_k, in_t

"""How weights, and the cotangents of their rows, change with the rows, in closed form. For JAX.

With w = F′(z), W = Σw, z = (x − θ)/T and tangents ẋ, k̇ and Ṫ, z changes by

    e = s − Σws/W + k̇/W,   s = (ẋ − zṪ)/T,

and p by we. With u = w(v − v̄) and v̄ = Σwv/W, the cotangents u/T, v̄ and −Σuz/T of x, k and T for
one of the weights, v, change by

    (u̇ − uṪ/T)/T,   Σc/W   and   −(Σu̇z + Σue − Σuz·Ṫ/T)/T,   c = F″(v − v̄)e,   u̇ = c − wΣc/W.

These are the second derivatives of Σvp, a symmetric matrix, times the tangents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from kofn.arrays.autodiff import gradient, nan_where
from kofn.arrays.flow import only_if
from kofn.arrays.kinds import Array, cast, namespace
from kofn.formulas.pivot import pivot_at
from kofn.formulas.root import slope_shares
from kofn.links.link import Link
from kofn.rows.given import Given
from kofn.rows.settled import Rows, rows_of, uncounted
from kofn.solver.equation import far, least_weight
from kofn.solver.plateau import Entries, at_end
from kofn.solver.reductions import DENSE, Reductions, sums_of

Tangents = Sequence[Array | None]
"""Of x, k and T; None is for zeros."""


class _Sloped(NamedTuple):
    """Rows with F′ and F″, in units per row."""

    rows: Rows
    link: Link  # with its parameter per entry
    z: Array
    w: Array  # 0 where z is a constant
    bend: Array
    unit: Array  # 1; the greatest F′ where ΣF′ has underflowed
    hard: Array  # rows where it has: k does not move θ
    divisor: Array  # the sum of w
    per_k: Array  # 1/ΣF′, or 0
    lever: Array  # z less a number per row, exact where scores are closer to each other than to θ
    has_nan: Array
    over: Reductions

    def change(self, tangents: Tangents, *others: Array) -> tuple[Array, ...]:
        """Return the tangent of z, and others less their means by w.

        The means are improved once, as in `pullbacks.of_weights`.
        """
        xp, expand, (dx, dk, dt) = namespace(self.z), self.over.expand, tangents
        fixed = self.w == 0
        s = xp.zeros_like(self.z) if dx is None else dx
        s = s if dt is None else s - self.lever * expand(dt)
        values = [
            xp.where(fixed, 0.0, each) for each in (s / expand(self.rows.temperature), *others)
        ]
        for _ in range(2):
            totals = sums_of(self.over, *(self.w * each for each in values))
            means = (expand(total / self.divisor) for total in totals)
            values = [
                xp.where(fixed, 0.0, each - mean) for each, mean in zip(values, means, strict=True)
            ]
        if dk is not None:
            values[0] = values[0] + expand(dk * self.per_k)
        return tuple(values)


def _sloped(given: Given, theta: tuple[Array, Array], over: Reductions, counted: bool) -> _Sloped:
    """Return slopes at θ, which is two numbers; `counted` if scores of +inf are to be counted."""
    at_ends = given.link.capped is not False and over is DENSE  # in shards, θ is at an end already
    rows = rows_of(given, over) if at_ends or counted else uncounted(given)
    x, t, link = rows.scores, rows.temperature, rows.link
    xp, expand, (hi, lo) = namespace(x), over.expand, theta
    open_, has_nan = xp.isfinite(hi), xp.isnan(hi)
    hi, lo = xp.where(open_, hi, 0.0), xp.where(open_, lo, 0.0)
    if at_ends:
        hi, lo = at_end(x, rows.k, t, link, hi, lo, over)
    moves, limit = rows.live & expand(open_), far(xp.finfo(x.dtype))
    z = ((xp.where(moves, x, expand(hi)) - expand(hi)) - expand(lo)) / expand(t)
    z, link = xp.clip(z, -limit, limit), link.map_alpha(expand)
    w = xp.where(moves, link.pdf(z), 0.0)
    bend = xp.where(w == 0, 0.0, gradient(link.pdf, z))
    weight, moment = sums_of(over, w, w * z)
    hard, unit = open_ & (weight < least_weight(w)), xp.ones_like(weight)
    if link.has_infinite_tails(z) is not False:
        slopes: tuple[Array, ...] = w, bend, unit, weight, moment

        def by_logarithms() -> tuple[Array, ...]:
            logs = xp.where(moves & expand(hard), link.log_pdf(z), -math.inf)
            greatest = over.max(logs)
            some = hard & (xp.exp(greatest) > 0)  # else the weights are constants
            greatest, rest = xp.where(some, greatest, 0.0), expand(hard & ~some)
            raised = xp.where(expand(some), xp.exp(logs - expand(greatest)), w)
            raised = xp.where(rest, 0.0, raised)
            steep = xp.where(raised == 0, 0.0, gradient(link.log_pdf, z))
            bent = xp.where(expand(hard), raised * steep, bend)
            return raised, bent, xp.exp(greatest), *sums_of(over, raised, raised * z)

        w, bend, unit, weight, moment = only_if(hard, by_logarithms, slopes)
    divisor = xp.where(weight > 0, weight, 1.0)
    per_k = xp.where((weight > 0) & ~hard, 1 / divisor, 0.0)
    pivot = expand(pivot_at(moment / divisor, hi, lo, t)[0])
    lever = (xp.where(w == 0, pivot, x) - pivot) / expand(t)
    return _Sloped(rows, link, z, w, bend, unit, hard, divisor, per_k, lever, has_nan, over)


def weights(
    tangents: Tangents, given: Given, theta: tuple[Array, Array], over: Reductions = DENSE
) -> Array:
    """Return the tangent of the weights."""
    dk = tangents[1]
    s = _sloped(given, theta, over, counted=dk is not None)
    xp, expand, rows = namespace(s.z), over.expand, s.rows
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
    s, dt = _sloped(given, theta, over, counted=False), tangents[2]
    xp, expand, t = namespace(s.z), over.expand, s.rows.temperature
    e, v = s.change(tangents, v)
    u, c = s.w * v, xp.where(s.bend == 0, 0.0, s.bend * v * e)
    (total,) = sums_of(over, c)
    du = c - s.w * expand(total / s.divisor)
    (tilt,) = sums_of(over, du * s.lever + u * e)
    if dt is not None:
        (moment,) = sums_of(over, u * s.lever)
        du, tilt = du - u * expand(dt / t), tilt - moment * (dt / t)
    in_x = nan_where(du * expand(s.unit / t), s.rows.live & expand(s.has_nan))
    in_k, in_t = total * s.per_k, -tilt * (s.unit / t)
    return in_x, nan_where(in_k, s.has_nan), nan_where(in_t, s.has_nan)

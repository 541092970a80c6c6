"""Which of n noisy scores is the largest: p_i = Pr(argmax(y + ε) = i) by sums over shared nodes.

The maximum m has the distribution function e^L, L = Σ log Φ(m − y_i), and the density H e^L with
H = Σ h_i, h = φ/Φ at m − y_i. So p_i is the mean of h_i/H over m: one integral for all i, and
self-normalised, which makes Σp = 1. Its Jacobian is an integral of the same terms,

    J v = E_m[h∘(v − ⟨h, v⟩/H)],

without the noise's φ′: exact where h jumps, too. Nodes are Gauss's on panels between quantiles of
the maximum, found from L itself, and at the places where an entry's φ jumps or bends. One node
after another, so that memory stays O(n). docs/perturbed.md derives it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from kofn._array import (
    Array,
    cast,
    dtype_name,
    full_like,
    has_gradients,
    is_at_hand,
    is_torch,
    move_axis,
    namespace,
    scalar,
    stop_gradient,
)
from kofn._flow import accumulated, stacked, with_gradients_of
from kofn._link import BuiltIn, Link, by_id
from kofn._rows import Rows
from kofn.threshold import far

Kinks = tuple[tuple[float, float], ...]
"""(z, Φ(z)) where φ jumps or bends, its ends included; Φ = 1 where it is not known."""


class Noise(NamedTuple):
    """Of each score, in units of the temperature; its mean does not matter."""

    link: Link  # an inner one, whose parameter, if any, is a number
    kinks: Kinks


class _Places(NamedTuple):
    at: Array  # (places, …, 1)


class _Means(NamedTuple):
    at: Array
    mass: Array  # of the maximum
    of_v: Array


class Measure(NamedTuple):
    """Node by node, (nodes, …, 1): Σ over nodes of mass·H is 1."""

    at: Array
    mass: Array
    total: Array  # H


def weights(rows: Rows, kinks: Kinks) -> Array:
    """p of rows in which k = 1, by the rules at the edges that softmax has."""
    xp = namespace(rows.scores)
    some = xp.any(rows.live, axis=-1)
    greatest = xp.where(some, xp.max(stop_gradient(rows.scores), axis=-1), 0.0)[..., None]
    distance = xp.where(rows.live, rows.scores, greatest) - greatest
    y = distance / rows.temperature[..., None]
    limit = far(xp.finfo(y.dtype))
    y = xp.where(stop_gradient(y) < -limit, scalar(y, -limit), y)
    y = xp.where(rows.live, y, -math.inf)
    p = xp.where((rows.k <= 0)[..., None], 0.0, probabilities(y, Noise(rows.link, kinks)))
    # Where a score of +inf takes all, a NaN still says so.
    p = xp.where(rows.live & xp.isnan(rows.scores), math.nan, p)
    return xp.where(rows.top, rows.top_weight[..., None], xp.where(rows.live, p, 0.0))


def probabilities(y: Array, noise: Noise) -> Array:
    """p per entry; y has its maximum at 0 and −inf out of play. Differentiable in y."""
    if is_torch(y):
        from kofn._torch_maximum import Probabilities, serves

        if serves(y):
            return Probabilities.apply(y, noise)  # type: ignore[no-untyped-call]
    p = evaluate(stop_gradient(y), noise)
    if not has_gradients(y):
        return p
    link = noise.link
    return p + with_gradients_of(partial(_slope, link.id, link.alpha, noise.kinks), y)


def evaluate(y: Array, noise: Noise) -> Array:
    """p without derivatives."""
    xp = namespace(y)
    measure = measured(y, noise)
    p = accumulated(y, lambda node: node.mass * _hazard(noise.link, node.at, y), measure)
    total = _row_sum(p)
    return p / xp.where(total > 0, total, 1.0)  # so that one alone has all of it, to the last digit


def jacobian_product(y: Array, noise: Noise, v: Array) -> Array:
    """J v, differentiable in y and v; J is symmetric."""
    xp = namespace(y)
    measure = measured(y, noise)
    # J does not see a constant. The largest entry's h is beyond all others where the noise ends
    # below: with a v of 0 there nothing large cancels.
    fixed = stop_gradient(y)
    top = cast(fixed == xp.max(fixed, axis=-1)[..., None], y.dtype)
    v = xp.where(fixed == -math.inf, 0.0, v)
    v = v - _row_sum(top * v) / _row_sum(top)

    def mean(node: Measure) -> tuple[Array]:
        some = node.total > 0
        whole = xp.where(some, node.total, 1.0)
        return (_row_sum(_hazard(noise.link, node.at, y) * v) / whole,)

    def term(node: _Means) -> Array:
        return node.mass * (_hazard(noise.link, node.at, y) * (v - node.of_v))

    means = stacked(y, mean, measure)[0]
    return accumulated(y, term, _Means(measure.at, measure.mass * measure.total, means))


def _slope(link_id: str, alpha: float | None, kinks: Kinks, y: Array) -> Array:
    """0, with the first two derivatives of p: J at the middle between y and the constant y."""
    fixed = stop_gradient(y)
    play = fixed != -math.inf
    xp = namespace(y)
    step = xp.where(play, y, 0.0) - xp.where(play, fixed, 0.0)
    middle = xp.where(play, fixed + step / 2, -math.inf)
    # A third derivative would be wrong and nobody told: that of step^2.5 is infinite.
    noise = Noise(by_id(link_id, alpha), kinks)
    return jacobian_product(middle, noise, step + step**2.5)


def measured(y: Array, noise: Noise) -> Measure:
    """Nodes and their masses; differentiable in y, in the breakpoints too."""
    xp = namespace(y)
    at, width = _nodes(y, noise)

    def logs(place: _Places) -> tuple[Array, Array]:
        log_cdf, hazard = _terms(noise.link, place.at, y)
        return _row_sum(log_cdf), _row_sum(hazard)

    log_mass, total = stacked(y, logs, _Places(at))
    log_mass = log_mass - stop_gradient(xp.max(log_mass, axis=0))
    mass = width * xp.exp(log_mass)
    return Measure(at, mass / xp.sum(mass * total, axis=0), total)


def _log_cdf(link: Link, at: Array, y: Array) -> Array:
    """log Φ(m − y); 0 out of play."""
    return _terms(link, at, y)[0]


def _hazard(link: Link, at: Array, y: Array) -> Array:
    """φ/Φ at m − y; 0 out of play."""
    return _terms(link, at, y)[1]


def _terms(link: Link, at: Array, y: Array) -> tuple[Array, Array]:
    """(log Φ, φ/Φ) at m − y, both from the smaller tail; 0 out of play.

    Φ is at least e^−74 wherever a node is, e^−33 in float32: no logarithm of the noise is needed.
    """
    xp = namespace(y)
    play = y != -math.inf
    upper, tail, density = link.tails(at - xp.where(play, y, 0.0))
    some = upper | (tail > 0)
    cdf = xp.where(upper, 1 - tail, xp.where(some, tail, 1.0))
    log_low = xp.where(some, xp.log(xp.where(upper, 1.0, cdf)), -math.inf)
    log_cdf = xp.where(upper, xp.log1p(-xp.where(upper, tail, 0.0)), log_low)
    return xp.where(play, log_cdf, 0.0), xp.where(play & some, density / cdf, 0.0)


def _row_sum(values: Array) -> Array:
    return namespace(values).sum(values, axis=-1)[..., None]


_GAUSS = {
    6: (
        (0.2386191860831969, 0.46791393457269104),
        (0.6612093864662645, 0.3607615730481387),
        (0.9324695142031519, 0.17132449237917027),
    ),
    12: (
        (0.1252334085114689, 0.2491470458134027),
        (0.3678314989981802, 0.2334925365383546),
        (0.5873179542866175, 0.20316742672306573),
        (0.7699026741943047, 0.16007832854334642),
        (0.9041172563704748, 0.10693932599531907),
        (0.9815606342467192, 0.04717533638651141),
    ),
}
"""Of Gauss–Legendre rules on [−1, 1] the places above 0 with their weights."""


def _gauss(count: int) -> tuple[list[float], list[float]]:
    """Places and weights on [0, 1]."""
    both = [(sign * place, width) for place, width in _GAUSS[count] for sign in (-1, 1)]
    return [(1 + place) / 2 for place, _ in both], [width / 2 for _, width in both]


class _Grid(NamedTuple):
    """How fine: found by trial, so that halving it all changes nothing but rounding."""

    levels: tuple[float, ...]  # of −log(−L) at the ends of panels; beyond them lies no mass
    panel: tuple[list[float], list[float]]
    looks: int  # at L, to find the panels
    rounds: int  # of looks between those
    looks_at_jumps: int  # where φ jumps at its upper end, so that L bends
    rounds_at_jumps: int


_DOUBLE = _Grid((-4.3, -3.2, -2.2, -1.0, 0.6, 2.8, 6.0, 10.0, 16.0, 29.0), _gauss(12), 16, 2, 24, 3)
_SINGLE = _Grid((-3.5, -2.7, -1.9, -1.1, 0.0, 1.5, 4.0, 8.0, 17.0), _gauss(6), 8, 1, 16, 4)


_LOOKS_AT_A_STRANGER = 48  # at a noise of the user's, whose tails may be heavy


def _grid(y: Array) -> _Grid:
    return _DOUBLE if dtype_name(y) == "float64" else _SINGLE


def _nodes(y: Array, noise: Noise) -> tuple[Array, Array]:
    """Gauss–Legendre places and widths, (nodes, …, 1)."""
    xp = namespace(y)
    bounds = _quantiles(stop_gradient(y), noise)
    if noise.kinks:
        bounds = xp.sort(xp.concat([bounds, *_breakpoints(y, noise, bounds)], axis=0), axis=0)
    places, widths = _grid(y).panel
    left, width = bounds[:-1], bounds[1:] - bounds[:-1]
    at = xp.concat([left + place * width for place in places], axis=0)
    return at, xp.concat([weight * width for weight in widths], axis=0)


def _quantiles(y: Array, noise: Noise) -> Array:
    """Where −log(−L) has the levels, roughly: they part panels, and any parting will do."""
    xp = namespace(y)
    grid, jumps = _grid(y), any(share == 1 for _, share in noise.kinks)
    levels = _along_first(y, grid.levels)

    def look(at: Array) -> Array:
        def logs(place: _Places) -> tuple[Array]:
            return (_row_sum(_log_cdf(noise.link, place.at, y)),)

        (log_cdf,) = stacked(y, logs, _Places(at))
        return xp.clip(-xp.log(-log_cdf), -100.0, 100.0)

    count = grid.looks_at_jumps if jumps else grid.looks
    if not isinstance(noise.link, BuiltIn):
        count = _LOOKS_AT_A_STRANGER
    at = _first_looks(y, noise.link, count) + xp.zeros_like(stop_gradient(y[..., :1]))
    seen = look(at)
    for _ in range(grid.rounds_at_jumps if jumps else grid.rounds):
        again = _inverse(levels, at, seen)
        # Both rise, so that each may be sorted by itself.
        seen = xp.sort(xp.concat([seen, look(again)], axis=0), axis=0)
        at = xp.sort(xp.concat([at, again], axis=0), axis=0)
    bounds = _inverse(levels, at, seen)
    if isinstance(noise.link, BuiltIn):
        return bounds
    # Heavy tails change their scale within a panel, but not between looks.
    first = _first_looks(y, noise.link, count) + xp.zeros_like(bounds[:1])
    within = (first > bounds[:1]) & (first < bounds[-1:])
    return xp.sort(xp.concat([bounds, xp.where(within, first, bounds[:1])], axis=0), axis=0)


def _first_looks(y: Array, link: Link, count: int) -> Array:
    """Places that hold the maximum of up to n alike, by the quantiles of one; (looks, …, 1)."""
    xp = namespace(y)
    levels = _grid(y).levels
    last = levels[-1] + math.log(y.shape[-1])
    step = (last - levels[0]) / (count - 1)
    shares = [math.exp(-(levels[0] + i * step)) for i in range(count)]  # −log Φ
    if not isinstance(link, BuiltIn):  # a heavy tail halves Φ over ever longer ways
        shares = sorted(shares + [i * math.log(2) for i in range(2, 28)], reverse=True)
    lower = [math.exp(-share) for share in shares if share > math.log(2)]
    upper = [-math.expm1(-share) for share in shares if share <= math.log(2)]
    low = link.quantile(_along_first(y, lower))
    high = link.upper_quantile(_along_first(y, upper))
    # A quantile that stops at the last number before 1 leaves a tail to others.
    middle, end = low[-1:], xp.max(xp.where(xp.isinf(high), low[-1:], high), axis=0)[None]
    high = xp.where(xp.isinf(high), end, high)
    beyond = [end + (end - middle) * part for part in (0.2, 0.5, 1.0, 4.0, 30.0)]
    return xp.concat([low, high, *beyond], axis=0)


def _inverse(levels: Array, at: Array, seen: Array) -> Array:
    """Where the rising broken line through (at, seen) has the levels; (levels, …, 1)."""
    xp = namespace(at)
    rise, run = seen[1:] - seen[:-1], at[1:] - at[:-1]
    steep = xp.where(rise > 0, rise, 1.0)
    part = (levels[:, None] - seen[:-1][None]) / steep[None]
    part = xp.where((rise > 0)[None], xp.clip(part, 0.0, 1.0), xp.where(part >= 0, 1.0, 0.0))
    return at[0][None] + xp.sum(part * run[None], axis=1)


def _breakpoints(y: Array, noise: Noise, bounds: Array) -> list[Array]:
    """The kinks of the entries above the lowest bound, (places, …, 1) each; idle ones where fewer.

    At a kink of the r-th largest entry e^L ≤ Φ(kink)^(r − 1): few of them count, unless Φ is 1
    there. How many there are is looked at where nothing waits for the answer. The largest entry's
    count wherever they are: the ends of the noise move with it.
    """
    xp = namespace(y)
    low = bounds[:1]
    idle = bounds[bounds.shape[0] // 2][None]  # one that is there already
    descending = xp.flip(xp.sort(xp.where(xp.isnan(y), -math.inf, y), axis=-1), axis=-1)
    found = []
    for kink, share in noise.kinks:
        count = y.shape[-1]
        if share < 1:
            count = min(count, 1 + math.ceil(40 / -math.log(share)) if share else 1)
        if is_at_hand(y) and math.prod(y.shape):
            count = min(count, 1 + int(xp.max(xp.sum(y + kink > low[0], axis=-1))))
        places = move_axis(descending[..., :count], -1, 0)[..., None] + kink
        found.append(places[:1])
        found.append(xp.where(places[1:] > low, places[1:], idle))
    return found


def _along_first(like: Array, values: Sequence[float]) -> Array:
    """Numbers as an array of the kind of `like`, (numbers, 1, …)."""
    xp = namespace(like)
    each = [full_like(like, (1,) * (like.ndim + 1), value) for value in values]
    return xp.concat(each, axis=0)

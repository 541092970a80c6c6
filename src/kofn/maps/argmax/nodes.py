"""Quadrature nodes for the maximum of noisy scores: Gauss–Legendre nodes on panels."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from kofn.adapters import route
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.flow import stacked
from kofn.arrays.kinds import (
    Array,
    cast,
    dtype_name,
    full_like,
    most_precise_dtype,
    move_axis,
    namespace,
    scalar,
)
from kofn.arrays.operations import arange, greatest, take_along_last, with_undivided_rows
from kofn.arrays.tracing import is_at_hand
from kofn.links.link import BuiltIn, Link
from kofn.maps.argmax.kernels import serving as noise_kernels
from kofn.operations.choice import LARGEST

Kinks = tuple[tuple[float, float], ...]
"""(z, Φ(z)) where φ jumps or bends, its ends included; Φ = 1 where it is not known."""


class Noise(NamedTuple):
    """The noise of each score, in units of the temperature; its mean does not matter."""

    link: Link  # an inner link; its parameter, if any, is a number
    kinks: Kinks


class Places(NamedTuple):
    at: Array  # (places, …, 1)


def log_cdf(link: Link, at: Array, y: Array) -> Array:
    """Return log Φ(m − y); 0 for excluded entries."""
    return terms(link, at, y)[0]


def hazard(link: Link, at: Array, y: Array) -> Array:
    """Return φ/Φ at m − y; 0 for excluded entries."""
    return terms(link, at, y)[1]


def terms(link: Link, at: Array, y: Array) -> tuple[Array, Array]:
    """Return (log Φ, φ/Φ) at m − y, from the smaller tail; 0 for excluded entries.

    At every node Φ is at least e^−74 (e^−33 in float32), so log Φ can be computed from Φ.
    """
    xp = namespace(y)
    play = y != -math.inf
    z = at - xp.where(play, y, 0.0)
    upper, tail, density = link.tails(z)
    some = upper | (tail > 0)
    cdf = xp.where(upper, 1 - tail, tail)
    log_low = xp.where(some, xp.log(xp.where(some & ~upper, tail, 1.0)), -math.inf)
    log_cdf = xp.where(upper, xp.log1p(-xp.where(upper, tail, 0.0)), log_low)
    return xp.where(play, log_cdf, 0.0), xp.where(play, link.reversed_hazard(z, cdf, density), 0.0)


def row_sum(values: Array) -> Array:
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
"""The places above 0 of Gauss–Legendre rules on [−1, 1], with their weights."""


def _gauss(count: int) -> tuple[list[float], list[float]]:
    """Return the Gauss–Legendre nodes and weights on [0, 1]."""
    both = [(sign * place, width) for place, width in _GAUSS[count] for sign in (-1, 1)]
    return [(1 + place) / 2 for place, _ in both], [width / 2 for _, width in both]


class _Grid(NamedTuple):
    """The sizes of the grid, found by trial: halving all of them changes only rounding errors."""

    levels: tuple[
        float, ...
    ]  # values of −log(−L) at the ends of panels; beyond them there is no mass
    panel: tuple[list[float], list[float]]
    looks: int  # evaluations of L to find the panels
    rounds: int  # evaluations between those
    looks_at_jumps: int  # where φ jumps at its upper end, which gives L a kink
    rounds_at_jumps: int
    least: float  # bounds of log m if m is measured from the end of the noise: 1/m is finite
    rare: float  # −log of a mass that does not count


_DOUBLE = _Grid(
    (-4.3, -3.2, -2.2, -1.0, 0.6, 2.8, 6.0, 10.0, 16.0, 29.0),
    _gauss(12),
    16,
    2,
    24,
    3,
    -700.0,
    40.0,
)
_SINGLE = _Grid(
    (-3.5, -2.7, -1.9, -1.1, 0.0, 1.5, 4.0, 8.0, 17.0), _gauss(6), 8, 1, 16, 4, -85.0, 20.0
)
_AT_A_STRANGER = 48  # for a user's noise, whose tails may be heavy


def _grid(y: Array) -> _Grid:
    return _DOUBLE if dtype_name(y) == "float64" else _SINGLE


def nodes(y: Array, noise: Noise) -> tuple[Array, Array]:
    """Return Gauss–Legendre nodes and widths, (nodes, …, 1)."""
    xp = namespace(y)
    scale = _scale_of(noise.link)
    bounds = _quantiles(stop_gradient(y), noise, scale)
    more = scale.divided(bounds, _grid(y)) + _breakpoints(y, noise, bounds, scale)
    if more:
        bounds = xp.sort(xp.concat([bounds, *more], axis=0), axis=0)
    places, widths = _grid(y).panel
    left, width = bounds[:-1], bounds[1:] - bounds[:-1]
    at = xp.concat([left + place * width for place in places], axis=0)
    width = xp.concat([weight * width for weight in widths], axis=0)
    return scale.measured(y, noise.link, bounds[:1], at, width)


class _Plain:
    """Panels in the coordinate m."""

    def place(self, s: Array) -> Array:
        """Return m at the coordinate s."""
        return s

    def coordinate(self, m: Array) -> Array:
        return m

    def within(self, kinks: Kinks) -> Kinks:
        """Return the breakpoints that separate panels."""
        return kinks

    def divided(self, bounds: Array, grid: _Grid) -> list[Array]:
        """Return additional ends of panels."""
        return []

    def most_divided(self, grid: _Grid) -> int:
        """Return how many these are."""
        return 0

    def measured(
        self, y: Array, link: Link, first: Array, s: Array, width: Array
    ) -> tuple[Array, Array]:
        """Return (m, width) at the nodes; the first panel begins at `first`."""
        return s, width


class _FromTheEnd:
    """Panels in s, m = e^s, for a Φ that starts at 0 like a non-integer power of z.

    φ or one of its derivatives is infinite there, and again at −d if two scores are a distance d
    apart. In s, all of these are powers of e^s + d, which are smooth for every d.
    """

    def __init__(self, order: float) -> None:
        self.order = order

    def place(self, s: Array) -> Array:
        return namespace(s).exp(s)

    def coordinate(self, m: Array) -> Array:
        xp = namespace(m)
        least = math.exp(_grid(m).least)
        return xp.log(xp.where(m > least, m, least))

    def within(self, kinks: Kinks) -> Kinks:
        return tuple((kink, share) for kink, share in kinks if share > 0)  # s starts at m = 0

    def divided(self, bounds: Array, grid: _Grid) -> list[Array]:
        # The singularities e^s = −d are π away from the real axis, far enough for panels of 4.
        count, length = self.most_divided(grid) + 1, bounds[-1:] - bounds[:1]
        return [bounds[:1] + length * (i / count) for i in range(1, count)]

    def most_divided(self, grid: _Grid) -> int:
        longest = min(math.exp(-grid.levels[0]) / self.order, -grid.least)
        return math.ceil(longest / 4) - 1

    def measured(
        self, y: Array, link: Link, first: Array, s: Array, width: Array
    ) -> tuple[Array, Array]:
        xp = namespace(y)
        m, start = self.place(s), self.place(first)
        # One node of width 1/H holds all the mass e^L below the first panel.
        (total,) = stacked(y, lambda place: (row_sum(hazard(link, place.at, y)),), Places(start))
        below = 1 / xp.where(total > 0, total, math.inf)
        return xp.concat([start, m], axis=0), xp.concat([below, width * xp.exp(s)], axis=0)


def _scale_of(link: Link) -> Any:
    order = link.order
    return _FromTheEnd(order) if order is not None and order != round(order) else _Plain()


def from_the_largest(y: Array, noise: Noise) -> Array:
    """Return y shifted so that its largest entry is 0, without a gradient if m is measured there.

    The shift is the same for all entries. Its derivative would be a difference of two infinite φ′.
    """
    if not isinstance(_scale_of(noise.link), _FromTheEnd):
        return y
    xp, fixed = namespace(y), stop_gradient(y)
    first = arange(y, y.shape[-1]) == cast(xp.argmax(fixed, axis=-1)[..., None], y.dtype)
    play = fixed != -math.inf
    largest = row_sum(xp.where(first & play, y, 0.0))
    return xp.where(first, fixed, xp.where(play, y, 0.0) - largest + xp.where(play, 0.0, fixed))


def _quantiles(y: Array, noise: Noise, scale: Any) -> Array:
    """Find roughly where −log(−L) has the given levels; panels need no accurate ends."""
    xp = namespace(y)
    grid, jumps = _grid(y), any(share == 1 for _, share in noise.kinks)
    levels = _along_first(y, grid.levels)

    kernels = noise_kernels(noise.link, y)

    def look(at: Array) -> Array:
        def logs(place: Places) -> tuple[Array]:
            return (row_sum(log_cdf(noise.link, scale.place(place.at), y)),)

        if kernels is not None:
            seen = kernels.logs(y, noise.link, cast(scale.place(at), y.dtype))
        else:
            (seen,) = stacked(y, logs, Places(at))
        return xp.clip(-xp.log(-seen), -100.0, 100.0)

    count = grid.looks_at_jumps if jumps else grid.looks
    if not isinstance(noise.link, BuiltIn):
        count = _AT_A_STRANGER
    of_rows = xp.zeros_like(greatest(stop_gradient(y))[..., None])
    first = _first_looks(y, noise.link, count) + of_rows
    at = first = scale.coordinate(first)
    seen = look(at)
    for _ in range(grid.rounds_at_jumps if jumps else grid.rounds):
        again = _inverse(levels, at, seen)
        # Both are increasing, so each may be sorted separately.
        seen = xp.sort(xp.concat([seen, look(again)], axis=0), axis=0)
        at = xp.sort(xp.concat([at, again], axis=0), axis=0)
    bounds = _inverse(levels, at, seen)
    if isinstance(noise.link, BuiltIn):
        return bounds
    # Heavy tails change their scale within a panel, but not between evaluations.
    within = (first > bounds[:1]) & (first < bounds[-1:])
    return xp.sort(xp.concat([bounds, xp.where(within, first, bounds[:1])], axis=0), axis=0)


def _first_looks(y: Array, link: Link, count: int) -> Array:
    """Return points that cover the maximum of up to n equal entries, (points, …, 1)."""
    xp = namespace(y)
    levels = _grid(y).levels
    last = levels[-1] + math.log(y.shape[-1])
    step = (last - levels[0]) / (count - 1)
    shares = [math.exp(-(levels[0] + i * step)) for i in range(count)]  # −log Φ
    if not isinstance(link, BuiltIn):  # in a heavy tail, Φ halves over longer and longer distances
        shares = sorted(shares + [i * math.log(2) for i in range(2, 28)], reverse=True)
    lower = [math.exp(-share) for share in shares if share > math.log(2)]
    upper = [-math.expm1(-share) for share in shares if share <= math.log(2)]
    low = link.quantile(_along_first(y, lower))
    high = link.upper_quantile(_along_first(y, upper))
    # A quantile limited to the last number before 1 misses the rest of the tail.
    middle, end = low[-1:], xp.max(xp.where(xp.isinf(high), low[-1:], high), axis=0)[None]
    high = xp.where(xp.isinf(high), end, high)
    beyond = [end + (end - middle) * part for part in (0.2, 0.5, 1.0, 4.0, 30.0)]
    return xp.concat([low, high, *beyond], axis=0)


def _inverse(levels: Array, at: Array, seen: Array) -> Array:
    """Invert the increasing piecewise linear function through (at, seen) at the levels."""
    xp = namespace(at)
    rise, run = seen[1:] - seen[:-1], at[1:] - at[:-1]
    steep = xp.where(rise > 0, rise, 1.0)
    part = (levels[:, None] - seen[:-1][None]) / steep[None]
    jump = xp.where(part >= 0, scalar(part, 1.0), 0.0)
    part = xp.where((rise > 0)[None], xp.clip(part, 0.0, 1.0), jump)
    # Of floats, the sum would depend on how many rows there are.
    part = cast(part, most_precise_dtype(part))
    return cast(at[0][None] + xp.sum(part * run[None], axis=1), at.dtype)


def _breakpoints(y: Array, noise: Noise, bounds: Array, scale: Any) -> list[Array]:
    """Return the kinks of the entries above the lowest bound, (points, …, 1), padded if fewer.

    At a kink of the r-th largest entry, e^L ≤ Φ(kink)^(r − 1), so few kinks count unless Φ is 1
    there. Their number is read only if that does not wait for a device. The kinks of the largest
    entry always count: the ends of the noise move with it.
    """
    kinks = scale.within(noise.kinks)
    if not kinks:
        return []
    xp = namespace(y)
    low, start = bounds[:1], scale.place(bounds[:1])
    idle = bounds[bounds.shape[0] // 2][None]  # one that is already present
    counts = [_count_above(y, kink, share, start) for kink, share in kinks]
    descending = _largest(y, max(counts))
    points = []
    for (kink, _), count in zip(kinks, counts, strict=True):
        places = move_axis(descending[..., :count], -1, 0)[..., None] + kink
        places = scale.coordinate(places)
        points += [places[:1], xp.where(places[1:] > low, places[1:], idle)]
    return points


def _count_above(y: Array, kink: float, share: float, start: Array) -> int:
    """Return of how many of the largest entries this kink counts, at most."""
    xp, count = namespace(y), y.shape[-1]
    rarest = _rarest(share, _grid(y))
    count = count if rarest is None else min(count, rarest)
    if is_at_hand(y) and 0 not in y.shape:
        count = min(count, 1 + int(xp.max(xp.sum(y + kink > start[0], axis=-1))))
    return count


def most_nodes(y: Array, noise: Noise) -> int:
    """Return how many `nodes` there are at most, for a built-in noise and rows of any length."""
    grid, scale = _grid(y), _scale_of(noise.link)
    kinks = [_rarest(share, grid) for _, share in scale.within(noise.kinks)]
    if None in kinks:
        return sys.maxsize
    panels = len(grid.levels) - 1 + scale.most_divided(grid) + sum(kinks)  # type: ignore[arg-type]
    return 1 + panels * len(grid.panel[0])


def _rarest(share: float, grid: _Grid) -> int | None:
    """Return how many entries' kinks count; None where all may."""
    if share >= 1:
        return None
    return 1 + math.ceil(grid.rare / -math.log(share)) if share else 1


def _largest(y: Array, count: int) -> Array:
    """Return so many of the largest entries of each row, in falling order; a NaN is the least."""
    xp = namespace(y)
    known = xp.where(xp.isnan(y), -math.inf, y)
    places = route.by_kernel(LARGEST, known, settings=(count,)) if is_at_hand(y) else None
    if places is not None:
        return take_along_last(known, places)
    return xp.flip(xp.sort(with_undivided_rows(known), axis=-1), axis=-1)[..., :count]


def _along_first(like: Array, values: Sequence[float]) -> Array:
    """Return numbers as an array like `like`, of shape (numbers, 1, …)."""
    xp = namespace(like)
    each = [full_like(like, (1,) * (like.ndim + 1), value) for value in values]
    return xp.concat(each, axis=0)

"""The search for the largest temperature with at most a given softness, by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from kofn import links
from kofn.adapters import route
from kofn.arrays.flow import namespace_like, repeat
from kofn.arrays.kinds import Array, cast, dtype_name, namespace
from kofn.arrays.operations import divided_as, greatest
from kofn.operations.topk import WEIGHTS
from kofn.rows.given import Given, given_again

COLDEST, WARMEST = 2.0**-60, 2.0**20
ROUNDS = {"float32": 36, "float64": 58}
"""Down to a rounding of log T: its ends are at most 140 + 2·`room` apart."""


def _halved(softness: Softness, per_row: bool, what: Given, target: Array) -> Array:
    """Return T by bisection in log T: the end of the bracket that is no softer than the target."""
    xp = namespace_like(what.scores)
    x = what.scores
    what, target = what._replace(k=divided_as(what.k, x)), divided_as(target, x)
    weights, softness_of = route.again(WEIGHTS, x, what.k, what.link), softness(what)
    counted = None if per_row else playing(what)
    finite = ~xp.isinf(x)
    some = xp.any(finite, axis=-1)
    top = xp.where(some, greatest(xp.where(finite, x, -math.inf)), 0.0)
    apart = xp.where(finite, top[..., None] - x, 0.0)
    far = greatest(apart)
    near = xp.min(xp.where(apart > 0, apart, math.inf), axis=-1)
    if not per_row:
        far, near = _all(xp.max, far, 0.0), _all(xp.min, near, math.inf)
    # A NaN is left to the weights to show.
    far = xp.where((far > 0) & (far < math.inf), far, 1.0)
    near = xp.where((near > 0) & (near < math.inf), near, far)
    start, end = xp.log(near) + math.log(COLDEST), xp.log(far) + math.log(WARMEST)
    info = xp.finfo(x.dtype)
    room = math.log(float(info.max)) - 8  # T and its quotients stay finite
    start, end = xp.clip(start, -room, room), xp.clip(end, -room, room)

    def look(search: _Search) -> _Search:
        # The ends come first, in the same loop: a compiler then has one map to compile, not three.
        place = search.rounds
        middle = search.low + (search.high - search.low) / 2
        at = xp.where(place == 0, start, xp.where(place == 1, end, middle))
        soft = softness_of(weights(x, xp.exp(at)))
        soft = soft if counted is None else mean_of(soft, counted)
        inside, over = place > 1, soft > target
        return _Search(
            low=xp.where(inside & ~over, at, search.low),
            high=xp.where(inside & over, at, search.high),
            cold=xp.where(place == 0, soft, search.cold),
            warm=xp.where(place == 1, soft, search.warm),
            rounds=place + 1,
        )

    zero = xp.zeros_like(target)
    bracket = repeat(x, ROUNDS[dtype_name(x)], look, _Search(start, end, zero, zero, zero))
    same = xp.abs(bracket.warm - bracket.cold) <= 8 * float(info.eps) * bracket.cold  # to rounding
    t = xp.where(same, far, xp.exp(bracket.low))
    return xp.where(xp.isnan(bracket.cold) | xp.isnan(target), math.nan, t)


Softness = Callable[[Given], Callable[[Array], Array]]
"""Of rows, how soft weights of theirs are, per row."""


class _Search(NamedTuple):
    """The state of the search: a bracket of log T, and the softness at its first ends."""

    low: Array
    high: Array
    cold: Array
    warm: Array
    rounds: Array


def _support(what: Given) -> Callable[[Array], Array]:
    """Return the effective number of entries as a function of weights."""
    xp = namespace_like(what.scores)

    def support(p: Array) -> Array:
        total, squares = xp.sum(p, axis=-1), xp.sum(p * p, axis=-1)
        return total * total / xp.where(squares == 0, 1.0, squares)

    return support


def _hard_gap(what: Given) -> Callable[[Array], Array]:
    """Return ‖p − hard‖₁ as a function of weights p."""
    xp, one = namespace_like(what.scores), namespace(what.k).ones_like(what.k)
    chosen = route.hard(given_again(what.scores, what.k, one, links.logistic), what.k)

    def gap(p: Array) -> Array:
        over = p - chosen  # twice its positive part, so that nothing cancels
        # A rounding of θ must not count as soft where 0 is the target.
        return 2 * xp.sum(xp.where(over > float(xp.finfo(p.dtype).eps), over, 0.0), axis=-1)

    return gap


def playing(what: Given) -> Array:
    return namespace(what.scores).any(what.scores != -math.inf, axis=-1)


def mean_of(values: Array, counted: Array) -> Array:
    xp = namespace(values)
    number = xp.sum(cast(counted, values.dtype))
    return xp.sum(xp.where(counted, values, 0.0)) / xp.where(number > 0, number, 1.0)


def _all(reduction: Callable[..., Any], values: Array, empty: float) -> Array:
    """Reduce over all rows; return `empty` if there are none."""
    xp = namespace(values)
    return reduction(values) if math.prod(values.shape) else xp.sum(values) + empty


# By name, so that each is compiled once where compiling is how a framework works.
SOLVERS = {
    (name, per_row): partial(_halved, softness, per_row)
    for name, softness in (("support", _support), ("gap", _hard_gap))
    for per_row in (True, False)
}

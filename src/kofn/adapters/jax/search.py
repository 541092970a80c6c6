"""θ of rows whose parts lie on several JAX devices, by one loop.

XLA takes long to compile what `solver/threshold.py` has for rare rows: loops of their own, each
with the link in it. Here one loop has phases, whose looks are one program, with a message of sums:

- Newton's steps, in all rows;
- in rows in which these do not converge, a bisection in the order of floats for the float above
  which ΣF < k, a bit a look; a look halfway between the scores next to it; and the same bisection
  for the distance from the nearer one (what `solver/neighbours.py` finds);
- in rows in which ΣF is flat there, Newton's steps on a logarithmic scale.

What a loop or a branch hands on is made by one operation (`as_one`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
from jax import lax

from kofn.arrays.jax.at_once import as_one
from kofn.arrays.keys import in_order, numbers_of
from kofn.arrays.kinds import dtype_name
from kofn.links.link import Link
from kofn.solver.bracket import bracket_of, moments_of, share_of
from kofn.solver.equation import Problem
from kofn.solver.neighbours import Place
from kofn.solver.reductions import Reductions, maxima_of
from kofn.solver.threshold import (
    ROUNDS,
    Newton,
    Search,
    answered,
    around_gap,
    balance,
    begun,
    bisections,
    log_balance,
    stepped,
)

NEWTON, FLOATS, HALFWAY, DISTANCE, LOGS, END = range(6)
"""The phases; rows that Newton's method has lost are active from FLOATS to DISTANCE."""

Made = TypeVar("Made")


class Ray(NamedTuple):
    """The places start + sign·v, where v is a float; θ is above `low`, and at most at `high`."""

    start: Any
    sign: Any
    low: Any  # integers in the order of floats
    high: Any

    def middle(self) -> Any:
        """Return the integer halfway, rounded up: at last, `high`."""
        return (self.low >> 1) + (self.high >> 1) + ((self.low | self.high) & 1)

    def at_middle(self) -> Place:
        return Place(self.start, self.sign * numbers_of(self.middle(), dtype_name(self.start)))

    def after(self, excess: Any) -> Ray:
        """Return the ray after a look at its middle."""
        where, middle, beyond = jax.numpy.where, self.middle(), self.sign * excess > 0
        low, high = where(beyond, middle, self.low), where(beyond, self.high, middle)
        return self._replace(low=low, high=high)


class State(NamedTuple):
    """What the loop carries; phase and looks are numbers for all rows."""

    phase: Any
    left: Any  # the looks that are left in this phase
    search: Search
    ray: Ray


def solve(x: Any, k: Any, temperature: Any, link: Link, over: Reductions) -> tuple[Any, Any]:
    """Return θ as `threshold.solve` does; two messages tell what is first known of a row."""
    xp: Any = jax.numpy
    live = x != -math.inf
    known = moments_of(x, live, temperature, over)
    p = Problem(x, live, k, known.live, temperature, link.map_alpha(over.expand), link, over)
    open_ = (k > 0) & (k < p.n)
    ends = bracket_of(p, known, open_)
    has_nan = xp.isnan(k) | ((p.n > 0) & (xp.isnan(temperature) | xp.isnan(ends[1])))
    # Above the greatest score, or below the least, the distance of θ is at most |F⁻¹(k/n)|.
    reach = abs(1.01 * temperature * share_of(p, open_)[1])
    search, reach, open_, has_nan = _made((begun(*ends, open_ & ~has_nan), reach, open_, has_nan))
    hi, lo = answered(p, _searched(p, search, reach), open_, has_nan)
    return hi, lo


def _made(arrays: Made) -> Made:
    """Return arrays with a number per row, made by one operation."""
    leaves, tree = jax.tree.flatten(arrays)
    made: Made = jax.tree.unflatten(tree, as_one(*leaves))
    return made


def _searched(p: Problem, first: Search, reach: Any) -> Place:
    """Return θ of the rows that are active at first."""
    xp: Any = jax.numpy
    kind, info = dtype_name(p.x), xp.finfo(p.x.dtype)
    wanted, zero, bits = first.active, xp.zeros_like(p.k), int(info.bits)
    largest = zero + float(info.max)
    everywhere = Ray(zero, zero + 1.0, in_order(-largest), in_order(largest))
    has_plateau = p.row_link.has_infinite_tails(p.x) is not False  # a bounded link has none

    def look(s: State) -> Newton:
        z = p.z(*s.search.at)
        looks = [lambda: _made(balance(p, z)), lambda: _made(log_balance(p, z))]
        return lax.cond(s.phase == LOGS, *reversed(looks)) if has_plateau else looks[0]()

    def advance(s: State) -> State:
        seen, last = look(s), s.ray
        bisects = (s.phase > NEWTON) & (s.phase < LOGS)
        search, ray = stepped(p, s.search, seen), last.after(seen.excess)
        at = ray.at_middle().where(bisects & s.search.active, search.at)
        active = xp.where(bisects, s.search.active, search.active)
        search, ray = _made((search._replace(at=at, active=active), ray))
        s = State(s.phase, s.left - 1, search, ray)
        ended = (s.left <= 0) | ~xp.any(search.active)
        return lax.cond(ended, lambda: following(s, seen.excess, last), lambda: s)

    def following(s: State, excess: Any, last: Ray) -> State:
        """Return the start of the phase that comes next; of a ray, what it was at the last look."""
        ways: list[Callable[[], State]] = [
            lambda: after_newton(s),
            lambda: after_floats(s),
            lambda: after_halfway(s, excess, last),
            lambda: begin(s, END),
        ]
        s = lax.switch(s.phase, ways)  # the last one ends LOGS, too
        if not has_plateau:
            return s

        def between() -> State:
            return begin(s, LOGS, bisections(p.x), search=_made(around_gap(p, s.search)))

        return lax.cond((s.phase == END) & xp.any(s.search.flat), between, lambda: s)

    def begin(s: State, phase: Any, looks: int = 0, **others: Any) -> State:
        # Along the axes these numbers vary as the loop's answers do.
        return s._replace(phase=s.phase * 0 + phase, left=s.left * 0 + looks, **others)

    def on_ray(s: State, phase: Any, ray: Ray, active: Any) -> State:
        """Bisect along a ray in the active rows."""
        at = ray.at_middle().where(active, s.search.at)
        at, ray, active = _made((at, ray, active))
        return begin(s, phase, bits + 1, search=s.search._replace(at=at, active=active), ray=ray)

    def after_newton(s: State) -> State:
        lost = wanted & ~s.search.converged
        return on_ray(s, xp.where(xp.any(lost), FLOATS, END), everywhere, lost)

    def after_floats(s: State) -> State:
        """Look halfway between the scores next to the float that was found."""
        under, search = p.x < p.over.expand(numbers_of(s.ray.high, kind)), s.search
        parts = xp.where(under, p.x, -math.inf), xp.where(under, -math.inf, -p.x)
        below, above = maxima_of(p.over, *parts)
        above = -above
        outside = (below == -math.inf) | (above == math.inf)
        half = xp.where(outside, reach, above / 2 - below / 2)
        at = Place(below, half).where(search.active, search.at)
        at, ray = _made((at, s.ray._replace(start=below, low=in_order(half), high=in_order(above))))
        return begin(s, HALFWAY, 1, search=search._replace(at=at), ray=ray)

    def after_halfway(s: State, excess: Any, last: Ray) -> State:
        """Begin the ray from the nearer score."""
        below, above = last.start, numbers_of(last.high, kind)
        upwards = (above == math.inf) | ((below > -math.inf) & (excess < 0))
        score, sign = xp.where(upwards, below, above), xp.where(upwards, 1.0, zero - 1.0)
        start = xp.where(s.search.active, score, 0.0)
        return on_ray(s, DISTANCE, Ray(start, sign, in_order(zero), last.low), s.search.active)

    none = xp.sum(0 * wanted, dtype="int32")
    start = State(none, none + ROUNDS, first, everywhere)
    return lax.while_loop(lambda s: s.phase != END, advance, start).search.at

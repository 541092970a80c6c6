"""The search for prices by a GPU's kernels, some launches for each pass.

What is decided of a matrix is compiled from the array code of `rules.py`, and the host asks once a
pass whether any matrix needs a step, or thresholds of its columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kofn.adapters import priced
from kofn.arrays.flow import while_loop
from kofn.arrays.kinds import Array, namespace
from kofn.links.link import Link
from kofn.maps.assignment.margins import Open
from kofn.maps.assignment.newton import DENSE, LEAST_CURVED, Steps, room_of, steps_of
from kofn.maps.assignment.rules import Look, State, begun, decided, ended
from kofn.maps.assignment.search import MOST
from kofn.maps.assignment.sight import moved_by, spread_of

Searched = Callable[[Open, Link], tuple[Array, Array, Array]]


def searching(x: Array, link: Link) -> Searched | None:
    """Return `searched` by kernels for such tensors; None where no kernels serve them."""
    backend = priced.serving(x, link)
    return None if backend is None else lambda p, link: _searched(backend, p, link)


def _searched(backend: Any, p: Open, link: Link) -> tuple[Array, Array, Array]:
    xp, batch, n = namespace(p.x), tuple(p.c.shape[:-1]), p.c.shape[-1]
    p = Open(*(xp.reshape(each, (-1, *each.shape[len(batch) :])) for each in p))
    steps, room = None if n <= DENSE else steps_of(xp, p), room_of(xp, p)
    start, spread = begun(xp, p.c, p.t), spread_of(xp, p.x)
    zero, columns = xp.zeros_like(p.t), (p.c, room, p.number)
    of = dict.fromkeys(priced.Numbers._fields, zero)
    of |= {name: each for name, each in start._asdict().items() if name in of}
    kept = priced.Numbers(**of)._replace(given=p.t, spread=spread)
    nothing = xp.zeros_like(p.c)
    first = priced.Columns(nothing, start.base, start.step, start.kept)
    search = backend.Search(p.x, p.k, link.inner, columns, kept, first, rule, LEAST_CURVED)

    def advance(search: Any) -> Any:
        step = _step(xp, steps, search, room) if search.moving else None
        search.advance(step, search.thresholds() if search.by_columns else None)
        return search

    while_loop(p.x, type(search).judged, advance, search, MOST)
    numbers = {name: search.number(name) for name in priced.Numbers._fields}
    s = start._replace(
        base=search.column("base"), kept=search.column("kept"), t=numbers["t"],
        hot=numbers["hot"], active=numbers["active"] > 0, met=numbers["met"] > 0,
    )  # fmt: skip
    beta, t, met = ended(xp, s)
    return xp.reshape(beta, (*batch, n)), xp.reshape(t, batch), xp.reshape(met, batch)


def _step(xp: Any, steps: Steps | None, search: Any, room: Array) -> tuple[Array, Array]:
    """Return Newton's step in a scale of the columns, and that; by `steps` if there are many."""
    if steps is None:
        found: tuple[Array, Array] = search.step()
        return found
    rest = search.column("excess"), room, search.number("added")
    return steps.solved(search.part, search.slopes[1], *rest), xp.ones_like(room)


class _Known(NamedTuple):
    """A matrix of which this was seen."""

    xp: Any
    looked: priced.Looked

    def rounding(self, _: Any, beta: Array, t: Array) -> Array:
        return moved_by(self.xp, t, self.looked.farthest)

    def curvature(self, _: Any, step: Array) -> Any:
        return self.looked.curved

    def alternated(self, beta: Array, t: Array) -> Array:
        return beta  # where thresholds of the columns are found later


def rule(
    xp: Any, kept: priced.Numbers, looked: priced.Looked, columns: priced.Columns
) -> tuple[priced.Numbers, priced.Columns]:
    """Return what follows of this: `rules.decided`, of which kernels are made."""
    of = kept._asdict() | columns._asdict()
    s = State(*(of[name] for name in State._fields))
    seen = Look(columns.beta, None, None, looked.error, looked.rest)
    after, verdict = decided(xp, _Known(xp, looked), s, kept.given, kept.spread, seen)
    added = Steps(xp, None, None, float(xp.finfo(s.t.dtype).eps) * 16, None).damped(
        looked.error, after.damping
    )
    found = {name: each for name, each in after._asdict().items() if name in kept._fields}
    flags = dict(moving=verdict.moving, by_columns=verdict.by_columns)
    numbers = kept._replace(**found, **flags, error=looked.error, added=added)
    return numbers, priced.Columns(columns.beta, after.base, after.step, after.kept)

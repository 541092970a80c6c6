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
from kofn.maps.assignment.margins import Open, opened, settled
from kofn.maps.assignment.newton import room_of
from kofn.maps.assignment.rules import (
    PATIENT,
    Look,
    State,
    Task,
    Verdict,
    begun,
    damping_of,
    ended,
    going_on,
    replaced,
    verdict_of,
)
from kofn.maps.assignment.sight import Matrix, in_memory

MOST = 200
"""Passes in all; then what was met at the lowest temperature so far is the answer."""


class Prices(NamedTuple):
    """What the search finds."""

    beta: Array  # (…, n), of mean 0 over the columns that are open; NaN if there are no weights
    t: Array  # (…,), the temperature: a greater one where floats cannot resolve the one given
    live: Array  # (…, m, n), as in `Settled`
    full: Array


class _Late:
    """`only_if` for what only late passes need: those of `_is_late`.

    On a device, to ask for every flag would be to wait for it, and to do all without to ask is most
    of the work; so the host asks once a pass, together with whether any matrix is left.
    """

    def __init__(self, when: Any) -> None:
        self._when, self.is_now = when, True

    def __call__(self, flags: Array, function: Any, otherwise: Any) -> Any:
        return self._when(flags, function, otherwise) if self.is_now else otherwise


def prices(x: Array, k: Array, c: Array, t: Array, link: Link, search: Any = None) -> Prices:
    """Return the prices of columns at which they have their sums, and rows theirs.

    `search` is `searched` of an open part and a link, by default in array code.
    """
    xp = namespace_like(x)
    of = settled(xp, x, k, c)
    p = opened(xp, x, k, c, t, of)
    # A NaN ends the search of a matrix at once.
    p = p._replace(k=xp.where(of.possible[..., None], p.k, math.nan))
    beta, warm, met = (search or _in_memory)(p, link)
    good = (of.possible & met)[..., None]
    return Prices(xp.where(good, beta, math.nan), warm, of.live, of.full)


def _in_memory(p: Open, link: Link) -> tuple[Array, Array, Array]:
    return searched(in_memory(p, link))


def searched(p: Matrix) -> tuple[Array, Array, Array]:
    """Return the prices of open columns, the temperature, and whether the sums are met."""
    xp = namespace_like(p.c)
    state = begun(xp, p.c, p.t)
    zeros = zeros_of if is_jax(p.c) else xp.zeros_like
    when = only_if_like(p.c)
    task = Task(xp, p, p.t, room_of(xp, p), p.spread, when, _Late(when), zeros)
    elsewhere = is_torch(p.c) and not p.c.is_cpu

    def unfinished(s: State) -> Any:
        going = xp.any(s.active)
        if elsewhere:
            going, task.late.is_now = xp.stack([going, xp.any(_is_late(task, s))]).tolist()
        return going

    return ended(xp, while_loop(p.c, unfinished, partial(_advanced, task), state, MOST))


def _is_late(task: Task, s: State) -> Array:
    """Return which matrices may ask for more than Newton's next step in the pass that follows."""
    warm = (s.t > task.t) | (s.hot > 0)
    return s.active & (warm | (s.passes >= PATIENT - 1) | (s.stalled >= 1))


def _advanced(task: Task, s: State) -> State:
    """Take one pass: look at the step that is tried, and accept, shorten or replace it."""
    seen = _look(task, s)
    return _next(task, s, seen, verdict_of(task, s, seen))


def _look(task: Task, s: State) -> Look:
    xp = task.xp
    beta = s.base + s.length[..., None] * s.step
    of, excess = task.matrix.look(beta, s.t)
    error = xp.max(xp.abs(excess) / task.room, axis=-1)
    return Look(beta, of, excess, error, xp.sum(excess * s.step, axis=-1))


def _next(task: Task, s: State, seen: Look, verdict: Verdict) -> State:
    """Return the state after a pass; after most, each matrix takes Newton's next step in full."""
    damping = damping_of(task, s, seen, verdict)
    same = s.step, s.gain
    step, gain = task.when(verdict.moving, lambda: _newton(task, s, seen, damping), same)
    moved = going_on(s, seen, verdict, damping, step, gain, task.zeros(s.t))
    return task.when(~verdict.moving, lambda: replaced(task, s, seen, verdict, moved), moved)


def _newton(task: Task, s: State, seen: Look, damping: Array) -> tuple[Array, Array]:
    """Return the next step, and R·step."""
    xp, where = task.xp, task.xp.where
    errors = seen.excess, seen.error, task.room, damping
    step = task.matrix.newton_step(seen.of, *errors) * s.t[..., None]
    # On flat ground, where S is nearly singular, it would leap far beyond all prices.
    length = xp.max(xp.abs(step), axis=-1)
    reach = xp.clip((task.spread + 2 * s.t) / where(length > 0, length, 1.0), 0.0, 1.0)
    step = where(length > 0, reach, 1.0)[..., None] * step
    return step, xp.sum(seen.excess * step, axis=-1)

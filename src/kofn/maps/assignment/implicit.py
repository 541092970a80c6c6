"""Derivatives of the prices, by the implicit function theorem.

The search's β is a constant. Two Newton steps from it, whose value is exactly 0,

    δ ← δ + G·(R − stop(R)),     R(δ) = Σ_i soft_topk(s − β − δ)_ij − c_j,     G = T·S⁻¹,

carry the derivatives of the implicit function: the first from one step, the second from two. (The
third is infinite or NaN.) G is a constant; as R is made of `soft_topk`, every transform that can
differentiate that can differentiate this. An error of G in the first derivatives is squared.

Where links have ends, the entries between 0 and 1 may leave the matrix in parts that share no row
and no column; whole-number margins often do. Prices of one part less another's are then not
unique, and a margin cannot change alone: it would move an entry off its end, one if it grows and
another if it falls. Derivatives in the margins are 0 there (`_steady`), those in scores are exact.
"""

from __future__ import annotations

import math
from typing import Any

from kofn.arrays.autodiff import has_gradients, stop_gradient, with_gradients_of
from kofn.arrays.flow import only_if, zeros_of
from kofn.arrays.kinds import Array, cast, is_jax, namespace
from kofn.links.link import Link, by_id
from kofn.maps.assignment.margins import Open
from kofn.maps.assignment.newton import (
    diagonal,
    on_diagonal,
    places,
    scale_of,
    schur,
    steps_of,
    weighted,
    weights_of,
)


def attached(p: Open, beta: Array, link: Link, full: Array, turned: bool) -> tuple[Open, Array]:
    """Return p and β with their derivatives in scores, margins, temperature and alpha.

    `full` are entries that the margins settle as 1, and `turned` says that the rows of p are the
    caller's columns.
    """
    number, alpha = link.static_and_array_alpha()
    if not has_gradients(p.x, p.k, p.c, p.t, alpha):
        return p, beta
    fixed, which = Open(*map(stop_gradient, p)), link.map_alpha(stop_gradient)
    slopes, outwards = _without_ends(which, fixed, fixed.x - beta[..., None, :])
    p = p._replace(x=p.x + outwards)
    gain, joined = _gain(fixed, slopes)
    p = _steady(p, slopes, full, joined, turned)
    like = zeros_of(beta) if is_jax(beta) else beta

    def change(_: Array, beta: Array, gain: Array, alpha: Any, *parts: Array) -> Array:
        here = by_id(link.id, number if alpha is None else alpha)
        return _change(Open(*parts), beta, gain, here)

    return p, beta + with_gradients_of(change, like, beta, gain, alpha, *p)


def _without_ends(link: Link, p: Open, y: Array) -> tuple[Array, Array]:
    """Return F′ of each entry, and what to add to scores at an end of the support, to rounding.

    There F′ is the slope of the inner side, by which whole margins may join those in parts. No
    scores nearby have all of these inside, but all have a place outside, with the same weights.
    """
    xp = namespace(y)
    moving, z, entries = places(link, y, p.k, p.t)
    size = xp.where(moving, xp.abs(y), 0.0) / p.t[..., None, None] + xp.abs(z)
    eps = float(xp.finfo(y.dtype).eps)
    room = xp.clip(4 * eps * (1 + size), 0.0, eps**0.5)
    low = moving & (entries.cdf(z - room) == 0) & (entries.pdf(z + room) > 0)
    high = moving & (entries.sf(z + room) == 0) & (entries.pdf(z - room) > 0)
    outwards = xp.where(high, 3 * room, xp.where(low, -3 * room, 0.0)) * p.t[..., None, None]
    return xp.where(moving & ~low & ~high, entries.pdf(z), 0.0), outwards


def _change(p: Open, beta: Array, gain: Array, link: Link) -> Array:
    """Return δ after two Newton steps: its value is 0, and it has the derivatives of the prices."""
    xp = namespace(p.x)
    delta, steps = xp.zeros_like(beta), steps_of(xp, p)
    for step in range(2):
        y = p.x - (beta + delta)[..., None, :]
        excess = xp.sum(weights_of(link, y, p.k, p.t[..., None]), axis=-2) - p.c
        change = excess - stop_gradient(excess)
        # A third derivative would be silently wrong; c^2.5 makes it infinite at c = 0.
        change = change if step == 0 else change + change**2.5
        delta = delta + steps.centred((gain @ change[..., None])[..., 0])
    return delta


def _gain(p: Open, slopes: Array) -> tuple[Array, Array]:
    """Return T·S⁺, and for which matrices S has an inverse, but for a constant.

    It has none where columns are in parts that have prices of their own, to rounding.
    """
    xp = namespace(slopes)
    eps = float(xp.finfo(slopes.dtype).eps)
    part, columns = weighted(xp, slopes)
    scale, _ = scale_of(xp, columns, xp.zeros_like(p.c), 0.0)
    # What has no slope stands by itself.
    flat = ~(columns > float(xp.finfo(slopes.dtype).smallest_normal))
    level = xp.where(flat, 0.0, scale)
    size = xp.sum(level**2, axis=-1)[..., None]
    level = level / xp.sqrt(xp.where(size > 0, size, 1.0))
    at = on_diagonal(scale)
    product = part.swapaxes(-1, -2) @ part
    matrix = schur(xp, product, columns, scale, level, at)
    matrix = matrix + diagonal(xp, cast(flat, scale.dtype), at)
    known = xp.isfinite(xp.sum(matrix, axis=(-2, -1)))[..., None, None]
    matrix = xp.where(known, matrix, diagonal(xp, xp.ones_like(scale), at))
    inverse = xp.linalg.inv(matrix + diagonal(xp, xp.zeros_like(scale) + 64 * eps, at))
    # One step of Schulz takes back what the addition changed.
    inverse = 2 * inverse - inverse @ matrix @ inverse
    size = xp.sum(inverse**2, axis=(-2, -1))
    near = ~(size < eps**-0.5)
    # Rounding of what joins a strong column and a weak one is their ratio times as large in S⁺.
    most, least = (xp.where(flat, end, scale) for end in (0.0, math.inf))
    ratio = xp.max(most, axis=-1) / xp.min(least, axis=-1)
    even = ratio < xp.where(near, eps**-0.25, eps**-0.5 / xp.where(near, 1.0, size))

    def by_parts() -> tuple[Array, Array]:
        values, vectors = xp.linalg.eigh(matrix)
        some = values > eps**0.6
        inverses = xp.where(some, 1 / xp.where(some, values, 1.0), 0.0)
        pseudo = (vectors * inverses[..., None, :]) @ vectors.swapaxes(-1, -2)
        return xp.where(near[..., None, None], pseudo, inverse), ~near | xp.all(some, axis=-1)

    inverse, joined = only_if(near, by_parts, (inverse, ~near))
    joined = joined & even
    inverse = xp.where(known, inverse, math.nan)
    return inverse / scale[..., :, None] / scale[..., None, :] * p.t[..., None, None], joined


def _steady(p: Open, slopes: Array, full: Array, joined: Array, turned: bool) -> Open:
    """Return p with margins as constants where the weights have no derivative in them.

    That of a row is such a one where the row has no entry between 0 and 1. All margins of a matrix
    are if its columns are in several parts, or one of them takes all it can: as columns grow in
    proportion, a change of any margin would take some of each. What is closed has no derivative
    either, so the open columns are scaled to sum to the open rows.
    """
    xp = namespace(p.x)
    least = float(xp.finfo(p.x.dtype).smallest_normal)
    moving = [xp.sum(slopes, axis=axis) > least for axis in (-1, -2)]
    across = -1 if turned else -2  # along a column of the caller's
    open_, whole = xp.any(p.x > -math.inf, axis=across), xp.any(full, axis=across)
    steady = joined & xp.all(xp.where(open_, moving[0 if turned else 1], ~whole), axis=-1)
    k, c = (
        xp.where(steady[..., None] & each, margin, stop_gradient(margin))
        for each, margin in zip(moving, (p.k, p.c), strict=True)
    )
    # As the caller's columns do, whole entries included; closed ones do not move.
    mine, theirs = (c, k) if turned else (k, c)
    taken: Array = xp.where(open_, cast(xp.sum(full, axis=across), k.dtype), 0.0)
    theirs = theirs + (theirs + taken) * (_growth(mine, theirs, taken) - 1)
    return p._replace(k=theirs, c=mine) if turned else p._replace(k=mine, c=theirs)


def _growth(rows: Array, columns: Array, taken: Array) -> Array:
    """Return (Σrows + Σtaken)/(Σcolumns + Σtaken) divided by its value."""
    xp = namespace(rows)
    whole = xp.sum(taken, axis=-1)
    totals = xp.sum(rows, axis=-1) + whole, xp.sum(columns, axis=-1) + whole
    fixed = [stop_gradient(total) for total in totals]
    some = (fixed[0] > 0) & (fixed[1] > 0)
    up, down = (
        xp.where(some, total, 1.0) / xp.where(some, value, 1.0)
        for total, value in zip(totals, fixed, strict=True)
    )
    return (up / down)[..., None]

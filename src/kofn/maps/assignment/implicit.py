"""Derivatives of the prices, by the implicit function theorem.

The search's β is a constant. Two Newton steps from it, whose value is exactly 0,

    δ ← δ + G·(R − stop(R)),     R(δ) = Σ_i soft_topk(s − β − δ)_ij − c_j,     G = T·S⁻¹,

carry the derivatives of the implicit function: the first from one step, the second from two. (The
third is infinite or NaN.) G is a constant; as R is made of `soft_topk`, every transform that can
differentiate that can differentiate this. An error of G in the first derivatives is squared.
"""

from __future__ import annotations

import math
from typing import Any

from kofn.arrays.autodiff import has_gradients, stop_gradient, with_gradients_of
from kofn.arrays.flow import zeros_of
from kofn.arrays.kinds import Array, full_like, is_jax, namespace
from kofn.arrays.operations import inverse
from kofn.links.link import Link, by_id
from kofn.maps.assignment.margins import Open
from kofn.maps.assignment.newton import centred, densities, diagonal, room_of, schur
from kofn.maps.topk import soft_topk


def attached(p: Open, beta: Array, link: Link) -> Array:
    """Return β with its derivatives in scores, margins, temperature and alpha."""
    number, alpha = link.static_and_array_alpha()
    if not has_gradients(p.x, p.k, p.c, p.t, alpha):
        return beta
    fixed = Open(*map(stop_gradient, p))
    gain = _gain(fixed, beta, link.map_alpha(stop_gradient))
    like = zeros_of(beta) if is_jax(beta) else beta

    def change(_: Array, beta: Array, gain: Array, alpha: Any, *parts: Array) -> Array:
        here = by_id(link.id, number if alpha is None else alpha)
        return _change(Open(*parts), beta, gain, here)

    return beta + with_gradients_of(change, like, beta, gain, alpha, *p)


def _change(p: Open, beta: Array, gain: Array, link: Link) -> Array:
    """Return δ, which is 0."""
    xp = namespace(p.x)
    delta = xp.zeros_like(beta)
    for step in range(2):
        y = p.x - (beta + delta)[..., None, :]
        weights = soft_topk(y, p.k, link=link, temperature=p.t[..., None])
        excess = xp.sum(weights, axis=-2) - p.c
        change = excess - stop_gradient(excess)
        # A third derivative would be silently wrong; c^2.5 makes it infinite at c = 0.
        change = change if step == 0 else change + change**2.5
        delta = delta + centred(p, (gain @ change[..., None])[..., 0])
    return delta


def _gain(p: Open, beta: Array, link: Link) -> Array:
    """Return T·S⁻¹, a pseudo-inverse where parts of the matrix have prices of their own."""
    xp = namespace(p.x)
    slopes = densities(link, p.x - beta[..., None, :], p.k, p.t)
    matrix, scale = schur(slopes, room_of(p), 0.0)
    least = 1e4 * float(xp.finfo(p.x.dtype).eps) ** 0.9
    found = matrix + diagonal(full_like(scale, tuple(scale.shape), least))
    known = xp.isfinite(xp.sum(found, axis=(-2, -1)))[..., None, None]
    found = inverse(xp.where(known, found, diagonal(xp.ones_like(scale))))
    # One step of Schulz takes back what the addition changed.
    found = 2 * found - found @ matrix @ found
    found = xp.where(known, found, math.nan)
    return found / scale[..., :, None] / scale[..., None, :] * p.t[..., None, None]

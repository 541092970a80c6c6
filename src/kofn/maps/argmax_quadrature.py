"""Probabilities p_i = Pr(argmax(y + ε) = i) of noisy scores, by quadrature over shared nodes.

The maximum m has the distribution function e^L, L = Σ log Φ(m − y_i), and the density H e^L with
H = Σ h_i, h = φ/Φ at m − y_i. So p_i is the mean of h_i/H over m: one integral for all i, and
normalised so that Σp = 1. Its Jacobian is an integral of the same terms,

    J v = E_m[h∘(v − ⟨h, v⟩/H)],

without the noise's φ′, so it is exact where h jumps, too. The nodes are Gauss–Legendre nodes on
panels that end at quantiles of the maximum, found from L, and at the jumps and kinks of an entry's
φ. The nodes are processed one at a time, so that memory stays O(n).
See docs/maps_perturbed.md.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

from kofn.arrays.autodiff import has_gradients, stop_gradient, with_gradients_of
from kofn.arrays.flow import accumulated, stacked
from kofn.arrays.kinds import Array, cast, is_torch, namespace, of_torch, scalar
from kofn.links.link import by_id
from kofn.maps.argmax_nodes import (
    Kinks,
    Noise,
    Places,
    from_the_largest,
    hazard,
    nodes,
    row_sum,
    terms,
)
from kofn.rows.noise import serving as noise_kernels
from kofn.rows.settled import Rows
from kofn.solver.equation import far


class _Means(NamedTuple):
    at: Array
    mass: Array  # of the maximum
    of_v: Array


class Measure(NamedTuple):
    """Nodes and their masses, (nodes, …, 1): Σ over nodes of mass·H is 1."""

    at: Array
    mass: Array
    total: Array  # H


def weights(rows: Rows, kinks: Kinks) -> Array:
    """Return p of rows with k = 1, with softmax's rules for ±inf, masks and NaN."""
    xp = namespace(rows.scores)
    some = xp.any(rows.live, axis=-1)
    greatest = xp.where(some, xp.max(stop_gradient(rows.scores), axis=-1), 0.0)[..., None]
    distance = xp.where(rows.live, rows.scores, greatest) - greatest
    y = distance / rows.temperature[..., None]
    limit = far(xp.finfo(y.dtype))
    y = xp.where(stop_gradient(y) < -limit, scalar(y, -limit), y)
    y = xp.where(rows.live, y, -math.inf)
    p = xp.where((rows.k <= 0)[..., None], 0.0, probabilities(y, Noise(rows.link, kinks)))
    # A NaN in the row gives NaN even if a score of +inf takes all the weight.
    p = xp.where(rows.live & xp.isnan(rows.scores), math.nan, p)
    return xp.where(rows.top, rows.top_weight[..., None], xp.where(rows.live, p, 0.0))


def probabilities(y: Array, noise: Noise) -> Array:
    """Return p per entry, differentiable in y; the maximum of y is 0, excluded entries are −inf."""
    if is_torch(y) and of_torch("state").is_eager(y):

        def pullback(cotangent: Array, tensors: Any, kept: Any) -> Any:
            found = Measure(*kept) if kept else None
            return (jacobian_product(tensors[0], noise, cotangent, found),)

        rule = of_torch("rule").Rule(lambda y: evaluate(y, noise), pullback)
        return of_torch("rule").by_rule(rule, y)
    p = evaluate(stop_gradient(y), noise)[0]
    if not has_gradients(y):
        return p
    link = noise.link
    return p + with_gradients_of(partial(_slope, link.id, link.alpha, noise.kinks), y)


def evaluate(y: Array, noise: Noise) -> tuple[Array, Measure | tuple[()]]:
    """Return p without derivatives, and the Measure if kernels have found it."""
    kernels = noise_kernels(noise.link, y)
    found: Measure | tuple[()] = ()
    if kernels is None:
        measure = measured(y, noise)
        p = accumulated(y, lambda node: node.mass * hazard(noise.link, node.at, y), measure)
    else:
        at, width = (cast(a, y.dtype) for a in nodes(y, noise))
        p, log_mass, each = kernels.spread(y, noise.link, at, width)
        found = _normalized(at, width, log_mass, each)
    total = row_sum(p)
    # So that a single entry has weight exactly 1.
    return p / namespace(y).where(total > 0, total, 1.0), found


def jacobian_product(y: Array, noise: Noise, v: Array, found: Measure | None = None) -> Array:
    """Return J v, differentiable in y and v; J is symmetric. `found` is what `evaluate` found."""
    xp = namespace(y)
    kernels = None if found is None else noise_kernels(noise.link, y, v)
    y = from_the_largest(y, noise)
    # J maps a constant to 0. The largest entry's h far exceeds all others at the lower end of
    # the noise; with v = 0 there, no large terms cancel.
    fixed = stop_gradient(y)
    top = cast(fixed == xp.max(fixed, axis=-1)[..., None], y.dtype)
    v = xp.where(fixed == -math.inf, 0.0, v)
    v = v - row_sum(top * v) / row_sum(top)
    if found is not None and kernels is not None:
        mass = found.mass * found.total
        return kernels.product(y, noise.link, found.at, mass, found.total, v)
    measure = measured(y, noise)

    def mean(node: Measure) -> tuple[Array]:
        some = node.total > 0
        whole = xp.where(some, node.total, 1.0)
        return (row_sum(hazard(noise.link, node.at, y) * v) / whole,)

    def term(node: _Means) -> Array:
        return node.mass * (hazard(noise.link, node.at, y) * (v - node.of_v))

    means = stacked(y, mean, measure)[0]
    product = accumulated(y, term, _Means(measure.at, measure.mass * measure.total, means))
    return product + _between_ties(noise, top > 0, v)


def _between_ties(noise: Noise, top: Array, v: Array) -> Array:
    """Return ±∞ at tied largest scores if φ is so steep that their slope is infinite.

    At a distance d, the slope is ∫ φ(t)φ(t + d) dt, which has no limit for φ ~ t^(order − 1).
    """
    xp = namespace(v)
    order = noise.link.order
    if order is None or order > 0.5:
        return xp.zeros_like(v)
    greatest = xp.max(xp.where(top, v, -math.inf), axis=-1)[..., None]
    least = xp.min(xp.where(top, v, math.inf), axis=-1)[..., None]
    apart = top & (greatest > least) & (v != 0)
    return xp.where(apart, math.inf * xp.where(apart, v, 1.0), 0.0)


def _slope(link_id: str, alpha: float | None, kinks: Kinks, y: Array) -> Array:
    """Return 0 with the first two derivatives of p, from J at the midpoint of y and stop(y)."""
    fixed = stop_gradient(y)
    play = fixed != -math.inf
    xp = namespace(y)
    step = xp.where(play, y, 0.0) - xp.where(play, fixed, 0.0)
    middle = xp.where(play, fixed + step / 2, -math.inf)
    # A third derivative would be silently wrong; step^2.5 makes it infinite.
    noise = Noise(by_id(link_id, alpha), kinks)
    return jacobian_product(middle, noise, step + step**2.5)


def measured(y: Array, noise: Noise) -> Measure:
    """Return nodes and their masses, differentiable in y, also through the breakpoints."""
    at, width = nodes(y, noise)

    def logs(place: Places) -> tuple[Array, Array]:
        log_cdf, hazard = terms(noise.link, place.at, y)
        return row_sum(log_cdf), row_sum(hazard)

    return _normalized(at, width, *stacked(y, logs, Places(at)))


def _normalized(at: Array, width: Array, log_mass: Array, total: Array) -> Measure:
    xp = namespace(at)
    log_mass = log_mass - stop_gradient(xp.max(log_mass, axis=0))
    mass = width * xp.exp(log_mass)
    return Measure(at, mass / xp.sum(mass * total, axis=0), total)

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
from typing import NamedTuple

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.flow import accumulated, stacked
from kofn.arrays.kinds import Array, cast, namespace
from kofn.kernels.contract import on_lattice
from kofn.maps.argmax.kernels import serving as noise_kernels
from kofn.maps.argmax.nodes import Noise, Places, from_the_largest, hazard, nodes, row_sum, terms


class _Means(NamedTuple):
    at: Array
    mass: Array  # of the maximum
    of_v: Array


class Measure(NamedTuple):
    """Nodes and their masses, (nodes, …, 1): Σ over nodes of mass·H is 1."""

    at: Array
    mass: Array
    total: Array  # H


def evaluate(y: Array, noise: Noise) -> tuple[Array, Measure | tuple[()]]:
    """Return p without derivatives, and the Measure if kernels have found it."""
    kernels = noise_kernels(noise.link, y)
    known: Measure | tuple[()] = ()
    if kernels is not None and on_lattice(y, noise.link):
        return kernels.largest(y, 1.0, noise.link), known
    if kernels is None:
        measure = measured(y, noise)
        p = accumulated(y, lambda node: node.mass * hazard(noise.link, node.at, y), measure)
    else:
        at, width = (cast(a, y.dtype) for a in nodes(y, noise))
        p, log_mass, each = kernels.spread(y, noise.link, at, width)
        known = _normalized(at, width, log_mass, each)
    total = row_sum(p)
    # So that a single entry has weight exactly 1.
    return p / namespace(y).where(total > 0, total, 1.0), known


def jacobian_product(y: Array, noise: Noise, v: Array, known: Measure | None = None) -> Array:
    """Return J v, differentiable in y and v; J is symmetric. `known` is by `evaluate`."""
    xp = namespace(y)
    kernels = noise_kernels(noise.link, y, v)
    if kernels is not None and on_lattice(y, noise.link):
        return kernels.cotangents(y, 1.0, noise.link, v)[0]
    y = from_the_largest(y, noise)
    # J maps a constant to 0. The largest entry's h far exceeds all others at the lower end of
    # the noise; with v = 0 there, no large terms cancel.
    fixed = stop_gradient(y)
    top = cast(fixed == xp.max(fixed, axis=-1)[..., None], y.dtype)
    v = xp.where(fixed == -math.inf, 0.0, v)
    v = v - row_sum(top * v) / row_sum(top)
    if known is not None and kernels is not None:
        mass = known.mass * known.total
        return kernels.product(y, noise.link, known.at, mass, known.total, v)
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

"""Probabilities of noisy scores with their derivatives, by the code that serves the caller."""

from __future__ import annotations

import math
from functools import partial

from kofn.adapters import route
from kofn.arrays import torch as of_torch
from kofn.arrays.autodiff import has_gradients, stop_gradient, with_gradients_of
from kofn.arrays.kinds import Array, is_torch, namespace, scalar
from kofn.arrays.without_onnx import refuse
from kofn.links.link import by_id
from kofn.maps.argmax.nodes import Kinks, Noise
from kofn.maps.argmax.operations import COMPILED, EAGER, Noisy
from kofn.maps.argmax.quadrature import evaluate, jacobian_product
from kofn.rows.settled import Rows
from kofn.solver.equation import far


def weights(rows: Rows, kinks: Kinks) -> Array:
    """Return p of rows with k = 1, with softmax's rules for ±inf, masks and NaN."""
    refuse("perturbed_argmax", "losses.perturbed_accuracy_loss")
    xp = namespace(rows.scores)
    some = xp.any(rows.live, axis=-1)[..., None]
    greatest = xp.where(some, xp.max(stop_gradient(rows.scores), axis=-1)[..., None], 0.0)
    distance = xp.where(rows.live, rows.scores, greatest) - greatest
    y = distance / rows.temperature[..., None]
    limit = far(xp.finfo(y.dtype))
    y = xp.where(stop_gradient(y) < -limit, scalar(y, -limit), y)
    # A row without available entries has any numbers: of none there is no greatest.
    y = xp.where(rows.live | ~some, y, -math.inf)
    p = xp.where((rows.k <= 0)[..., None], 0.0, probabilities(y, Noise(rows.link, kinks)))
    # A NaN in the row gives NaN even if a score of +inf takes all the weight.
    p = xp.where(rows.live & xp.isnan(rows.scores), math.nan, p)
    return xp.where(rows.top, rows.top_weight[..., None], xp.where(rows.live, p, 0.0))


def probabilities(y: Array, noise: Noise) -> Array:
    """Return p per entry, differentiable in y; the maximum of y is 0, excluded entries are −inf."""
    if is_torch(y):
        if of_torch.state.is_eager(y):
            return route.computed(EAGER, None, Noisy(y, noise), ())
        weights = route.by_kernel(COMPILED, Noisy(y, noise))
        if weights is not None:
            return weights
    p = evaluate(stop_gradient(y), noise)[0]
    if not has_gradients(y):
        return p
    link = noise.link
    change = with_gradients_of(partial(_slope, link.id, link.alpha, noise.kinks), y)
    # An entry that no noise chooses is constant, and may carry any cotangent: an entropy's is
    # infinite.
    return p + namespace(p).where(p == 0, 0.0, change)


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

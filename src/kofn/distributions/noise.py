"""Logits with noise of any distribution: the samples behind `perturbed_argmax`."""

from __future__ import annotations

from typing import Any

from kofn.arrays.checks import check_shape
from kofn.arrays.kinds import cast, namespace, quiet
from kofn.arrays.random import (
    check_rng,
    gumbel,
    halves,
    split_rng,
    standard_normal,
    uniform,
)
from kofn.arrays.typing import ArrayT
from kofn.links.link import Link
from kofn.maps.perturbed import NOISES, noise_of


def with_noise(y: ArrayT, shape: Any, rng: Any, noise: str | Link) -> ArrayT:
    """Return `centred` y plus noise, of shape `shape + y.shape`, differentiable in y."""
    link = noise_of(noise)
    shape, rng = check_shape(shape), check_rng(rng, y)
    with quiet(y):
        return y + _drawn(link, rng, (*shape, *y.shape), y)


def _drawn(link: Link, rng: Any, shape: tuple[int, ...], like: ArrayT) -> ArrayT:
    """Draw noise in the dtype of `like`, float32 or float64."""
    xp, name = namespace(like), next((name for name, each in NOISES.items() if each is link), None)
    if name == "normal":
        return standard_normal(rng, shape, like)
    if name == "uniform":
        return uniform(rng, shape, like) - 0.5
    if name in ("logistic", "laplace"):  # the difference of two Gumbel, or exponential, variables
        first, second = (gumbel(each, shape, like) for each in split_rng(rng, 2, like))
        return first - second if name == "logistic" else xp.exp(-first) - xp.exp(-second)
    u, below = halves(rng, shape, like)
    if type(link).upper_quantile is Link.upper_quantile:  # by 1 − u, which may round to 1
        last = 1 - float(xp.finfo(u.dtype).eps) / 2
        noise = link.quantile(xp.where(below, u, xp.clip(1 - u, None, last)))
    else:
        noise = xp.where(below, link.quantile(u), link.upper_quantile(u))
    return cast(noise, like.dtype)

"""The table of maps for `kofn compare` and `kofn apply`; a new map is one more line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kofn import (
    KSubset,
    links,
    metrics,
    perturbed_argmax,
    soft_topk,
    sparse_softmax,
    taylor_softmax,
    temperature_for,
)
from kofn.arrays.typing import LinkName
from kofn.commands.files import InputError

Weights = Callable[[Any, float, Any], Any]

Product = Callable[[Any, float, float, Any], Any]

ROUNDS = 60  # of bisection in log temperature, and products for the size of a matrix
VECTORS = 6  # kept at once to find that size


@dataclass(frozen=True)
class Map:
    """A map weights(scores, k, temperature) along the last axis of an array."""

    name: str
    weights: Weights
    link: LinkName | None = None  # the link of soft_topk, if it is one; its metrics are exact
    at_one: str | None = None  # its name with k = 1
    least: float = 0.0  # the allowed k
    most: float = np.inf
    whole: bool = False  # whole numbers only
    product: Product | None = None  # v → ∂p/∂scores·v, if there is no link; by default, differences
    transposed: Product | None = None  # likewise by the transposed matrix, if that is another

    def serves(self, k: float) -> bool:
        """Return whether the map accepts this k."""
        return self.least <= k <= self.most and not (self.whole and k % 1)

    def named(self, k: float) -> str:
        """Return the map's usual name at this k."""
        return self.at_one if k == 1 and self.at_one else self.name

    def temperature(self, scores: np.ndarray, k: float, name: str, wanted: float) -> float:
        """Return the temperature at which the rows' mean "support" or "gap" is `value`."""
        if self.link is not None:
            # A dictionary, because the keyword is known only at run time.
            softness: dict[str, Any] = {name: wanted}
            return float(temperature_for(scores, k, link=self.link, **softness))
        measure = partial(metrics.hard_gap, k=k) if name == "gap" else metrics.effective_support
        finite = scores[np.isfinite(scores)]
        with np.errstate(over="ignore"):
            spread = float(np.ptp(finite)) if finite.size else 0.0
        # Logarithms, because the greatest temperature may be more than a float can be.
        most = np.log(np.finfo(np.float64).max) - 1
        low, high = np.minimum(np.log(spread or 1.0) + np.log([1e-9, 1e6]), most)
        for _ in range(ROUNDS):
            middle = (low + high) / 2
            soft = measure(self.weights(scores, k, float(np.exp(middle)))).mean() > wanted
            low, high = (low, middle) if soft else (middle, high)
        return float(np.exp(low))

    def slope(self, scores: np.ndarray, k: float, temperature: Any) -> np.ndarray:
        """Return ‖∂p/∂scores‖₂ of every row; with a link, there may be one temperature per row."""
        if self.link is not None:
            norm = metrics.jacobian_norm(scores, k, link=self.link, temperature=temperature)
            return np.asarray(norm / temperature)
        here = scores, k, temperature
        if self.product is None:
            return _slope_by_differences(self.weights, *here)
        back = None if self.transposed is None else partial(self.transposed, *here)
        return _norm(partial(self.product, *here), scores, back)


def _soft(link: LinkName, at_one: str | None = None) -> Map:
    def weights(scores: Any, k: float, temperature: Any) -> Any:
        return soft_topk(scores, k, link=link, temperature=temperature)

    return Map(link, weights, link=link, at_one=at_one)


def _taylor(scores: Any, k: float, temperature: Any) -> Any:
    return taylor_softmax(scores, order=2, temperature=temperature)


def _taylor_slopes(scores: Any, temperature: float) -> tuple[Any, Any]:
    """Return the weights and f′/f of f(z) = 1 + z + z²/2, over the temperature."""
    z = np.clip(scores / temperature, -1e100, 1e100)
    slopes = np.where(scores > -np.inf, (1 + z) / (1 + z + z * z / 2), 0.0)
    return _taylor(scores, 1, temperature), slopes / temperature


def _taylor_product(scores: Any, k: float, temperature: float, v: Any) -> Any:
    p, slopes = _taylor_slopes(scores, temperature)
    return p * (slopes * v - (p * slopes * v).sum(-1, keepdims=True))


def _taylor_transposed(scores: Any, k: float, temperature: float, v: Any) -> Any:
    p, slopes = _taylor_slopes(scores, temperature)
    return slopes * p * (v - (p * v).sum(-1, keepdims=True))


def _nucleus(scores: Any, k: float, temperature: Any) -> Any:
    return sparse_softmax(scores, p=0.9, temperature=temperature)


def _nucleus_product(scores: Any, k: float, temperature: float, v: Any) -> Any:
    p = _nucleus(scores, k, temperature)
    return p * (v - (p * v).sum(-1, keepdims=True)) / temperature


def _perturbed(scores: Any, k: float, temperature: Any) -> Any:
    return perturbed_argmax(scores, noise="normal", temperature=temperature)


STEP = 1e-5
"""The step of a central difference, in temperatures: it leaves ten digits of a smooth function."""


def _perturbed_product(scores: Any, k: float, temperature: float, v: Any) -> Any:
    step = STEP * temperature
    ends = (_perturbed(scores + sign * step * v, k, temperature) for sign in (1, -1))
    return np.subtract(*ends) / (2 * step)


def _slope_by_differences(
    weights: Weights, scores: np.ndarray, k: float, temperature: float
) -> np.ndarray:
    """Return ‖∂p/∂scores‖₂ of every row from the whole matrix, by central differences."""
    step = STEP * temperature
    columns = [
        np.subtract(*(weights(scores + sign * step * e, k, temperature) for sign in (1, -1)))
        for e in np.eye(scores.shape[-1])
    ]
    return np.asarray(np.linalg.norm(np.stack(columns, -1) / (2 * step), 2, axis=(-2, -1)))


def _marginals(scores: Any, k: float, temperature: float) -> Any:
    return KSubset(scores / temperature, int(k)).marginals()


def _covariance(scores: Any, k: float, temperature: float, v: Any) -> Any:
    return KSubset(scores / temperature, int(k)).covariance_vector_product(v) / temperature


# The marginals of KSubset with k = 1 are softmax.
MAPS = (
    _soft("logistic"),
    _soft("laplace"),
    _soft("normal"),
    _soft("exponential", at_one="softmax"),
    _soft("linear", at_one="sparsemax"),
    _soft("entmax"),
    Map(
        "taylor_softmax",
        _taylor,
        least=1,
        most=1,
        product=_taylor_product,
        transposed=_taylor_transposed,
    ),
    Map("sparse_softmax", _nucleus, least=1, most=1, product=_nucleus_product),
    Map("perturbed_argmax", _perturbed, least=1, most=1, product=_perturbed_product),
    Map("KSubset", _marginals, least=2, whole=True, product=_covariance),
)


def serving(k: float) -> list[Map]:
    """Return the maps that accept this k."""
    return [each for each in MAPS if each.serves(k)]


def chooses_one(name: str) -> bool:
    """Return whether the map of this name serves k = 1 alone."""
    return any(name == each.at_one or (name == each.name and each.most == 1) for each in MAPS)


def named(name: str, k: float, alpha: float | None) -> Map:
    """Return the map of this name, which must accept this k.

    Raises:
        InputError: no map has this name, or it does not accept k.
    """
    names = {each.name: each for each in MAPS} | {each.at_one: each for each in MAPS if each.at_one}
    if name not in names:
        raise InputError(f"--map must be one of {', '.join(names)}; got {name!r}")
    entry = names[name]
    if alpha is not None:
        if entry.link != "entmax":
            raise InputError(f"--alpha needs --map entmax; got --map {name}")
        link = links.entmax(alpha)
        entry = Map(name, lambda x, k, t: soft_topk(x, k, link=link, temperature=t))
    if not entry.serves(k) or (name == entry.at_one and k != 1):
        wanted = "needs k = 1" if k != 1 and not entry.whole else "needs an integer k of 2 or more"
        raise InputError(f"--map {name} {wanted}; got k = {k:g}")
    return entry


def _norm(push: Any, like: np.ndarray, pull: Any = None) -> np.ndarray:
    """Return each row's largest singular value to three digits.

    It is the largest within the vectors v, JᵀJv, (JᵀJ)²v … (Lanczos), again from the best of
    them: the power method alone takes hundreds of rounds where two values are nearly equal.
    """
    pull = push if pull is None else pull
    v = np.random.default_rng(0).normal(size=like.shape)
    size = np.zeros(like.shape[:-1])
    for _ in range(ROUNDS // VECTORS):
        basis: list[np.ndarray] = []
        images: list[np.ndarray] = []
        while len(basis) < min(VECTORS, like.shape[-1]):
            for _twice in range(2):  # the second takes away what rounding has left
                for one in basis:
                    v = v - (one * v).sum(-1, keepdims=True) * one
                length = np.linalg.norm(v, axis=-1, keepdims=True)
                v = v / np.where(length > 0, length, 1.0)
            basis.append(v)
            images.append(push(v))
            v = pull(images[-1])
        _, sizes, vectors = np.linalg.svd(np.stack(images, -1), full_matrices=False)
        before, size = size, sizes[..., 0]
        if (np.abs(size - before) <= 1e-5 * size).all():
            break
        v = (np.stack(basis, -1) * vectors[..., :1, :]).sum(-1)
    return size

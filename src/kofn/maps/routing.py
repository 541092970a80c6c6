"""Gates of routers: which experts each token goes to, and the weights of their answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from kofn.adapters import short
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, cast, cast_like, compute_dtype, namespace, special
from kofn.arrays.operations import take_along_last, top_indices
from kofn.arrays.typing import ArrayT
from kofn.links import Link, table
from kofn.maps.gates import normalized, topk_gates
from kofn.maps.softmax import softmax
from kofn.maps.topk import hard_topk, soft_topk, soft_topk_threshold


class Gating(NamedTuple):
    """The way from scores to gates.

    `mixture` is a softmax of the scores at temperature 1, or their sigmoids, times a factor that is
    exactly 1 and has the gradient of the soft top-k weight. Otherwise the gate is the soft top-k
    weight itself.
    """

    link: str | Link = "logistic"
    temperature: Any = 1.0
    mixture: bool = True
    normalize: bool = True
    sigmoid: bool = False

    @property
    def softly(self) -> bool:
        """Return whether the gates are a softmax of those that are chosen."""
        return self.mixture and self.normalize and not self.sigmoid

    @property
    def soft(self) -> dict[str, Any]:
        """Return the arguments that the soft top-k maps share."""
        return dict(link=self.link, temperature=self.temperature)


def token_choice(
    scores: ArrayT,
    k: int,
    gating: Gating,
    bias: Array | None = None,
    mask: Array | None = None,
    indices: Array | None = None,
) -> tuple[ArrayT, ArrayT]:
    """Return (gates, indices) of the k largest scores + bias of every row, largest first.

    `mask` has the batch shape; a row where it is False gets gates of 0. `indices` are of a
    choice that was not made by the scores.
    """
    if mask is None and indices is None and gating.softly:
        choice = choice_at_once(scores, k, gating, bias)
        if choice is None:
            choice = short.compiled_gates(scores, k, gating.link, gating.temperature, bias)
        if choice is not None:
            return choice[0], choice[1]
    rows = None if mask is None else mask[..., None]
    normalize = gating.normalize and not gating.mixture
    if indices is None:
        how: dict[str, Any] = dict(mask=rows, bias=bias, normalize=normalize, **gating.soft)
        gates, chosen = topk_gates(scores, k, **how)
    else:
        gates = take_along_last(soft_topk(scores, k, mask=rows, **gating.soft), indices)
        gates = normalized(gates) if normalize else gates  # type: ignore[assignment]  # of its kind
        chosen = indices  # type: ignore[assignment]  # of its kind
    if gating.mixture:
        gates = gates_of_mixture(scores, gates, chosen, gating, rows)
    return gates, chosen


def choice_at_once(
    scores: Any, k: int, gating: Gating, bias: Array | None, counts: Sequence[Array] = ()
) -> Any:
    """Return what `token_choice` does, softly, and whether the choice was added to `counts`, if
    compiled code can; or None.
    """
    return short.gates(
        scores, k, gating.link, gating.temperature, bias,
        lambda x, at: token_choice(x, k, gating, indices=at)[0], counts,
    )  # fmt: skip


def gates_of_mixture(
    scores: ArrayT, weights: Array, indices: Array, gating: Gating, rows: Array | None
) -> ArrayT:
    """Return softmax(scores) or sigmoids at the indices, times 1 + weights − stop(weights).

    With `normalize`, the softmax is over the chosen scores alone, and sigmoids are divided by their
    sum. `rows` says which rows have gates that are not 0.
    """
    if gating.sigmoid:
        share = sigmoids(take_along_last(scores, indices))
        if gating.normalize:
            share = share / (namespace(share).sum(share, axis=-1)[..., None] + 1e-20)
        share = cast(share, scores.dtype)
        share = share if rows is None else namespace(share).where(rows, share, 0.0)
    elif gating.normalize:
        share = softmax(take_along_last(scores, indices), mask=rows)
    else:
        share = take_along_last(softmax(scores, mask=rows), indices)
    return share * (1 + _moving(weights))


def _moving(weights: Array) -> Array:
    """Return 0 with the gradient of weights, which are finite."""
    return weights - stop_gradient(weights)


def sigmoids(scores: ArrayT) -> ArrayT:
    """Return sigmoids of scores, in float32 for half types."""
    return special(scores).expit(cast(scores, compute_dtype(scores)))


def assigned(
    scores: ArrayT, weights: Array, chosen: Array, k: int, gating: Gating, rows: Array | None
) -> tuple[ArrayT, ArrayT]:
    """Return (gates, indices) of the k entries of every row that are chosen, largest score first.

    A row where the mask `rows` is False gets gates of 0.
    """
    xp = namespace(scores)
    indices = top_indices(xp.where(chosen, stop_gradient(scores), -math.inf), k)
    gates = take_along_last(weights, indices)
    if gating.mixture:
        return gates_of_mixture(scores, gates, indices, gating, rows), indices
    return (normalized(gates) if gating.normalize else gates), indices  # type: ignore[return-value]  # of the kind of scores


def gates_of_choice(
    scores: Array, shares: ArrayT, indices: Array, k: float, gating: Gating
) -> ArrayT:
    """Return gates at the indices of a choice that was made elsewhere, in the dtype of `shares`.

    The gates of a mixture are the shares, times a factor that is exactly 1 and has the gradient of
    the soft top-k weight. Others are the soft top-k weights, divided by their sum if normalized.
    """
    weights = take_along_last(soft_topk(scores, k, **gating.soft), indices)
    if gating.mixture:
        return shares * (1 + cast_like(_moving(weights), shares))
    if gating.normalize:
        weights = normalized(weights)
    return cast_like(weights, shares)


def joint_choice(
    scores: ArrayT, biased: Array, k: Any, dim: int, gating: Gating, mask: Array | None
) -> tuple[ArrayT, Array]:
    """Return (weights, chosen): soft top-k weights along `dim`, and the k largest biased scores.

    Both have the shape of `scores`; `chosen` is boolean.
    """
    weights = soft_topk(scores, k, dim=dim, mask=mask, **gating.soft)
    return weights, hard_topk(biased, k, dim=dim, mask=mask) > 0


def weights_above(scores: ArrayT, threshold: Array, gating: Gating) -> ArrayT:
    """Return F((scores − threshold)/T): soft top-k weights for a threshold that is known."""
    xp = namespace(scores)
    z = (cast(scores, xp.float32) - threshold) / gating.temperature
    return cast(table.resolve(gating.link).cdf(z), scores.dtype)


def threshold_of(scores: ArrayT, k: Any, dim: int, gating: Gating, mask: Array | None) -> ArrayT:
    """Return θ of the soft top-k weights along `dim`."""
    return soft_topk_threshold(scores, k, dim=dim, mask=mask, **gating.soft)


def packed(
    scores: ArrayT, weights: ArrayT, chosen: ArrayT, width: int, gating: Gating
) -> tuple[ArrayT, ArrayT, ArrayT]:
    """Return (gates, indices, taken) [T, width]: the chosen experts of a row, largest gate first.

    A row with fewer ends in gates of 0 at experts that it has not chosen, where `taken` is False;
    a row with more loses its smallest gates.
    """
    xp = namespace(scores)
    gates = weights
    if gating.mixture:
        share = cast(sigmoids(scores), scores.dtype) if gating.sigmoid else softmax(scores)
        gates = share * (1 + _moving(weights))
    gates = xp.where(chosen, gates, 0.0)
    # A chosen gate may be 0, as the weights of a bounded link may: it still precedes the others.
    indices = top_indices(stop_gradient(xp.where(chosen, gates, -1.0)), width)
    return take_along_last(gates, indices), take_along_last(chosen, indices), indices

"""Gates: the indices of the k largest scores, and their soft weights."""

from __future__ import annotations

import math
from typing import Any, Never

from kofn.adapters import route, short
from kofn.arrays import torch as of_torch
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import (
    check_broadcasts,
    check_flag,
    check_integer,
    check_real,
    check_same_kind,
)
from kofn.arrays.form import Form
from kofn.arrays.kinds import Array, cast_like, deleted, is_torch, move_axis, namespace
from kofn.arrays.names import unknown_keyword
from kofn.arrays.operations import take_along_last
from kofn.arrays.typing import ArrayT, LinkName
from kofn.links import Link, table
from kofn.operations.choice import LARGEST
from kofn.operations.topk import wide_weights
from kofn.rows.given import Given, given_for_kernels

__all__ = ["topk_gates"]


def topk_gates(
    scores: ArrayT,
    k: int,
    *,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    bias: Array | None = None,
    normalize: bool = False,
    **others: Never,
) -> tuple[ArrayT, ArrayT]:
    """Return (gates, indices): the soft_topk weights and the indices of the k largest scores.

    Every score, chosen or not, gets a gradient through the gates, so a router can learn to change
    its choice.

    Args:
        k: a Python integer in [0, n], in jax.jit a static argument (`static_argnames="k"`).
        scores, link, temperature, dim, mask: as for `soft_topk`.
        bias: added to the scores for the choice only; broadcasts to `scores`. The gates are the
            weights of the scores without it, and it gets no gradient. It does not make a masked
            entry available.
        normalize: divide the gates by their sum; a row whose gates are all 0 keeps them. The scores
            that are not chosen then get less of the gradient, and none at n = k. At k = 1 every
            gate would be 1 and every gradient 0, so this is refused.

    Returns:
        Two arrays like `scores` with k entries along `dim`, largest score (with its bias) first,
        ties to the lowest index, NaN as −inf. If a row has fewer than k available entries, it ends
        in gates of 0 with the indices of masked entries. Inside torch.autocast, the gates of
        half-precision scores are float32.

    Raises:
        TypeError: k is not an integer; otherwise as for `soft_topk`.
        ValueError: `normalize` with k = 1; otherwise as for `soft_topk`.

    In the articles (docs/from_the_articles.md): ThreTopK in the router of a mixture of experts
    (MoE), which the discussion proposes.

    Example:
        >>> import numpy as np
        >>> from kofn import topk_gates
        >>> scores = np.array([0.1, 2.0, -1.0, 1.5])
        >>> gates, indices = topk_gates(scores, 2)
        >>> gates.round(3), indices
        (array([0.789, 0.694]), array([1, 3]))
        >>> gates, indices = topk_gates(scores, 2, bias=np.array([0.0, 0, 4, 0]), normalize=True)
        >>> gates.round(3), indices
        (array([0.166, 0.834]), array([2, 1]))
    """
    if others:
        raise unknown_keyword(topk_gates, others)
    k = _count(k, normalize)
    if mask is None and bias is None and not (normalize or _is_wider(scores)):
        known = short.weights_and_places(scores, k, link, temperature, dim)
        if known is not None:
            return take_along_last(*known), known[1]
    link = table.resolve(link)
    checked = given_for_kernels(scores, k, link, temperature, dim, mask, halves=True)
    form: Form[ArrayT] = checked.form
    with form.quiet():
        wide = checked.wide()
        indices: Any = route.answer(LARGEST, _for_choice(wide, scores, bias), settings=(k,))
        gates = take_along_last(route.answer(*wide_weights(checked)), indices)
        gates = normalized(gates) if normalize else gates
    indices = indices if form.dim == -1 else move_axis(indices, -1, form.dim)
    form = form._replace(dtype=gates.dtype) if _is_wider(scores) else form
    return form.restored(gates), indices


def _is_wider(scores: Any) -> bool:
    """Return whether gates are float32 in place of a half type, as inside torch.autocast."""
    return is_torch(scores) and scores.itemsize == 2 and of_torch.state.is_autocast(scores)


def _count(k: Any, normalize: bool) -> int:
    k = check_integer("k", k, "a Python integer in [0, n]")
    if check_flag("normalize", normalize) and k == 1:
        raise ValueError(
            "normalize must be False for k = 1: a single gate divided by itself is always 1, and "
            "the scores would get no gradient"
        )
    return k


def _for_choice(given: Given, scores: Array, bias: Array | None) -> Array:
    """Return the scores that decide the choice, with the bias."""
    x, xp = stop_gradient(given.scores), given.form.xp
    if bias is not None:
        check_same_kind("bias", bias, scores)
        check_real("bias", bias)
        shape = tuple(scores.shape)
        check_broadcasts("bias", tuple(bias.shape), shape, "the shape of scores")
        added = xp.broadcast_to(stop_gradient(cast_like(bias, x)), shape)
        x = xp.where(deleted(x), -math.inf, x + given.form.entries(added))
    return x


def normalized(gates: Array) -> Array:
    """Return gates divided by their sum; a row of zeros stays as it is."""
    xp = namespace(gates)
    total = xp.sum(gates, axis=-1)[..., None]
    return gates / xp.where(total > 0, total, 1.0)

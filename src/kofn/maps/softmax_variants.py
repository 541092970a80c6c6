"""A variant of softmax: a polynomial in place of the exponential."""

from __future__ import annotations

from typing import Never

from kofn import links
from kofn.arrays.checks import check_integer
from kofn.arrays.kinds import Array
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT
from kofn.maps import taylor
from kofn.maps.taylor_zeros import MOST
from kofn.rows.given import ONE, given_for_kernels

__all__ = ["taylor_softmax"]


def taylor_softmax(
    scores: ArrayT,
    order: int = 2,
    *,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return p = f(scores/T)/Σ f(scores/T), f(z) = 1 + z + z²/2! + … + z^order/order!.

    It has heavier tails than softmax. f is positive everywhere only for an even order. Two laws of
    softmax do not hold: a shift of the scores changes the weights, and below some point (z = −1
    for order 2) f rises again, so a score far below the others gets *more* weight. Centre the
    scores, or keep them above −T.

    Args:
        scores, temperature, dim, mask: as for `soft_topk`. −inf counts as masked.
        order: even, from 2 to 200; beyond, computing the zeros of f would take seconds. From order
            32 on, the weights agree with softmax to 1e-6 for scores within ±order·T/4.

    Returns:
        Weights like `scores` that sum to 1, differentiable any number of times.

    Raises:
        TypeError, ValueError: as for `soft_topk`; ValueError for an odd order.

    Source: de Brébisson & Vincent, "An Exploration of Softmax Alternatives Belonging to the
    Spherical Loss Family" (2016).

    Example:
        >>> import numpy as np
        >>> from kofn import taylor_softmax
        >>> taylor_softmax(np.array([2.0, 1.0, 0.0])).round(3)
        array([0.588, 0.294, 0.118])
        >>> taylor_softmax(np.array([0.0, -1.0, -5.0])).round(3)  # not monotone below −1
        array([0.1 , 0.05, 0.85])
    """
    if others:
        raise unknown_keyword(taylor_softmax, others)
    allowed = f"an even integer from 2 to {MOST}"
    order = check_integer("order", order, allowed)
    if order % 2:
        raise ValueError(
            f"order must be even; got {order}: a Taylor polynomial of odd order is negative for "
            "scores far below 0, and a weight must not be"
        )
    check_integer("order", order, allowed, 2, MOST)
    checked = given_for_kernels(scores, ONE, links.exponential, temperature, dim, mask)
    with checked.form.quiet():
        return checked.restored(taylor.weights(checked, order))

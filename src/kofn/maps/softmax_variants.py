"""Variants of softmax: a polynomial in place of the exponential, and a truncated support."""

from __future__ import annotations

from typing import Any

from kofn import links
from kofn.adapters import route
from kofn.arrays.checks import check_integer, check_number
from kofn.arrays.kinds import Array
from kofn.arrays.typing import ArrayT
from kofn.maps import taylor
from kofn.maps.taylor_zeros import MOST
from kofn.operations.truncated import TRUNCATED
from kofn.rows.given import ONE, given_for_kernels

__all__ = ["sparse_softmax", "taylor_softmax"]


def taylor_softmax(
    scores: ArrayT,
    order: int = 2,
    *,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
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


def sparse_softmax(
    scores: ArrayT,
    *,
    k: int | None = None,
    p: float | None = None,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
) -> ArrayT:
    """Return softmax over the k largest scores, or over the fewest scores with total weight ≥ p.

    Those fewest scores are the nucleus, from which top-p sampling draws. Scores equal to the last
    kept one are kept too, so that equal scores have equal weights.

    Args:
        scores, temperature, dim, mask: as for `soft_topk`.
        k: number of scores to keep, an integer in [1, n].
        p: least total weight of softmax(scores/T) to keep, in (0, 1]; 1 keeps all. Give k or p.

    Returns:
        Weights like `scores` that sum to 1, exactly 0 outside the support. The gradient is
        softmax's on the support and 0 outside: scores outside the support learn nothing, and the
        jump where the support changes has no gradient. `sparsemax` and `entmax` are continuous.

    Raises:
        TypeError, ValueError: as for `soft_topk`; both or neither of `k` and `p` are given, or one
            is out of range.

    Source: Sun et al., "Sparse-softmax: A Simpler and Faster Alternative Softmax Transformation"
    (2021); Holtzman et al., "The Curious Case of Neural Text Degeneration" (2020), for the nucleus.

    Example:
        >>> import numpy as np
        >>> from kofn import sparse_softmax
        >>> sparse_softmax(np.array([2.0, 1.0, 0.0, -1.0]), k=2).round(3)
        array([0.731, 0.269, 0.   , 0.   ])
        >>> sparse_softmax(np.array([2.0, 1.0, 0.0, -1.0]), p=0.9).round(3)
        array([0.665, 0.245, 0.09 , 0.   ])
    """
    checked = given_for_kernels(scores, ONE, links.exponential, temperature, dim, mask)
    check_support(k, p, checked.n)
    with checked.form.quiet():
        return checked.restored(route.answer(TRUNCATED, checked, settings=(k, p)))


def check_support(k: Any, p: Any, n: int) -> None:
    if (k is None) == (p is None):
        raise ValueError(f"give k or p, one of the two; got k = {k!r} and p = {p!r}")
    if k is not None:

        def integers() -> str:
            return f"an integer in [1, n] (here n = {n})"

        if not min(1, n) <= check_integer("k", k, integers) <= n:
            raise ValueError(f"k must be {integers()}; got {k!r}")
        return
    allowed = "a number in (0, 1]"
    check_number("p", p, low=0.0, high=1.0, allowed=allowed, strict=True)

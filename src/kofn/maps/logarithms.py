"""Logarithms of weights, which stay finite where the weights underflow."""

from __future__ import annotations

from typing import Never

from kofn import links
from kofn.adapters import route
from kofn.arrays.kinds import Array
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT, LinkName
from kofn.links import Link, table
from kofn.operations.logarithms import LOG_WEIGHTS
from kofn.rows.given import ONE, given_for_kernels

__all__ = ["log_soft_topk", "log_entmax"]


def log_soft_topk(
    scores: ArrayT,
    k: float | Array,
    *,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return log p of `soft_topk`; it and its gradient stay finite where p underflows.

    Args:
        scores, k, link, temperature, dim, mask: as for `soft_topk`. With link="exponential" and
            k = 1 it is log-softmax. With your own link, log p is finite as far as its cdf is > 0.

    Returns:
        Numbers ≤ 0 like `scores`, differentiable twice. −inf with gradient 0 where the weight is
        exactly 0: excluded entries, k = 0, and outside the support of "linear" and "entmax". For a
        loss on those, use `fenchel_young_loss` or `losses.epsilon_cross_entropy`.

        With these two links a weight is the power of a distance to θ, so logarithms of weights
        below the rounding of θ (k = 1e-20 among scores near 1) are wrong, or −inf.

        If the choice is so hard that all slopes underflow, the slopes of log p in k overflow: k
        then has a gradient through the weights near 1 and none through the others. Already where
        the square of the sum of slopes underflows (with "normal", two scores that are 53
        temperatures apart in float64, and 18 in float32) ∂² log p/∂k² is beyond the dtype, and
        infinite or NaN; all other second derivatives are right, in either order.

    Raises:
        TypeError, ValueError: as for `soft_topk`.

    Source: as for `soft_topk`.

    Example:
        >>> import numpy as np
        >>> from kofn import log_soft_topk
        >>> log_soft_topk(np.array([900.0, 1.0, 0.0]), 1, link="exponential")
        array([   0., -899., -900.])
        >>> log_soft_topk(np.array([2.0, 1.0, 0.5, -1.0]), 2).round(3)
        array([-0.232, -0.536, -0.774, -1.83 ])
    """
    if others:
        raise unknown_keyword(log_soft_topk, others)
    link = table.resolve(link)
    checked = given_for_kernels(scores, k, link, temperature, dim, mask, halves=True)
    with checked.form.quiet():
        return checked.restored(route.answer(LOG_WEIGHTS, checked))


def log_entmax(
    scores: ArrayT,
    alpha: float | Array = 1.5,
    *,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return log p of `entmax`: log-softmax for alpha = 1, log of sparsemax for alpha = 2.

    Args:
        scores, alpha, temperature, dim, mask: as for `entmax`.

    Returns:
        Numbers ≤ 0 like `scores`, differentiable twice; −inf with gradient 0 where the weight is
        exactly 0, as for `log_soft_topk`.

    Raises:
        TypeError, ValueError: as for `entmax`.

    Source: as for `entmax`.

    Example:
        >>> import numpy as np
        >>> from kofn import log_entmax
        >>> log_entmax(np.array([1.0, 0.5, -1.0])).round(3)
        array([-0.395, -1.121,   -inf])
    """
    if others:
        raise unknown_keyword(log_entmax, others)
    link = links.entmax(alpha)
    return log_soft_topk(scores, ONE, link=link, temperature=temperature, dim=dim, mask=mask)

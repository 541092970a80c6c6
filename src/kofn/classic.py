"""Older smooth top-k maps, each with a flaw that `soft_topk` does not have.

They are for comparison and reproduction; the docstrings name the flaws, and the tests show them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Never

from kofn import links
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_count
from kofn.arrays.kinds import Array, full_like, namespace
from kofn.arrays.names import unknown_keyword
from kofn.arrays.operations import divided_as, marked, top_indices, with_undivided_rows
from kofn.arrays.typing import ArrayT
from kofn.formulas import answers
from kofn.rows.compiled import evaluate
from kofn.rows.given import ONE, given_for_kernels
from kofn.rows.settled import Rows, rows_of

__all__ = ["iterative_soft_topk", "ones_and_softmax", "weighted_soft_topk"]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)


def iterative_soft_topk(
    scores: ArrayT,
    k: int,
    *,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Repeat p ← p + softmax((1 − p)∘x) k times, x = (scores − min scores)/T ("soft-k-max").

    Flaws: weights above 1; an order that differs from the scores' order; k passes. The weights
    sum to k, do not change if all scores are shifted, and tend to the hard top-k as T → 0 for
    k < n. For k = n they are not all ones, because chosen entries get the smallest score.

    Args:
        scores, temperature, dim, mask: as for `soft_topk`, but for scores of +inf, which give NaN.
        k: an integer in [0, n].

    Returns:
        Weights like `scores` that sum to k.

    Raises:
        TypeError, ValueError: as for `soft_topk`.

    Source: Su, "Smooth approximations of non-differentiable functions" (2019, in Chinese).

    Example:
        >>> import numpy as np
        >>> from kofn import classic
        >>> classic.iterative_soft_topk(np.array([5.5, 4.5, 0.0]), 2).round(3)
        array([0.866, 1.1  , 0.034])
    """
    if others:
        raise unknown_keyword(iterative_soft_topk, others)
    return _apply(_iterative, scores, k, temperature, dim, mask)


def weighted_soft_topk(
    scores: ArrayT,
    k: int,
    *,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Repeat p ← p + (1 − p)∘e^x/Σ (1 − p)∘e^x k times, x = scores/T.

    Flaw: towards temperature 0 it is not the hard top-k. With k = 2 it tends to (1.5, 0.5, 0, …),
    for 1 − p of the largest is as small as e^x of it is large; with k = 3 a factor 1 − p is
    negative and anything may come out. (Where 1 − p rounds to 0 the flaw is hidden by rounding:
    in float64 once the two largest are some 37 temperatures apart.)

    Args:
        scores, k, temperature, dim, mask: as for `iterative_soft_topk`.

    Returns:
        Numbers like `scores` that sum to k.

    Raises:
        TypeError, ValueError: as for `soft_topk`.

    Source: an answer on stats.stackexchange.com (454788, 2020).

    Example:
        >>> import numpy as np
        >>> from kofn import classic
        >>> classic.weighted_soft_topk(np.array([3.0, 2.0, 1.0, 0.0]), 2, temperature=0.05).round(2)
        array([1.5, 0.5, 0. , 0. ])
    """
    if others:
        raise unknown_keyword(weighted_soft_topk, others)
    return _apply(_weighted, scores, k, temperature, dim, mask)


def ones_and_softmax(
    scores: ArrayT,
    k: int,
    *,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return 1 at the k − 1 largest scores and softmax(scores/T) of the others.

    Flaws: it jumps where the (k − 1)-th and k-th score change places, equal scores get unequal
    weights, and the k − 1 largest have no gradient, because they are a hard choice.

    Args:
        scores, k, temperature, dim, mask: as for `iterative_soft_topk`.

    Returns:
        Weights like `scores`, in [0, 1], that sum to k; ties to the lowest index.

    Raises:
        TypeError, ValueError: as for `soft_topk`.

    Source: a reader's comment on Su, "Smooth approximations of top-k" (2024, in Chinese).

    Example:
        >>> import numpy as np
        >>> from kofn import classic
        >>> classic.ones_and_softmax(np.array([2.0, 2.0, 1.0]), 2).round(3)
        array([1.   , 0.731, 0.269])
    """
    if others:
        raise unknown_keyword(ones_and_softmax, others)
    return _apply(_ones, scores, k, temperature, dim, mask)


def _apply(
    function: Callable[..., Array], scores: Array, k: int, temperature: Any, dim: int, mask: Any
) -> Any:
    checked = given_for_kernels(scores, ONE, links.exponential, temperature, dim, mask)
    k = check_count(k, checked.n)
    with checked.form.quiet():
        return checked.restored(evaluate(function, rows_of(checked), k=k))


def _plain(rows: Rows) -> Rows:
    """Divide the scores by the temperature, which becomes 1; k becomes 1 in rows with entries."""
    xp = namespace(rows.scores)
    x = xp.where(rows.live, rows.scores, 0.0) / rows.temperature[..., None]
    x = xp.where(rows.live, x, -math.inf)  # divided, it would make NaN of T's gradient
    one = xp.ones_like(rows.k)
    return rows._replace(scores=x, temperature=one, k=one)


def _iterative(rows: Rows, k: int) -> Array:
    plain = _plain(rows)
    xp = namespace(plain.scores)
    least = xp.min(xp.where(rows.live, plain.scores, math.inf), axis=-1)[..., None]
    x = xp.where(rows.live, plain.scores - xp.where(least == math.inf, 0.0, least), 0.0)
    p = x * 0.0  # in the graph of the scores, also for k = 0
    for _ in range(k):
        step = xp.where(rows.live, (1 - p) * x, -math.inf)
        p = p + answers.softmax(plain._replace(scores=step))
    return xp.where(xp.any(rows.top, axis=-1)[..., None], math.nan, p)


def _weighted(rows: Rows, k: int) -> Array:
    plain = _plain(rows)
    xp = namespace(plain.scores)
    once = answers.softmax(plain)  # e^x over the largest one, up to a number per row
    p = once * 0.0  # in the graph of the scores, also for k = 0
    for _ in range(k):
        part = (1 - p) * once
        total = xp.sum(part, axis=-1)[..., None]
        # The weight 0 is a constant: an infinite cotangent there must not meet the other scores.
        p = p + xp.where(rows.live, part / xp.where(total == 0, 1.0, total), 0.0)
    return xp.where(xp.any(rows.top, axis=-1)[..., None], math.nan, p)


def _ones(rows: Rows, k: int) -> Array:
    plain = _plain(rows)
    xp = namespace(plain.scores)
    if k == 0:
        return answers.softmax(plain) * 0.0  # in the graph of the scores
    whole = stop_gradient(with_undivided_rows(plain.scores))
    first = divided_as(marked(whole, top_indices(whole, k - 1)), plain.scores) & rows.live
    rest = plain._replace(scores=xp.where(first, -math.inf, plain.scores), live=rows.live & ~first)
    p = xp.where(first, full_like(plain.scores, (), 1.0), answers.softmax(rest))
    return xp.where(xp.any(rows.top, axis=-1)[..., None], math.nan, p)

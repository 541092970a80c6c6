"""The top-k maps: soft weights, threshold, smoothed sum, and the hard top-k."""

from __future__ import annotations

from typing import Any, Never

from kofn import links
from kofn.adapters import route, short
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_flag
from kofn.arrays.kinds import Array
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT, LinkName
from kofn.links import Link, table
from kofn.maps.integers import hard_of_integers, has_integers
from kofn.operations.choice import HARD_WEIGHTS
from kofn.operations.topk import THETA, VALUE, WEIGHTS
from kofn.rows.given import Given, given_for_kernels, without_bad_temperatures
from kofn.rows.integral import require_integral

__all__ = ["soft_topk", "soft_topk_threshold", "soft_topk_sum", "hard_topk"]


def soft_topk(
    scores: ArrayT,
    k: float | Array,
    *,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    hard: bool = False,
    **others: Never,
) -> ArrayT:
    """Return weights p = F((scores − θ)/temperature) in [0, 1], with θ such that Σp = k.

    Args:
        scores: torch.Tensor, jax.Array or numpy.ndarray of floats, any shape. −inf is never
            chosen, nor is a score at or below half of the dtype's least number, such as the
            finfo.min of an additive mask; +inf is chosen first. An additive mask of −1e9, or a
            float16 minimum cast to float32, counts as a score: use `mask=additive > -1` instead.
        k: how many entries to choose, in [0, n] for n = scores.shape[dim]; may be fractional. A
            number, or an array that broadcasts to the batch shape (`scores.shape` without `dim`):
            for scores of shape (B, H, n), one k per head has shape (H,), not (H, 1). A shape with
            `dim` kept as size 1 (`keepdim=True`) is also accepted.
        link: F, by its name in `kofn.links` ("logistic", "normal", "entmax", …; docs/links.md has
            them all) or as a kofn.Link.
        temperature: > 0, in the units of the scores; a number or an array like `k`. As it goes to
            0, the weights become the hard top-k.
        dim: the dimension to choose along.
        mask: boolean, broadcasts to `scores`; False entries are never chosen.
        hard: return the hard top-k exactly, with the soft weights' gradient (straight-through).

    Returns:
        Weights with the shape, dtype and device of `scores`, differentiable twice in scores, k,
        temperature and the link's alpha (PyTorch's third derivative is infinite or NaN, never
        wrong). If fewer than k entries are available, all are chosen; a row with none is zeros. A
        NaN affects its row only.

    Raises:
        TypeError, ValueError: an argument has the wrong type, dtype or shape, or a number is out
            of range. Entries of arrays are not checked; an invalid one gives NaN in its row.

    Source: Amos, Koltun & Kolter, "The Limited Multi-Label Projection Layer" (2019), logistic;
    Struski et al., "LapSum" (2025), laplace; Blondel, Martins & Niculae (2020) for the family.

    In the articles (docs/from_the_articles.md): ThreTopK, for any f. The logistic link with
    temperature = ε/2 is the differentiable top-k by optimal transport of Xie et al. (2020), for
    squared distances of the scores to 0 and 1 and the entropy times ε, where Sinkhorn's iteration
    has converged.

    Example:
        >>> import numpy as np
        >>> from kofn import soft_topk
        >>> soft_topk(np.array([2.0, 1.0, 0.5, -1.0]), 2).round(3)
        array([0.793, 0.585, 0.461, 0.16 ])
        >>> soft_topk(np.array([2.0, 1.0, 0.5, -1.0]), 2, temperature=0.1).round(3)
        array([1.   , 0.924, 0.076, 0.   ])
        >>> additive = np.array([0.0, 0.0, -1e9, -1e9])
        >>> soft_topk(np.ones(4) + additive, 3, mask=additive > -1)
        array([1., 1., 0., 0.])
    """
    if others:
        raise unknown_keyword(soft_topk, others)
    if type(hard) is bool:
        operation = HARD_WEIGHTS if hard else WEIGHTS
        known = short.answer(operation, scores, k, link, temperature, dim, mask=mask)
        if known is not None:
            return known
    link = table.resolve(link)
    checked = given_for_kernels(scores, k, link, temperature, dim, mask, halves=True)
    with checked.form.quiet():
        is_hard = check_flag("hard", hard)
        weights = hard_weights_of(checked, k) if is_hard else route.answer(WEIGHTS, checked)
    return checked.restored(weights)


def soft_topk_threshold(
    scores: ArrayT,
    k: float | Array,
    *,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return θ of soft_topk: scores above θ have weights above F(0), those below less.

    θ is in the units of the scores, for links shifted to mean zero (F(0) = ½ for symmetric links;
    for "exponential" at k = 1, θ = T·(logsumexp(scores/T) − 1)).

    θ is a quantile of the scores only as T falls to 0. At T > 0 it is a quantile of the scores with
    noise of scale T added: for k = n/10 of 10,000 normal scores, whose 0.9 quantile is 1.28, θ is
    2.57 at T = 1, 1.30 at T = 0.1 and 1.28 at T = 0.01.

    Args:
        scores, k, link, temperature, dim, mask: as for `soft_topk`.

    Returns:
        θ with the batch shape, differentiable; float32 for half-precision scores. +inf where
        k = 0, −inf where every entry is chosen, NaN for a row without available entries.

    Raises:
        TypeError, ValueError: as for `soft_topk`.

    Source: as for `soft_topk`.

    Example:
        >>> import numpy as np
        >>> from kofn import soft_topk_threshold
        >>> soft_topk_threshold(np.array([[4.0, 2.0, 0.0], [9.0, 1.0, 0.0]]), 1.5).round(3)
        array([2.  , 1.66])

        No quantile, unless T is small:

        >>> x = np.random.default_rng(0).standard_normal(10_000)
        >>> [round(float(soft_topk_threshold(x, 1_000, temperature=T)), 2) for T in (1, 0.1, 0.01)]
        [2.57, 1.3, 1.28]
        >>> round(float(np.quantile(x, 0.9)), 2)
        1.28
    """
    if others:
        raise unknown_keyword(soft_topk_threshold, others)
    link = table.resolve(link)
    checked = given_for_kernels(scores, k, link, temperature, dim, mask, halves=True)
    with checked.form.quiet():
        return route.answer(THETA, checked)


def soft_topk_sum(
    scores: ArrayT,
    k: float | Array,
    *,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return the smoothed sum of the k largest, S_k = min_θ kθ + T Σ G((scores − θ)/T), G = ∫F.

    S_k is convex in the scores, and its gradient is `soft_topk`. It is at least the exact sum of
    the k largest scores, and tends to it as T → 0. With link="exponential", S_1 is
    T·logsumexp(scores/T). It is not Σ p·scores.

    Args:
        scores, k, link, temperature, dim, mask: as for `soft_topk`.

    Returns:
        S_k with the batch shape; float32 for half-precision scores. 0 where k = 0.

    Raises:
        TypeError, ValueError: as for `soft_topk`; ValueError for a link without an integral.

    Source: Ogryczak & Tamir (2003) for the hard sum; Blondel, Martins & Niculae (2020).

    In the articles (docs/from_the_articles.md): STk, and the smooth top-k sum that a reader asks
    for; with link="exponential" and k = 1, logsumexp.

    Example:
        >>> import numpy as np
        >>> from kofn import soft_topk_sum
        >>> soft_topk_sum(np.array([3.0, 2.0, -1.0]), 2, temperature=0.01).round(3)
        np.float64(5.0)
    """
    if others:
        raise unknown_keyword(soft_topk_sum, others)
    link = table.resolve(link)
    require_integral(link, scores)
    checked = given_for_kernels(scores, k, link, temperature, dim, mask)
    with checked.form.quiet():
        return route.answer(VALUE, checked)


def hard_topk(
    scores: ArrayT, k: float | Array, *, dim: int = -1, mask: Array | None = None, **others: Never
) -> ArrayT:
    """Return ones at the k largest scores and zeros elsewhere, without a gradient.

    Of all vectors of k ones it is the closest to the scores: their projection onto the multi-hot
    vectors. In the articles (docs/from_the_articles.md): the top-k operator.

    Args:
        scores, dim, mask: as for `soft_topk`; the scores may be integers, too.
        k: as for `soft_topk`; the fractional part is the weight of the next largest score.

    Returns:
        Weights like `scores`, ties to the lowest index; of integers, which are compared exactly,
        floats of the framework's default dtype.

    Raises:
        TypeError, ValueError: as for `soft_topk`.

    Example:
        >>> import numpy as np
        >>> from kofn import hard_topk
        >>> hard_topk(np.array([1.0, 3.0, 3.0, 2.0]), 2.5)
        array([0. , 1. , 1. , 0.5])
        >>> hard_topk(np.array([3, 2, 1, 4]), 2)
        array([1., 0., 0., 1.])
    """
    if others:
        raise unknown_keyword(hard_topk, others)
    if has_integers(scores):
        return hard_of_integers(scores, k, dim, mask)
    known = short.answer(HARD_WEIGHTS, scores, k, "logistic", 1.0, dim, learns=False, mask=mask)
    if known is not None:
        return known
    checked = given_for_kernels(scores, k, links.logistic, 1.0, dim, mask, halves=True)
    with checked.form.quiet():
        return checked.restored(chosen(checked, k))


def chosen(given: Given, k: Any) -> Array:
    """Return the hard top-k of rows, without a gradient; `k` is the caller's."""
    number = type(given.k) is float
    # A copy of the rows takes a microsecond or two, as does a short row.
    if not number or getattr(given.scores, "requires_grad", True):
        fixed = given.k if number else stop_gradient(given.k)
        given = given._replace(scores=stop_gradient(given.scores), k=fixed)
    return route.hard(given, k)


def hard_weights_of(given: Given, k: Any) -> Array:
    """Return the hard top-k with the gradient of the weights; `k` as for `chosen`."""
    if not route.may_learn(HARD_WEIGHTS, given):
        return chosen(without_bad_temperatures(given), k)
    weights = route.by_kernel(HARD_WEIGHTS, given)
    if weights is not None:
        return weights
    soft = route.answer(WEIGHTS, given)
    return chosen(given, k) + (soft - stop_gradient(soft))

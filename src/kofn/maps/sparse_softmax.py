"""Softmax over a set of the largest scores, or over sets that a caller names."""

from __future__ import annotations

from typing import Any, NamedTuple, Never

from kofn import links
from kofn.adapters import route
from kofn.arrays.checks import check_integer, check_number, shown
from kofn.arrays.kinds import Array
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT
from kofn.operations.topk import SOFTMAX
from kofn.operations.truncated import SPARSE, TRUNCATED, is_of_several
from kofn.rows.given import ONE, given_for_kernels
from kofn.rows.kept import kept_given

__all__ = ["sparse_softmax"]


def sparse_softmax(
    scores: ArrayT,
    *,
    k: int | None = None,
    p: float | None = None,
    min_p: float | None = None,
    kept: Any = None,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return softmax over a set S of each row's scores, e^{scores/T}/Σ_S e^{scores/T}; 0 outside.

    S is what a sampler draws from: the k largest scores; of them the nucleus, the fewest with total
    weight ≥ p; of it those with at least min_p of the greatest weight. Or S is `kept`, the sets
    that were drawn from. Scores equal to the last kept one are kept too, so that equal scores have
    equal weights.

    Args:
        scores, temperature, dim, mask: as for `soft_topk`.
        k: number of scores to keep, an integer in [1, n].
        p: least total weight to keep, in (0, 1], of softmax over the scores that k has left; 1
            keeps all.
        min_p: least weight to keep, as a share of the greatest one, in [0, 1]; 0 keeps all.
        kept: instead of these, (token_ids, offsets), two lists or arrays of integers: the set of
            row i is token_ids[offsets[i]:offsets[i + 1]], and rows count through the batch shape.
            An object with these attributes, as vLLM's SamplingMask, will do. The ids of a row
            differ; −1 is padding.

    Returns:
        Weights like `scores` that sum to 1, exactly 0 outside the support; 0 for an empty set. The
        gradient is softmax's on the support and 0 outside: scores outside the support learn
        nothing, and the jump where the support changes has no gradient. `sparsemax` and `entmax`
        are continuous.

    Raises:
        TypeError, ValueError: as for `soft_topk`; none of `k`, `p`, `min_p` and `kept` is given, or
            `kept` with another, or one is out of range. On a GPU and in compiled code ids are not
            read: a row with one out of range is NaN.

    transformers has the same order: temperature, k, p, min_p. vLLM takes min_p before k and p, so p
    is then a share of less, and keeps no more than here. Both keep ties for the k-th place, as
    here; of ties at the edge of the nucleus they keep some, by the order of a sort.

    Source: Sun et al., "Sparse-softmax: A Simpler and Faster Alternative Softmax Transformation"
    (2021); Holtzman et al., "The Curious Case of Neural Text Degeneration" (2020), for the nucleus;
    Nguyen et al., "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs"
    (2024).

    Example:
        >>> import numpy as np
        >>> from kofn import sparse_softmax
        >>> scores = np.array([2.0, 1.0, 0.0, -1.0])
        >>> sparse_softmax(scores, k=2).round(3)
        array([0.731, 0.269, 0.   , 0.   ])
        >>> sparse_softmax(scores, p=0.9).round(3)
        array([0.665, 0.245, 0.09 , 0.   ])
        >>> sparse_softmax(scores, k=3, p=0.95, min_p=0.2).round(3)
        array([0.731, 0.269, 0.   , 0.   ])
        >>> sparse_softmax(scores, kept=([0, 3], [0, 2])).round(3)
        array([0.953, 0.   , 0.   , 0.047])
    """
    if others:
        raise unknown_keyword(sparse_softmax, others)
    if kept is not None:
        check_alone(k, p, min_p)
        sets = kept_given(scores, kept, temperature, dim, mask)
        with sets.given.form.quiet():
            weights = route.answer(SOFTMAX, sets.given)
            return sets.spread(sets.given.restored(weights))  # type: ignore[return-value]  # of its kind
    checked = given_for_kernels(scores, ONE, links.exponential, temperature, dim, mask)
    of = check_support(k, p, min_p, checked.n)
    with checked.form.quiet():
        if is_of_several(*of):
            return checked.restored(route.answer(SPARSE, checked, settings=of))
        return checked.restored(route.answer(TRUNCATED, checked, settings=of[:2]))


class Support(NamedTuple):
    """The numbers that limit the set of a row; of several, one that leaves nothing out is None."""

    k: int | None
    p: float | None
    min_p: float | None


def check_support(k: Any, p: Any, min_p: Any, n: int | None) -> Support:
    """Check what the set of a row is made by; n is None where rows have many lengths."""
    if k is None and p is None and min_p is None:
        raise ValueError("give k, p or min_p, or kept; got none of them")
    if k is not None:

        def integers() -> str:
            return "an integer ≥ 1" if n is None else f"an integer in [1, n] (here n = {n})"

        k = check_integer("k", k, integers)
        if k < (1 if n is None else min(1, n)) or (n is not None and k > n):
            raise ValueError(f"k must be {integers()}; got {k!r}")
    if p is not None:
        p = check_number("p", p, low=0.0, high=1.0, allowed="a number in (0, 1]", strict=True)
    if min_p is not None:
        allowed = "a number in [0, 1]"
        min_p = check_number("min_p", min_p, low=0.0, high=1.0, allowed=allowed)
        if min_p == 0:  # nothing is left out
            min_p, p = None, 1.0 if k is None and p is None else p
    if p == 1 and not (k is None and min_p is None):
        p = None
    return Support(k, p, min_p)


def check_alone(k: Any, p: Any, min_p: Any) -> None:
    for name, value in (("k", k), ("p", p), ("min_p", min_p)):
        if value is not None:
            raise ValueError(
                f"{name} must be None where kept is given, which says what is left; got "
                f"{shown(value)}"
            )

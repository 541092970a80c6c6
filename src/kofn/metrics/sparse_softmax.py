"""The entropy of softmax over a set of the largest scores, from the scores themselves."""

from __future__ import annotations

from typing import Any, Never

from kofn import links
from kofn.adapters import route
from kofn.arrays.kinds import Array
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT
from kofn.formulas import truncated as formulas
from kofn.maps.sparse_softmax import check_alone, check_support
from kofn.operations.truncated import SPARSE_ENTROPY
from kofn.rows.compiled import evaluate
from kofn.rows.given import ONE, given_for_kernels
from kofn.rows.kept import kept_given
from kofn.rows.settled import rows_of

__all__ = ["sparse_softmax_entropy"]


def sparse_softmax_entropy(
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
    """Return −Σ q·log q of q = sparse_softmax(scores), without an array of these weights.

    It is the entropy of what a sampler draws from, as a bonus takes it. `p=1` is softmax's own.

    Args:
        scores, k, p, min_p, kept, temperature, dim, mask: as for `sparse_softmax`.

    Returns:
        A number in [0, log |S|] with the batch shape; float32 for half-precision scores, 0 for an
        empty set. Differentiable any number of times: its slope in x/T is −q(log q + entropy), and
        no other array than that has the size of the scores.

    Raises:
        TypeError, ValueError: as for `sparse_softmax`.

    Example:
        >>> import numpy as np
        >>> from kofn import metrics
        >>> scores = np.array([2.0, 1.0, 0.0, -1.0])
        >>> metrics.sparse_softmax_entropy(scores, k=2).round(4)
        np.float64(0.5822)
        >>> metrics.sparse_softmax_entropy(scores, kept=([0, 3], [0, 2])).round(4)
        np.float64(0.1909)
    """
    if others:
        raise unknown_keyword(sparse_softmax_entropy, others)
    if kept is not None:
        check_alone(k, p, min_p)
        sets = kept_given(scores, kept, temperature, dim, mask)
        with sets.given.form.quiet():
            rows = rows_of(sets.given.per_row())
            entropy: Any = evaluate(formulas.entropy_of, rows, over=sets.given.over)
            return entropy.reshape(sets.form.batch)
    checked = given_for_kernels(scores, ONE, links.exponential, temperature, dim, mask, halves=True)
    of = check_support(k, p, min_p, checked.n)
    with checked.form.quiet():
        return route.answer(SPARSE_ENTROPY, checked, settings=of)

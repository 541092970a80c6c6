"""The exact expectation and gradient: the sum over every choice."""

from __future__ import annotations

import math
from typing import Any, Never

from kofn.arrays.kinds import namespace
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT
from kofn.estimators.protocol import Distribution, Function, added, needs


def exact(
    choice: Distribution[ArrayT],
    f: Function[ArrayT],
    rng: object = None,
    *,
    factors: int = 0,
    enumerate_up_to: int | None = None,
    **others: Never,
) -> ArrayT:
    """Return Σ_s P(s)·f(s), which is E f with all its gradients.

    Biased: no; the variance is 0.
    Needs of f: values only.
    Calls of f: every choice once: n^factors for categories, C(n, k) for subsets.

    Args:
        choice: a `Categorical`, `Bernoulli` or `KSubset`, or any distribution with `log_prob` and
            `support(factors)`.
        f: as for `score_function`, with every choice on the first axis. Rows of the batch are
            handed to f with size 1, since their choices are the same; what f returns must
            broadcast to (choices,) + the batch without its factors.
        rng: not used; every estimator takes one.
        factors: number of last batch dimensions that f takes together.
        enumerate_up_to: the largest number of choices to sum over; 200,000 if None.

    Returns:
        E f with the batch shape, without the factors. A choice of probability 0 adds nothing,
        whatever its f.

    Raises:
        TypeError, ValueError: a distribution without support, more choices than `enumerate_up_to`;
            `factors` out of range.

    Example:
        >>> import numpy as np
        >>> from kofn import Categorical, estimators
        >>> estimators.exact(Categorical(np.zeros(3)), lambda s: s @ np.array([0.0, 5.0, 10.0]))
        np.float64(5.0)
    """
    if others:
        raise unknown_keyword(exact, others)
    law = needs(choice, "exact", "log_prob", "support")
    limit = {} if enumerate_up_to is None else {"enumerate_up_to": enumerate_up_to}
    every = law.support(factors, **limit)
    xp = namespace(every)
    log_prob = law.log_prob(xp.broadcast_to(every, (every.shape[0], *_one_shape(law))))
    log_prob = added(log_prob, log_prob.ndim - factors)
    possible = log_prob != -math.inf
    p = xp.where(possible, xp.exp(xp.where(possible, log_prob, 0.0)), 0.0)
    return xp.sum(p * xp.where(possible, f(every), 0.0), axis=0)


def _one_shape(choice: Any) -> tuple[int, ...]:
    """Return the shape of one sample of each row."""
    if hasattr(choice, "logits"):
        return tuple(choice.logits.shape)
    return (*choice.batch_shape, *choice.event_shape)

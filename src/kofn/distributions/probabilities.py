"""Logits of probabilities, which distributions take in their place.

test_distributions_categorical.py and test_distributions_bernoulli.py hold them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kofn.arrays.checks import check_scores
from kofn.arrays.kinds import cast, compute_dtype, namespace, quiet
from kofn.arrays.typing import ArrayT


def logits_of(
    logits: Any,
    probs: ArrayT | None,
    logit: Callable[[ArrayT], ArrayT],
    scalars: bool = False,
) -> ArrayT:
    """Return logits from `logits` or `probs`, whichever is given."""
    if (logits is None) == (probs is None):
        raise TypeError(
            "logits or probs must be given, and not both; got "
            + ("neither" if logits is None else "both")
        )
    if probs is None:
        return logits
    check_scores(probs, "probs", scalars=scalars)
    with quiet(probs):
        return cast(logit(cast(probs, compute_dtype(probs))), probs.dtype)


def log(p: ArrayT) -> ArrayT:
    """Return log p, with gradient 0 at 0."""
    xp = namespace(p)
    return xp.where(p == 0, -math.inf, xp.log(xp.where(p == 0, 1.0, p)))

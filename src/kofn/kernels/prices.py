"""What a search for the prices of columns keeps, as kernels and their caller see it."""

from __future__ import annotations

from typing import Any, NamedTuple


class Numbers(NamedTuple):
    """Of each matrix; the names are those of `maps/assignment/rules.py`."""

    t: Any
    length: Any
    gain: Any
    damping: Any
    retried: Any
    low: Any
    high: Any
    best: Any
    stalled: Any
    passes: Any
    hot: Any
    ratio: Any
    met: Any
    given: Any  # the temperature given
    spread: Any  # of the scores
    error: Any
    added: Any  # to the diagonal of S
    active: Any
    moving: Any  # whether Newton's step is to be found
    by_columns: Any  # whether the columns' own thresholds are to be found, at the prices `base`


FLAGS = "retried", "met", "active", "moving", "by_columns"
ASKED = "active", "moving", "by_columns"
"""The last of them: what the host asks of any matrix."""


class Looked(NamedTuple):
    """What a pass tells of each matrix."""

    error: Any
    rest: Any  # R·step
    curved: Any  # stepᵀ·S·step
    farthest: Any  # the greatest |score| + |price| of an entry between 0 and 1


class Columns(NamedTuple):
    """Of each column."""

    beta: Any
    base: Any
    step: Any
    kept: Any

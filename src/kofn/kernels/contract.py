"""The numbers by which every backend knows links, with their traits, and sums of k-subsets.

A link that kernels serve has one line here. Nothing else in these folders lists links to decide by
what they have in common; only `formulas.py` of a backend knows them one by one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kofn.links.table import TABLE


class Kind(NamedTuple):
    """The traits of an inner link (with z measured from its edge) that a search needs."""

    link: str  # its name in the table of links
    two_tails: bool = False
    """0 < F < 1 everywhere, so that between scores far apart the logs of both tails balance."""
    bounded: bool = False
    """F is 0 up to z = 0 and 1 from an end on: a few pieces, computed afresh by the distance."""
    capped: bool = False
    """F comes to 1 at an end, but is 0 only by underflow: then θ is where the least chosen ends."""
    octaves: bool = False
    """`prepare` keeps 2^octaves of an entry, which a step of θ multiplies; else z itself."""
    order: int = 0
    """The order of Halley's step next to θ: 3 where F′ is continuous and |F″| is no more than F′,
    roughly; 2 where F′ has kinks; 0 where no step may be the last without another evaluation.
    """
    steps: float = 1.0
    """The number of last steps that lead beyond the end of a support, from close by."""
    checked: float = 0.0
    """In float32, the step that may be the last where Σp is held to k afterwards: its cube is lost
    where many scores share the sum, which is usual, or no score enters or leaves the support.
    """


KINDS = (
    Kind("logistic", two_tails=True, octaves=True, order=3, checked=2.0**-5),
    Kind("laplace", two_tails=True, octaves=True, order=2),
    Kind("normal", two_tails=True, order=3, checked=2.0**-5),
    Kind("exponential", capped=True, octaves=True),
    Kind("linear", bounded=True, steps=2.0, checked=2.0**-4),
    Kind("entmax", bounded=True, steps=3.0, checked=2.0**-4),  # at α = 1.5, where F is a square
    Kind("entmax", bounded=True, steps=6.0),  # elsewhere
)
"""The links that kernels serve. A link's number is its place."""

LOGISTIC, LAPLACE, NORMAL, EXPONENTIAL, LINEAR, SQUARE, POWER = range(len(KINDS))


def _with(trait: str) -> tuple[int, ...]:
    return tuple(number for number, kind in enumerate(KINDS) if getattr(kind, trait))


# Numba and Triton take these for constants.
TWO_TAILS, BOUNDED, CAPPED, OCTAVES = map(_with, ("two_tails", "bounded", "capped", "octaves"))
BY_LOGS = 2
"""The order of a step on the logs of two tails."""
LAST_STEPS = {3: (1.5e-3, 1.8e-6), 2: (1e-4, 4.5e-9), 0: (0.0, 0.0)}
"""By order, in float32 and float64: the step whose cube, or square, is lost."""
LAST_SINGLE, LAST_DOUBLE = (tuple(LAST_STEPS[kind.order][i] for kind in KINDS) for i in (0, 1))
LAST_CHECKED = tuple(kind.checked for kind in KINDS)
LAST_BY_LOGS = LAST_STEPS[BY_LOGS]
STEPS = tuple(kind.steps for kind in KINDS)

_NUMBERS = {TABLE[kind.link].inner.id: number for number, kind in enumerate(KINDS)}
_ENTMAX = TABLE["entmax"].inner.id
SPECIAL_ALPHA = {1.0: EXPONENTIAL, 1.5: SQUARE, 2.0: LINEAR}
OF_ALPHA = (*SPECIAL_ALPHA.values(), POWER)
"""The kinds of links with an alpha, which may have a cotangent."""
GENERAL = 1.3
"""An alpha of the kind POWER: its link stands for the link of an array of them."""


def kind_of(link: Any) -> int | None:
    """Return the kernels' number of an inner link, or None if they do not have it."""
    if link.id != _ENTMAX:
        return _NUMBERS.get(link.id)
    alpha = link.alpha
    if not isinstance(alpha, float):
        return None
    return SPECIAL_ALPHA.get(alpha, POWER if is_general(alpha) else None)


def kind_of_rows(link: Any) -> int | None:
    """Return the same; for rows with an alpha each, all of which have to be general, POWER."""
    alpha = link.alpha
    return kind_of(link) if alpha is None or isinstance(alpha, float) else POWER


def is_general(alpha: Any) -> Any:
    """Return whether POWER is the kind of an alpha, or of each in an array.

    Nearer to 1 the power loses digits; beyond 2 the slope is infinite at the support's end.
    """
    return (alpha >= 1.2) & (alpha < 2) & (alpha != 1.5)


def link_of(kind: int, alpha: float) -> Any:
    """Return the inner link of a number; only entmax uses α."""
    link = TABLE[KINDS[kind].link].inner
    return link.with_alpha(alpha) if link.id == _ENTMAX else link


LOG_COUNT, TAILS, MARGINALS, COVARIANCE = range(4)
"""The sums of k-subsets that a kernel computes."""


def splits(n: int) -> int:
    """Return how many uniform numbers a sample of a k-subset takes for a row of n coins."""
    return 0 if n < 2 else (n + 1) // 2 + splits((n + 1) // 2)


def window_of(size: int, double: bool) -> int:
    """Return how many numbers of heads are kept: a deviation is at most ½√size, and beyond 8 of
    them, or 6 in float32, all is below rounding.
    """
    return 2 * math.ceil((8 if double else 6) * math.sqrt(size) / 2) + 1


SMALLEST, OF_SCORES, ANY_ORDER = 1, 2, 4
"""How `ChoiceKernels.largest` takes numbers, as bits: it finds the smallest; numbers are scores,
with NaN and masked ones last; its answer may be in any order.
"""

AGAINST, KEPT, INFINITE, ENTROPY, LAST = range(5)
"""What `ChoiceKernels.truncated` answers, of a label outside of the set: its loss against the set,
in the set, or +inf; without a label, the weights, their entropy, or the least score of the set.
"""

"""The numbers by which every backend knows links, with their traits, and sums of k-subsets.

A link's own file says its number and its traits. Nothing in these folders lists links to decide by
what they have in common, and `formulas.py` of a backend makes theirs of that file.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any, NamedTuple

from kofn.links.kind import Kind
from kofn.links.link import BuiltIn
from kofn.links.scalar import FIRST, OWN
from kofn.links.table import TABLE


class Traits(NamedTuple):
    """What a search needs to know of an inner link (with z measured from its edge)."""

    link: str  # its name in the table of links
    kind: Kind
    """What the link's own file says."""
    two_tails: bool
    """0 < F < 1 everywhere, so that between scores far apart the logs of both tails balance."""
    bounded: bool
    """F is 0 up to z = 0 and 1 from an end on: a few pieces, computed afresh by the distance."""
    capped: bool
    """F comes to 1 at an end, but is 0 only by underflow: then θ is where the least chosen ends."""


def _traits(link: BuiltIn, kind: Kind) -> Traits:
    two_tails, bounded = link.inner._infinite_tails is True, link.inner.order is not None
    return Traits(link.name, kind, two_tails, bounded, not (two_tails or bounded))


_EVERY = [_traits(link, kind) for link in TABLE.values() for kind in link.inner.kinds]
KINDS = tuple(sorted(_EVERY, key=lambda traits: traits.kind.number))
"""The links that kernels serve, by number."""
assert [traits.kind.number for traits in KINDS] == [*range(len(KINDS))], "a number is free, or two"

FIRST_OWN = FIRST
"""From this number on, links are a user's own."""
SHARED = FIRST - 1
"""In the place of such a number: of the code that all of these links share."""
NEXT = len(KINDS)
"""The number that each of these has in compiled code of its own; in shared code it has one of these
and of the next ones, by its `ways_of`."""

LOGISTIC, LAPLACE, NORMAL, EXPONENTIAL, LINEAR, SQUARE, POWER = range(7)
"""A kernel knows more of these links than their files say."""


def with_formula(*names: str) -> tuple[int, ...]:
    """Return the numbers of links whose files have all of these formulas."""
    return tuple(traits.kind.number for traits in KINDS if {*names} <= {*traits.kind.formulas})


def _with(trait: str) -> tuple[int, ...]:
    return tuple(traits.kind.number for traits in KINDS if getattr(traits, trait))


# Numba and Triton take these for constants.
TWO_TAILS, BOUNDED, CAPPED = map(_with, ("two_tails", "bounded", "capped"))
OCTAVES = tuple(traits.kind.number for traits in KINDS if traits.kind.octaves)
EDGES = tuple(float(TABLE[traits.link].inner.edge) for traits in KINDS)
"""Where z is counted from; for entmax, at α = 1.5."""
LATTICES = tuple(each.kind.number for each in KINDS if each.kind.lattice)
"""Links that are smooth as noises, so that in float32 no nodes are found for them."""
BY_LOGS = 2
"""The order of a step on the logs of two tails."""
LAST_STEPS = {3: (1.5e-3, 1.8e-6), 2: (1e-4, 4.5e-9), 0: (0.0, 0.0)}
"""By order, in float32 and float64: the step whose cube, or square, is lost."""
LAST_SINGLE, LAST_DOUBLE = (tuple(LAST_STEPS[each.kind.order][i] for each in KINDS) for i in (0, 1))
LAST_CHECKED = tuple(each.kind.checked for each in KINDS)
LAST_BY_LOGS = LAST_STEPS[BY_LOGS]
STEPS = tuple(each.kind.steps for each in KINDS)

_NUMBERS = {TABLE[each.link].inner.id: each.kind.number for each in KINDS}
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


def on_lattice(x: Any, link: Any) -> bool:
    """Return whether kernels for noises, if they serve, take these scores without nodes."""
    return x.dtype.itemsize == 4 and kind_of(link) in LATTICES


def kind_of_rows(link: Any) -> int | None:
    """Return the same; for rows with an alpha each, which all have to be general, POWER."""
    alpha = link.alpha
    return kind_of(link) if alpha is None or isinstance(alpha, float) else POWER


def is_general(alpha: Any) -> Any:
    """Return whether POWER is the kind of an alpha, or of each in an array.

    Nearer to 1 the power loses digits; beyond 2 the slope is infinite at the support's end.
    """
    return (alpha >= 1.2) & (alpha < 2) & (alpha != 1.5)


def is_bounded(kind: int) -> bool:
    """Return whether the link of a number is bounded, which may be a user's own."""
    return kind in BOUNDED if kind < FIRST_OWN else OWN[kind].end is not None


def number_of(link: Any) -> int:
    """Return the number of a user's own link, which it has among those; see compiler/own.py."""
    number: int = link.number
    return number


class Ways(NamedTuple):
    """What a search needs to know of a user's own link before it runs."""

    two_tails: bool
    octaves: bool
    knows_omega: bool
    steps: tuple[int, float, float]
    """The `order`, `steps` and `checked` of its kind."""


_STEPS = (3, 1.0, 2.0**-5), (2, 1.0, 0.0), (0, 1.0, 0.0)
_STEPS_TO_AN_END = (0, 3.0, 2.0**-4), (0, 6.0, 0.0)
WAYS = (
    *(Ways(True, *each) for each in product((False, True), (False, True), _STEPS)),
    *(Ways(False, False, *each) for each in product((False, True), _STEPS_TO_AN_END)),
)
"""All that there are, as links/scalar.py makes them."""


def ways_of(number: int) -> Ways:
    """Return those of a user's own link."""
    link = OWN[number]
    (kind,) = link.kinds
    steps = kind.order, kind.steps, kind.checked
    return Ways(link.end is None, kind.octaves, "omega" in kind.formulas, steps)


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

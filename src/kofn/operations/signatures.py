"""The rows that operations are of: scores with numbers per row, with costs, in segments, alone.

Kernels and torch's operators take k, the temperature and alpha as a tensor per row each, or as a
number for all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kofn.arrays.kinds import Array
from kofn.arrays.typing import Number
from kofn.links.link import Link, by_id
from kofn.operations.operation import Signature
from kofn.rows.given import Given, costed, with_costs

NO_LINK: Any = None
"""In the place of the link of operations that have none."""
NONE: Any = None
"""In the place of scores that are not kept."""

# Scores with k, a temperature and a link. Most calls have one tensor, and are short: so the tests
# for numbers are written out.


def _pack(
    x: Array,
    k: Array | None,
    every_k: float | None,
    t: Array | None,
    every_t: float | None,
    link: str | None,
    alpha: Number | None,
) -> Given:
    inner = NO_LINK if link is None else by_id(link, alpha)
    return Given(x, _one(k, every_k), _one(t, every_t), inner)


def _one(tensor: Array | None, number: float | None) -> Number | None:
    return float(number) if tensor is None and number is not None else tensor


def _unpack(given: Given) -> tuple[object, ...]:
    link = given.link
    return given.scores, *_two(given.k), *_two(given.temperature), link.id, _number(link)


def _two(number: Any) -> tuple[Array | None, float | None]:
    return (None, number) if type(number) is float else (number, None)


def _number(link: Link) -> float | None:
    return link.static_and_array_alpha()[0]


def tensors_of(given: Given) -> list[Array]:
    """Return the scores, and k and the temperature where they are no numbers."""
    x, k, t, *_ = given
    if type(k) is type(t) is float:
        return [x]
    return [array for array in (x, k, t) if type(array) is not float]


def _learnable(given: Given) -> tuple[str, ...]:
    return _NAMES[type(given.k) is float, type(given.temperature) is float]


_NAMES = {
    (True, True): ("x",),
    (False, True): ("x", "k"),
    (True, False): ("x", "t"),
    (False, False): ("x", "k", "t"),
}


def without_tensors(given: Given) -> Given:
    """Return `given` without its tensors: a rule that kept them would hold their memory.

    Hooks on saved tensors and checkpoints let go of what autograd saves, and of nothing else.
    """
    _, k, t, link, form = given[:5]
    return Given(NONE, k if type(k) is float else None, t if type(t) is float else None, link, form)


def with_tensors(given: Given, tensors: Sequence[Array]) -> Given:
    """Return `given` with these `tensors_of`."""
    if len(tensors) == 1:
        return Given(tensors[0], *given[1:])
    left = iter(tensors)
    x: Any
    x, k, t = (old if type(old) is float else next(left) for old in given[:3])
    return Given(x, k, t, given.link, given.form)


ROWS: Signature[Given] = Signature(
    takes="x n, k #, t #, link",
    pack=_pack,
    unpack=_unpack,
    learnable=_learnable,
    tensors=tensors_of,
    without_tensors=without_tensors,
    with_tensors=with_tensors,
    kernels="rows",
)
CHOICES = ROWS._replace(
    takes="x n, k #",
    pack=lambda x, k, every_k: Given(x, _one(k, every_k), 1.0, NO_LINK),
    unpack=lambda given: (given.scores, *_two(given.k)),
    kernels="choice",
)
"""Rows whose choice is whole entries."""
TEMPERED = ROWS._replace(
    takes="x n, t #",
    pack=lambda x, t, every_t: Given(x, 1.0, _one(t, every_t), NO_LINK),
    unpack=lambda given: (given.scores, *_two(given.temperature)),
    kernels="choice",
)
"""Rows with a softmax over some of the scores; their k is a number."""


# The same with an alpha per row.

EACH_ALPHA: Signature[Given] = Signature(
    takes="x n, alpha r, k #, t #, link str",
    pack=lambda x, alpha, k, every_k, t, every_t, link: _pack(
        x, k, every_k, t, every_t, link, alpha
    ),
    unpack=lambda given: (
        given.scores,
        given.link.alpha,
        *_two(given.k),
        *_two(given.temperature),
        given.link.id,
    ),
    learnable=lambda given: ("x", "alpha", *_learnable(given)[1:]),
    tensors=lambda given: [given.scores, given.link.alpha, *tensors_of(given)[1:]],
    without_tensors=lambda given: without_tensors(given)._replace(link=given.link.with_alpha(1.5)),
    with_tensors=lambda given, tensors: with_tensors(
        given._replace(link=given.link.with_alpha(tensors[1])), [tensors[0], *tensors[2:]]
    ),
    kernels="rows",
)


# Rows with costs. All is in tensors.

COSTED: Signature[Given] = Signature(
    takes="x n, costs n, budget r, t r, link",
    pack=lambda x, costs, budget, t, link, alpha: with_costs(
        (x, costs, budget, t), NO_LINK if link is None else by_id(link, alpha)
    ),
    unpack=lambda given: (*costed(given), given.link.id, _number(given.link)),
    learnable=lambda given: ("x", "costs", "budget", "t"),
    tensors=costed,
    without_tensors=lambda given: given._replace(scores=NONE, costs=None, k=None, temperature=None),
    with_tensors=lambda given, tensors: given._replace(
        scores=tensors[0], costs=tensors[1], k=tensors[2], temperature=tensors[3]
    ),
    kernels="knapsack",
)


# An array alone.


def scores(name: str, kernels: str) -> Signature[Any]:
    """Return the signature of an array of this name, with rows along its last dimension."""
    return Signature(
        takes=f"{name} n",
        pack=lambda array: array,
        unpack=lambda array: (array,),
        learnable=lambda array: (name,),
        tensors=lambda array: (array,),
        without_tensors=lambda array: None,
        with_tensors=lambda _, tensors: tensors[0],
        kernels=kernels,
    )

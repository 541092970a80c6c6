"""Every pair of values in the ordinary run, every combination in the full one."""

from itertools import combinations, product

import pytest


def pairwise(**lists):
    """Parametrize a test by lists of values, one for each of its arguments.

    The full run has all combinations. The ordinary one has few of them, in which each value of a
    list stands with each value of every other list at least once. A `pytest.param` in a list brings
    its marks and its id along; a pair with a value that is marked full is left to the full run.
    """
    values = [[_param(one) for one in each] for each in lists.values()]
    chosen = covering([_ordinary(each) for each in values])
    rows = []
    for places in product(*(range(len(each)) for each in values)):
        row = [each[i] for each, i in zip(values, places, strict=True)]
        marks = {mark.name: mark for one in row for mark in one.marks}
        if places not in chosen:
            marks["full"] = pytest.mark.full
        name = "-".join(one.id or _named(one.values[0]) for one in row)
        rows.append(pytest.param(*(one.values[0] for one in row), marks=[*marks.values()], id=name))
    return pytest.mark.parametrize(tuple(lists), rows)


_Params = type(pytest.param(0))


def _param(value):
    return value if isinstance(value, _Params) else pytest.param(value)


def _named(value):
    """A function, a number, a link, or a tuple of these, in the name of a case."""
    if isinstance(value, tuple):
        return "-".join(map(_named, value))
    return getattr(value, "__name__", None) or str(value)


def _ordinary(params):
    """The places of the values that are not left to the full run."""
    return [i for i, one in enumerate(params) if "full" not in (mark.name for mark in one.marks)]


def covering(lists):
    """Few combinations of values, as a set, in which every pair of two lists occurs."""
    every = list(product(*lists))
    pairs = {row: {*combinations(enumerate(row), 2)} for row in every}
    left, chosen = set().union(*pairs.values()), set()
    while left:
        best = max(every, key=lambda row: len(pairs[row] & left))  # the first of the best
        chosen.add(best)
        left -= pairs[best]
    return chosen if len(lists) > 1 else {*every}

"""Each value, or every pair of values, in the ordinary run; every combination in the full one."""

from itertools import combinations, product
from zlib import crc32

import pytest


def pairwise(**lists):
    """Parametrize a test by lists of values, one for each of its arguments.

    The full run has all combinations. The ordinary one has few of them, in which each value of a
    list stands with each value of every other list at least once. A `pytest.param` in a list brings
    its marks and its id along; a pair with a value that is marked full is left to the full run.
    """
    values = [[_param(one) for one in each] for each in lists.values()]
    chosen = covering(product(*map(_ordinary, values)), 2)
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


def covering(rows, size):
    """Few of the rows, as a set, in which what any `size` places of a row hold occurs.

    Of those that hold as much of what is left, the first is taken.
    """
    parts = {row: {*combinations(enumerate(row), min(size, len(row)))} for row in rows}
    left, chosen = set().union(*parts.values()), set()
    while left:
        best = max(parts, key=lambda row: len(parts[row] & left))
        chosen.add(best)
        left -= parts[best]
    return chosen


def leave_to_the_full_run(items):
    """Mark what the ordinary run need not have of tests that take several lists of values.

    A list is a decorator `parametrize`, or the values of a fixture. Each value of each list stays
    once, or each pair of them in tests marked `pairs`. Which values meet differs from test to test.
    """
    tests = {}
    for item in items:
        if hasattr(item, "callspec") and not _ELSEWHERE & {
            mark.name for mark in item.iter_markers()
        }:
            rows = tests.setdefault(item.nodeid.partition("[")[0], {})
            rows[tuple(item.callspec._idlist)] = item  # a name for each list
    for test, rows in tests.items():
        mixed = sorted(rows, key=lambda row: crc32(f"{test} {row}".encode()))
        size = 2 if rows[mixed[0]].get_closest_marker("pairs") else 1
        for row in {*mixed} - covering(mixed, size):
            rows[row].add_marker(pytest.mark.full)


_ELSEWHERE = {"full", "extras", "dist", "browser", "gpu"}
"""Marks of tests that `make test` has not."""

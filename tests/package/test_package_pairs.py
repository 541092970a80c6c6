"""Tests whose combinations are left to the full run: the ordinary one keeps every pair."""

from itertools import combinations, product

import pytest

from pairs import covering, pairwise


def pairs_of(rows):
    return {pair for row in rows for pair in combinations(enumerate(row), 2)}


@pytest.mark.parametrize("sizes", [(3,), (2, 3), (4, 1, 3), (11, 5, 3), (7, 2, 4, 3), (3,) * 5])
def test_every_pair_of_values_is_covered_by_few_rows(sizes):
    every = [*product(*map(range, sizes))]
    chosen = covering([range(size) for size in sizes])
    assert chosen <= {*every}
    assert pairs_of(chosen) == pairs_of(every)
    first, second = sorted([1, *sizes])[-2:]
    assert len(chosen) <= 2 * first * second  # fewer than their product are not possible


def rows_of(mark):
    """The combinations of a mark, of the ordinary run and of the full one."""
    names, rows = mark.args
    assert names == ("letter", "number", "sign")
    full = [row.values for row in rows if "full" in {mark.name for mark in row.marks}]
    return [row.values for row in rows if row.values not in full], full


def test_all_other_combinations_are_marked_full():
    rare = pytest.param("c", marks=pytest.mark.full)
    lists = dict(letter=["a", "b", rare], number=[1, 2, 3], sign=[True, False])
    ordinary, full = rows_of(pairwise(**lists))
    assert sorted(ordinary + full) == sorted(product("abc", (1, 2, 3), (True, False)))
    assert pairs_of(ordinary) == pairs_of(product("ab", (1, 2, 3), (True, False)))
    assert len(ordinary) < 12


def test_marks_and_names_of_values_stay():
    skipped = pytest.param(2, marks=pytest.mark.skip, id="two")
    (mark,) = [pairwise(letter=[pytest.param("a", id="A")], number=[skipped], sign=[1])]
    (row,) = mark.args[1]
    assert [each.name for each in row.marks] == ["skip"]


def test_the_rows_are_the_same_in_every_process():
    """As pytest-xdist asks."""
    lists = dict(letter="abcd", number=range(5), sign=(True, False))
    one, other = (rows_of(pairwise(**lists)) for _ in range(2))
    assert one == other

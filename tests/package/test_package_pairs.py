"""Combinations are left to the full run: the ordinary one keeps every value, or every pair."""

from itertools import combinations, product
from types import SimpleNamespace

import pytest

from pairs import covering, leave_to_the_full_run, pairwise


def pairs_of(rows):
    return {pair for row in rows for pair in combinations(enumerate(row), 2)}


@pytest.mark.parametrize("sizes", [(3,), (2, 3), (4, 1, 3), (11, 5, 3), (7, 2, 4, 3), (3,) * 5])
def test_every_pair_of_values_is_covered_by_few_rows(sizes):
    every = [*product(*map(range, sizes))]
    chosen = covering(product(*map(range, sizes)), 2)
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


class Item:
    """Of a test, what the rule reads."""

    def __init__(self, test, row, *marks):
        self.nodeid, self.callspec = f"{test}[{'-'.join(row)}]", SimpleNamespace(_idlist=row)
        self.row, self.marks = row, [getattr(pytest.mark, mark).mark for mark in marks]

    def iter_markers(self):
        return iter(self.marks)

    def get_closest_marker(self, name):
        return next((mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, mark):
        self.marks.append(mark.mark)


def left(test, *marks, others=()):
    """The rows of a test that the ordinary run has."""
    rows = [Item(test, row, *marks) for row in product("abcd", "12", "+-")]
    rows += [Item(test, row, "full") for row in others]
    leave_to_the_full_run(rows)
    return {one.row for one in rows if "full" not in [mark.name for mark in one.marks]}


def test_of_several_lists_each_value_is_taken_once():
    rows = left("test_a.py::test_it")
    assert len(rows) == 4
    assert [{*each} for each in zip(*rows, strict=True)] == [{*"abcd"}, {*"12"}, {*"+-"}]
    assert left("test_a.py::test_it") == rows
    assert any(left(f"test_a.py::test_{n}") != rows for n in range(3))  # other values meet


def test_or_each_pair_where_a_test_asks_for_it():
    rows = left("test_a.py::test_it", "pairs", others=[("e", "1", "+")])
    assert pairs_of(rows) == pairs_of(product("abcd", "12", "+-"))
    assert len(rows) < 16


def test_of_one_list_all_values_stay():
    rows = [Item("test_a.py::test_it", (letter,)) for letter in "abcd"]
    leave_to_the_full_run(rows)
    assert not any(row.marks for row in rows)

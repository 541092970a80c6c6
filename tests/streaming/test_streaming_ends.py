"""Searches of rows that are read block by block end."""

import numpy as np

import kofn
from kofn.streaming import cut
from kofn.streaming import equation as one_row


def test_digits_of_costs_that_a_sum_in_another_order_has_lost_end_at_the_last():
    """All that the first digit says is there does not fit; all that the second says does."""
    first, second = [0.0, 1.0, 0.0, 0.0], [0.0, 0.25, 0.25, 0.5 - 2.0**-53]
    found = cut.cut(4, 2, 1 - 2.0**-53, lambda prefix, below, width: first if below else second)
    assert found == (-4 + 1, 0.25)


class Never:
    """A row whose sums tell nothing: every look says that θ is further up."""

    is_double = True

    def __init__(self):
        self.looks = 0

    def bracket(self, how):
        return 0.0, -1e300, 1e300

    def look(self, theta, rest, how):
        self.looks += 1
        return one_row.Sums(0.0, 2.0, 2.0, 0.0, 0.0)

    def glance(self, theta, how):
        return None


def test_a_search_whose_sums_never_settle_ends_at_its_bound():
    row = Never()
    theta = one_row.Equation(row, 1.0, 3.0, 1.0, kofn.links.linear.inner).solve()
    assert row.looks <= one_row.BISECTIONS
    assert -1e300 <= theta <= 1e300
    row = Never()
    start = np.float64(0.0)
    found = one_row.Equation(row, 1.0, 3.0, 1.0, kofn.links.linear.inner).search(start, -1, 1e9, 5)
    assert row.looks == 5
    assert not found.converged
    assert 0 <= found.at.anchor <= 1e9

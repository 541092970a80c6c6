"""What is first known of a row: where its search starts, and a bracket. (solver/bracket.py)"""

import numpy as np

from kofn.links.table import resolve
from kofn.solver.bracket import bracket, bracket_of, moments_of
from kofn.solver.equation import Problem
from kofn.solver.reductions import DENSE
from support import every_link


@every_link
def test_the_bracket_of_moments_holds_that_of_whole_rows(rng, link):
    x = rng.standard_normal((5, 40))
    x[1, :9], x[2, 3], x[3] = -1e9, 1e9, 2.0
    like, inner = np.zeros(5), resolve(link).inner
    plain = Problem(x, x == x, like + 3.0, like + 40, like + 0.5, inner, inner, DENSE)
    open_ = np.ones(5, bool)
    start, low, high = bracket(plain, open_)
    other, below, above = bracket_of(
        plain, moments_of(x, plain.live, plain.temperature, DENSE), open_
    )
    assert (below <= low + 1e-9).all()
    assert np.allclose(above, high)
    assert (below <= other).all()
    assert (other <= above).all()
    assert np.allclose(other, start)

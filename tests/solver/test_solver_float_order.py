"""θ by a bisection in the order of floats is where the bisection over scores has it."""

import jax
import numpy as np

from kofn.links.table import resolve
from kofn.solver import float_order, neighbours
from kofn.solver.bracket import bracket, bracket_of, moments_of
from kofn.solver.equation import Problem, split
from kofn.solver.reductions import DENSE
from support import TOTAL, every_link
from test_solver_ends import rows


def problem(x, k, temperature, link):
    """The equation of rows, in the framework of x."""
    xp = jax.numpy if isinstance(x, jax.Array) else np
    like = xp.zeros_like(x[..., 0])
    live = xp.ones_like(x, dtype=bool)
    return Problem(x, live, like + k, like + x.shape[-1], like + temperature, link, link, DENSE)


def weights(p, place):
    upper, low, high = (np.asarray(each) for each in split(p.link, p.z(*place), p.live))
    return np.where(upper, 1 - high, low)


@every_link
def test_both_searches_find_the_same_weights(rng, link):
    inner = resolve(link).inner
    scores = np.stack(
        [*rows(rng, np.float32), *(10.0 ** np.arange(-30, 31, 10)[:, None] * rows_of(rng))]
    )
    scores = scores.astype(np.float32)
    found = jax.jit(
        lambda x, k, t: float_order.between_neighbours(
            problem(x, k, t, inner), x[..., 0] == x[..., 0]
        )
    )
    for k in (1e-3, 2.5, 5.999):
        for temperature in (1.0, 1e-30):
            arrays = (jax.numpy.asarray(each, "float32") for each in (scores, k, temperature))
            place = [np.asarray(each) for each in found(*arrays)]
            plain = problem(scores, np.float32(k), np.float32(temperature), inner)
            with np.errstate(all="ignore"):
                p = weights(plain, place)
                known = neighbours.between_neighbours(plain, scores[:, 0] == scores[:, 0])
                assert np.abs(p - weights(plain, known)).max() <= 1e-6
            assert (np.abs(p.sum(-1) - k) <= 4 * TOTAL["float32"] * max(k, 1)).all()


def rows_of(rng):
    return rng.standard_normal(6)


@every_link
def test_the_bracket_of_moments_holds_that_of_whole_rows(rng, link):
    x = rng.standard_normal((5, 40))
    x[1, :9], x[2, 3], x[3] = -1e9, 1e9, 2.0
    plain = problem(x, 3.0, 0.5, resolve(link).inner)
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

"""The search of rows in parts on JAX finds rows that Newton's method loses as other arrays do."""

import jax
import numpy as np

from kofn.adapters.jax import search
from kofn.links.table import resolve
from kofn.solver import neighbours
from kofn.solver.equation import Problem, split
from kofn.solver.reductions import DENSE
from support import TOTAL, every_link
from test_solver_ends import rows


def problem(x, k, temperature, link):
    """The equation of rows."""
    like, live = np.zeros_like(x[..., 0]), np.ones_like(x, dtype=bool)
    return Problem(x, live, like + k, like + x.shape[-1], like + temperature, link, link, DENSE)


def weights(p, place):
    upper, low, high = (np.asarray(each) for each in split(p.link, p.z(*place), p.live))
    return np.where(upper, 1 - high, low)


@every_link
def test_rows_without_a_step_of_newtons_have_the_same_weights(rng, monkeypatch, link):
    monkeypatch.setattr(search, "ROUNDS", 1)
    inner = resolve(link).inner
    scores = np.stack(
        [*rows(rng, np.float32), *(10.0 ** np.arange(-30, 31, 10)[:, None] * rows_of(rng))]
    )
    scores = scores.astype(np.float32)
    found = jax.jit(lambda x, k, t: search.solve(x, 0 * x[:, 0] + k, 0 * x[:, 0] + t, inner, DENSE))
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

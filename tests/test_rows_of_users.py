"""The laws of the weights for rows where users go, and the oracle they are held to."""

import numpy as np
import pytest

import oracles
import oracles_rows
from rows_of_users import DTYPES, draw, least_in_play, oracle, tails_of
from support import LINKS

ALPHAS = (1.0, 1.1, 1.33, 1.5, 1.9, 2.0, 3.0, 4.0, 10.0)


@pytest.mark.parametrize("link", [*LINKS, *ALPHAS])
def test_the_oracle_of_rows_meets_k_and_the_one_in_80_bits(link, rng):
    cdf = oracles.CDF[link] if isinstance(link, str) else oracles.entmax_cdf(link)
    cdf = oracles.CDF["exponential"] if link == 1.0 else cdf
    x = rng.standard_normal((20, 9)) * 10.0 ** rng.uniform(-2, 2, (20, 1))
    k, t = rng.uniform(0, 9, 20), 10.0 ** rng.uniform(-1, 1, 20)
    p = oracles_rows.weights(x, k, t, tails_of(link))
    for row in range(20):
        slow = oracles.soft_topk(x[row : row + 1], k[row], t[row], cdf)[0]
        # Counted from mean zero, 80 bits keep few digits next to an infinite slope.
        assert p[row] == pytest.approx(slow.astype(float), abs=1e-12 if link != 10.0 else 2e-2)
    for dtype in DTYPES:
        rows = draw(rng, 500, 9, dtype)
        live = np.sum(rows.x > least_in_play(dtype), axis=-1)
        total = np.minimum(rows.k, live)
        assert oracle(rows, tails_of(link)).sum(-1) == pytest.approx(total, rel=1e-13, abs=1e-13)

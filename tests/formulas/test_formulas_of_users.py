"""The laws of the weights for rows where users go, and the oracle they are held to."""

import numpy as np
import pytest

import oracles
from oracles import rows as oracles_rows
from rows_of_users import (
    DTYPES,
    UserRows,
    affordable,
    draw,
    hold,
    least_in_play,
    oracle,
    rounded,
    tails_of,
)
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
        rows = affordable(draw(rng, 500, 9, dtype), link)
        live = np.sum(rows.x > least_in_play(dtype), axis=-1)
        total = np.minimum(rows.k, live)
        assert oracle(rows, tails_of(link)).sum(-1) == pytest.approx(total, rel=1e-13, abs=1e-13)


# Without kernels, as JAX, a learned alpha and links of one's own are served; one link on JAX, whose
# compiler takes seconds for each.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("link", [*LINKS, 1.1, 1.33, 1.9, 3.0, 4.0, 10.0])
def test_the_laws_hold_by_the_reference(link, dtype, rng):
    hold(draw(rng, 500, 9, dtype), link, "reference")


@pytest.mark.parametrize("alpha", ALPHAS[1:])
def test_the_laws_hold_for_a_learned_alpha(alpha, rng):
    hold(draw(rng, 200, 9, "float32"), alpha, "torch reference", learned=True)


def test_the_laws_hold_on_jax(rng):
    hold(draw(rng, 500, 9, "float32"), "entmax", "jax")


@pytest.mark.full
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", ["reference", "jax"])
@pytest.mark.parametrize("link", [*LINKS, *ALPHAS])
def test_the_laws_hold_for_a_hundred_thousand_rows(link, backend, dtype, rng):
    for count, n in ((40_000, 2), (40_000, 9), (15_000, 33), (5_000, 130)):
        hold(draw(rng, count, n, dtype), link, backend)


@pytest.mark.full
@pytest.mark.parametrize("link", ["logistic", "linear"])
def test_the_laws_hold_by_torch_compile(link, rng):
    hold(draw(rng, 100_000, 9, "float32"), link, "compile")


# Rows that led the search astray, and their weights.
ASTRAY = [
    ([-1e15, 0, 0.3, 1, -1e15], 2, 1.0, "entmax"),
    ([-1e15, -2.5, -2.1, -1, -2], 1, 0.1, "logistic"),
    ([1.3, -1e30, -1.1, 0.2, 0.3], 1, 1.0, 1.33),
    ([1.3, -1e30, -1.1, 0.2, 0.3], 2, 1.0, "entmax"),
    ([4.6, 1e15], 1.047, 1.0, "laplace"),
    ([1e30, 0.008, 0.0058], 1.037, 0.025, "normal"),
    ([5, -1e9, -1e9 - 64], 2, 1.0, "normal"),
    ([1, 1, -1e9, -1e9, -1e9 - 64], 4, 0.1, "logistic"),
    ([-1.69e38] * 30, 1, 1.0, 1.1),
    ([1e-24, -1e-24, 3e-24, 0], 2, 2e-24, "logistic"),
    ([1, 0.9, 0.5, 0], 1, 1.0, 10.0),
    ([3.4028234663852886e38, 4.3425e29], 7.6e-8, 7.9e29, "logistic"),
    (
        [-1.0000001, 1.0000002, -1, 1.0000002, 0, -1.0000006, -1.0000001, 0, -1.0000002],
        8.999985694885254,
        2.0,
        1.0,
    ),
]


@pytest.mark.parametrize("backend", ["reference", "torch reference"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("x", "k", "temperature", "link"), ASTRAY)
def test_no_outlier_and_no_slope_leads_the_search_astray(x, k, temperature, link, dtype, backend):
    numbers = (rounded(np.array(a, float), dtype) for a in ([x], [k], [temperature]))
    rows = UserRows(*numbers, dtype)
    hold(rows, link, backend)
    if isinstance(link, float):
        hold(rows, link, backend, learned=True)

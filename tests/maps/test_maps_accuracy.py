"""Weights, sums and gradients against oracles, to the digits that are promised."""

import functools

import numpy as np
import pytest

import kofn
import oracles
from kofn import links, soft_topk
from support import (
    GRADIENT,
    GRADIENT_HARD,
    SMOOTH,
    TOTAL,
    Framework,
    every_link,
    weight_tolerance,
    with_gradients,
)

pytestmark = pytest.mark.pairs

# Short and long rows, few and most of them chosen, a fractional k; scores from nearly equal to
# spread over a thousand temperatures.
SHAPES = [(2, 1), (8, 2), (64, 8), (100, 95), (100, 2.5), (500, 200)]
SPREADS = [0.1, 1.0, 5.0, 50.0, 1000.0]


@functools.cache
def oracle_case(link: str, dtype: str, n: int, k: float, temperature: float):
    """Rows of every spread, and their weights; computed once for the three frameworks."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.standard_normal((3, n)) * spread for spread in SPREADS]).astype(dtype)
    return x, oracles.soft_topk(x, k, temperature, oracles.CDF[link])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@every_link
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_weights_meet_the_oracle(framework, link, dtype, n, k):
    for temperature in (0.3, 1.0):
        x, expected = oracle_case(link, dtype, n, k, temperature)
        p = framework.numpy(
            soft_topk(framework.array(x, dtype), k, link=link, temperature=temperature)
        )
        for row, answer, wanted in zip(x, p, expected, strict=True):
            tolerance = weight_tolerance(row, temperature, dtype)
            assert np.max(np.abs(answer - wanted)) <= tolerance
        assert np.max(np.abs(p.sum(-1) - k)) <= TOTAL[dtype] * k


@pytest.mark.parametrize("alpha", [1.0, 1.05, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 4.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_entmax_meets_the_oracle_at_every_alpha(framework, alpha, dtype, rng):
    x = rng.standard_normal((5, 40)).astype(dtype)
    p = framework.numpy(soft_topk(framework.array(x, dtype), 3, link=links.entmax(alpha)))
    cdf = oracles.CDF["exponential"] if alpha == 1 else oracles.entmax_cdf(alpha)
    tolerance = weight_tolerance(x, 1.0, dtype)
    assert np.max(np.abs(p - oracles.soft_topk(x, 3, 1.0, cdf))) <= tolerance


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("alpha", [1.1, 1.3, 1.5, 2.0, 3.0, 5.0])
def test_small_weights_keep_their_digits_next_to_the_end_of_a_support(framework, alpha, dtype):
    """Counted from mean zero, z is −½ less 5e-4, in steps of 3e-8, and Σp is off by 9e-5·k."""
    tied = np.repeat([0.0, 0.003], [400, 600]).astype("float32")
    for x, k, temperature in ((tied, 0.5, 10.0), (tied[:1], 5.4e-4, 0.1), (tied[-2:], 0.02, 1.0)):
        exact = soft_topk(x.astype("float64"), k, link=links.entmax(alpha), temperature=temperature)
        array = framework.array(x, dtype)
        for given in (alpha, framework.array(alpha, dtype)):
            link = links.entmax(given)
            p = framework.numpy(soft_topk(array, k, link=link, temperature=temperature))
            assert p.sum() == pytest.approx(k, rel=max(TOTAL[dtype], 1e-12))
            assert np.all(np.abs(p - exact) <= max(20 * TOTAL[dtype], 1e-12) * exact)


def test_maps_meet_the_entmax_package_where_it_is_right(rng):
    """Rows without −inf, in float64; its budget is the linear link beyond k = 1."""
    import entmax
    import torch

    x = torch.tensor(rng.standard_normal((20, 30)) * 2)
    assert torch.allclose(kofn.sparsemax(x), entmax.sparsemax(x), atol=1e-12)
    assert torch.allclose(kofn.entmax(x), entmax.entmax15(x), atol=1e-12)
    alpha = torch.linspace(1.1, 2.5, 20, dtype=torch.float64)
    theirs = entmax.entmax_bisect(x, alpha[:, None], n_iter=80)
    assert torch.allclose(kofn.entmax(x, alpha), theirs, atol=1e-9)
    k = torch.linspace(1, 25, 20, dtype=torch.float64)
    theirs = entmax.budget_bisect(x, k[:, None], n_iter=80)
    assert torch.allclose(kofn.soft_topk(x, k, link="linear"), theirs, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@every_link
@pytest.mark.parametrize(("n", "k"), [(8, 2), (64, 8), (100, 95), (100, 2.5)])
@with_gradients
def test_gradients_meet_the_closed_form(name, link, dtype, n, k, rng):
    framework = Framework(name)
    for spread in (0.1, 1.0, 5.0, 50.0):
        x = (rng.standard_normal(n) * spread).astype(dtype)
        v = rng.standard_normal(n).astype(dtype)
        temperature = 0.7
        # Wide gaps and a whole k leave a plateau, where 80 bits have no θ (see test_solver.py).
        some = k + 0.5 if spread >= 5 and k == int(k) else k
        arguments = [
            framework.array(a, dtype) for a in (x, np.asarray(some), np.asarray(temperature))
        ]
        got = framework.vjp(
            lambda x, k, t: soft_topk(x, k, link=link, temperature=t),
            tuple(arguments),
            framework.array(v, dtype),
        )
        t = framework.numpy(arguments[2])[()]
        expected = oracles.vjp(x, some, t, link, v)
        easy = np.max(np.abs(x)) / temperature <= 30 and link in SMOOTH
        tolerance = (GRADIENT if easy else GRADIENT_HARD)[dtype]
        for answer, wanted, size in zip(got, expected.values, expected.sizes, strict=True):
            floor = 1e-6 * np.linalg.norm(v)  # where everything cancels
            assert np.linalg.norm(answer - wanted) <= tolerance * (size + floor)


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_long_rows_keep_their_sum(name):
    n, k = 10**7, 3_000.0
    x = np.random.default_rng(1).standard_normal(n, dtype=np.float32)
    framework = Framework(name)
    if name == "torch":
        import torch

        scores = torch.from_numpy(x)
    elif name == "jax":
        import jax.numpy as jnp

        scores = jnp.asarray(x)
    else:
        scores = x
    p = framework.numpy(soft_topk(scores, k))
    assert abs(p.sum() - k) <= 1e-6 * k


@pytest.mark.full
@every_link
@pytest.mark.parametrize("k", [10.0, 1e5, 9.9e6])
def test_long_rows_keep_their_sum_through_every_link(link, k):
    import torch

    x = torch.from_numpy(np.random.default_rng(1).standard_normal(10**7, dtype=np.float32))
    assert abs(float(soft_topk(x, k, link=link).double().sum()) - k) <= 1e-6 * k

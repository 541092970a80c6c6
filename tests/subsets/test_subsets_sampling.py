"""Subsets drawn exactly: their law against enumeration and marginals, with fixed seeds."""

import math

import jax
import numpy as np
import pytest
import torch

from kofn import KSubset
from oracles import subset as oracles
from support import Framework

INF = math.inf


def rng_of(framework: Framework, seed: int = 0):
    make = {
        "numpy": np.random.default_rng,
        "torch": lambda seed: torch.Generator().manual_seed(seed),
        "jax": jax.random.key,
    }
    return make[framework.name](seed)


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    """In standard deviations above its mean; cells of fewer than five are taken together."""
    rare = expected < 5
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], max(expected[rare].sum(), 1e-9))
    freedom = len(expected) - 1
    return (((observed - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


ROWS = {
    "spread": [1.3, -0.4, 0.2, 2.1, -1.7, 0.9, 0.0],
    "ties": [0.0] * 7,
    "masked": [0.3, -INF, 1.0, -0.5, 0.2, -INF, 0.9],
    "wide": [9.0, 5.0, 4.5, 4.4, -3.0, -9.0, 1.0],
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_subset_comes_as_often_as_it_should(framework, name, dtype):
    y, k, draws = np.asarray(ROWS[name]), 3, 20_000
    drawn = KSubset(framework.array(y, dtype), k).sample(draws, rng_of(framework))
    assert framework.dtype(drawn) == dtype
    drawn = framework.numpy(drawn)
    assert np.all((drawn == 0) | (drawn == 1))
    assert np.all(drawn.sum(-1) == k)
    exact = oracles.enumerate_subsets(y, k)
    digits = 2.0 ** np.arange(7)
    codes = (exact.subsets.astype(float) @ digits).astype(int)
    observed = np.bincount((drawn @ digits).astype(int), minlength=128)
    assert observed.sum() == observed[codes].sum()
    assert chi_square(observed[codes], exact.probabilities.astype(float) * draws) < 4


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_long_rows_hold_each_entry_as_often_as_its_marginal(dtype):
    y = np.random.default_rng(1).standard_normal((2, 1000)).astype(dtype) * 2
    choice, draws = KSubset(y, np.array([40, 600])), 1500
    drawn = choice.sample(draws, np.random.default_rng(2))
    assert np.all(drawn.sum(-1) == [40, 600])
    pi = choice.marginals().astype(float)
    z = (drawn.mean(0) - pi) / np.sqrt(pi * (1 - pi) / draws)
    z = z[pi * (1 - pi) * draws > 20]  # near enough to normal
    assert np.abs(z).max() < 5
    assert np.sqrt((z**2).mean()) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(("n", "k"), [(300, 90), (301, 150)])
def test_halves_of_a_long_row_share_k_as_they_should(n, k):
    """On windows that are shorter than the segments they describe."""
    y = np.random.default_rng(n).standard_normal(n)
    exact = oracles.split_counts(y, k, 140)
    draws = 4000
    drawn = KSubset(y, k).sample(draws, np.random.default_rng(3))
    observed = np.bincount(drawn[:, :140].sum(-1).astype(int), minlength=k + 1)
    assert chi_square(observed, exact * draws) < 4


def test_a_window_holds_all_that_can_happen():
    """The last two groups are the even and odd entries; with ties their counts vary the most."""
    exact, draws = oracles.split_counts(np.zeros(256), 128, 128), 16_000
    drawn = KSubset(np.zeros(256), 128).sample(draws, np.random.default_rng(3))
    observed = np.bincount(drawn[:, ::2].sum(-1).astype(int), minlength=129)
    assert chi_square(observed, exact * draws) < 4


def test_rows_and_samples_are_independent():
    drawn = KSubset(np.zeros((3, 8)), 4).sample((500, 2), np.random.default_rng(0))
    columns = drawn.reshape(500, 6, 8)[..., 0]  # one entry of each of six draws
    correlation = np.corrcoef(columns.T)
    assert np.abs(correlation - np.eye(6)).max() < 0.15


def test_the_same_state_gives_the_same_subsets(framework):
    choice = KSubset(framework.array(np.random.default_rng(0).standard_normal((2, 9))), 4)
    one, two = (framework.numpy(choice.sample((3,), rng_of(framework, 5))) for _ in range(2))
    other = framework.numpy(choice.sample((3,), rng_of(framework, 6)))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


def test_edges(framework):
    y = np.array(
        [
            [1.0, 2.0, 0.0, -1.0, 0.5],
            [-INF] * 5,
            [1.0, -INF, 2.0, -INF, -INF],
            [INF, INF, INF, 0.0, 1.0],
            [INF, 0.0, -INF, 0.0, 0.0],
            [math.nan, 0.0, 1.0, -INF, 0.0],
        ]
    )
    drawn = framework.numpy(KSubset(framework.array(y), 2).sample(50, rng_of(framework)))
    assert np.all(drawn[:, 0].sum(-1) == 2)
    assert not np.any(drawn[:, 1])
    assert np.all(drawn[:, 2] == [1, 0, 1, 0, 0])
    assert np.all(drawn[:, 3].sum(-1) == 2)
    assert not np.any(drawn[:, 3, 3:])
    assert np.all(drawn[:, 4, 0] == 1)
    assert np.all(drawn[:, 4].sum(-1) == 2)
    assert np.isnan(drawn[:, 5, [0, 1, 2, 4]]).all()
    assert not np.any(drawn[:, 5, 3])
    for k, value in ((0, 0.0), (5, 1.0)):
        only = KSubset(framework.array(y[0]), k).sample((), rng_of(framework))
        assert framework.numpy(only).tolist() == [value] * 5


def test_dims_and_shapes():
    y = np.random.default_rng(0).standard_normal((4, 5, 3))
    choice = KSubset(y, 2, dim=1)
    assert choice.sample((2, 7), np.random.default_rng(0)).shape == (2, 7, 4, 5, 3)
    assert np.all(choice.sample((), np.random.default_rng(0)).sum(1) == 2)
    for shape in ((0, 4), (3, 0), (3, 1)):
        choice = KSubset(np.zeros(shape), min(1, shape[-1]))
        assert choice.sample(2, np.random.default_rng(0)).shape == (2, *shape)
    half = KSubset(torch.zeros(3, 8, dtype=torch.bfloat16), 2)
    drawn = half.sample((), torch.Generator().manual_seed(0))
    assert drawn.dtype == torch.bfloat16
    assert drawn.float().sum(-1).tolist() == [2, 2, 2]


def test_a_sample_has_no_gradient():
    y = torch.zeros(5, requires_grad=True)
    assert not KSubset(y, 2).sample((), torch.Generator()).requires_grad


@pytest.mark.parametrize("std", [0.0, 1e-3, 30.0, 1e4])
def test_samples_are_subsets_whatever_the_logits(std):
    y = np.random.default_rng(4).standard_normal((20, 333)).astype(np.float32) * std
    choice = KSubset(y, np.arange(20) * 17)
    drawn = choice.sample(3, np.random.default_rng(0))
    assert np.all(drawn.sum(-1) == np.arange(20) * 17)
    assert np.isfinite(choice.log_prob(drawn)).all()


def test_a_million_entries():
    y = np.random.default_rng(4).standard_normal(1_000_000).astype(np.float32)
    drawn = KSubset(y, 300_000).sample((), np.random.default_rng(0))
    assert drawn.sum(dtype=np.float64) == 300_000
    pi = KSubset(y, 300_000).marginals()
    groups = np.array_split(np.argsort(y), 20)
    for members in groups:
        expected, spread = pi[members].sum(), math.sqrt((pi * (1 - pi))[members].sum())
        assert abs(drawn[members].sum() - expected) < 4.5 * spread


def test_jax_samples_under_jit_and_vmap():
    y = jax.numpy.asarray(np.random.default_rng(0).standard_normal((3, 6)))
    draw = jax.jit(jax.vmap(lambda y, key: KSubset(y, 2).sample((), key)))
    drawn = np.stack([draw(y, jax.random.split(jax.random.key(seed), 3)) for seed in range(40)])
    assert np.all(drawn.sum(-1) == 2)
    pi = KSubset(np.asarray(y), 2).marginals()
    assert np.abs(drawn.mean(0) - pi).max() < 0.3


@pytest.mark.parametrize(
    ("logits", "rng", "wanted"),
    [
        (np.zeros(4), torch.Generator(), "numpy.random.Generator"),
        (jax.numpy.zeros(4), None, "JAX key"),
        (np.zeros(4), 0.0, "numpy.random.Generator"),
        (torch.zeros(4), np.random.default_rng(), "torch.Generator"),
        (jax.numpy.zeros(4), np.random.default_rng(), "JAX key"),
    ],
)
def test_randomness_of_another_kind(logits, rng, wanted):
    with pytest.raises(TypeError, match=f"rng must be a {wanted}"):
        KSubset(logits, 2).sample((), rng)


def test_shapes_that_are_none():
    choice, rng = KSubset(np.zeros(4), 2), np.random.default_rng(0)
    with pytest.raises(TypeError, match="shape must be a tuple of integers"):
        choice.sample(1.5, rng)
    with pytest.raises(ValueError, match="shape must be a tuple of integers ≥ 0"):
        choice.sample((2, -1), rng)


def draw(y, rng):
    return KSubset(y, 2).sample((), rng)


def test_a_generator_does_not_go_through_torch_compile():
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"cannot trace a torch\.Generator"):
        torch.compile(draw, fullgraph=True, backend="aot_eager")(
            torch.zeros(2, 6), torch.Generator()
        )


@pytest.mark.full
def test_around_a_generator_compiled_code_breaks():
    y = torch.zeros(2, 6)
    rng, again = (torch.Generator().manual_seed(0) for _ in range(2))
    torch._dynamo.reset()
    parts = torch.compile(draw, backend="aot_eager")
    for _ in range(2):
        assert torch.equal(parts(y, rng), draw(y, again))


def test_torch_vmap_draws_for_each():
    y = torch.zeros(50, 6)
    rng = torch.Generator().manual_seed(0)
    drawn = torch.vmap(lambda y: KSubset(y, 2).sample((), rng), randomness="different")(y)
    assert torch.all(drawn.sum(-1) == 2)
    assert drawn.unique(dim=0).shape[0] > 5

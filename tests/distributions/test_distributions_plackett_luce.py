"""PlackettLuce against enumeration of every order; and that it is not KSubset."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from kofn import KSubset, PlackettLuce, soft_topk
from support import Framework
from test_subsets_sampling import chi_square, rng_of

TOLERANCE = {"float64": 1e-14, "float32": 1e-6}
Y = np.array([1.2, -0.3, 0.5, 2.0, -1.0])
ORDERS = np.array(list(itertools.permutations(range(5), 3)))


def exact(y, order):
    """One draw after another."""
    weight, p = np.exp(y), 1.0
    for i in order:
        p *= weight[i] / weight.sum()
        weight[i] = 0
    return p


EXACT = np.array([exact(Y, order) for order in ORDERS])


def test_log_prob_of_every_order(framework):
    indices = framework.array(ORDERS, "int64")
    log_p = framework.numpy(PlackettLuce(framework.array(Y)).log_prob(indices))
    assert np.allclose(np.exp(log_p), EXACT, atol=1e-15)
    assert np.exp(log_p).sum() == pytest.approx(1)


def test_log_prob_of_every_set(framework):
    sets = np.array(list(itertools.combinations(range(5), 3)))
    race = PlackettLuce(framework.array(Y))
    log_p = framework.numpy(race.log_prob(framework.array(sets, "int64"), ordered=False))
    wanted = [EXACT[[set(o) == set(s) for o in ORDERS]].sum() for s in sets]
    assert np.allclose(np.exp(log_p), wanted, atol=1e-15)


def test_samples_come_as_often_as_they_should(framework):
    draws = 20_000
    drawn = framework.numpy(PlackettLuce(framework.array(Y)).sample(3, draws, rng_of(framework)))
    digits = np.array([25, 5, 1])
    observed = np.bincount((drawn @ digits).astype(int), minlength=125)[ORDERS @ digits]
    assert observed.sum() == draws
    assert chi_square(observed, EXACT * draws) < 4


def test_its_marginals_are_not_those_of_k_subset():
    marginals = np.array([EXACT[(i == ORDERS).any(axis=1)].sum() for i in range(5)])
    subset = KSubset(Y, 3).marginals()
    assert marginals.sum() == pytest.approx(subset.sum())
    assert np.abs(marginals - subset).max() > 0.02
    drawn = PlackettLuce(Y).sample(3, 20_000, np.random.default_rng(0))
    frequency = np.bincount(drawn.ravel(), minlength=5) / 20_000
    assert np.abs(frequency - marginals).max() < 0.015
    assert np.abs(frequency - subset).max() > 0.015


def test_all_n_drawn_and_wide_logits():
    every = PlackettLuce(Y).log_prob(np.arange(5))
    assert np.exp(every) == pytest.approx(exact(Y, range(5)))
    wide = PlackettLuce(np.array([1000.0, 0.0, -1000.0]))
    assert wide.log_prob(np.array([0, 1, 2])) == 0
    assert wide.log_prob(np.array([2, 1, 0])) == pytest.approx(-3000)
    assert wide.log_prob(np.array([2, 1, 0]), ordered=False) == pytest.approx(0)
    single = PlackettLuce(np.array([90.0, 0.0, -90.0], np.float32)).log_prob(np.array([2, 1]))
    assert single == pytest.approx(-270, rel=1e-6)
    assert single.dtype == np.float32


def test_what_cannot_be_drawn(framework):
    race = PlackettLuce(framework.array([0.5, -math.inf, 1.0, 0.0]))
    drawn = framework.numpy(race.sample(3, 200, rng_of(framework)))
    assert not np.any(drawn == 1)
    for indices in ([0, 1], [2, 2]):
        for ordered in (True, False):
            answer = race.log_prob(framework.array(indices, "int64"), ordered=ordered)
            assert framework.numpy(answer) == -math.inf


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("std", [0.0, 1.0, 8.0, 40.0, 300.0])
@pytest.mark.parametrize("k", [1, 2, 5, 6])
def test_a_set_is_as_likely_as_all_its_orders(k, std, dtype):
    y = (np.random.default_rng(k).standard_normal(8) * std).astype(dtype)
    orders = np.array(list(itertools.permutations(range(k))))
    race = PlackettLuce(y.astype(np.float64))
    wanted = np.logaddexp.reduce([race.log_prob(order) for order in orders])
    got = PlackettLuce(y).log_prob(np.arange(k), ordered=False)
    assert got == pytest.approx(wanted, rel=TOLERANCE[dtype], abs=TOLERANCE[dtype])


def test_large_sets_add_up():
    """Of alike entries every set is as likely; one apart from the others is the last of them."""
    alike = PlackettLuce(np.zeros(60)).log_prob(np.arange(40), ordered=False)
    assert alike == pytest.approx(-math.log(math.comb(60, 40)), rel=1e-13)
    y = np.random.default_rng(0).standard_normal(60)
    most = [PlackettLuce(y).log_prob(np.delete(np.arange(60), i), ordered=False) for i in range(60)]
    assert np.logaddexp.reduce(most) == pytest.approx(0, abs=1e-13)


def test_a_nan_spoils_its_row_alone():
    y = np.array([[1.0, math.nan, 2.0], [1.0, 0.0, 2.0]])
    for ordered in (True, False):
        log_p = PlackettLuce(y).log_prob(np.array([[0, 2], [0, 2]]), ordered=ordered)
        assert np.isnan(log_p).tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_drawn_in_float32(dtype):
    """Their own noise would have ties, which go to the lowest index."""
    race = PlackettLuce(torch.full((200,), 1000.0, dtype=dtype))
    mean = race.sample(1, 4000, rng_of(Framework("torch"))).double().mean().item()
    assert mean == pytest.approx(99.5, abs=4)
    relaxed = race.relaxed_sample(3, 0.1, rng_of(Framework("torch")))
    assert relaxed.dtype == dtype


def test_batches_and_samples():
    y = np.random.default_rng(0).standard_normal((4, 6))
    race = PlackettLuce(y)
    drawn = race.sample(2, (3, 5), np.random.default_rng(1))
    assert drawn.shape == (3, 5, 4, 2)
    log_p = race.log_prob(drawn)
    assert log_p.shape == (3, 5, 4)
    assert log_p[1, 2, 3] == pytest.approx(np.log(exact(y[3], drawn[1, 2, 3])))
    assert race.sample(0, (), np.random.default_rng(0)).shape == (4, 0)
    assert np.all(race.log_prob(race.sample(0, (), np.random.default_rng(0))) == 0)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("k", [2, 4])
def test_gradients_of_log_prob(ordered, k):
    y = torch.tensor(np.random.default_rng(3).standard_normal((2, 4)), requires_grad=True)
    drawn = torch.tensor([[1, 3, 0, 2], [2, 0, 3, 1]])[:, :k]

    def f(y):
        return PlackettLuce(y).log_prob(drawn, ordered=ordered)

    assert gradcheck(f, (y,), check_batched_grad=True)
    assert gradgradcheck(f, (y,), fast_mode=True)


def test_impossible_draws_have_no_nan_in_their_gradient():
    y = torch.tensor([0.5, -math.inf, 1.0, 0.0], requires_grad=True)
    for indices in ([0, 1], [0, 2, 3], [2, 2]):
        log_p = PlackettLuce(y).log_prob(torch.tensor(indices))
        (slope,) = torch.autograd.grad(log_p, y)
        assert torch.isfinite(slope).all()


def test_relaxed_samples(framework):
    race = PlackettLuce(framework.array(Y))
    relaxed = race.relaxed_sample(2, 0.5, rng_of(framework), shape=(50,))
    weights = framework.numpy(relaxed)
    assert weights.shape == (50, 5)
    assert np.allclose(weights.sum(-1), 2)
    cold = framework.numpy(race.relaxed_sample(2, 1e-6, rng_of(framework), shape=(50,)))
    hard = framework.numpy(race.relaxed_sample(2, 0.5, rng_of(framework), shape=(50,), hard=True))
    assert np.allclose(cold, hard)
    indices = framework.numpy(race.sample(2, 50, rng_of(framework))).astype(int)
    assert np.array_equal(np.sort(indices), np.sort(np.argsort(-hard, kind="stable")[:, :2]))


def test_straight_through_has_the_relaxed_gradient():
    framework = Framework("torch")
    v = torch.tensor([1.0, -2.0, 0.5, 0.3, 4.0], dtype=torch.float64)
    slopes = []
    for hard in (False, True):
        y = torch.tensor(Y, requires_grad=True)
        sample = PlackettLuce(y).relaxed_sample(2, 0.7, rng_of(framework), hard=hard)
        slopes.append(torch.autograd.grad(sample, y, v)[0])
    assert torch.allclose(*slopes)
    assert slopes[0].abs().min() > 0
    noise = -torch.log(
        -torch.log1p(-torch.rand(5, generator=rng_of(framework), dtype=torch.float64))
    )
    wanted = soft_topk(torch.tensor(Y) + noise, 2, temperature=0.7)
    y = torch.tensor(Y)
    assert torch.allclose(PlackettLuce(y).relaxed_sample(2, 0.7, rng_of(framework)), wanted)


def test_jax_transforms():
    y = jnp.asarray(np.random.default_rng(0).standard_normal((3, 5)))
    race = PlackettLuce(y)
    drawn = race.sample(2, (), jax.random.key(0))
    assert np.array_equal(
        jax.jit(lambda r, key: r.sample(2, (), key))(race, jax.random.key(0)), drawn
    )
    slope = jax.jit(jax.grad(lambda y: PlackettLuce(y).log_prob(drawn).sum()))(y)
    leaf = torch.tensor(np.asarray(y), requires_grad=True)
    PlackettLuce(leaf).log_prob(torch.tensor(np.asarray(drawn))).sum().backward()
    assert np.allclose(slope, leaf.grad, atol=1e-12)


def test_wrong_arguments():
    race, rng = PlackettLuce(np.zeros((3, 4))), np.random.default_rng(0)
    with pytest.raises(TypeError, match="logits must be a torch"):
        PlackettLuce([1.0, 2.0])
    with pytest.raises(ValueError, match=r"k must be an integer in \[0, n\] \(here n = 4"):
        race.sample(5, (), rng)
    with pytest.raises(TypeError, match=r"k must be an integer in \[0, n\]"):
        race.sample(2.0, (), rng)
    with pytest.raises(TypeError, match="rng must be a numpy"):
        race.sample(2, (), "0")
    with pytest.raises(TypeError, match="indices must be integers; got dtype float64"):
        race.log_prob(np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"indices must have the shape \(…, 3, k\); got \(2,\)"):
        race.log_prob(np.zeros(2, int))
    assert repr(race) == "PlackettLuce(logits of shape (3, 4))"


def test_half_precision_draws_are_not_ties():
    """In bfloat16 many sums of logits and noise are equal, and the first would be drawn."""
    race, draws = PlackettLuce(torch.full((8,), 50.0, dtype=torch.bfloat16)), 20_000
    drawn = race.sample(1, draws, rng_of(Framework("torch")))
    assert chi_square(np.bincount(drawn.flatten(), minlength=8), np.full(8, draws / 8)) < 4
    relaxed = race.relaxed_sample(2, 0.5, rng_of(Framework("torch")))
    assert relaxed.dtype == torch.bfloat16

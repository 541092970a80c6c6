"""Rounds of soft_assignment: Sinkhorn's, and how far the columns are from their capacity."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from kofn import soft_assignment
from kofn.links.table import TABLE

SCORES = np.random.default_rng(0).normal(size=(12, 4))
MAKE = {"numpy": np.asarray, "torch": torch.tensor, "jax": jnp.asarray}


@pytest.mark.parametrize("framework", MAKE)
def test_three_rounds_are_three_of_sinkhorn(framework):
    q = np.exp(SCORES / 2)
    for _ in range(3):
        q *= 3 / q.sum(0)
        q /= q.sum(1, keepdims=True)
    how = dict(link="exponential", temperature=2.0, rounds=3)
    weights, distance = soft_assignment(MAKE[framework](SCORES), 1, **how)
    np.testing.assert_allclose(np.asarray(weights), q, rtol=1e-5, atol=1e-6)
    assert float(distance) == pytest.approx(abs(q.sum(0) - 3).max(), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("link", [name for name in TABLE if name != "entmax"])
def test_many_rounds_are_the_assignment_and_the_distance_says_how_near(link):
    batch = np.stack([SCORES, SCORES[::-1]])
    mask = np.ones((12, 4), bool)
    mask[3, 2:] = mask[5] = False
    how = dict(link=link, mask=mask)
    capacity = np.array([6.0, 5.5, 5.5, 5.0])
    whole = soft_assignment(batch, 2, capacity, **how)
    last = np.inf
    for rounds in (1, 3, 60):
        weights, distance = soft_assignment(batch, 2, capacity, **how, rounds=rounds)
        missed = abs(weights.sum(-2) - capacity).max(-1)
        np.testing.assert_allclose(distance, missed, rtol=1e-12, atol=1e-12)
        assert distance.max() < last
        last = distance.max()
    assert last < 1e-6
    np.testing.assert_allclose(weights, whole, atol=1e-6)


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("what", [np.nan, np.inf, "a row without entries"])
def test_a_matrix_without_an_answer_is_nan_and_leaves_others_alone(what, framework):
    """As without rounds: in one of a batch, its weights, distance and gradients."""
    x = np.stack([SCORES[:5, :3]] * 3)
    noise = np.random.default_rng(1).normal(size=x.shape)
    mask = np.ones(x.shape, bool)
    if isinstance(what, str):
        mask[1, 2] = False
    else:
        x[1, 2, 1] = what
    k, capacity = np.full((3, 5), 1.2), np.full((3, 3), 2.0)
    make = MAKE[framework]

    def value(x, k, capacity):
        weights, distance = soft_assignment(x, k, capacity, mask=make(mask), rounds=3)
        assert isinstance(x, jax.core.Tracer) or np.isnan(weights[1].detach().numpy()).all()
        return (weights * make(noise)).sum((-1, -2)) + distance

    given = [make(each) for each in (x, k, capacity)]
    if framework == "torch":
        answers = value(*(each.requires_grad_() for each in given))
        found = torch.autograd.grad(answers.sum(), given)
        answers = answers.detach()
    else:
        with jax.enable_x64(True):
            given = [make(each) for each in (x, k, capacity)]
            answers, back = jax.vjp(value, *given)
            found = back(jnp.ones(3))
    assert np.isnan(np.asarray(answers)).tolist() == [False, True, False]
    for place, each in enumerate(map(np.asarray, found)):
        assert np.isfinite(each[[0, 2]]).all()
        assert np.isnan(each[1]).any() or (place == 0 and what == np.inf)


def test_columns_that_take_nothing_or_all():
    capacity = np.array([12.0, 0.0, 0.0, 0.0])
    weights, distance = soft_assignment(SCORES, 1, capacity, rounds=2)
    np.testing.assert_array_equal(weights, np.eye(4)[[0] * 12])
    assert distance == 0


def test_they_have_the_derivatives_of_the_rounds():
    x = torch.tensor(SCORES[:5, :3], requires_grad=True)
    t = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, t: soft_assignment(x, 1, temperature=t, rounds=2), (x, t)
    )
    grad = jax.jit(jax.grad(lambda x: (soft_assignment(x, 1, rounds=2)[0] ** 2).sum()))(SCORES)
    x = torch.tensor(SCORES, requires_grad=True)
    (soft_assignment(x, 1, rounds=2)[0] ** 2).sum().backward()
    np.testing.assert_allclose(np.asarray(grad), x.grad, atol=1e-6)


@pytest.mark.parametrize(
    "shared",
    [False, pytest.param(True, marks=pytest.mark.full)],
    ids=["capacity", "equal shares"],
)
def test_columns_grow_with_k_in_derivatives_too(shared):
    """The sum of the columns follows that of k, where one number of k changes alone."""
    x = torch.tensor(SCORES[:5, :3])
    k = torch.tensor([1.2, 0.7, 1.0, 0.9, 1.2], dtype=torch.float64, requires_grad=True)
    capacity = torch.tensor([2.0, 1.4, 1.6], dtype=torch.float64, requires_grad=True)
    margins = (k,) if shared else (k, capacity)

    def by_rounds(*margins):
        return soft_assignment(x, *margins, rounds=2)

    assert torch.autograd.gradcheck(by_rounds, margins)
    assert torch.autograd.gradgradcheck(by_rounds, margins, fast_mode=True)
    of_torch = torch.autograd.grad((by_rounds(*margins)[0] ** 2).sum(), margins)

    def in_jax(*margins):
        return (soft_assignment(jnp.asarray(x.numpy()), *margins, rounds=2)[0] ** 2).sum()

    arrays = [jnp.asarray(each.detach().numpy()) for each in margins]
    of_jax = jax.grad(in_jax, argnums=tuple(range(len(arrays))))(*arrays)
    for one, other in zip(of_torch, of_jax, strict=True):
        np.testing.assert_allclose(one, np.asarray(other), rtol=1e-4, atol=1e-5)


def test_what_is_refused_and_what_is_empty():
    with pytest.raises(ValueError, match="rounds must be None, or an integer ≥ 1; got 0"):
        soft_assignment(SCORES, 1, rounds=0)
    with pytest.raises(ValueError, match="hard must be False with rounds; got rounds=3"):
        soft_assignment(SCORES, 1, rounds=3, hard=True)
    weights, distance = soft_assignment(np.zeros((2, 0, 4)), 1, rounds=3)
    assert weights.shape == (2, 0, 4)
    assert distance.tolist() == [0, 0]

"""KSubset solves for its threshold once, and forgets it where a memory would be wrong."""

import copy
import pickle

import jax
import numpy as np
import pytest
import torch

from kofn import KSubset
from kofn.arrays.tracing import is_at_hand
from kofn.subsets import operations

LOGITS = np.array([[2.0, 1.0, 0.5, -1.0, 0.3], [0.0, 0.1, 5.0, -2.0, 1.0]])
SUBSET = np.array([[1.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0, 1.0]])


@pytest.fixture
def solved(monkeypatch):
    """The thresholds that were solved for."""
    found, solve = [], operations.any_threshold

    def spy(*arguments):
        found.append(solve(*arguments))
        return found[-1]

    monkeypatch.setattr(operations, "any_threshold", spy)
    return found


def answers(law):
    subset = torch.tensor(SUBSET) if torch.is_tensor(law.logits) else SUBSET
    return law.log_prob(subset), law.entropy(), law.marginals(), law.log_partition()


def fresh(logits, k=2):
    """The same answers, each from a distribution of its own."""
    return [answers(KSubset(logits, k))[i] for i in range(4)]


@pytest.mark.parametrize("kernels", ["on", "reference"])
@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_one_threshold_serves_every_method(solved, make, kernels, monkeypatch):
    monkeypatch.setenv("KOFN_KERNELS", kernels)
    law = KSubset(make(LOGITS), 2)
    law.sample()
    found = answers(law)
    law.variance, law.kl(law)
    law.covariance_vector_product(law.logits)
    assert len(solved) == 1
    for one, other in zip(found, fresh(make(LOGITS)), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_logits_that_were_changed_in_place_are_solved_again(solved, make):
    law = KSubset(make(LOGITS), 2)
    law.entropy()
    law.logits[:] = make(100 * LOGITS[:, ::-1].copy())
    found = answers(law)
    assert len(solved) == 2
    for one, other in zip(found, fresh(law.logits), strict=True):
        assert np.array_equal(one, other)
    shared = np.array(LOGITS)  # memory that another framework writes to: no version tells
    law = KSubset(torch.from_numpy(shared), 2)
    law.entropy()
    shared *= 100
    law.logits.data.sub_(3)
    assert torch.equal(law.entropy(), KSubset(law.logits.clone(), 2).entropy())


def test_gradients_one_after_another_and_twice():
    x = torch.tensor(LOGITS, requires_grad=True)
    law = KSubset(x, 2)
    with torch.no_grad():
        law.entropy()
    every = answers(law)
    for i, one in enumerate(every):
        expected = torch.autograd.grad(fresh(x)[i].sin().sum(), x)[0]
        for _ in range(2):
            found = torch.autograd.grad(one.sin().sum(), x, retain_graph=True)[0]
            assert torch.equal(found, expected)
    for i, one in enumerate(answers(law)):
        for value in (one, fresh(x)[i]):
            (first,) = torch.autograd.grad(value.sin().sum(), x, create_graph=True)
            second = torch.autograd.grad(first.square().sum(), x)[0]
            expected = second if value is one else expected
        assert torch.equal(second, expected)


def test_inference_mode_leaves_nothing_that_autograd_cannot_use(solved):
    x = torch.tensor(LOGITS, requires_grad=True)
    law = KSubset(x, 2)
    with torch.inference_mode():
        law.entropy()
        law.marginals()
    law.marginals().square().sum().backward()
    assert x.grad.isfinite().all()


def test_transforms_and_compilers_see_no_memory_and_leave_none():
    x = torch.tensor(LOGITS)
    law = KSubset(x, 2)
    tangent = torch.tensor(LOGITS[::-1].copy())

    def entropy(y):
        return KSubset(y, 2).entropy().sum()

    jacobian = torch.func.jacrev(lambda y: KSubset(y, 2).marginals())(x)
    torch.func.vmap(lambda k: law.entropy() * k)(torch.ones(3))
    assert law._solved is None
    law.entropy()
    kept = law._solved
    mapped = torch.func.vmap(lambda y: KSubset(y, 2).entropy())(torch.stack([x, 2 * x]))
    assert torch.allclose(mapped[0], law.entropy())
    slope = torch.func.jvp(entropy, (x,), (tangent,))[1]
    assert torch.allclose(slope, (torch.func.grad(entropy)(x) * tangent).sum())
    assert jacobian.shape == (*x.shape, *x.shape)
    assert law._solved is kept
    assert all(map(is_at_hand, kept[:2]))


def test_jax_leaks_no_traced_threshold():
    law = KSubset(jax.numpy.asarray(LOGITS), 2)
    law.entropy()
    with jax.checking_leaks():
        inside = jax.jit(lambda scale: law.entropy() * scale + law.marginals().sum())
        first = inside(1.0)
        slopes = jax.jit(jax.grad(lambda y: KSubset(y, 2).entropy().sum()))(law.logits)
        through = jax.jit(lambda law: (law.entropy(), law))(law)[1]
    assert law._solved is None
    assert through._solved is None
    assert np.allclose(first, law.entropy() + 4)
    assert np.isfinite(slopes).all()


def test_copies_and_pickles_carry_no_memory_that_is_wrong(solved):
    law = KSubset(torch.tensor(LOGITS), 2)
    law.entropy()
    again = pickle.loads(pickle.dumps(law))
    assert again._solved is None
    assert torch.equal(again.entropy(), law.entropy())
    assert copy.deepcopy(law)._solved is None
    larger = law.expand((3, 2))
    assert torch.equal(larger.entropy(), law.entropy().expand(3, 2))
    one = copy.copy(law)
    one.logits = law.logits * 50
    assert torch.equal(one.entropy(), KSubset(law.logits * 50, 2).entropy())
    assert len(solved) == 5

"""kofn's distributions as torch's and pyro's, and torch's in the estimators."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import distributions as td

from kofn import Bernoulli, Categorical, KSubset, Normal, PlackettLuce, RelaxedOneHot, estimators
from test_subsets_sampling import chi_square

Y = torch.tensor([[1.2, -0.3, 0.5, 0.1], [0.0, 2.0, -1.0, 0.7]], dtype=torch.float64)
T = torch.tensor(0.7, dtype=torch.float64)
COST = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
PAIRS = {
    "categorical": (Categorical(Y), td.OneHotCategorical(logits=Y)),
    "bernoulli": (Bernoulli(Y), td.Independent(td.Bernoulli(logits=Y), 0)),
    "normal": (Normal(Y, Y.exp()), td.Normal(Y, Y.exp())),
    "relaxed": (RelaxedOneHot(Y, T), td.RelaxedOneHotCategorical(T, logits=Y)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_beside_those_of_torch(name):
    own, theirs = PAIRS[name]
    law = own.to_torch()
    assert isinstance(law, td.Distribution)
    assert law.batch_shape == theirs.batch_shape
    assert law.event_shape == theirs.event_shape
    assert law.has_rsample == theirs.has_rsample
    assert law.has_enumerate_support == theirs.has_enumerate_support
    value = theirs.sample((3,))
    assert torch.allclose(law.log_prob(value), theirs.log_prob(value))
    assert law.sample((3, 2)).shape == theirs.sample((3, 2)).shape
    assert law.expand((5, *law.batch_shape)).log_prob(value[0]).shape == (5, *law.batch_shape)
    if name != "relaxed":
        for what in ("mean", "variance", "stddev"):
            assert torch.allclose(getattr(law, what), getattr(theirs, what))
        assert torch.allclose(law.entropy(), theirs.entropy())
    if law.has_enumerate_support:
        for expand in (True, False):
            assert torch.equal(law.enumerate_support(expand), theirs.enumerate_support(expand))


def test_divergences_and_independent_ones_by_torch():
    one, other = KSubset(Y, 2), KSubset(Y.flip(-1), 2)
    kl = td.kl_divergence(one.to_torch(), other.to_torch())
    assert torch.equal(kl, one.kl(other))
    alike = td.kl_divergence(one.to_torch(), KSubset(Y[0], 2).to_torch())  # broadcast
    assert alike[0] == 0
    together = td.Independent(one.to_torch(), 1)
    assert together.event_shape == (2, 4)
    value = together.sample((7,))
    assert torch.allclose(together.log_prob(value), one.log_prob(value).sum(-1))
    mixture = td.MixtureSameFamily(td.Categorical(torch.ones(2)), one.to_torch())
    assert mixture.sample((3,)).shape == (3, 4)
    assert torch.allclose(
        mixture.log_prob(value[:, 0]),
        torch.logsumexp(one.log_prob(value[:, :1].expand(7, 2, 4)) - math.log(2), -1),
    )


def test_entries_come_last_and_impossible_values_are_refused(monkeypatch):
    # Pyro turns it off for the whole process.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    mask = torch.tensor([[True], [True], [False], [True]])
    law = KSubset(Y.T, 2, dim=0, mask=mask).to_torch()
    assert law.batch_shape == (2,)
    assert law.event_shape == (4,)
    assert law.sample((5,)).shape == (5, 2, 4)
    assert not law.sample((5,))[..., 2].any()
    with pytest.raises(ValueError, match="within the support"):
        law.log_prob(torch.full((2, 4), 0.5).double())
    assert law.log_prob(torch.tensor([1.0, 1, 1, 1])).tolist() == [-math.inf] * 2
    assert "KSubset" in repr(law)
    for choice in (Categorical(np.zeros(3)), PlackettLuce(Y)):
        with pytest.raises(TypeError, match="to_torch"):
            choice.to_torch()


def test_draws_of_torch_by_its_seed():
    law = KSubset(Y[0], 2).to_torch()
    torch.manual_seed(0)
    first = law.sample((20_000,))
    torch.manual_seed(0)
    assert torch.equal(law.sample((20_000,)), first)
    every = law.enumerate_support()
    observed = np.array([(first == one).all(-1).sum() for one in every])
    assert chi_square(observed, law.log_prob(every).exp().numpy() * 20_000) < 4


# --- torch's in the estimators ---


FAMILIES = {
    "categories": (lambda y: td.Categorical(logits=y), lambda s: COST[s.long()] ** 2),
    "one-hot": (lambda y: td.OneHotCategorical(logits=y), lambda s: (s @ COST) ** 2),
    "wrapped": (lambda y: KSubset(y, 2).to_torch(), lambda s: (s @ COST) ** 2),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_torchs_distributions_have_the_exact_gradient(name):
    make, f = FAMILIES[name]
    y = Y[0].clone().requires_grad_()
    exact = estimators.exact(make(y), f)
    (wanted,) = torch.autograd.grad(exact, y)
    every = make(y).enumerate_support()
    by_hand = (make(y).log_prob(every).exp() * f(every)).sum()
    assert torch.allclose(exact, by_hand)
    assert torch.allclose(torch.autograd.grad(by_hand, y)[0], wanted)
    torch.manual_seed(0)
    for run in (
        partial(estimators.leave_one_out, samples=4000),
        estimators.TABLE["score_function"],
    ):
        options = {} if isinstance(run, partial) else {"samples": 4000, "baseline": exact.item()}
        (slope,) = torch.autograd.grad(run(make(y), f, **options), y)
        assert torch.allclose(slope, wanted, atol=0.35)
    study = estimators.study("leave_one_out", f, Y[0], distribution=make, samples=2, draws=500)
    assert study.unbiased
    if name != "categories":
        assert study.enumerated
        assert estimators.study("straight_through", f, Y[0], distribution=make).enumerated


def test_any_other_of_torchs():
    mean = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True)
    torch.manual_seed(0)
    for law in (td.Normal(mean, 1.0), td.Laplace(mean, 1.0), td.Independent(td.Normal(mean, 1), 1)):
        loss = estimators.reparameterized(law, lambda z: (z**2).sum(-1), samples=20_000)
        (slope,) = torch.autograd.grad(loss.sum(), mean)
        assert torch.allclose(slope, 2 * mean, atol=0.1)
    law = td.Geometric(logits=torch.zeros(3))
    assert estimators.leave_one_out(law, lambda s: s.sum(-1)).shape == ()
    for run, message in (
        (estimators.straight_through, "straight_through needs .* Geometric has no marginals"),
        (estimators.exact, "exact needs .* Geometric has no support"),
        (estimators.reinmax, "reinmax needs a Categorical or a Bernoulli; got Geometric"),
    ):
        with pytest.raises(TypeError, match=message):
            run(law, lambda s: s.sum(-1))
    with pytest.raises(TypeError, match=r"rng must be None for torch\.distributions"):
        estimators.score_function(law, lambda s: s.sum(-1), torch.Generator())
    assert estimators.reinmax(td.Bernoulli(logits=Y), lambda s: s.sum((-1, -2))).ndim == 0


# --- pyro ---


@pytest.mark.parametrize("subsets", [False, True])
def test_pyro_sums_over_every_choice(subsets):
    """TraceEnum_ELBO of a discrete latent: no sampling, and the gradient of the exact sum."""
    pyro = pytest.importorskip("pyro")
    from pyro.infer import TraceEnum_ELBO, config_enumerate

    law = partial(KSubset, k=2) if subsets else Categorical
    x = torch.tensor([0.4, -1.0, 2.0], dtype=torch.float64)
    weights = torch.arange(12.0, dtype=torch.float64).reshape(4, 3).cos()
    y = Y[0].clone().requires_grad_()

    def model():
        with pyro.plate("rows", 3):
            s = pyro.sample("s", law(torch.zeros(4).double()).to_torch())
            pyro.sample("x", td_normal(s @ weights.sum(-1)), obs=x)

    @config_enumerate
    def guide():
        with pyro.plate("rows", 3):
            pyro.sample("s", law(y).to_torch())

    def td_normal(mean):
        return pyro.distributions.Normal(mean, 1.0)

    got = TraceEnum_ELBO(max_plate_nesting=1).differentiable_loss(model, guide)
    every = law(y).support()
    q = law(y).log_prob(every)
    joint = law(torch.zeros(4).double()).log_prob(every)[:, None]
    joint = joint + td.Normal((every @ weights.sum(-1))[:, None], 1.0).log_prob(x)
    wanted = -(q.exp()[:, None] * (joint - q[:, None])).sum()
    assert torch.allclose(got, wanted)
    slopes = [torch.autograd.grad(loss, y)[0] for loss in (got, wanted)]
    assert torch.allclose(*slopes)
    assert slopes[0].abs().max() > 0.1

"""What every distribution has: torch.distributions' names and shapes, randomness, enumeration."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import distributions as td

from kofn import (
    Bernoulli,
    Categorical,
    KSubset,
    Normal,
    PlackettLuce,
    RelaxedOneHot,
    estimators,
    gumbel_max,
    gumbel_softmax,
    normal_rsample,
)
from support import Framework
from test_subsets_sampling import chi_square, rng_of

Y = np.array([[1.2, -0.3, 0.5], [0.0, 2.0, -1.0]])
DISCRETE = {"subset": partial(KSubset, k=2), "categorical": Categorical, "bernoulli": Bernoulli}
EVERY = DISCRETE | {
    "normal": lambda y: Normal(y, y * y + 1),
    "relaxed": lambda y: RelaxedOneHot(y, 0.5),
    "race": PlackettLuce,
}
each = pytest.mark.parametrize("name", EVERY)
each_discrete = pytest.mark.parametrize("name", DISCRETE)


@each_discrete
def test_mean_and_variance_are_those_of_every_choice(name, framework):
    choice = DISCRETE[name](framework.array(Y))
    every = framework.numpy(choice.enumerate_support())
    assert every.shape[1:] == Y.shape
    p = np.exp(framework.numpy(choice.log_prob(framework.array(every))))
    p = p if name == "bernoulli" else p[..., None]
    assert np.allclose(p.sum(0), 1)
    mean = (p * every).sum(0)
    assert np.allclose(framework.numpy(choice.mean), mean)
    assert np.allclose(framework.numpy(choice.variance), (p * (every - mean) ** 2).sum(0))
    small = choice.enumerate_support(expand=False)
    assert np.array_equal(np.broadcast_to(framework.numpy(small), every.shape), every)
    assert small.shape == choice.support().shape


def test_variance_where_marginals_are_near_1():
    y, small = np.array([30.0, 0.0, 1.0]), math.exp(-30.0)
    left_out = small * math.e / (1 + math.e)  # {1, 2}, beside {0, 1} and {0, 2}
    assert KSubset(y, 2).variance[0] == pytest.approx(left_out, rel=1e-9)
    assert Bernoulli(y).variance[0] == pytest.approx(small, rel=1e-9)
    assert Categorical(y).variance[1] == pytest.approx(small, rel=1e-9)


@each
def test_shapes_and_expand(name):
    law = EVERY[name](Y)
    rows = name not in ("bernoulli", "normal")
    assert law.batch_shape == ((2,) if rows else (2, 3))
    assert law.event_shape == ((3,) if rows else ())
    larger = law.expand((4, *law.batch_shape))
    assert type(larger) is type(law)
    assert larger.batch_shape == (4, *law.batch_shape)
    if name != "race":
        value = law.sample((), np.random.default_rng(0))
        assert np.array_equal(
            larger.log_prob(np.broadcast_to(value, (4, 2, 3))), np.stack([law.log_prob(value)] * 4)
        )
    with pytest.raises(ValueError, match=r"batch_shape must be a shape that .* broadcasts to"):
        law.expand((5,))


def test_expand_along_another_dimension_with_k_and_masks_per_row():
    k, mask = np.array([1, 2]), np.array([[True, False], [True, True], [True, True]])
    choice = KSubset(Y.T, k, dim=0, mask=mask)
    larger = choice.expand((4, 2))
    assert larger.logits.shape == (4, 3, 2)
    assert np.array_equal(larger.marginals(), np.stack([choice.marginals()] * 4))


def test_from_probabilities(framework):
    p = np.array([0.5, 0.0, 0.3, 0.2])
    for made in (Categorical(probs=framework.array(p)), Categorical(probs=framework.array(3 * p))):
        assert np.allclose(framework.numpy(made.probs()), p, atol=1e-15)
    coins = Bernoulli(probs=framework.array([0.0, 0.25, 1.0]))
    assert np.allclose(framework.numpy(coins.probs()), [0, 0.25, 1], atol=1e-15)
    relaxed = RelaxedOneHot(probs=framework.array(p), temperature=0.7)
    value = framework.array([0.2, 0.0, 0.3, 0.5])
    wanted = RelaxedOneHot(framework.array(np.log(p, where=p > 0, out=np.full(4, -np.inf))), 0.7)
    assert framework.numpy(relaxed.log_prob(value)) == pytest.approx(
        float(framework.numpy(wanted.log_prob(value)))
    )
    for kind in (Categorical, Bernoulli):
        with pytest.raises(TypeError, match="logits or probs must be given, and not both; got ne"):
            kind()
        with pytest.raises(TypeError, match="not both; got both"):
            kind(framework.array(p), probs=framework.array(p))


def test_probabilities_have_the_gradients_of_torch():
    for ours, theirs in ((Categorical, td.OneHotCategorical), (Bernoulli, td.Bernoulli)):
        p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64, requires_grad=True)
        value = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
        slopes = [
            torch.autograd.grad(law(probs=p).log_prob(value).sum(), p)[0] for law in (ours, theirs)
        ]
        assert torch.allclose(*slopes)


# --- randomness ---


DRAWS = {name: lambda y, rng, law=law: law(y).sample((), rng) for name, law in EVERY.items()} | {
    "race": lambda y, rng: PlackettLuce(y).sample(2, (), rng),
    "race, relaxed": lambda y, rng: PlackettLuce(y).relaxed_sample(2, 0.5, rng),
    "gumbel_max": gumbel_max,
    "gumbel_softmax": lambda y, rng: gumbel_softmax(y, 0.5, rng=rng),
    "normal_rsample": lambda y, rng: normal_rsample(y, y * 0 + 1, rng),
    "estimator": lambda y, rng: estimators.leave_one_out(
        Categorical(y), lambda s: (s * y**3).sum(-1), rng, samples=2
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_without_a_generator(name):
    draw = DRAWS[name]
    y = torch.zeros(20, 5) + torch.arange(5.0)
    torch.manual_seed(3)
    first, second = draw(y, None), draw(y, None)
    torch.manual_seed(3)
    assert torch.equal(draw(y, None), first)
    assert not torch.equal(first, second)
    assert not np.array_equal(draw(y.numpy(), None), draw(y.numpy(), None))
    with pytest.raises(TypeError, match="rng must be a JAX key, such as"):
        draw(jnp.asarray(y.numpy()), None)


def test_one_sample_needs_no_arguments():
    for law in EVERY.values():
        if law is not PlackettLuce:
            assert law(Y).sample().shape == Y.shape
    assert PlackettLuce(Y).sample(2).shape == (2, 2)
    assert Normal(Y, np.ones(3)).rsample().shape == Y.shape
    assert estimators.marginals_through(KSubset(Y, 2)).shape == Y.shape


@pytest.mark.parametrize(
    ("array", "rng", "message"),
    [
        (
            np.zeros(3),
            torch.Generator(),
            "a numpy.random.Generator or .* arrays of numpy; got a tor",
        ),
        (torch.zeros(3), np.random.default_rng(0), "a torch.Generator or .* got a numpy.random"),
        (jnp.zeros(3), np.random.default_rng(0), "a JAX key .* got a numpy.random.Generator"),
        (torch.zeros(3), jax.random.key(0), "a torch.Generator .* got a JAX key"),
        (torch.zeros(3), 0.0, "a torch.Generator or an integer .* got float"),
    ],
)
def test_a_generator_of_the_wrong_kind(array, rng, message):
    for draw in (KSubset(array, 1).sample, Categorical(array).sample, Bernoulli(array).sample):
        with pytest.raises(TypeError, match=message):
            draw((), rng)


def test_compiled_draws_follow_the_global_generator():
    """One graph, without a break; other draws at every call, with the law of eager ones."""
    torch._dynamo.reset()
    y, draws = torch.tensor([1.0, 0.0, -0.5, 0.3]), 20_000

    def both(y):
        return gumbel_softmax(y, 0.5, hard=True), KSubset(y, 2).sample()

    compiled, rows = torch.compile(both, fullgraph=True, backend="aot_eager"), y.expand(draws, 4)
    torch.manual_seed(0)
    first, second = compiled(rows), compiled(rows)
    torch.manual_seed(0)
    for a, b, c in zip(first, second, compiled(rows), strict=True):
        assert torch.equal(a, c)
        assert not torch.equal(a, b)
    one_hot, subset = first
    assert chi_square(one_hot.sum(0).numpy(), y.softmax(-1).numpy() * draws) < 4
    every = KSubset(y, 2).support()
    wanted = KSubset(y, 2).log_prob(every).exp().numpy() * draws
    observed = np.array([(subset == one).all(-1).sum() for one in every])
    assert observed.sum() == draws
    assert chi_square(observed, wanted) < 4


@pytest.mark.full
@pytest.mark.parametrize("name", DRAWS)
def test_every_distribution_draws_in_a_compiled_graph(name):
    torch._dynamo.reset()

    def draw(y):
        return DRAWS[name](y, None)

    y = torch.randn(50, 5, generator=rng_of(Framework("torch")))
    compiled = torch.compile(draw, fullgraph=True, backend="aot_eager")
    first, second = compiled(y), compiled(y)
    assert first.shape == draw(y).shape
    assert not torch.equal(first, second)


def test_draws_under_vmap_and_autocast():
    y = torch.zeros(500, 6)
    for law in (Categorical, partial(KSubset, k=2), Bernoulli):
        drawn = torch.func.vmap(lambda y, law=law: law(y).sample((3,)), randomness="different")(y)
        assert drawn.shape == (500, 3, 6)
        assert drawn[:, 0].unique(dim=0).shape[0] > 5
        if law is not Bernoulli:
            assert drawn.sum(-1).unique().numel() == 1
        same = torch.func.vmap(lambda y, law=law: law(y).sample(), randomness="same")(y)
        assert same.unique(dim=0).shape[0] == 1
        with pytest.raises(RuntimeError, match="randomness"):
            torch.func.vmap(lambda y, law=law: law(y).sample())(y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        relaxed = gumbel_softmax(y, 0.5)
        assert relaxed.dtype == torch.float32
        assert torch.allclose(relaxed.sum(-1), torch.ones(500))
        assert torch.equal(KSubset(y, 2).sample().sum(-1), torch.full((500,), 2.0))


@pytest.mark.parametrize("shift", [0.0, 1e6, -1e6])
def test_a_shift_changes_no_law(shift, framework):
    """In float32 1e6 leaves 0.06 between numbers: noise added there would have ties."""
    draws, y = 20_000, np.array([0.0, 0.0, 0.0625, 0.0]) + shift
    rows, rng = framework.array(np.tile(y, (draws, 1)), "float32"), rng_of(framework)
    p = np.exp(y - shift) / np.exp(y - shift).sum() * draws
    for drawn in (
        framework.numpy(gumbel_max(rows, rng)),
        framework.numpy(PlackettLuce(rows).sample(1, (), rng))[..., 0],
        framework.numpy(gumbel_softmax(rows, 0.1, rng=rng)).argmax(-1),
        framework.numpy(KSubset(rows, 1).choose(KSubset(rows, 1).perturb((), rng))).argmax(-1),
    ):
        assert chi_square(np.bincount(drawn.astype(int), minlength=4), p) < 4


# --- enumeration ---


def test_enumeration_is_refused_where_there_is_too_much():
    for choice, said in (
        (KSubset(np.zeros(40), 20), "137,846,528,820 choices"),
        (KSubset(np.zeros(10**6), 5 * 10**5), r"10\^30102\d choices"),
        (Categorical(np.zeros((16, 28))), r"10\^23 choices"),
        (Bernoulli(np.zeros(100)), r"10\^30 choices"),
    ):
        with pytest.raises(ValueError, match=said + " to list, more than enumerate_up_to = 200,0"):
            choice.support(None)
    with pytest.raises(ValueError, match=r"there are 10\^30 choices to list"):
        estimators.exact(Bernoulli(np.zeros(100)), lambda s: s.sum(-1), factors=1)
    twenty = KSubset(np.zeros(20), 10)
    assert twenty.support().shape == (184_756, 20)
    with pytest.raises(ValueError, match="184,756 choices to list, more than enumerate_up_to = 10"):
        twenty.support(enumerate_up_to=100_000)
    with pytest.raises(ValueError, match="enumerate_up_to = 5;"):
        estimators.exact(Categorical(np.zeros(6)), lambda s: s.sum(-1), enumerate_up_to=5)
    with pytest.raises(TypeError, match="enumerate_up_to must be an integer"):
        twenty.support(enumerate_up_to=1e6)
    rows = KSubset(np.zeros((100, 4)), 4)
    assert rows.support(None).shape == (1, 100, 4)


def test_rows_are_enumerated_each_by_itself():
    assert KSubset(np.zeros((16, 28)), 1).support().shape == (28, 1, 28)
    assert Categorical(np.zeros((16, 28))).enumerate_support().shape == (28, 16, 28)
    assert td.Bernoulli(logits=torch.zeros(3)).enumerate_support().tolist() == (
        Bernoulli(torch.zeros(3)).enumerate_support().tolist()
    )


def test_a_divergence_is_never_below_0():
    rng = np.random.default_rng(0)
    y = rng.standard_normal((500, 6)).astype(np.float32)
    near = (y + 1e-4 * rng.standard_normal(y.shape)).astype(np.float32)
    for law in DISCRETE.values():
        assert law(y).kl(law(near)).min() >= 0


# --- what counts as deleted ---


@pytest.mark.parametrize("name", [name for name in EVERY if name != "normal"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_additive_masks_delete(name, dtype):
    """finfo.min, with a score added, and half of it: like −inf, bit by bit, with gradient 0."""
    kind = getattr(torch, dtype)
    least, law = torch.finfo(kind).min, EVERY[name]
    y = torch.tensor([[0.5, 0.0, -0.3, 1.0, 0.2], [-1.0, 0.3, 0.0, 0.1, 2.0]], dtype=kind)
    there = torch.tensor([[True, False, True, True, False], [True, True, False, True, True]])
    masks = torch.tensor([[0, least, 0, 0, least / 2], [0, 0, least, 0, 0]], dtype=kind)
    value = torch.tensor([[1, 0, 1, 0, 0], [0, 1, 0, 0, 1]], dtype=kind)
    if name in ("categorical", "race"):
        value = torch.tensor([[0, 0, 1, 0, 0], [0, 1, 0, 0, 0]], dtype=kind)
    if name == "relaxed":
        value = torch.where(there, there / there.sum(-1, keepdim=True), 0.0).to(kind)
    answers = []
    for logits in (torch.where(there, y, -math.inf), torch.where(there, y + masks, masks)):
        leaf = logits.requires_grad_()
        choice, parts = law(leaf), []
        if name == "race":
            drawn = torch.tensor([[0, 2], [4, 1]])
            parts += [choice.log_prob(drawn), choice.log_prob(drawn, ordered=False)]
            parts += [choice.sample(2, (9,), torch.Generator().manual_seed(0))]
            parts += [choice.relaxed_sample(2, 0.5, torch.Generator().manual_seed(0))]
        else:
            parts += [choice.log_prob(value), choice.sample(9, torch.Generator().manual_seed(0))]
        if name in DISCRETE:
            parts += [choice.mean, choice.variance, choice.entropy(), choice.mode()]
            parts += [choice.kl(law(torch.where(there, y * 0, -math.inf)))]
            parts += [
                choice.relax(choice.perturb(3, torch.Generator().manual_seed(0)), 0.7),
            ]
        if name == "categorical":
            parts += [gumbel_max(leaf, torch.Generator().manual_seed(0), shape=9)]
            parts += [gumbel_softmax(leaf, 0.7, rng=torch.Generator().manual_seed(0))]
        total = sum((part * torch.arange(part.shape[-1])).sum() for part in parts[:-1])
        (slope,) = torch.autograd.grad(total, leaf)
        assert torch.isfinite(slope).all()
        assert torch.all(slope[~there] == 0)
        answers.append([*parts, slope])
    for first, second in zip(*answers, strict=True):
        assert torch.equal(first, second)

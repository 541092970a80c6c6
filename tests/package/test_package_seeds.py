"""An integer in place of a generator: the same draw at each call, of every function that draws."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from calls import CALLS, flat, generator, public_names, surroundings
from kofn import Categorical, KSubset, estimators, gumbel_max
from kofn.arrays.torch.private import makes_graph
from places import TESTS

DRAWING = [call for call in CALLS if call.random]
X = np.random.default_rng(0).normal(size=(4, 6))
ON_JAX = "kofn.gumbel_max", "kofn.normal_rsample", "kofn.estimators.gumbel_rao_through"
"""Of the ordinary run: XLA compiles each for a second."""


def numbers(every):
    every = [each.detach() if isinstance(each, torch.Tensor) else each for each in every]
    return [np.asarray(each) for each in every]


def same(one, other):
    pairs = zip(numbers(flat(one)), numbers(flat(other)), strict=True)
    return all(np.array_equal(*pair, equal_nan=True) for pair in pairs)


def test_the_table_has_every_function_with_rng():
    lines = TESTS.joinpath("signatures.txt").read_text(encoding="utf-8").splitlines()
    taking = {name for name, line in zip(public_names(), lines, strict=True) if "rng=" in line}
    taking -= {"kofn.estimators.exact"}  # which draws nothing
    assert taking <= {call.public for call in DRAWING}


@pytest.mark.parametrize(
    ("call", "framework"),
    [
        pytest.param(
            call,
            framework,
            id=f"{call.name}-{framework}",
            marks=pytest.mark.full if framework == "jax" and call.name not in ON_JAX else (),
        )
        for call in DRAWING
        for framework in call.frameworks
    ],
)
def test_an_integer_draws_as_the_new_generator_that_it_seeds(call, framework):
    with surroundings(call):
        wanted = call(framework, rng=generator(framework))
        assert same(call(framework, rng=0), wanted)
        assert same(call(framework, rng=np.int64(0)), wanted)
        if ".study" not in call.name.lower():  # which enumerates
            assert not same(call(framework, rng=1), wanted)


def test_a_study_draws_by_an_integer():
    logits, cost = torch.tensor(X[0]), torch.arange(6.0, dtype=torch.float64)

    def found(seed):
        return estimators.study("rebar", lambda s: s @ cost, logits, rng=seed, draws=50).variance

    assert found(0) == found(0) == found(torch.Generator().manual_seed(0)) != found(1)


def test_two_draws_of_one_call_differ():
    """Where a function draws twice, by two sources, they are not both the integer's own."""
    logits = torch.tensor(X, requires_grad=True)
    law = Categorical(logits)
    sample = estimators.gumbel_rao_through(law, 1000, 0, draws=1)
    again = torch.Generator().manual_seed(0)
    noise = law.perturb(1000, again)
    assert torch.equal(sample.detach(), law.choose(noise).to(sample.dtype))
    (ours,) = torch.autograd.grad(sample[..., 0].sum(), logits)
    relaxed = law.relax(law.perturb_given(sample.detach(), again).detach() + 0 * logits, 1.0)
    theirs = relaxed.detach()[..., 0]
    assert theirs.shape == (1000, 4)
    wanted = (theirs * (1 - theirs)).sum(0)  # the slope of the relaxed sample, at the second noise
    assert torch.allclose(ours[:, 0], wanted)


@pytest.mark.parametrize(
    ("seed", "error", "message"),
    [
        (-1, ValueError, r"rng must be a seed in \[0, 2\*\*63\), if it is an integer; got -1"),
        (1 << 63, ValueError, r"rng must be a seed in \[0, 2\*\*63\)"),
        (True, TypeError, "rng must be a .* or an integer for arrays of .* got bool"),
        (np.True_, TypeError, "rng must be a .* got bool"),
        (np.timedelta64(1), TypeError, "rng must be a .* got timedelta64"),
        (0.0, TypeError, "rng must be a .* got float"),
        ("0", TypeError, "rng must be a .* got str"),
        (torch.tensor(0), TypeError, "rng must be a .* got Tensor"),
    ],
)
def test_what_is_no_seed_is_refused(seed, error, message):
    for x in (X, torch.tensor(X), jnp.asarray(X)):
        with pytest.raises(error, match=message):
            KSubset(x, 2).sample((), seed)
        with pytest.raises(error, match=message):
            estimators.gumbel_rao_through(Categorical(x), (), seed)


def test_an_array_of_jax_is_a_seed_for_jax_alone():
    with pytest.raises(TypeError, match="rng must be a Python integer for arrays of numpy"):
        gumbel_max(X, jnp.asarray(0))
    with pytest.raises(TypeError, match="rng must be a Python integer for arrays of torch"):
        gumbel_max(torch.tensor(X), jnp.asarray(0))


def test_seeds_under_jit_and_vmap():
    x = jnp.asarray(X)
    wanted = [gumbel_max(x, jax.random.key(seed)) for seed in range(3)]
    draw = jax.jit(gumbel_max)
    assert np.array_equal(draw(x, 2), wanted[2])
    assert np.array_equal(jax.jit(lambda x: gumbel_max(x, 2))(x), wanted[2])
    assert np.array_equal(jax.vmap(gumbel_max, (None, 0))(x, jnp.arange(3)), np.stack(wanted))


def test_seeds_under_torch_compile():
    torch._dynamo.reset()
    x, wanted = torch.tensor(X), gumbel_max(torch.tensor(X), 3)
    compiled = torch.compile(lambda x: gumbel_max(x, 3), backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(x), wanted)
    torch._dynamo.reset()
    whole = torch.compile(lambda x: gumbel_max(x, 3), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"cannot trace a torch\.Generator"):
        whole(x)


def test_seeds_under_vmap_and_for_tensors_without_memory():
    x = torch.tensor(X)
    draw = torch.func.vmap(lambda x: gumbel_max(x, 3), randomness="different")
    assert torch.equal(draw(x), draw(x))
    assert gumbel_max(x.to("meta"), 3).shape == (4,)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("record", ["export", "trace", "make_fx"])
def test_a_recorded_program_refuses_a_seed(record):
    class Draw(torch.nn.Module):
        def forward(self, x):
            return gumbel_max(x, 3)

    recorders = {
        "export": lambda x: torch.export.export(Draw(), (x,), strict=False),
        "trace": lambda x: torch.jit.trace(Draw(), (x,)),
        "make_fx": lambda x: torch.fx.experimental.proxy_tensor.make_fx(Draw())(x),
    }
    with pytest.raises(TypeError, match="rng must be None while a program is recorded"):
        recorders[record](torch.tensor(X))


def test_without_the_name_of_its_mode_make_fx_is_not_known(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.fx.experimental.proxy_tensor", None)
    assert not makes_graph()

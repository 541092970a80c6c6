"""Combinations of compile, vmap, torch.func and jit, where a wrong gradient raises nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import kofn
from kofn import links
from oracles import finite_difference
from support import LINKS, full_but

RNG = np.random.default_rng(11)
X, V, C = (torch.tensor(RNG.standard_normal((3, 6))) for _ in range(3))
K = torch.tensor([1.3, 2.0, 3.7], dtype=torch.float64)
T = torch.tensor([0.7, 1.0, 1.4], dtype=torch.float64)
TARGET = torch.nn.functional.one_hot(torch.tensor([1, 0, 5]), 6).double()


def compiled(function, backend="aot_eager"):
    torch._dynamo.reset()
    # Inductor's scalar code compiles in half the time, and fuses the same.
    options = {"cpp.simdlen": 1} if backend == "inductor" else None
    return torch.compile(function, fullgraph=True, backend=backend, options=options)


def near(a, b, tolerance=1e-10):
    return torch.allclose(a, b, atol=tolerance, rtol=tolerance)


MAPS = {
    **{name: lambda x, name=name: kofn.soft_topk(x, K, link=name, temperature=T) for name in LINKS},
    "hard": lambda x: kofn.soft_topk(x, K, hard=True),
    "masked": lambda x: kofn.soft_topk(x, K, mask=x > -1),
    "threshold": lambda x: kofn.soft_topk_threshold(x, K, temperature=T),
    "sum": lambda x: kofn.soft_topk_sum(x, K, temperature=T),
    "gates": lambda x: kofn.topk_gates(x, 2)[0],
    "hard_topk": lambda x: kofn.hard_topk(x, K),
    "softmax": lambda x: kofn.softmax(x, temperature=T),
    "sparsemax": lambda x: kofn.sparsemax(x, temperature=T),
    "entmax alpha": lambda x: kofn.entmax(x, T + 0.5),
    "loss": lambda x: kofn.fenchel_young_loss(x, TARGET, reduction="none"),
    "dim": lambda x: kofn.soft_topk(x, 2, dim=0),
}


def full(*values):
    """A case for the full run only."""
    return pytest.param(*values, marks=pytest.mark.full)


def scalar(function, weights=C):
    """A random scalar of a map: its gradient is a vjp with a random cotangent."""

    def total(x):
        y = function(x)
        return (
            y * weights[tuple(slice(size) for size in y.shape)]
            if y.ndim == 2
            else y * weights[: y.shape[0], 0]
        ).sum()

    return total


INDUCTOR = [
    "logistic",
    *(
        full(n)
        for n in (
            "exponential",
            "gates",
            "threshold",
            "sum",
            "hard_topk",
            "softmax",
            "sparsemax",
            "entmax",
            "loss",
        )
    ),
]


@pytest.mark.parametrize(
    "name",
    [
        *("hard", "masked", "entmax alpha", full("dim")),
        *full_but(("laplace",)),
    ],
)
def test_compile_has_no_graph_break_and_the_eager_answer(name):
    assert near(compiled(MAPS[name])(X), MAPS[name](X))


COMBINATIONS = {
    "compile backward": lambda f: _backward(compiled(scalar(f))),
    "compile(func.grad)": lambda f: compiled(grad(scalar(f)))(X),
    "compile(jacrev)": lambda f: compiled(jacrev(scalar(f)))(X),
    "compile(jacfwd)": lambda f: compiled(jacfwd(scalar(f)))(X),
    "jacfwd": lambda f: jacfwd(scalar(f))(X),
    "jacrev": lambda f: jacrev(scalar(f))(X),
}


def _backward(f):
    x = X.clone().requires_grad_()
    return torch.autograd.grad(f(x), x)[0]


def _grid(names, combinations):
    """Most combinations for one map, one combination for every map; the rest is the full run.

    PyTorch's compiler traces all that a transform sees: in half the time for the linear link.
    """
    often = {
        ("logistic", "compile backward"),
        ("logistic", "jacrev"),
        ("linear", "compile(jacfwd)"),
    }
    return [
        (n, c) if (n, c) in often or c == "jacfwd" else full(n, c)
        for n in names
        for c in combinations
    ]


DIFFERENTIABLE = [name for name in MAPS if name not in ("hard", "hard_topk")]


@pytest.mark.parametrize(("name", "combination"), _grid(DIFFERENTIABLE, COMBINATIONS))
def test_gradients_meet_finite_differences(name, combination):
    f = scalar(MAPS[name])
    slope = finite_difference(f, X, V)
    assert (COMBINATIONS[combination](MAPS[name]) * V).sum().item() == pytest.approx(
        slope.item(), rel=1e-6, abs=1e-8
    )


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_jvp_meets_finite_differences(name):
    expected = finite_difference(MAPS[name], X, V)
    assert near(jvp(MAPS[name], (X,), (V,))[1], expected, 1e-7)


@pytest.mark.full  # as compile(jacfwd) above, which maps it
@pytest.mark.parametrize("name", ["linear", "logistic"])
def test_a_compiled_jvp_is_the_eager_one(name):
    def pushed(x, v):
        return jvp(MAPS[name], (x,), (v,))[1]

    assert near(compiled(pushed)(X, V), pushed(X, V), 1e-7)


@pytest.mark.parametrize("name", ["logistic", "exponential", "sum", "entmax alpha"])
def test_hessians_meet_finite_differences(name):
    f = scalar(MAPS[name])
    expected = finite_difference(jacrev(f), X, V)
    for h in (hessian(f)(X), jacrev(jacrev(f))(X), jacfwd(jacfwd(f))(X)):
        assert near(torch.einsum("abcd,cd->ab", h, V), expected, 1e-6)


@pytest.mark.full
def test_a_compiled_hessian_is_the_eager_one():
    of_scores = hessian(scalar(MAPS["logistic"]))
    assert near(compiled(of_scores)(X), of_scores(X))


def test_vmap_over_every_argument():
    def f(x, k, t):
        return kofn.soft_topk(x, k, temperature=t)

    expected = f(X, K, T)
    assert near(vmap(f)(X, K, T), expected)
    assert near(vmap(f, in_dims=(1, 0, 0), out_dims=1)(X.T.contiguous(), K, T), expected.T)
    same = f(X[0].expand(3, 6), K, T)
    assert near(vmap(f, in_dims=(None, 0, 0))(X[0], K, T), same)
    alpha = torch.tensor([1.2, 1.5, 2.0], dtype=torch.float64)
    assert near(vmap(kofn.entmax)(X, alpha), kofn.entmax(X, alpha))
    # Along another dimension, which has to be moved.
    first = vmap(lambda x: kofn.soft_topk(x, 2, dim=0, mask=x > -1))(X[:, :, None])
    assert near(first[..., 0], kofn.soft_topk(X, 2, mask=X > -1))
    nested = vmap(vmap(lambda x, k: kofn.soft_topk(x, k), in_dims=(0, None)), in_dims=(None, 0))
    assert near(nested(X, K), torch.stack([kofn.soft_topk(X, float(k)) for k in K]))


def test_vmap_of_grad_and_grad_of_vmap():
    def f(x, c):
        return (kofn.soft_topk(x, 2.5, link="linear") * c).sum()

    expected = torch.stack([grad(f)(X[i], C[i]) for i in range(3)])
    assert near(vmap(grad(f))(X, C), expected)
    assert near(compiled(vmap(grad(f)))(X, C), expected)
    assert near(grad(lambda x: vmap(f)(x, C).sum())(X), expected)


@pytest.mark.parametrize("name", INDUCTOR)
def test_inductor_has_the_eager_answer_and_gradient(name):
    """By one program, of the way there and of the way back."""
    x, y = (X.float().requires_grad_() for _ in range(2))
    found, wanted = compiled(MAPS[name], "inductor")(x), MAPS[name](y)
    assert near(found, wanted, 2e-6)
    if wanted.requires_grad:
        total = scalar(lambda p: p)
        ours, theirs = torch.autograd.grad(total(found) + total(wanted), (x, y))
        assert near(ours, theirs, 1e-6)


OF_ANY_LENGTH = {
    "soft_topk": lambda x: kofn.soft_topk(x, 2),
    "hard_topk": lambda x: kofn.hard_topk(x, 2),
    "topk_gates": lambda x: kofn.topk_gates(x, 2)[0],
    "sparse_softmax": lambda x: kofn.sparse_softmax(x, k=3),
    "loss": lambda x: kofn.fenchel_young_loss(x, kofn.hard_topk(x, 2)),
    "temperature": lambda x: kofn.temperature_for(x, 2, gap=0.1),
    "subset": lambda x: kofn.KSubset(x, 2).marginals(),
}


@pytest.mark.parametrize(
    "name", ["soft_topk", "hard_topk", *(full(n) for n in [*OF_ANY_LENGTH][2:])]
)
def test_rows_of_other_lengths_compile_nothing_more(name):
    """A size that was printed, or made a float, would be taken for a fixed one."""
    function, counter = OF_ANY_LENGTH[name], CompileCounter()
    torch._dynamo.reset()
    f = torch.compile(function, fullgraph=True, backend=counter, dynamic=True)
    for rows, n in [(3, 6), (5, 9), (7, 40)]:
        x = torch.tensor(RNG.standard_normal((rows, n)))
        assert near(f(x), function(x))
    assert counter.frame_count == 1


def test_a_link_made_inside_a_compiled_function_is_a_clear_error():
    def f(x):
        link = kofn.Link(torch.sigmoid, lambda z: torch.sigmoid(z) * torch.sigmoid(-z))
        return kofn.soft_topk(x, 2, link=link)

    with pytest.raises(Exception, match="make it once, outside"):
        compiled(f)(X)

    def g(x):
        link = kofn.Link(jax.nn.sigmoid, lambda z: jax.nn.sigmoid(z) * jax.nn.sigmoid(-z))
        return kofn.soft_topk(x, 2, link=link)

    with pytest.raises(RuntimeError, match="make it once, outside"):
        jax.jit(g)(jnp.asarray(X.numpy()))


@pytest.mark.full
def test_a_link_of_ones_own_compiles():
    link = kofn.Link(
        torch.sigmoid,
        lambda z: torch.sigmoid(z) * torch.sigmoid(-z),
        integral=torch.nn.functional.softplus,
    )
    assert near(
        compiled(lambda x: kofn.soft_topk_sum(x, 2, link=link))(X), kofn.soft_topk_sum(X, 2)
    )


def test_the_operator_passes_opcheck():
    kofn.soft_topk_threshold(X, 2)  # registers it
    arguments = (X, K, T, None, links.logistic.id, None)
    torch.library.opcheck(
        torch.ops.kofn.threshold.default,
        arguments,
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
    )


# --- JAX ---


def jax_maps():
    x, k, t = (jnp.asarray(a.numpy()) for a in (X, K, T))
    target = jnp.asarray(TARGET.numpy())
    return x, {
        **{n: lambda x, n=n: kofn.soft_topk(x, k, link=n, temperature=t) for n in LINKS},
        "sum": lambda x: kofn.soft_topk_sum(x, k, temperature=t),
        "loss": lambda x: kofn.fenchel_young_loss(x, target),
        "gates": lambda x: kofn.topk_gates(x, 2)[0],
    }


@pytest.mark.parametrize(
    "name", ["exponential", *map(full, ["sum", "loss", *(n for n in LINKS if n != "exponential")])]
)
def test_jax_jit_grad_jvp_and_vmap(name):
    x, maps = jax_maps()
    f, v = maps[name], jnp.asarray(V.numpy())
    assert np.allclose(jax.jit(f)(x), f(x), atol=1e-12)
    expected = finite_difference(f, x, v)
    pushed = jax.jit(lambda x, v: jax.jvp(f, (x,), (v,))[1])(x, v)
    assert np.allclose(pushed, expected, atol=1e-7)
    c = jnp.asarray(RNG.standard_normal(expected.shape))
    pulled = jax.jit(jax.grad(lambda x: (f(x) * c).sum()))(x)
    assert np.allclose((pulled * v).sum(), (expected * c).sum(), atol=1e-7)


def test_jax_vmap_over_every_argument():
    x, k, t = (jnp.asarray(a.numpy()) for a in (X, K, T))

    def f(x, k, t):
        return kofn.soft_topk(x, k, temperature=t)

    assert np.allclose(jax.jit(jax.vmap(f))(x, k, t), f(x, k, t), atol=1e-12)
    slope = jax.grad(lambda x, k: kofn.soft_topk(x, k)[0])
    one = jnp.stack([slope(x[i], k[i]) for i in range(3)])
    assert np.allclose(jax.vmap(slope)(x, k), one, atol=1e-12)


def test_jax_links_with_a_learned_alpha():
    x, _ = jax_maps()
    alpha = jnp.array([1.2, 1.0, 2.0])
    slope = jax.jit(jax.jacfwd(lambda a: kofn.entmax(x, a)))(alpha)
    ours = jacfwd(lambda a: kofn.entmax(X, a))(torch.tensor([1.2, 1.0, 2.0], dtype=torch.float64))
    assert np.allclose(slope, ours.numpy(), atol=1e-10)


def test_the_normal_link_maps_without_a_warning():
    """vmap has no rule for log_ndtr and says so."""
    slopes = vmap(grad(lambda x: kofn.soft_topk(x, 2, link="normal")[0]))(X)
    assert near(slopes[1], grad(lambda x: kofn.soft_topk(x, 2, link="normal")[0])(X[1]))

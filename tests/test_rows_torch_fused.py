"""Functions under torch.compile: the kernels' own answers, every derivative right or refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jvp, vmap

import kofn

LINKS = ("logistic", "laplace", "normal", "exponential", "linear", "entmax")
OPERATORS = ("kofn.weights", "kofn.value")


@pytest.fixture(autouse=True)
def _forget():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function, **options):
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


def called(function, *arguments) -> str:
    """Return the operators in the graph of a function."""
    found = []

    def backend(graph, _):
        found.append(graph.print_readable(print_output=False))
        return graph

    torch.compile(function, fullgraph=True, backend=backend)(*arguments)
    return "".join(found)


def scores(*shape, dtype=torch.float64):
    rng = np.random.default_rng(0)
    return torch.tensor(rng.standard_normal(shape) * 2, dtype=dtype)


def topk(link="logistic", k=2.5, temperature=0.7):
    return lambda x: kofn.soft_topk(x, k, link=link, temperature=temperature)


def total(x):
    return kofn.soft_topk_sum(x, 2.5, temperature=0.7)


def gradients(function, *leaves):
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    y = function(*leaves)
    v = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
    return [y.detach(), *torch.autograd.grad(y, leaves, v)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("link", [*LINKS, kofn.links.entmax(1.3)], ids=str)
def test_weights_and_gradients_are_those_of_eager_code_to_the_bit(link, dtype):
    def weights(x, k, t):
        return kofn.soft_topk(x, k, link=link, temperature=t)

    x = scores(4, 9, dtype=dtype)
    k, t = (torch.tensor(a, dtype=dtype) for a in ([1.0, 2.5, 3, 4], [0.1, 1, 2, 0.5]))
    assert "kofn.weights" in called(weights, x, k, t)
    for got, wanted in zip(
        gradients(compiled(weights), x, k, t), gradients(weights, x, k, t), strict=True
    ):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("k", [1.0, 3.0, 4.0])
def test_the_smoothed_sum_is_that_of_eager_code(k):
    def sums(x, k, t):
        return kofn.soft_topk_sum(x, k, temperature=t)

    x = scores(3, 4)
    x[0, 1] = torch.inf
    given = x, torch.tensor([k] * 3, dtype=x.dtype), torch.tensor([0.3, 1, 2], dtype=x.dtype)
    assert "kofn.value" in called(sums, *given)
    for got, wanted in zip(gradients(compiled(sums), *given), gradients(sums, *given), strict=True):
        assert torch.equal(got, wanted)


def test_masks_dimensions_half_types_and_hard_choices_go_the_same_way():
    x, mask = scores(5, 6), scores(5, 6) > -1

    def f(x):
        return kofn.soft_topk(x, 2, dim=0, mask=mask, hard=True)

    def half(x):
        return kofn.soft_topk(x.to(torch.bfloat16), 2)

    for function in (f, half, lambda x: kofn.entmax(x, 1.4), lambda x: kofn.soft_topk(x.T, 2)):
        assert "kofn.weights" in called(function, x)
        for got, wanted in zip(
            gradients(compiled(function), x), gradients(function, x), strict=True
        ):
            assert torch.equal(got, wanted)


def test_shapes_may_change():
    function = compiled(topk(), dynamic=True)
    for shape in ((2, 7), (5, 11), (1, 4), (3, 2, 6)):
        for got, wanted in zip(
            gradients(function, scores(*shape)), gradients(topk(), scores(*shape)), strict=True
        ):
            assert torch.equal(got, wanted)


TRANSFORMED = {
    "func.grad": lambda f: grad(lambda x: (f(x) ** 2).sum()),
    "func.jvp": lambda f: lambda x: jvp(f, (x,), (x + 1,))[1],
    "vmap(grad)": lambda f: vmap(grad(lambda x: (f(x) ** 2).sum())),
    "vmap": lambda f: vmap(f),
    "jacfwd": lambda f: jacfwd(lambda x: f(x[0])),
    "hessian": lambda f: hessian(lambda x: (f(x[0]) ** 2).sum()),
}

ORDINARY = {("func.grad", "weights"), ("func.jvp", "weights")}  # each catches another slip


@pytest.mark.parametrize(
    ("how", "f"),
    [
        pytest.param(how, f, marks=() if (how, f) in ORDINARY else pytest.mark.full)
        for how in TRANSFORMED
        for f in ("weights", "sum")
    ],
)
def test_transforms_inside_see_the_plain_operations(f, how):
    function, x = TRANSFORMED[how](topk() if f == "weights" else total), scores(2, 6)
    graph = called(function, x)
    assert not any(name in graph for name in OPERATORS)
    assert torch.allclose(compiled(function)(x), function(x), atol=1e-10)


@pytest.mark.parametrize(
    "f", [topk(), pytest.param(total, marks=pytest.mark.full)], ids=["weights", "sum"]
)
def test_dual_numbers_keep_their_tangent(f):
    """Also in a function that was compiled for ordinary numbers before."""
    x, v = scores(2, 6), scores(2, 6) + 1
    function = compiled(f)
    assert torch.equal(function(x), f(x))

    def pushed(g):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(g(forward_ad.make_dual(x, v))).tangent

    assert torch.allclose(pushed(function), pushed(f), atol=1e-10)
    assert torch.equal(function(x), f(x))


def test_transforms_of_a_compiled_function_see_the_plain_operations():
    """Also where it was compiled for ordinary tensors before."""

    def loss(x):
        return topk()(x).square().sum()

    x, function = scores(2, 6), torch.compile(loss, backend="aot_eager")
    assert torch.equal(function(x), loss(x))
    for transform in (grad, lambda f: vmap(grad(f)), lambda f: grad(lambda x: grad(f)(x).sum())):
        assert torch.allclose(transform(function)(x), transform(loss)(x), atol=1e-10)


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
@pytest.mark.parametrize("f", [topk(), total], ids=["weights", "sum"])
def test_a_second_derivative_through_compiled_code_is_refused(f, backend):
    x = scores(2, 6).requires_grad_()
    function = torch.compile(f, fullgraph=True, backend=backend)
    (first,) = torch.autograd.grad((function(x) ** 2).sum(), x, create_graph=True)
    with pytest.raises(
        RuntimeError, match=r"second derivative|double backward|no autograd formula"
    ):
        torch.autograd.grad(first.square().sum(), x)


def test_exported_programs_keep_the_threshold_operator():
    class Model(torch.nn.Module):
        def forward(self, x):
            return kofn.soft_topk(x, 2)

    program = torch.export.export(Model(), (scores(2, 5),))
    names = {str(node.target) for node in program.graph.nodes}
    assert "kofn.threshold.default" in names
    assert not any(name in target for target in names for name in OPERATORS)


def test_without_kernels_the_plain_operations_are_compiled(monkeypatch):
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    graph = called(topk(), scores(2, 5))
    assert "kofn.threshold" in graph
    assert "kofn.weights" not in graph


def test_a_learned_alpha_and_links_of_ones_own_are_compiled_as_plain_operations():
    def learned(alpha):
        return kofn.entmax(x, alpha)

    x, alpha = scores(2, 5), torch.tensor([1.3, 1.7], dtype=torch.float64)
    assert "kofn.weights" not in called(learned, alpha)


def test_rows_a_kernel_gives_up_on_are_finished():
    x = torch.tensor([[4.6, 1e15, 0.0], [1.0, -1e9, -1e30]])

    def f(x):
        return kofn.soft_topk(x, 1.047, link="laplace")

    assert torch.equal(compiled(f)(x), f(x))


def test_inductor_and_the_derivative_of_a_model():
    model = torch.nn.Linear(6, 8)

    def loss(x):
        return (kofn.soft_topk(model(x), 2) * x.sum()).square().sum()

    x = scores(3, 6, dtype=torch.float32)
    loss(x).backward()
    wanted = model.weight.grad.clone()
    model.zero_grad()
    torch.compile(loss, fullgraph=True)(x).backward()
    assert torch.allclose(model.weight.grad, wanted, rtol=1e-5, atol=1e-6)

"""Gates of routers that torch.compile traces: one operator, of few tokens and of many."""

import math

import pytest
import torch

from kofn import nn

ROUTERS = {
    "plain": {},
    "cold": dict(link="linear", temperature=0.3),
    "balanced": dict(balance=1e-2),
    "of three": dict(k=3),
}
SHAPES = {"few": (20, 6), "long": (20, 70), "many": (3000, 6)}


def scores_of(shape, dtype, special):
    x = torch.randn(SHAPES[shape], dtype=dtype, generator=torch.Generator().manual_seed(0))
    if special:  # the last is one that a kernel gives up on
        x[1, 2], x[2, 3], x[3, :5], x[4, 0] = math.nan, math.inf, -math.inf, -3e38
        x[5, :2] = torch.tensor([3e8, -3e8])
    return x


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ROUTERS)
def test_compiled_gates_have_the_bits_of_eager_ones(name, shape, dtype, special):
    found = []
    for compiles in (False, True):
        torch.compiler.reset()
        n = SHAPES[shape][1]
        router = nn.TopKRouter(4, n, **dict(k=2) | ROUTERS[name])
        if router.balance is not None:
            router.balance.net_steps.copy_(torch.arange(n) % 3)
        choose = router.choose
        if compiles:
            choose = torch.compile(choose, fullgraph=True, backend="aot_eager")
        x = scores_of(shape, dtype, special).requires_grad_()
        gates, indices = choose(x)
        cotangents = torch.linspace(-1, 1, gates.numel(), dtype=dtype).reshape(gates.shape)
        (slope,) = torch.autograd.grad(gates, x, cotangents)
        found.append((gates, indices, router.counts, slope))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.nan_to_num(7), other.nan_to_num(7))


def test_what_is_compiled_is_one_operator():
    seen = []

    def backend(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    router = nn.TopKRouter(4, 6, 2)
    torch.compile(router.choose, fullgraph=True, backend=backend)(torch.randn(5, 6))
    assert seen.count("kofn.gates.default") == 1
    assert not any(name.startswith(("kofn.weights", "kofn.largest")) for name in seen)


def test_second_derivatives_are_refused():
    router = nn.TopKRouter(4, 6, 2)
    choose = torch.compile(router.choose, fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError):  # by PyTorch, which compiles no second derivatives
        torch.autograd.functional.hvp(lambda x: choose(x)[0].square().sum(), torch.randn(5, 6))

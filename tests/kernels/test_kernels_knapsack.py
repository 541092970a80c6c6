"""The kernels for rows with costs: against oracles and the array code, and what they give up on."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from kofn import links, soft_knapsack, soft_knapsack_threshold, soft_knapsack_value
from kofn.kernels.cpu.knapsack import launch
from kofn.links import table
from oracles import knapsack as oracles_knapsack
from support import LINKS, TOTAL, WEIGHTS, every_link

INF, NAN = math.inf, math.nan


def inner(link):
    return table.resolve(link).inner


def reference(monkeypatch, function, *arguments, **options):
    """The same from the array code."""
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    found = function(*arguments, **options)
    monkeypatch.delenv("KOFN_KERNELS")
    return found


def solved(rows, link):
    x, costs, budget = rows
    weights, theta, _ = launch.weights(x, budget, np.ones_like(budget), inner(link), costs)
    lost = np.isnan(theta[1])
    weights[lost] = 0  # nothing was written there
    return weights, theta, lost


def check(rows, link, most_lost=0.1):
    x, costs, budget = rows
    weights, _, lost = solved(rows, link)
    assert lost.mean() <= most_lost
    exact = oracles_knapsack.weights(x, costs, budget, link).astype(float)
    reach = np.abs(x).max(-1)
    rounding = {"float64": 4e-16, "float32": 1.2e-7}[str(x.dtype)]
    allowed = WEIGHTS[str(x.dtype)] / 8 + rounding * np.maximum(0, reach - 30)
    assert np.all((np.abs(weights - exact).max(-1) <= allowed)[~lost])
    spent, possible = (costs.astype(float) * weights).sum(-1), budget.astype(float)
    possible = np.minimum(possible, costs.astype(float).sum(-1))
    assert np.all((np.abs(spent - possible) <= TOTAL[str(x.dtype)] * possible)[~lost])
    assert np.all((weights >= 0) & (weights <= 1), axis=-1)[~lost].all()


@every_link
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_kernel_alone_meets_the_oracle(link, dtype):
    rng = np.random.default_rng(LINKS.index(link))
    for n in (5, 40):
        check(oracles_knapsack.rows(rng, 100, n, dtype), link)


@pytest.mark.full
@every_link
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_kernel_alone_meets_the_oracle_on_many_rows(link, dtype):
    rng = np.random.default_rng(50 + LINKS.index(link))
    for _ in range(2):
        for n, most_lost in ((1, 0.1), (2, 0.2), (3, 0.2), (6, 0.1), (17, 0.1), (100, 0.1)):
            check(oracles_knapsack.rows(rng, 300, n, dtype), link, most_lost)


@every_link
@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_ordinary_rows_are_not_given_up(link, scale):
    """Normal scores at any temperature of training, costs of a hundredfold range."""
    rng = np.random.default_rng(7)
    for dtype in ("float32", "float64"):
        x = (scale * rng.standard_normal((200, 50))).astype(dtype)
        costs = (10.0 ** rng.uniform(-1, 1, x.shape)).astype(dtype)
        budget = (costs.sum(-1) * rng.uniform(0.05, 0.95, 200)).astype(dtype)
        assert solved((x, costs, budget), link)[2].mean() <= 0.03


def of_links():
    return [*LINKS, pytest.param(links.entmax(1.3), id="entmax1.3")]


def gradients(x, costs, budget, temperature, v, link, **options):
    leaves = [a.clone().requires_grad_() for a in (x, costs, budget, temperature)]
    rows = leaves[:3]
    soft_knapsack(*rows, link=link, temperature=leaves[3], **options).backward(v)
    return [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("link", of_links())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_meet_those_of_the_array_code(link, dtype, monkeypatch):
    generator = torch.Generator().manual_seed(1)
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    x, v = (normal(30, 20) for _ in range(2))
    costs = torch.rand(30, 20, generator=generator, dtype=torch.float64) * 3
    costs[:, 3] = 0
    budget, t = costs.sum(-1) * torch.linspace(0.05, 0.95, 30), torch.linspace(0.1, 3, 30)
    rows = [a.to(dtype) for a in (x, costs, budget, t, v)]
    wanted = reference(monkeypatch, gradients, *(row.double() for row in rows), link)
    for one, other in zip(gradients(*rows, link), wanted, strict=True):
        scale = other.abs().amax(-1, keepdim=True) if other.ndim == 2 else other.abs().max()
        error = (one.double() - other).abs() / scale.clamp(min=0.1)
        assert error.max() < {torch.float32: 2e-5, torch.float64: 1e-11}[dtype]


def test_rows_that_kernels_give_up_on_are_the_array_code_s(monkeypatch):
    x = torch.tensor([[3.0, 2.0, 1.0, 0.5]]).repeat(8, 1)
    costs, budget = torch.tensor([[4.0, 1.0, 1.0, 2.0]]).repeat(8, 1), torch.full((8,), 4.0)
    x[0, 1], x[1, 2], x[2, 0], costs[3, 0], costs[4, 1], costs[5, 1] = NAN, INF, -INF, NAN, -1, INF
    budget[6] = 8.0
    x[7] = torch.tensor([30.0, 60.0, 10.0, -80.0])  # the first costs the budget
    t = torch.full((8,), 0.01)
    v = torch.arange(32.0).reshape(8, 4)
    for dtype in (torch.float32, torch.float64):
        rows = [a.to(dtype) for a in (x, costs, budget)]
        p = soft_knapsack(*rows, temperature=t.to(dtype))
        wanted = reference(monkeypatch, soft_knapsack, *rows, temperature=t.to(dtype))
        assert torch.allclose(p, wanted, equal_nan=True)
        given = *rows, t.to(dtype), v.to(dtype), "logistic"
        slopes, others = gradients(*given), reference(monkeypatch, gradients, *given)
        for one, other in zip(slopes, others, strict=True):
            assert torch.allclose(one, other, equal_nan=True, atol=1e-4)


@pytest.mark.parametrize("size", [1e10, 1e13, 1e16])
@pytest.mark.parametrize("function", [soft_knapsack_threshold, soft_knapsack_value])
def test_slopes_where_scores_are_far_beyond_the_temperature(function, size, monkeypatch):
    """Two float32 are too few digits of θ there: dθ/dB was off by 2e-5 to 1e27 times itself."""
    rng = np.random.default_rng(0)
    x, costs = size * rng.standard_normal((30, 40)), rng.uniform(0.1, 1, (30, 40))
    budget = costs.sum(-1) * rng.uniform(0.2, 0.8, 30)
    given = x, costs, budget, np.linspace(0.5, 2, 30)
    rows = [torch.tensor(row.astype(np.float32)) for row in given]

    def pulled(*rows):
        leaves = [row.detach().requires_grad_() for row in rows]
        answer = function(*leaves[:3], temperature=leaves[3])
        return torch.autograd.grad((answer * answer.new_tensor(1.5)).sum(), leaves)

    exact = reference(monkeypatch, pulled, *(row.double() for row in rows))
    for found, wanted in zip(pulled(*rows), exact, strict=True):
        wide = wanted.reshape(30, -1).abs().amax(-1)
        off = (found - wanted).reshape(30, -1).abs().amax(-1)
        assert (off <= 1e-5 * wide + 1e-6).all()


def test_a_row_does_not_depend_on_others_or_on_threads(monkeypatch):
    rng = np.random.default_rng(2)
    x = rng.standard_normal((64, 2000)).astype("f4")
    costs = rng.random(2000).astype("f4")
    budget = np.full(64, 100, "f4")
    found = {}
    for threads in ("1", "3"):
        monkeypatch.setenv("KOFN_NUM_THREADS", threads)
        found[threads] = soft_knapsack(x, costs, budget)
    assert np.array_equal(found["1"], found["3"])
    assert np.array_equal(soft_knapsack(x[5], costs, budget[5]), found["1"][5])
    each = np.ascontiguousarray(np.broadcast_to(costs, x.shape))
    assert np.array_equal(soft_knapsack(x, each, budget), found["1"])


def test_a_long_row_is_the_same_for_any_number_of_threads(monkeypatch):
    rng = np.random.default_rng(3)
    x, costs = rng.standard_normal(200_000), rng.random(200_000)
    found = {}
    for threads in ("1", "3"):
        monkeypatch.setenv("KOFN_NUM_THREADS", threads)
        found[threads] = soft_knapsack(x, costs, 2e4)
    assert np.array_equal(found["1"], found["3"])
    assert abs(found["1"] @ costs - 2e4) < 1e-8


def test_prices_of_kernels_are_those_of_the_array_code(monkeypatch):
    rng = np.random.default_rng(4)
    for dtype, tolerance in (("float32", 2e-6), ("float64", 1e-13)):
        rows = oracles_knapsack.rows(rng, 200, 12, dtype)
        theta = soft_knapsack_threshold(*rows)
        wanted = reference(monkeypatch, soft_knapsack_threshold, *rows)
        assert np.allclose(theta, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("link", of_links())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_their_gradients_are_those_of_the_array_code(link, dtype, monkeypatch):
    rng = np.random.default_rng(9)
    x, costs, budget = oracles_knapsack.rows(rng, 60, 12, "float64")
    t, budget = np.linspace(0.05, 3, 60), 0.99 * budget  # in no gap between bounded supports
    costs[:6, 2:5] = 0  # free
    budget[1], budget[2] = 0, costs[2].sum() + 1
    x[3, 3], x[4], x[5, 3], x[6, 0] = -INF, -INF, INF, NAN
    rows = [torch.tensor(a).to(dtype) for a in (x, costs, budget, t)]

    def pulled(rows):
        leaves = [a.clone().requires_grad_() for a in rows]
        found = soft_knapsack_value(*leaves[:3], link=link, temperature=leaves[3])
        return found.detach(), *torch.autograd.grad(found.sum(), leaves)

    wanted = reference(monkeypatch, pulled, [row.double() for row in rows])
    tolerance = {torch.float32: 2e-6, torch.float64: 1e-13}[dtype]
    large = rows[0].double().nan_to_num(0, 0, 0).abs().sum(-1) + rows[3]
    for one, other in zip(pulled(rows), wanted, strict=True):
        size = large[:, None] if other.ndim == 2 else large
        close = torch.isclose(one.double(), other, rtol=tolerance, atol=0, equal_nan=True)
        assert (close | ((one.double() - other).abs() <= tolerance * size)).all()
    plain = soft_knapsack_value(*rows[:3], link=link, temperature=rows[3])
    assert torch.equal(plain.nan_to_num(), pulled(rows)[0].nan_to_num())


def test_what_is_masked_may_cost_anything():
    x = np.array([[1.0, 2.0, -INF, 0.5], [1.0, 2.0, -1.7e308, 0.5]])
    for bad in (NAN, INF, -1.0, 1e300):
        costs = np.array([1.0, 2.0, bad, 1.0])
        p = soft_knapsack(x, costs, 2.0)
        wanted = soft_knapsack(x[:, [0, 1, 3]], costs[[0, 1, 3]], 2.0)
        assert np.allclose(p, np.insert(wanted, 2, 0.0, axis=1), atol=1e-15)


def test_inputs_are_left_alone_and_may_be_read_only():
    x, costs = np.ones((3, 4)), np.arange(1.0, 5.0)
    for array in (x, costs):
        array.setflags(write=False)
    assert np.allclose(soft_knapsack(x, costs, 2.0) @ costs, 2.0)
    y = torch.randn(4, 3).t()
    assert torch.allclose(soft_knapsack(y, 2.0, 3.0), soft_knapsack(y.contiguous(), 2.0, 3.0))
    assert soft_knapsack(torch.ones(0, 4), 1.0, 2.0).shape == (0, 4)
    assert soft_knapsack(torch.ones(4, 0), 1.0, 2.0).shape == (4, 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hard_choices_are_those_of_the_array_code(dtype, monkeypatch):
    rng = np.random.default_rng(5)
    for trial in range(60):
        n = int(rng.integers(1, 40))
        x = np.round(rng.standard_normal((8, n)) * 2, trial % 3).astype(dtype)
        costs = rng.integers(0, 5, (8, n)) if trial % 2 else rng.random((8, n))
        costs = (costs / (10 if trial % 5 == 0 else 1)).astype(dtype)
        budget = np.round(costs.sum(-1) * rng.random(8), 1).astype(dtype)
        if trial % 4 == 0:
            x[0, 0], x[1, -1], x[2, 0], budget[3], budget[4] = NAN, INF, -INF, INF, 0
            costs[5, 0] = INF
        found = soft_knapsack(x, costs, budget, hard=True)
        wanted = reference(monkeypatch, soft_knapsack, x, costs, budget, hard=True)
        assert np.array_equal(found, wanted, equal_nan=True)


def test_hard_rows_of_any_length_and_memory():
    rng = np.random.default_rng(6)
    x, costs = rng.standard_normal((70, 1500)), rng.random(1500)
    chosen = soft_knapsack(x, costs, 40.0, hard=True)
    for i in (0, 69):
        limit = oracles_knapsack.fractional(x[i], costs, 40.0)
        assert np.array_equal(chosen[i], np.floor(limit + 1e-9))
    t = torch.from_numpy(x).t()
    again = soft_knapsack(t, torch.from_numpy(costs)[:, None], 40.0, dim=0, hard=True)
    assert np.array_equal(again.t().numpy(), chosen)


def compiled(x, costs, budget, temperature, hard=False):
    return soft_knapsack(x, costs, budget, temperature=temperature, hard=hard)


@pytest.mark.parametrize("hard", [False, pytest.param(True, marks=pytest.mark.full)])
def test_compiled_functions_call_the_kernels_in_one_graph(hard):
    torch._dynamo.reset()
    graphs = []

    def backend(graph, example):
        graphs.append(str(graph.code))
        return graph.forward

    traced = torch.compile(partial(compiled, hard=hard), fullgraph=True, backend=backend)
    costs, t = torch.rand(20) + 0.1, torch.tensor(0.5)
    for rows in (3, 5, 8):
        x, v = torch.randn(rows, 20), torch.randn(rows, 20)
        found = []
        for function in (traced, partial(compiled, hard=hard)):
            leaves = [a.clone().requires_grad_() for a in (x, costs, costs.sum() * 0.3, t)]
            y = function(*leaves)
            found.append((y, *torch.autograd.grad(y, leaves, v)))
        for one, other in zip(*found, strict=True):
            assert torch.equal(one, other)
    assert len(graphs) <= 2
    assert "kofn.knapsack" in graphs[0]
    leaf = torch.randn(3, 20, requires_grad=True)
    y = traced(leaf, costs, costs.sum() * 0.3, t)
    slope = torch.autograd.grad(y.square().sum(), leaf, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="first derivatives only"):
        slope.sum().backward()


def test_second_derivatives_and_transforms_are_right_beside_kernels():
    x, costs = torch.randn(2, 5, dtype=torch.float64), torch.rand(2, 5, dtype=torch.float64) + 0.2
    v = torch.randn(2, 5, dtype=torch.float64)

    def total(x, costs):
        return (soft_knapsack(x, costs, 2.0) * v).sum()

    leaves = [a.clone().requires_grad_() for a in (x, costs)]
    first = torch.autograd.grad(total(*leaves), leaves, create_graph=True)
    second = torch.autograd.grad((first[0] * v).sum() + (first[1] * v).sum(), leaves)
    for one, other in zip(first, torch.func.grad(total, (0, 1))(x, costs), strict=True):
        assert torch.allclose(one, other, atol=1e-12)

    def along(x, costs):
        slopes = torch.func.grad(total, (0, 1))(x, costs)
        return (slopes[0] * v).sum() + (slopes[1] * v).sum()

    for one, other in zip(second, torch.func.grad(along, (0, 1))(x, costs), strict=True):
        assert torch.allclose(one, other, atol=1e-10)
    each = torch.func.vmap(soft_knapsack, (0, 0, None))(x, costs, 2.0)
    assert torch.allclose(each, soft_knapsack(x, costs, 2.0), atol=1e-13)


def test_a_change_in_place_after_the_call_is_noticed():
    x = torch.randn(3, 6, requires_grad=True)
    scores, costs = x * 1, torch.rand(6) + 0.1
    p = soft_knapsack(scores, costs, 1.0)
    with torch.no_grad():
        scores += 1
    with pytest.raises(RuntimeError, match="inplace"):
        p.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_rounded_float32(dtype):
    x, costs = torch.randn(4, 30).to(dtype), (torch.rand(30) + 0.1).to(dtype)
    p = soft_knapsack(x, costs, 3.0)
    assert torch.equal(p, soft_knapsack(x.float(), costs.float(), 3.0).to(dtype))
    leaf = x.clone().requires_grad_()
    soft_knapsack(leaf, costs, 3.0)[:, 0].sum().backward()
    assert leaf.grad.dtype == dtype


def test_transforms_of_torch_have_the_digits_of_array_code(monkeypatch):
    generator = np.random.default_rng(5)
    x, costs = (generator.normal(size=(40, 300)), generator.exponential(size=(40, 300)) + 0.1)
    rows = tuple(torch.tensor(each, dtype=torch.float32) for each in (x, costs))
    of = partial(soft_knapsack, budget=40.0, link=links.entmax(1.3), temperature=0.01)
    tangent = partial(torch.func.jvp, of, rows, (torch.ones(40, 300), torch.zeros(40, 300)))
    found = tangent()
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    for one, other in zip(found, tangent(), strict=True):
        assert torch.equal(one, other)

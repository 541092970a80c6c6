"""One soft top-k over a list of tensors: the row of all of them, without putting them together."""

import math

import numpy as np
import pytest
import torch

import oracles
from kofn import (
    hard_topk,
    links,
    soft_knapsack,
    soft_knapsack_threshold,
    soft_topk,
    soft_topk_threshold,
)
from kofn.links import table
from kofn.streaming import tensor_gradient
from kofn.streaming import tensors as of_tensors
from kofn.streaming.equation import Equation
from kofn.streaming.tensor_choice import choose
from kofn.streaming.tensors import Pieces
from support import every_link

SHAPES = [(3, 4, 5), (70,), (1,), (2, 9)]


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture(params=[2**16, 7], ids=["one chunk", "small chunks"])
def chunks(request, monkeypatch):
    monkeypatch.setitem(of_tensors.CHUNKS, "cpu", request.param)


def pieces(dtype=torch.float32, spread=1.0):
    return [(torch.randn(shape) * spread).to(dtype) for shape in SHAPES]


def together(tensors):
    return torch.cat([x.reshape(-1) for x in tensors])


def equation(tensors, k, temperature, link, costs=None):
    costs = [1.0] * len(tensors) if costs is None else costs
    total = float(sum((c * torch.ones_like(x)).sum() for c, x in zip(costs, tensors, strict=True)))
    return Equation(Pieces(tensors, costs), k, total, temperature, table.resolve(link))


@every_link
@pytest.mark.parametrize("temperature", [1.0, 0.05, 1e-3])
def test_the_threshold_is_that_of_the_whole_row(link, temperature, chunks):
    for k in (0.5, 3.0, 40.0, 148.5):
        tensors = pieces()
        whole = together(tensors).double()
        one = equation(tensors, k, temperature, link)
        wanted = soft_topk_threshold(whole, k, link=link, temperature=temperature).item()
        p = soft_topk(whole, k, link=link, temperature=temperature)
        theta = one.solve()
        found = tensor_gradient.weights(whole, 1.0, placed(one, theta))
        assert (found - p).abs().max() <= 2e-6
        assert float(found.sum()) == pytest.approx(k, abs=1e-6 * max(k, 1))
        if torch.minimum(p, 1 - p).sum() > 1e-3:  # else θ may lie anywhere in a gap
            assert theta == pytest.approx(wanted, abs=2e-6 * (temperature + abs(wanted)))


def placed(one, theta):
    at = torch.tensor(theta, dtype=torch.float64)
    return tensor_gradient.Placed(at, theta, one.temperature, one.link)


def test_a_guess_changes_nothing_but_the_time():
    tensors = pieces(spread=3.0)
    for temperature in (1.0, 0.1, 0.01):
        one = equation(tensors, 20.0, temperature, "logistic")
        theta = one.solve()
        for guess in (theta, theta + temperature, theta - 0.2, -1e6, math.inf, math.nan):
            assert one.solve(guess) == pytest.approx(theta, abs=1e-5 * temperature)


@every_link
def test_gradients_are_those_of_the_dense_oracle(link, chunks):
    """Through θ, from every tensor to every tensor."""
    for dtype in (torch.float32, torch.float64):
        tensors = [x.requires_grad_() for x in pieces(dtype)]
        scales = [torch.randn_like(x, requires_grad=True) for x in tensors]
        k, temperature = 30.0, 0.3
        at = tensor_gradient.place(equation(tensors, k, temperature, link), math.nan)
        back = [torch.randn_like(x) for x in tensors]
        products = [
            tensor_gradient.chosen(w, x, 1.0, at) for w, x in zip(scales, tensors, strict=True)
        ]
        found = torch.autograd.grad(products, [*scales, *tensors], back)
        row, v = together(tensors).detach().numpy(), together(back) * together(scales).detach()
        p = oracles.soft_topk(row, k, temperature, oracles.CDF[link])
        wanted = oracles.vjp(row, k, temperature, link, v.detach().numpy()).values[0]
        tolerance = 2e-5 if dtype == torch.float32 else 1e-9
        norm = np.linalg.norm(wanted)
        assert np.linalg.norm(together(found[4:]).numpy() - wanted) <= tolerance * norm
        assert norm > 0.1
        expected = together(back).numpy() * p
        assert np.abs(together(found[:4]).numpy() - expected).max() <= 2e-5


def test_costs_are_those_of_the_knapsack(chunks):
    tensors = [x.double().requires_grad_() for x in pieces()]
    each = [torch.rand(x.shape, dtype=torch.float64) + 0.2 for x in tensors]
    for costs in ([2.0, 0.5, 1.0, 3.0], each):
        whole = together(tensors).detach().requires_grad_()
        prices = together([c * torch.ones_like(x) for c, x in zip(costs, tensors, strict=True)])
        prices = prices.detach()
        for temperature in (0.5, 0.02):
            budget = 0.3 * float(prices.sum())
            one = equation(tensors, budget, temperature, "logistic", costs)
            at = tensor_gradient.place(one, math.nan)
            wanted = soft_knapsack_threshold(whole, prices, budget, temperature=temperature)
            assert at.number == pytest.approx(wanted.item(), abs=1e-9)
            scales, back = [torch.randn_like(x) for x in tensors], torch.randn_like(whole)
            found = together(
                [
                    tensor_gradient.chosen(w, x, c, at)
                    for w, x, c in zip(scales, tensors, costs, strict=True)
                ]
            )
            dense = soft_knapsack(whole, prices, budget, temperature=temperature)
            dense = dense * together(scales)
            assert torch.allclose(found, dense, atol=1e-8)
            ours = together(torch.autograd.grad((found * back).sum(), tensors))
            theirs = torch.autograd.grad((dense * back).sum(), whole)[0]
            assert torch.allclose(ours, theirs, atol=1e-7)
            assert theirs.norm() > 1e-3
            hard = soft_knapsack(whole.detach(), prices, budget, hard=True) > 0.5
            assert torch.equal(together(choose(one.pieces, budget)), hard)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_hard_choice_is_exact_and_takes_ties_in_order(dtype, chunks):
    for number in range(6):
        tensors = [torch.randint(-2, 3, shape).to(dtype) for shape in SHAPES]
        tensors[1] = torch.randn(70).to(dtype)
        tensors[0][0, 0] = torch.tensor([0.0, -0.0, math.inf, -math.inf, 0.0])
        for k in (0, 1, 17 + number, 80, 148, 149):
            found = together(choose(Pieces(tensors, [1.0] * 4), float(k)))
            assert found.sum() == k
            whole = together(tensors).float()
            whole = whole.nan_to_num(posinf=1e30, neginf=-1e30)
            assert torch.equal(found, hard_topk(whole, k) > 0.5)


def test_edges_of_the_budget_and_bad_numbers():
    tensors = pieces()
    assert equation(tensors, 0.0, 1.0, "logistic").solve() == math.inf
    assert equation(tensors, 149.0, 1.0, "logistic").solve() == -math.inf
    assert math.isnan(equation(tensors, 5.0, math.nan, "logistic").solve())
    for k, p in ((0.0, 0.0), (149.0, 1.0)):
        scores = [x.clone().requires_grad_() for x in tensors]
        at = tensor_gradient.place(equation(scores, k, 1.0, "logistic"), math.nan)
        found = tensor_gradient.chosen(torch.ones(70), scores[1], 1.0, at)
        assert (found == p).all()
        grads = torch.autograd.grad(found.sum(), scores, allow_unused=True)
        assert all((grad == 0).all() for grad in grads)
    tensors[2][0] = math.nan
    assert math.isnan(equation(tensors, 5.0, 1.0, "logistic").solve())


def test_a_link_of_ones_own():
    own = links.Link(torch.sigmoid, lambda z: torch.sigmoid(z) * torch.sigmoid(-z))
    numpy_own = table.resolve("logistic")
    own.quantile = numpy_own.quantile
    tensors = pieces()
    one = equation(tensors, 12.0, 0.3, own)
    assert one.solve() == pytest.approx(equation(tensors, 12.0, 0.3, "logistic").solve(), abs=1e-6)


def test_scores_that_change_before_the_backward_pass_are_noticed():
    tensors = [x.requires_grad_() for x in pieces()]
    at = tensor_gradient.place(equation(tensors, 30.0, 1.0, "logistic"), math.nan)
    product = tensor_gradient.chosen(torch.ones(70), tensors[1], 1.0, at)
    with torch.no_grad():
        tensors[0] += 1
    with pytest.raises(RuntimeError, match="scores were changed in place"):
        product.sum().backward()


def test_second_derivatives_and_forward_mode_are_refused():
    tensors = [x.requires_grad_() for x in pieces()]
    at = tensor_gradient.place(equation(tensors, 30.0, 1.0, "logistic"), math.nan)
    product = tensor_gradient.chosen(torch.ones(70), tensors[1], 1.0, at)
    (grad,) = torch.autograd.grad(product.square().sum(), tensors[1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()

    def of(x):
        one = equation([x, *tensors[1:]], 30.0, 1.0, "logistic")
        return tensor_gradient.place(one, math.nan).theta

    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.func.jvp(of, (torch.randn(3, 4, 5),), (torch.randn(3, 4, 5),))


@pytest.mark.parametrize("cost", [1e-200, 1e150, 1e200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_costs_whose_powers_overflow_or_underflow_raise_nothing(cost, dtype):
    x = [torch.linspace(-1, 1, 5, dtype=dtype), torch.linspace(-2, 0, 3, dtype=dtype)]
    for share in (1e-9, 0.3, 1 - 2**-40):
        for link in ("logistic", "linear"):
            budget, total = share * 11 * cost, 11 * cost
            pieces = Pieces(x, [cost, 2 * cost])
            assert type(Equation(pieces, budget, total, 1.0, table.resolve(link)).solve()) is float


@pytest.mark.parametrize("spread", [1e-38, 1e20, 1e37])
def test_products_that_overflow_leave_a_threshold(spread):
    x = [torch.tensor([1.0, -2, 3]) * spread, torch.tensor([0.5, 2.5]) * spread]
    theta = Equation(Pieces(x, [1e30, 1e30]), 2e30, 5e30, 1e-3, table.resolve("laplace")).solve()
    assert math.isfinite(theta)
    assert spread < 1 or spread <= theta * 1e30 <= 2.5 * spread

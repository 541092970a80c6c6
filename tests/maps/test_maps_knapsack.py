"""soft_knapsack against oracles, its laws, and its special cases."""

import math

import numpy as np
import pytest
import torch

import oracles
from kofn import (
    Link,
    links,
    soft_knapsack,
    soft_knapsack_threshold,
    soft_knapsack_value,
    soft_topk,
    soft_topk_sum,
    soft_topk_threshold,
)
from oracles import knapsack as oracles_knapsack
from support import LINKS, TOTAL, WEIGHTS, Framework, every_link

INF, NAN = math.inf, math.nan
X = [[3.0, 2.0, 1.0, 0.5, -1.0], [0.2, -0.4, 1.5, -3.0, 0.7]]
COSTS = [[4.0, 1.0, 1.0, 2.0, 0.5], [0.5, 2.0, 1.0, 3.0, 0.25]]
BUDGET = [4.0, 2.5]


@pytest.fixture(params=["numpy", "torch", pytest.param("jax", marks=pytest.mark.full)])
def framework(request):
    """JAX compiles for seconds; an ordinary run has it in test_maps_knapsack_gradients.py."""
    return Framework(request.param)


def check(x, costs, budget, link, framework, dtype):
    given = [framework.array(a, dtype) for a in (x, costs, budget)]
    p = framework.numpy(soft_knapsack(*given, link=link))
    x, costs, budget = (framework.numpy(a) for a in given)
    taken = oracles_knapsack.weights(x, costs, budget, link)
    reach = np.abs(x).max(-1)
    rounding = {"float64": 4e-16, "float32": 1.2e-7}[dtype]
    error = np.abs(p - taken.astype(float)).max(-1)
    assert np.all(error <= WEIGHTS[dtype] + rounding * np.maximum(0, reach - 30))
    spent = (costs.astype(np.longdouble) * p).sum(-1)
    possible = np.minimum(budget, costs.astype(np.longdouble).sum(-1))
    assert np.all(np.abs(spent - possible) <= 4 * TOTAL[dtype] * possible)
    assert np.all((p >= 0) & (p <= 1))


@every_link
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_meets_the_oracle(link, dtype):
    rng = np.random.default_rng(LINKS.index(link))
    for n in (2, 5, 40):
        rows = oracles_knapsack.rows(rng, 60, n, dtype)
        check(*rows, link, Framework("numpy"), dtype)


@every_link
@pytest.mark.parametrize("name", ["torch", pytest.param("jax", marks=pytest.mark.full)])
def test_other_frameworks_meet_it_in_single_precision(link, name):
    rng = np.random.default_rng(LINKS.index(link))
    check(*oracles_knapsack.rows(rng, 60, 12, "float32"), link, Framework(name), "float32")


@pytest.mark.full
@every_link
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_meets_the_oracle_on_many_rows(link, dtype):
    rng = np.random.default_rng(LINKS.index(link))
    for _ in range(10):
        for n in (2, 3, 6, 12, 40):
            rows = oracles_knapsack.rows(rng, 2000, n, dtype)
            check(*rows, link, Framework("numpy"), dtype)


@every_link
def test_equal_costs_are_soft_topk(link, framework):
    x = framework.array(X)
    options = {"link": link, "temperature": 0.5}
    price, k = 3.0, 2.5
    near = {"rtol": 1e-12, "atol": 1e-12}
    for of, over in ((soft_knapsack, soft_topk), (soft_knapsack_value, soft_topk_sum)):
        found, wanted = of(x, price, price * k, **options), over(x, k, **options)
        assert np.allclose(framework.numpy(found), framework.numpy(wanted), **near)
    theta = soft_knapsack_threshold(x, price, price * k, **options) * price
    assert np.allclose(
        framework.numpy(theta), framework.numpy(soft_topk_threshold(x, k, **options)), **near
    )


@every_link
def test_a_cost_times_a_number_added_to_the_scores_moves_the_price(link):
    x, costs, budget = map(np.array, (X, COSTS, BUDGET))
    a = np.array([[5.0], [-2.0]])
    p, q = (soft_knapsack(s, costs, budget, link=link) for s in (x, x + a * costs))
    assert np.allclose(p, q, atol=1e-13)
    one, other = (soft_knapsack_threshold(s, costs, budget, link=link) for s in (x, x + a * costs))
    assert np.allclose(one + a[:, 0], other, atol=1e-12)


@every_link
def test_the_unit_of_costs_divides_the_price(link):
    x, costs, budget = map(np.array, (X, COSTS, BUDGET))
    for unit in (1e-150, 1e-9, 3.0, 1e12, 1e140):
        scaled = soft_knapsack(x, costs * unit, budget * unit, link=link)
        assert np.allclose(scaled, soft_knapsack(x, costs, budget, link=link), atol=1e-12)
        theta = soft_knapsack_threshold(x, costs * unit, budget * unit, link=link)
        whole = soft_knapsack_threshold(x, costs, budget, link=link)
        assert np.allclose(theta * unit, whole, rtol=1e-11)


def test_order_is_kept_among_equal_costs():
    rng = np.random.default_rng(3)
    x, costs = rng.standard_normal((50, 12)), rng.integers(1, 4, (50, 12)).astype(float)
    p = soft_knapsack(x, costs, 6.0)
    for i in range(12):
        for j in range(12):
            ordered = (costs[:, i] == costs[:, j]) & (x[:, i] >= x[:, j])
            assert np.all((p[:, i] >= p[:, j])[ordered])


@every_link
def test_a_low_temperature_gives_the_fractional_knapsack(link):
    rng = np.random.default_rng(4)
    x, costs = rng.standard_normal((40, 9)), 10.0 ** rng.uniform(-2, 2, (40, 9))
    budget = costs.sum(-1) * rng.uniform(0.01, 0.99, 40)
    p = soft_knapsack(x, costs, budget, link=link, temperature=1e-9)
    wanted = [oracles_knapsack.fractional(*row) for row in zip(x, costs, budget, strict=True)]
    assert np.allclose(p, wanted, atol=1e-6)


# Budgets that the entries before a gap spend exactly: all tails have underflowed in float32.
GAP = ([10.0, 19.0, 9.2, -18.0, -10.0, -28.5], [1.0, 2.0, 1.0, 2.0, 1.0, 3.0], 4.0)


@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.03, 0.004])
def test_a_budget_that_is_spent_exactly_has_a_price_in_the_gap(temperature, framework):
    x, costs, budget = GAP
    exact = oracles_knapsack.plateau(x, costs, budget, temperature)
    for dtype, tolerance in (("float32", 2e-5), ("float64", 1e-11)):
        given = framework.array([x], dtype), framework.array([costs], dtype)
        theta = soft_knapsack_threshold(*given, budget, temperature=temperature)
        assert abs(float(theta[0]) - exact) < tolerance
        p = framework.numpy(soft_knapsack(*given, budget, temperature=temperature))
        if temperature < 0.5:
            assert np.allclose(p, [[1, 1, 1, 0, 0, 0]], atol=1e-12)


@every_link
def test_entries_that_cost_nothing_keep_their_own_weight(link, framework):
    x, costs = framework.array([[0.3, 1.0, -0.2, 2.0]]), framework.array([[0.0, 1, 2, 1]])
    own = float(oracles.CDF[link](np.longdouble(0.3) / np.longdouble(0.7)))
    for budget in (0.0, 1.5, 4.0, 7.0):
        p = framework.numpy(soft_knapsack(x, costs, budget, link=link, temperature=0.7))[0]
        assert abs(p[0] - own) < 1e-14
        assert abs(p[1:] @ [1, 2, 1] - min(budget, 4)) < 1e-13


def test_budgets_at_and_beyond_the_ends(framework):
    x, costs = framework.array(X), framework.array(COSTS)
    budget = framework.array([0.0, INF])
    assert np.array_equal(framework.numpy(soft_knapsack(x, costs, budget)), [[0] * 5, [1] * 5])
    theta = framework.numpy(soft_knapsack_threshold(x, costs, budget))
    assert np.array_equal(theta, [INF, -INF])
    value = framework.numpy(soft_knapsack_value(x, costs, budget))
    assert np.allclose(value, [0.0, sum(X[1])])
    assert np.array_equal(framework.numpy(soft_knapsack(x, costs, INF)), np.ones((2, 5)))
    assert np.array_equal(framework.numpy(soft_knapsack(x, costs, 0)), np.zeros((2, 5)))


def test_a_budget_is_spent_even_where_leaving_some_would_pay(framework):
    """Scores below 0 are a loss: the price of a unit of cost is below 0, and all is spent."""
    x = framework.array([[-1.0, -2.0, -5.0]])
    costs, budget = framework.array([[1.0, 2.0, 3.0]]), framework.array([5.0])
    assert framework.numpy(soft_knapsack_threshold(x, costs, budget))[0] < 0
    p = framework.numpy(soft_knapsack(x, costs, budget))[0]
    assert p @ [1, 2, 3] == pytest.approx(5, abs=1e-12)


def test_scores_of_infinity_share_a_budget_that_does_not_suffice(framework):
    x = framework.array([[INF, 1.0, INF, 0.5, -INF]] * 4)
    costs = framework.array([[2.0, 1.0, 1.0, 1.0, 1.0]] * 3 + [[0.0, 1.0, 1.0, 1.0, 1.0]])
    budget = framework.array([1.5, 3.0, 4.0, 0.25])
    p = framework.numpy(soft_knapsack(x, costs, budget))
    q = 1 / (1 + math.exp(-0.25))
    assert np.allclose(p[0], [0.5, 0, 0.5, 0, 0])
    assert np.allclose(p[1], [1, 0, 1, 0, 0])
    assert np.allclose(p[2], [1, q, 1, 1 - q, 0])
    assert np.allclose(p[3], [1, 0, 0.25, 0, 0])
    assert np.all(framework.numpy(soft_knapsack_value(x, costs, budget)) == INF)


def test_a_nan_or_a_bad_number_stays_in_its_row(framework):
    x = np.tile(X[0], (7, 1))
    costs, budget, temperature = np.tile(COSTS[0], (7, 1)), np.full(7, 4.0), np.ones(7)
    x[0, 1], costs[1, 2], costs[2, 2], costs[3, 2] = NAN, NAN, -1.0, INF
    budget[4], budget[5] = NAN, -0.5
    given = [framework.array(a) for a in (x, costs, budget, temperature)]
    for function in (soft_knapsack, soft_knapsack_threshold, soft_knapsack_value):
        found = framework.numpy(function(*given[:3], temperature=given[3]))
        assert np.all(np.isnan(found[:6])), function
        assert not np.any(np.isnan(found[6]))
    hard = framework.numpy(soft_knapsack(*given[:3], hard=True))
    assert np.all(np.isnan(hard[:6]))
    assert np.array_equal(hard[6], [0, 1, 1, 0, 0])


def test_masked_entries_cost_nothing_and_count_as_deleted(framework):
    x = framework.array([[3.0, 2.0, -INF, 1.0, 0.5], [0.0] * 5])
    costs = framework.array([[4.0, 1.0, NAN, 1.0, -2.0], [1.0] * 5])
    mask = framework.array([[1.0, 1, 1, 1, 0], [0.0] * 5]) > 0
    p = framework.numpy(soft_knapsack(x, costs, 3.0, mask=mask))
    wanted = soft_knapsack(np.array([3.0, 2.0, 1.0]), np.array([4.0, 1.0, 1.0]), 3.0)
    assert np.allclose(p[0], [*wanted[:2], 0, wanted[2], 0], atol=1e-15)
    assert np.array_equal(p[1], [0] * 5)
    theta = framework.numpy(soft_knapsack_threshold(x, costs, 3.0, mask=mask))
    assert np.isfinite(theta[0])
    assert np.isnan(theta[1])
    assert framework.numpy(soft_knapsack_value(x, costs, 3.0, mask=mask))[1] == 0


@pytest.mark.parametrize("link", LINKS)
def test_scores_more_temperatures_large_than_there_are_numbers_give_weights(link, framework):
    x = framework.array([4.25353e37, 4.253531e37, 4.253532e37, 4.253529e37], "float32")
    c = framework.array([0.67, 2.79, 265443.0, 1.5e-4], "float32")
    for share in (1e-3, 0.4, 0.999):
        p = soft_knapsack(x, c, share * 265446.0, link=link, temperature=1e-30)
        p = framework.numpy(p)
        assert ((p >= 0) & (p <= 1)).all()
        theta = soft_knapsack_threshold(x, c, share * 265446.0, link=link, temperature=1e-30)
        assert framework.numpy(theta) == pytest.approx(4.253532e37 / 265443, rel=1e-5)


def test_hard_fills_by_density_and_stops_at_what_does_not_fit(framework):
    x = framework.array([[6.0, 4.0, 3.0, 0.1, -1.0], [1.0, 2.0, 1.0, -5.0, 0.0], [2.0] * 5])
    costs = framework.array([[2.0, 2.0, 3.0, 0.5, 0.0], [0.0, 0, 1, 1, 0], [1.0] * 5])
    budget = framework.array([4.5, 7.0, 3.0])
    chosen = framework.numpy(soft_knapsack(x, costs, budget, hard=True))
    # The third of the first row does not fit, so the fourth is not bought, although it would fit.
    assert np.array_equal(chosen, [[1, 1, 0, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 0, 0]])
    x = framework.array([[INF, 1.0, INF]])
    chosen = framework.numpy(soft_knapsack(x, framework.array([[2.0, 1.0, 2.0]]), 3.0, hard=True))
    assert np.array_equal(chosen, [[1, 0, 0]])


def test_hard_never_spends_more_than_the_budget():
    rng = np.random.default_rng(5)
    x, costs = rng.standard_normal((200, 20)), rng.integers(0, 9, (200, 20)) / 10
    budget = costs.sum(-1) * rng.uniform(0, 1, 200)
    with np.errstate(all="raise"):
        chosen = soft_knapsack(x, costs, budget, hard=True)
    spent = (costs * chosen).sum(-1)
    assert np.all(spent <= budget + 1e-12)
    for i in range(len(x)):
        pays = costs[i] > 0
        limit = oracles_knapsack.fractional(x[i][pays], costs[i][pays], budget[i])
        assert np.array_equal(chosen[i][pays], np.floor(limit + 1e-9))
        assert np.array_equal(chosen[i][~pays], x[i][~pays] > 0)


def test_the_value_is_the_best_and_tends_to_the_fractional_one():
    x, costs, budget = np.array(X[0]), np.array(COSTS[0]), 4.0
    p = soft_knapsack(x, costs, budget)
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p)).sum()
    assert abs(soft_knapsack_value(x, costs, budget) - (p @ x + entropy)) < 1e-13
    best = oracles_knapsack.fractional(x, costs, budget) @ x
    assert abs(soft_knapsack_value(x, costs, budget, temperature=1e-8) - best) < 1e-6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["torch", pytest.param("jax", marks=pytest.mark.full)])
def test_half_types_come_back(name, dtype):
    framework = Framework(name)
    x, costs = framework.array(X, dtype), framework.array(COSTS, dtype)
    p = soft_knapsack(x, costs, framework.array(BUDGET, dtype))
    assert framework.dtype(p) == dtype
    wanted = soft_knapsack(np.array(X), np.array(COSTS), np.array(BUDGET))
    assert np.allclose(framework.numpy(p), wanted, atol=1e-2)
    assert framework.dtype(soft_knapsack_threshold(x, costs, 3.0)) == "float32"


def test_any_dimension_and_shapes_that_broadcast(framework):
    x, costs = framework.array(X).T, framework.array([[4.0], [1.0], [1.0], [2.0], [0.5]])
    p = framework.numpy(soft_knapsack(x, costs, framework.array(BUDGET), dim=0))
    wanted = soft_knapsack(np.array(X), np.array(COSTS[0]), np.array(BUDGET))
    assert np.allclose(p.T, wanted, atol=1e-15)
    empty = framework.array(np.zeros((3, 0)))
    assert soft_knapsack(empty, empty, 0.0).shape == (3, 0)
    assert soft_knapsack(framework.array(np.zeros((0, 3))), 1.0, 1.0).shape == (0, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(costs=-1.0), ValueError, "costs must be a finite number ≥ 0"),
        (dict(costs=INF), ValueError, "costs must be a finite number ≥ 0"),
        (dict(costs=NAN), ValueError, "costs must be a finite number ≥ 0"),
        (dict(costs=[1.0]), TypeError, "costs must be"),
        (dict(costs=np.ones(3)), ValueError, "costs has shape"),
        (dict(costs=torch.ones(5)), TypeError, "costs is a Tensor"),
        (dict(budget=-0.1), ValueError, "budget must be a number ≥ 0"),
        (dict(budget=NAN), ValueError, "budget must be a number ≥ 0"),
        (dict(budget="1"), TypeError, "budget must be"),
        (dict(budget=np.ones(3)), ValueError, "budget has shape"),
        (dict(temperature=0.0), ValueError, "temperature"),
        (dict(link="soft"), ValueError, "link"),
    ],
)
def test_errors_name_the_argument(arguments, error, message):
    given = {"costs": 1.0, "budget": 2.0, **arguments}
    with pytest.raises(error, match=message):
        soft_knapsack(np.array(X), **given)


def test_a_link_of_one_s_own():
    cauchy = Link(
        cdf=lambda z: 0.5 + np.arctan(z) / math.pi, pdf=lambda z: 1 / (math.pi * (1 + z * z))
    )
    p = soft_knapsack(np.array(X), np.array(COSTS), np.array(BUDGET), link=cauchy)
    assert np.allclose((p * COSTS).sum(-1), BUDGET)
    with pytest.raises(ValueError, match="integral"):
        soft_knapsack_value(np.array(X), 1.0, 2.0, link=cauchy)


@pytest.mark.parametrize("alpha", [1.0, 1.05, 1.3, 2.0, 3.5])
def test_alpha_of_entmax(alpha):
    rng = np.random.default_rng(6)
    x, costs, budget = oracles_knapsack.rows(rng, 50, 8, "float64")
    p = soft_knapsack(x, costs, budget, link=links.entmax(alpha))
    every = budget >= costs.sum(-1)
    spent = np.where(every, budget, (p * costs).sum(-1))
    assert np.allclose(spent, budget, rtol=1e-12)

"""An operation of a pass that stands beside it, and the texts of ways back that a maker writes."""

import numpy as np
import pytest
import torch

import kofn
from kofn.adapters import route
from kofn.kernels.cpu.rows import passes
from kofn.kernels.cpu.rows.passes import Pass
from kofn.links import table
from kofn.links.vocabulary import log, log_chance, log_rest, where
from kofn.operations import knapsack, topk
from kofn.operations.makers import summed
from kofn.rows.given import given_for_kernels

X = np.random.default_rng(5).normal(size=(4, 9)) * 2
INF, NAN = float("inf"), float("nan")


def coin(tail, upper, slope):
    """The entropy of a coin of which one side has this chance."""
    some = where(tail > 0, tail, 1.0)
    return -tail * log_chance(some) - (1.0 - tail) * log_rest(tail), 0.0 * slope


def coin_slope(p):
    inside = (p > 0) & (p < 1)
    q = where(inside, p, 0.5)
    return where(inside, log(1 - q) - log(q), 0 * p)


COIN = Pass(__name__, "COIN", coin)
passes.PASSES.remove(COIN)  # those of kofn alone are compiled with it
ENTROPY = summed("coins", COIN, coin_slope, "soft_topk_entropy")


def entropy(x, k, temperature=1.0, link="logistic"):
    checked = given_for_kernels(x, k, table.resolve(link), temperature, -1, None)
    with checked.form.quiet():
        return route.answer(ENTROPY, checked)


def expected(p):
    q = np.where((p > 0) & (p < 1), p, 0.5)
    each = np.where(q == p, -q * np.log(q) - (1 - q) * np.log1p(-q), 0 * p)
    return each.sum(-1)


def test_the_sum_is_that_of_the_weights_by_both_codes(monkeypatch):
    x, k = X.copy(), np.array([2.5, 2.0, 3.0, 0.0])
    x[1, :3], x[2, 0] = INF, NAN
    wanted = expected(kofn.soft_topk(x, k))
    np.testing.assert_allclose(entropy(x, k), wanted, rtol=1e-12)
    np.testing.assert_allclose(entropy(torch.tensor(x), torch.tensor(k)), wanted, rtol=1e-12)
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    np.testing.assert_allclose(entropy(x, k), wanted, rtol=1e-12)
    np.testing.assert_allclose(entropy(torch.tensor(x), torch.tensor(k)), wanted, rtol=1e-12)


@pytest.mark.parametrize("code", ["on", "reference"])
def test_it_has_derivatives_in_the_scores_k_and_the_temperature(code, monkeypatch):
    monkeypatch.setenv("KOFN_KERNELS", code)
    x, k, t = (
        torch.tensor(each, dtype=torch.float64, requires_grad=True)
        for each in (X[:2, :5], [1.5, 3.0], [0.7, 2.0])
    )
    assert torch.autograd.gradcheck(entropy, (x, k, t))
    assert torch.autograd.gradgradcheck(entropy, (x, k, t), fast_mode=True)


def test_weights_are_kept_for_the_way_back_alone():
    x = torch.tensor(X, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda a: kept.append(a) or a, lambda a: a):
        entropy(x, 2)
    assert sorted(each.numel() for each in kept) == [2 * len(X), X.size, X.size]
    with torch.no_grad():
        assert torch.equal(entropy(x, 2), entropy(x.detach(), 2))


def test_ways_back_are_written_from_what_an_operation_gives():
    """Compiled and saved programs know operators by these arguments."""
    (back,) = knapsack.PRICE.back
    assert back.name == "knapsack_threshold_backward"
    assert back.takes == "cotangent r, x n, theta 2, costs n, budget r, t r, link, of_costs int"
    assert knapsack.PRICE.takes == "x n, costs n, budget r, t r, link"
    (back,) = knapsack.KNAPSACK_VALUE.back
    assert back.takes == (
        "cotangent r, x n, weights n, theta 2, in_t r, costs n, budget r, t r, link"
    )
    assert knapsack.KNAPSACK_VALUE.takes.endswith("link, slopes int")
    assert topk.WEIGHTS_BACK.takes == "cotangent n, x n, theta 2, k #, t #, link"
    assert (topk.WEIGHTS_BACK.name, topk.WEIGHTS_BACK.ready) == ("weights_backward", "gradients")
    assert (topk.THETA.back[0].gives, topk.WEIGHTS_BACK.gives) == (
        "x n, k+t 2",
        "x n, k+t 2 if k t",
    )

"""k and the temperature at their ends, infinities and NaN."""

import math

import numpy as np
import pytest

import kofn
from kofn import (
    entmax,
    fenchel_young_loss,
    hard_topk,
    links,
    soft_topk,
    soft_topk_sum,
    soft_topk_threshold,
    softmax,
    sparsemax,
)
from support import CAUCHY, LINKS, Framework, every_link, soft_topk_gradients, with_gradients

INF, NAN = math.inf, math.nan
X = [[2.0, -1.0, 0.5, 1.0], [0.0, 3.0, 3.0, -2.0]]


# --- k at its ends ---


@every_link
def test_k_0_gives_zeros_and_k_n_ones(framework, link):
    x = framework.array(X)
    assert np.array_equal(framework.numpy(soft_topk(x, 0, link=link)), np.zeros((2, 4)))
    assert np.array_equal(framework.numpy(soft_topk(x, 4, link=link)), np.ones((2, 4)))


@with_gradients
@every_link
def test_the_gradient_in_k_is_0_at_its_ends(name, link):
    for k in (0.0, 4.0):
        gx, gk, gt = soft_topk_gradients(Framework(name), X, k, link=link)
        assert not np.any(gx)
        assert not np.any(gk)
        assert not np.any(gt)


def test_k_0_has_threshold_inf_and_value_0_and_k_n_minus_inf_and_the_sum(framework):
    x = framework.array(X)
    assert np.array_equal(framework.numpy(soft_topk_threshold(x, 0)), [INF, INF])
    assert np.array_equal(framework.numpy(soft_topk_sum(x, 0)), [0, 0])
    assert np.array_equal(framework.numpy(soft_topk_threshold(x, 4)), [-INF, -INF])
    assert framework.numpy(soft_topk_sum(x, 4)) == pytest.approx(np.sum(X, -1))


# --- infinities and NaN ---


@every_link
def test_scores_of_inf_are_chosen_first_and_the_rest_solved_with_what_is_left(framework, link):
    x = framework.array([[INF, 2.0, -1.0, INF, 0.5, -INF]])
    p = framework.numpy(soft_topk(x, 3, link=link))
    assert np.array_equal(p[0, [0, 3]], [1, 1])
    rest = framework.numpy(soft_topk(framework.array([[2.0, -1.0, 0.5]]), 1, link=link))
    assert p[0, [1, 2, 4]] == pytest.approx(rest[0], abs=1e-14)


@every_link
def test_where_scores_of_inf_are_more_than_k_they_share_it(framework, link):
    p = framework.numpy(soft_topk(framework.array([[INF, 2.0, INF, INF]]), 2, link=link))
    assert p[0] == pytest.approx([2 / 3, 0, 2 / 3, 2 / 3])


@with_gradients
def test_scores_of_inf_have_gradient_0_and_1_over_m_in_k(name):
    framework = Framework(name)
    v = np.array([[1.0, 2.0, -3.0, 0.7]])
    gx, gk, gt = soft_topk_gradients(framework, [[INF, 2.0, INF, INF]], 2.0, v=v)
    assert not np.any(gx)
    assert not np.any(gt)
    assert gk == pytest.approx([(1.0 - 3.0 + 0.7) / 3])
    gx, gk, gt = soft_topk_gradients(framework, [[INF, 2.0, -1.0, 0.5]], 2.0, v=v)
    rest = soft_topk_gradients(Framework("torch"), [[2.0, -1.0, 0.5]], 1.0, v=v[:, 1:])
    assert gx[0, 0] == 0
    assert gx[0, 1:] == pytest.approx(rest[0][0])
    assert gk == pytest.approx(rest[1])
    assert gt == pytest.approx(rest[2])


def test_softmax_shares_among_scores_of_inf(framework):
    p = framework.numpy(softmax(framework.array([[INF, 1.0, INF], [1.0, 2.0, -INF]])))
    assert np.array_equal(p[0], [0.5, 0, 0.5])
    assert p[1, 2] == 0


@every_link
def test_nan_stays_in_its_row(framework, link):
    x = np.array([X[0], [1.0, NAN, 0.0, 2.0], X[1]])
    clean = np.array([X[0], X[0], X[1]])
    for k in (0, 1.5, 2, 4):
        p = framework.numpy(soft_topk(framework.array(x), k, link=link))
        assert np.all(np.isnan(p[1]))
        alone = framework.numpy(soft_topk(framework.array(clean), k, link=link))
        assert np.array_equal(p[[0, 2]], alone[[0, 2]])
    for function in (softmax, sparsemax, entmax, lambda x: hard_topk(x, 2)):
        p = framework.numpy(function(framework.array(x)))
        assert np.all(np.isnan(p[1]))
        assert np.all(np.isfinite(p[[0, 2]]))
    assert np.isnan(framework.numpy(soft_topk_threshold(framework.array(x), 2, link=link))[1])
    assert np.isnan(framework.numpy(soft_topk_sum(framework.array(x), 2, link=link))[1])


@with_gradients
@every_link
def test_nan_stays_in_its_row_of_the_gradient(name, link):
    framework = Framework(name)
    x = np.array([X[0], [1.0, NAN, 0.0, 2.0], X[1]])
    v = np.random.default_rng(1).standard_normal((3, 4))
    got = soft_topk_gradients(framework, x, link=link, v=v)
    wanted = soft_topk_gradients(framework, np.array([X[0], X[0], X[1]]), link=link, v=v)
    for answer, clean in zip(got, wanted, strict=True):
        assert answer[[0, 2]] == pytest.approx(clean[[0, 2]], abs=1e-14)


@pytest.mark.parametrize(
    "bad",
    [
        {"k": [2.0, -1.0]},
        {"k": [2.0, 4.5]},
        {"k": [2.0, NAN]},
        {"temperature": [1.0, 0.0]},
        {"temperature": [1.0, -1.0]},
        {"temperature": [1.0, INF]},
        {"temperature": [1.0, NAN]},
        {"alpha": [1.5, 0.5]},
    ],
)
def test_a_bad_entry_of_an_array_gives_nan_in_that_row_only(framework, bad):
    arguments = {"k": 2, "temperature": 1.0, "link": "entmax"}
    for name, value in bad.items():
        if name == "alpha":
            arguments["link"] = links.entmax(framework.array(value))
        else:
            arguments[name] = framework.array(value)
    p = framework.numpy(soft_topk(framework.array(X), **arguments))
    assert np.all(np.isnan(p[1]))
    clean = framework.numpy(soft_topk(framework.array(X[:1]), 2, link="entmax"))
    assert p[:1] == pytest.approx(clean, abs=1e-14)


@every_link
def test_a_row_of_the_most_negative_score_is_a_row_of_equal_scores(framework, link):
    least = 0.499 * float(np.finfo("float32").min)  # at half of it a score counts as deleted
    rows = framework.array([[least] * 5, [1.0, 2.0, 3.0, least, least]], "float32")
    p = framework.numpy(soft_topk(rows, 4, link=link))
    assert p == pytest.approx(np.array([[0.8] * 5, [1, 1, 1, 0.5, 0.5]]), abs=1e-6)


def test_nan_beside_a_score_of_inf_is_not_overlooked(framework):
    x = framework.array([INF, NAN, 1.0])
    for function in (lambda x: kofn.softmax(x), lambda x: hard_topk(x, 1)):
        assert framework.numpy(function(x)) == pytest.approx([1, NAN, NAN], nan_ok=True)


def test_an_infinite_alpha_gives_nan(framework):
    p = framework.numpy(kofn.entmax(framework.array([1.0, 2.0]), framework.array(INF)))
    assert np.isnan(p).all()


# --- temperature at its end ---


@every_link
def test_ties_at_the_boundary_share_what_is_left(framework, link):
    x = framework.array([5.0, 1.0, 1.0, 1.0, 0.0], "float32")
    for temperature in (0.01, 1e-25, 1e-45, 1e-300):
        p = framework.numpy(soft_topk(x, 3, link=link, temperature=temperature))
        assert p == pytest.approx([1, 2 / 3, 2 / 3, 2 / 3, 0], abs=1e-6)


def test_a_temperature_array_that_underflows_is_the_hard_topk(framework):
    x = framework.array([[3.0, 1.0, 2.0], [3.0, 1.0, 1.0]], "float32")
    tiny = framework.array([1e-60, 1e-60], "float64")
    p = framework.numpy(soft_topk(x, 2, temperature=tiny))
    assert np.array_equal(p, [[1, 0, 1], [1, 0.5, 0.5]])


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
@every_link
def test_scores_more_temperatures_large_than_there_are_numbers_have_a_threshold(name, link):
    framework = Framework(name)
    info = np.finfo(np.float32)
    row = info.max / 8 * (1 + float(info.eps) * np.array([4, 1, 5, 3, 0, 2]))
    k = 0.5 if link == "exponential" else 3
    x = framework.array(row, "float32")
    theta = framework.numpy(soft_topk_threshold(x, k, link=link, temperature=1e-30))
    assert theta == pytest.approx(row[0], rel=1e-5)


@pytest.mark.parametrize("alpha", [3.0, 100.0])
@pytest.mark.parametrize("kernels", ["on", "reference"])
def test_weights_that_rise_steeply_keep_the_order_of_their_scores(
    monkeypatch, framework, kernels, alpha
):
    """F′ has no bound above alpha 2; a step along it would not be small."""
    monkeypatch.setenv("KOFN_KERNELS", kernels)
    for row, k in (([4, 1, -2], 1.0), ([1, -4, 3, 2, 0, 1], 2.5)):
        x = framework.array(np.array(row) * 2.0**-20, "float32")
        p = framework.numpy(soft_topk(x, k, link=links.entmax(alpha), temperature=1e30))
        assert (np.diff(p[np.argsort(row, kind="stable")]) >= 0).all()


def test_all_equal_scores_get_k_over_n(framework):
    for link in LINKS:
        for k in (0.5, 2, 4):
            p = framework.numpy(soft_topk(framework.array(np.zeros((1, 5))), k, link=link))
            assert p == pytest.approx(np.full((1, 5), k / 5), abs=1e-14)


def test_a_temperature_without_dimensions_is_one_for_all(framework):
    x = framework.array([[3.0, 1.0, 0.0]] * 2)
    wanted = framework.numpy(soft_topk(x, 1, temperature=0.5))
    assert np.array_equal(
        framework.numpy(soft_topk(x, 1, temperature=framework.array(0.5))), wanted
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_temperature_beyond_all_scores_chooses_all_alike(framework, dtype):
    x = framework.array([3.0, 1.0, 0.0, 2.0], dtype)
    for t in (1e300, framework.array(1e300, "float64")):
        p = framework.numpy(soft_topk(x, 1, temperature=t))
        assert p == pytest.approx(np.full(4, 0.25), abs=1e-6)


def test_a_link_without_a_mean_has_weights_but_no_value_and_no_loss(framework):
    link = CAUCHY[framework.name]
    x = framework.array(X)
    assert framework.numpy(soft_topk(x, 2, link=link)).sum(-1) == pytest.approx([2, 2])
    with pytest.raises(ValueError, match="no value and no loss"):
        soft_topk_sum(x, 2, link=link)
    with pytest.raises(ValueError, match="no value and no loss"):
        fenchel_young_loss(x, framework.array([[1, 0, 0, 0], [0, 1, 0, 0.0]]), link=link)

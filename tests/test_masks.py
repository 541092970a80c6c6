"""Masks and scores of −inf: what is not there is as if deleted."""

import math

import numpy as np
import pytest

from kofn import (
    entmax,
    hard_topk,
    soft_topk,
    soft_topk_sum,
    soft_topk_threshold,
    softmax,
    sparsemax,
)
from support import Framework, every_link, soft_topk_gradients, with_gradients

INF, NAN = math.inf, math.nan
X = [[2.0, -1.0, 0.5, 1.0], [0.0, 3.0, 3.0, -2.0]]


@every_link
def test_masked_entries_are_as_if_deleted(framework, link):
    x = np.array([[2.0, 9.0, -1.0, 0.5, 1.0, 7.0]])
    keep = np.array([True, False, True, True, True, False])
    mask = framework.array(keep, "bool")
    deleted = framework.numpy(soft_topk(framework.array(x[:, keep]), 2, link=link))
    for hidden in (9.0, NAN, INF, -INF, 1e300):
        y = np.where(keep, x, hidden)
        p = framework.numpy(soft_topk(framework.array(y), 2, link=link, mask=mask))
        assert np.array_equal(p[:, ~keep], [[0, 0]])
        assert p[:, keep] == pytest.approx(deleted, abs=1e-13)


@every_link
def test_a_score_of_minus_inf_is_as_if_deleted(framework, link):
    p = framework.numpy(soft_topk(framework.array([[2.0, -INF, -1.0, 0.5]]), 2, link=link))
    assert p[0, 1] == 0
    deleted = framework.numpy(soft_topk(framework.array([[2.0, -1.0, 0.5]]), 2, link=link))
    assert p[0, [0, 2, 3]] == pytest.approx(deleted[0], abs=1e-14)


def test_a_nan_in_k_spoils_the_scores_of_inf_too(framework):
    k = framework.array([NAN, 1.0])
    p = framework.numpy(soft_topk(framework.array([[INF, 2.0, -INF]] * 2), k))
    assert p == pytest.approx(np.array([[NAN, NAN, 0], [1, 0, 0]]), nan_ok=True)


@with_gradients
@every_link
def test_masked_entries_get_gradient_0_and_spoil_no_other(name, link):
    framework = Framework(name)
    keep = np.array([True, False, True, True, False, True])
    v = np.random.default_rng(0).standard_normal((1, 6))
    x = np.array([[2.0, NAN, -1.0, 0.5, INF, -INF]])
    mask = framework.array(keep, "bool")
    got = soft_topk_gradients(framework, x, 1.7, link=link, v=v, mask=mask)
    left = keep & np.isfinite(x[0])
    wanted = soft_topk_gradients(Framework("torch"), x[:, left], 1.7, link=link, v=v[:, left])
    assert not np.any(got[0][:, ~left])
    assert got[0][:, left] == pytest.approx(wanted[0], abs=1e-12)
    assert got[1] == pytest.approx(wanted[1], abs=1e-12)
    assert got[2] == pytest.approx(wanted[2], abs=1e-12)


def test_masks_broadcast_to_the_scores(framework):
    mask = framework.array([True, False, True, True], "bool")
    p = framework.numpy(soft_topk(framework.array(X), 2, mask=mask))
    assert np.array_equal(p[:, 1], [0, 0])
    assert p.sum(-1) == pytest.approx([2, 2])


def test_where_fewer_than_k_are_left_all_are_chosen(framework):
    x = framework.array([[2.0, -INF, 1.0, -INF]])
    assert np.array_equal(framework.numpy(soft_topk(x, 3)), [[1, 0, 1, 0]])
    assert np.array_equal(framework.numpy(hard_topk(x, 3)), [[1, 0, 1, 0]])
    assert framework.numpy(soft_topk_threshold(x, 3))[0] == -INF
    assert framework.numpy(soft_topk_sum(x, 3)) == pytest.approx([3.0])


@with_gradients
def test_where_fewer_than_k_are_left_the_gradient_in_k_is_0(name):
    gx, gk, gt = soft_topk_gradients(Framework(name), [[2.0, -INF, 1.0, -INF]], 3.0)
    assert not np.any(gx)
    assert not np.any(gk)
    assert not np.any(gt)


@every_link
def test_a_wholly_masked_row_is_zeros(framework, link):
    x = framework.array([[-INF] * 4, X[0]])
    p = framework.numpy(soft_topk(x, 2, link=link))
    assert np.array_equal(p[0], np.zeros(4))
    assert p[1].sum() == pytest.approx(2)
    for answer in (softmax(x), sparsemax(x), entmax(x), hard_topk(x, 2)):
        assert np.array_equal(framework.numpy(answer)[0], np.zeros(4))


@with_gradients
@every_link
def test_a_wholly_masked_row_has_zero_gradient(name, link):
    framework = Framework(name)
    got = soft_topk_gradients(framework, [[-INF] * 4, X[0]], link=link)
    for answer in got:
        assert np.all(np.isfinite(answer))
        assert not np.any(answer[0])
    softmaxed = framework.vjp(
        softmax, (framework.array([[-INF] * 4, X[0]]),), framework.array(np.ones((2, 4)) * X)
    )[0]
    assert np.all(np.isfinite(softmaxed))


def test_a_wholly_masked_row_has_no_threshold_and_value_0(framework):
    x = framework.array([[-INF, -INF]])
    assert np.isnan(framework.numpy(soft_topk_threshold(x, 1))[0])
    assert np.array_equal(framework.numpy(soft_topk_sum(x, 1)), [0])

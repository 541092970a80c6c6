"""Masks and scores of −inf: what is not there is as if deleted."""

import math

import numpy as np
import pytest
import torch

from kofn import (
    classic,
    entmax,
    fenchel_young_loss,
    hard_topk,
    log_entmax,
    log_soft_topk,
    metrics,
    perturbed_argmax,
    soft_topk,
    soft_topk_sum,
    soft_topk_threshold,
    softmax,
    sparse_softmax,
    sparsemax,
    taylor_softmax,
    temperature_for,
    topk_gates,
)
from rows_of_users import DTYPES, least_in_play
from support import Framework, every_link, soft_topk_gradients, with_gradients

INF, NAN = math.inf, math.nan
LEAST = {dtype: 2 * least_in_play(dtype) for dtype in DTYPES}
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


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_mask_lies_as_its_scores_do_whatever_their_type(framework, dim, dtype, rng):
    """Of two dimensions, to move the first to the end and the last to the front is the same."""
    x = rng.standard_normal((3, 4, 5))
    mask = rng.random(x.shape) < 0.7
    scores, gone = (framework.array(a, dtype) for a in (x, np.where(mask, x, -INF)))
    p = soft_topk(scores, 1, dim=dim, mask=framework.array(mask, "bool"))
    assert np.array_equal(framework.numpy(p), framework.numpy(soft_topk(gone, 1, dim=dim)))


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


# --- additive masks: finfo.min where there is no entry ---

MAPS = {
    "soft_topk": lambda x: soft_topk(x, 3),
    "linear": lambda x: soft_topk(x, 2.5, link="linear"),
    "hard": lambda x: soft_topk(x, 3, hard=True),
    "hard_topk": lambda x: hard_topk(x, 3),
    "gates": lambda x: topk_gates(x, 3)[0],
    "threshold": lambda x: soft_topk_threshold(x, 1.5),
    "no threshold": lambda x: soft_topk_threshold(x, 3),
    "sum": lambda x: soft_topk_sum(x, 3),
    "softmax": softmax,
    "sparsemax": sparsemax,
    "entmax": entmax,
    "taylor_softmax": lambda x: taylor_softmax(x, 4),
    "sparse_softmax": lambda x: sparse_softmax(x, k=3),
    "nucleus": lambda x: sparse_softmax(x, p=0.9),
    "perturbed_argmax": perturbed_argmax,
    "log_soft_topk": lambda x: log_soft_topk(x, 3),
    "log_entmax": log_entmax,
    "temperature": lambda x: temperature_for(x, 1, support=1.5),
    "jacobian_norm": lambda x: metrics.jacobian_norm(x, 1.5),
    "iterative": lambda x: classic.iterative_soft_topk(x, 2),
    "weighted": lambda x: classic.weighted_soft_topk(x, 2),
    "ones": lambda x: classic.ones_and_softmax(x, 2),
    "order": lambda x: metrics.order_violations(x, hard_topk(x, 3)),
    "loss": lambda x: fenchel_young_loss(x, hard_topk(x, 1)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("name", MAPS)
def test_half_of_the_least_number_of_the_dtype_is_minus_inf(framework, name, dtype):
    if framework.name == "numpy" and dtype == "bfloat16":
        pytest.skip("NumPy has no bfloat16 of its own")
    least = LEAST[dtype]
    x = np.array([[1.0, 2.0, least, least], [least / 2, 0.5, -1.0, -INF], [least] * 4])
    masked = framework.array(x, dtype)
    gone = framework.array(np.where(x <= least / 2, -INF, x), dtype)
    got, wanted = (framework.numpy(MAPS[name](rows)) for rows in (masked, gone))
    assert np.array_equal(got, wanted, equal_nan=True)


@with_gradients
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_additive_mask_has_gradient_0(name, dtype):
    framework = Framework(name)
    x = framework.array([[1.0, 2.0, LEAST[dtype], 0.5, LEAST[dtype]]], dtype)
    v = framework.array([[0.3, -1.0, 2.0, 0.7, 1.0]], dtype)
    for function in (lambda x: soft_topk(x, 2), softmax, lambda x: soft_topk(x, 4)):
        got = framework.vjp(function, (x,), v)[0][0]
        assert np.all(np.isfinite(got))
        assert not got[2]
        assert not got[4]


def test_above_half_of_the_least_number_it_is_a_score(framework):
    """−1e9, and a float16 minimum that was cast up, are low scores: a mask says it instead."""
    for low in (-1e9, -65504.0, 0.49 * LEAST["float32"]):
        x = np.array([[1.0, 2.0, low, low]])
        scores = framework.array(x, "float32")
        assert framework.numpy(soft_topk(scores, 3)) == pytest.approx(
            np.array([[1, 1, 0.5, 0.5]]), abs=1e-6
        )
        p = soft_topk(scores, 3, mask=framework.array(x > -1, "bool"))
        assert np.array_equal(framework.numpy(p), [[1, 1, 0, 0]])


ATTENTION = {
    "soft_topk": lambda s: soft_topk(s, 4),
    "hard": lambda s: soft_topk(s, 4, hard=True),
    "exponential": lambda s: soft_topk(s, 4, link="exponential", temperature=0.01),
    "hard_topk": lambda s: hard_topk(s, 4),
    "entmax": entmax,
    "cast up": lambda s: soft_topk(s.float(), 4),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ATTENTION)
def test_no_position_attends_to_the_future(name, dtype):
    """Scores plus a causal mask as transformers' eager attention makes it, with a padded row.

    To whoever adds it twice, 2·finfo.min is −inf.
    """
    rng = torch.Generator().manual_seed(0)
    n, least = 9, torch.finfo(dtype).min
    scores = (3 * torch.randn(2, 3, n, n, generator=rng)).to(dtype)
    past = torch.ones(n, n, dtype=torch.bool).tril().repeat(2, 1, 1, 1)
    past[1, ..., :2] = False
    mask = torch.where(past, torch.zeros((), dtype=dtype), least)
    assert (mask + mask).isneginf().any()
    later = scores + 10 * torch.randn(scores.shape, generator=rng).to(dtype)
    changed = torch.where(past, scores, later)
    for added in (mask, mask + mask, torch.where(past, 0.0, -torch.inf).to(dtype)):
        leaf = scores.clone().requires_grad_()
        p = ATTENTION[name](leaf + added)
        assert torch.equal(p, ATTENTION[name](changed + added))
        assert not (p * ~past).any()
        if name in ("soft_topk", "hard", "hard_topk"):
            chosen = past.expand_as(p).sum(-1).clamp(max=4).double()
            tolerance = {torch.float32: 4e-6, torch.bfloat16: 4 * 8e-3}[dtype]
            assert torch.allclose(p.double().sum(-1), chosen, rtol=0, atol=tolerance)
        if p.requires_grad:
            v = torch.randn(p.shape, generator=rng).to(p.dtype)
            (slopes,) = torch.autograd.grad(p, leaf, v)
            assert slopes.isfinite().all()
            assert not (slopes * ~past).any()

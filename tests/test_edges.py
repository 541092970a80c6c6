"""Every sentence of the behaviour that is promised has a test whose name says it."""

import math
import threading

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
    topk_gates,
)
from support import CAUCHY, LINKS, Framework

INF, NAN = math.inf, math.nan
X = [[2.0, -1.0, 0.5, 1.0], [0.0, 3.0, 3.0, -2.0]]


def gradients(framework, x, k=2.0, temperature=0.7, *, link="logistic", v=None, mask=None):
    """Cotangents in scores, k and T, for a random cotangent v."""
    x = np.asarray(x, float)
    v = np.random.default_rng(3).standard_normal(x.shape) if v is None else v
    batch = x.shape[:-1]
    arguments = [
        framework.array(a) for a in (x, np.broadcast_to(k, batch), np.full(batch, temperature))
    ]
    return framework.vjp(
        lambda x, k, t: soft_topk(x, k, link=link, temperature=t, mask=mask),
        tuple(arguments),
        framework.array(v),
    )


both = pytest.mark.parametrize("name", ["torch", "jax"])
every_link = pytest.mark.parametrize("link", LINKS)


# --- k at its ends ---


@every_link
def test_k_0_gives_zeros_and_k_n_ones(framework, link):
    x = framework.array(X)
    assert np.array_equal(framework.numpy(soft_topk(x, 0, link=link)), np.zeros((2, 4)))
    assert np.array_equal(framework.numpy(soft_topk(x, 4, link=link)), np.ones((2, 4)))


@both
@every_link
def test_the_gradient_in_k_is_0_at_its_ends(name, link):
    for k in (0.0, 4.0):
        gx, gk, gt = gradients(Framework(name), X, k, link=link)
        assert not np.any(gx)
        assert not np.any(gk)
        assert not np.any(gt)


def test_k_0_has_threshold_inf_and_value_0_and_k_n_minus_inf_and_the_sum(framework):
    x = framework.array(X)
    assert np.array_equal(framework.numpy(soft_topk_threshold(x, 0)), [INF, INF])
    assert np.array_equal(framework.numpy(soft_topk_sum(x, 0)), [0, 0])
    assert np.array_equal(framework.numpy(soft_topk_threshold(x, 4)), [-INF, -INF])
    assert framework.numpy(soft_topk_sum(x, 4)) == pytest.approx(np.sum(X, -1))


# --- masks ---


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


@both
@every_link
def test_masked_entries_get_gradient_0_and_spoil_no_other(name, link):
    framework = Framework(name)
    keep = np.array([True, False, True, True, False, True])
    v = np.random.default_rng(0).standard_normal((1, 6))
    x = np.array([[2.0, NAN, -1.0, 0.5, INF, -INF]])
    mask = framework.array(keep, "bool")
    got = gradients(framework, x, 1.7, link=link, v=v, mask=mask)
    left = keep & np.isfinite(x[0])
    wanted = gradients(Framework("torch"), x[:, left], 1.7, link=link, v=v[:, left])
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


@both
def test_where_fewer_than_k_are_left_the_gradient_in_k_is_0(name):
    gx, gk, gt = gradients(Framework(name), [[2.0, -INF, 1.0, -INF]], 3.0)
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


@both
@every_link
def test_a_wholly_masked_row_has_zero_gradient(name, link):
    framework = Framework(name)
    got = gradients(framework, [[-INF] * 4, X[0]], link=link)
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


@both
def test_scores_of_inf_have_gradient_0_and_1_over_m_in_k(name):
    framework = Framework(name)
    v = np.array([[1.0, 2.0, -3.0, 0.7]])
    gx, gk, gt = gradients(framework, [[INF, 2.0, INF, INF]], 2.0, v=v)
    assert not np.any(gx)
    assert not np.any(gt)
    assert gk == pytest.approx([(1.0 - 3.0 + 0.7) / 3])
    gx, gk, gt = gradients(framework, [[INF, 2.0, -1.0, 0.5]], 2.0, v=v)
    rest = gradients(Framework("torch"), [[2.0, -1.0, 0.5]], 1.0, v=v[:, 1:])
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


@both
@every_link
def test_nan_stays_in_its_row_of_the_gradient(name, link):
    framework = Framework(name)
    x = np.array([X[0], [1.0, NAN, 0.0, 2.0], X[1]])
    v = np.random.default_rng(1).standard_normal((3, 4))
    got = gradients(framework, x, link=link, v=v)
    wanted = gradients(framework, np.array([X[0], X[0], X[1]]), link=link, v=v)
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


# --- temperature at its end ---


@every_link
def test_ties_at_the_boundary_share_what_is_left(framework, link):
    x = framework.array([5.0, 1.0, 1.0, 1.0, 0.0], "float32")
    for temperature in (0.01, 1e-25, 1e-45, 1e-300):
        p = framework.numpy(soft_topk(x, 3, link=link, temperature=temperature))
        assert p == pytest.approx([1, 2 / 3, 2 / 3, 2 / 3, 0], abs=1e-6)


def test_a_temperature_array_that_underflows_is_the_hard_topk(framework):
    x = framework.array([[3.0, 1.0, 2.0]], "float32")
    tiny = framework.array([1e-60], "float64")
    assert np.array_equal(framework.numpy(soft_topk(x, 2, temperature=tiny)), [[1, 0, 1]])


def test_all_equal_scores_get_k_over_n(framework):
    for link in LINKS:
        for k in (0.5, 2, 4):
            p = framework.numpy(soft_topk(framework.array(np.zeros((1, 5))), k, link=link))
            assert p == pytest.approx(np.full((1, 5), k / 5), abs=1e-14)


# --- shapes and layouts ---


def test_one_entry_and_an_empty_batch_and_an_empty_row(framework):
    assert framework.numpy(soft_topk(framework.array([3.0]), 0.3)) == pytest.approx([0.3])
    empty = soft_topk(framework.array(np.zeros((0, 4))), 2)
    assert empty.shape == (0, 4)
    nothing = framework.array(np.zeros((2, 0)))
    for answer in (soft_topk(nothing, 0), softmax(nothing), sparsemax(nothing), entmax(nothing)):
        assert answer.shape == (2, 0)
    assert np.all(np.isnan(framework.numpy(soft_topk_threshold(nothing, 0))))
    assert np.array_equal(framework.numpy(soft_topk_sum(nothing, 0)), [0, 0])
    assert topk_gates(nothing, 0)[0].shape == (2, 0)
    assert framework.numpy(fenchel_young_loss(nothing, nothing)) == 0


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_dim_is_any_dimension(framework, dim, rng):
    x = rng.standard_normal((3, 4, 5))
    moved = np.moveaxis(x, dim, -1)
    k = rng.uniform(0.5, 2.5, moved.shape[:-1])
    expected = np.moveaxis(soft_topk(moved, k), -1, dim)
    got = soft_topk(framework.array(x), framework.array(k), dim=dim)
    assert framework.numpy(got) == pytest.approx(expected, abs=1e-13)
    theta = soft_topk_threshold(framework.array(x), framework.array(k), dim=dim)
    assert theta.shape == k.shape
    gates, indices = topk_gates(framework.array(x), 2, dim=dim)
    size = list(x.shape)
    size[dim] = 2
    assert list(gates.shape) == list(indices.shape) == size


def test_layouts_do_not_matter(framework, rng):
    x = rng.standard_normal((6, 8))
    expected = soft_topk(np.ascontiguousarray(x[::2, 1::2]), 2)
    strided = framework.array(x)[::2, 1::2]
    assert framework.numpy(soft_topk(strided, 2)) == pytest.approx(expected, abs=1e-14)
    transposed = framework.array(np.ascontiguousarray(x.T)).T
    got = framework.numpy(soft_topk(transposed, 2))
    assert got == pytest.approx(soft_topk(x, 2), abs=1e-14)


def test_broadcast_and_read_only_inputs_work_and_are_never_written_to(framework):
    row = np.array([2.0, -1.0, 0.5, 1.0])
    if framework.name == "numpy":
        spread = np.broadcast_to(row, (3, 4))
        row.setflags(write=False)
    else:
        base = framework.array(row)
        spread = base.expand(3, 4) if framework.name == "torch" else base + np.zeros((3, 1))
    before = framework.numpy(spread).copy()
    k, t = framework.array([1.0, 2.0, 3.0]), framework.array([0.5, 1.0, 2.0])
    p = framework.numpy(soft_topk(spread, k, temperature=t))
    assert p.sum(-1) == pytest.approx([1, 2, 3])
    assert np.array_equal(framework.numpy(spread), before)
    assert np.array_equal(framework.numpy(k), [1, 2, 3])
    assert np.array_equal(framework.numpy(t), [0.5, 1, 2])


def test_k_temperature_and_alpha_are_per_row(framework, rng):
    x = rng.standard_normal((2, 3, 6))
    k = rng.uniform(0.5, 5, (2, 3))
    t = rng.uniform(0.3, 2, (3,))
    alpha = np.array([[1.2], [2.0]])
    got = framework.numpy(
        soft_topk(
            framework.array(x),
            framework.array(k),
            temperature=framework.array(t),
            link=links.entmax(framework.array(alpha)),
        )
    )
    for i in range(2):
        for j in range(3):
            link = links.entmax(float(alpha[i, 0]))
            expected = soft_topk(x[i, j], float(k[i, j]), temperature=float(t[j]), link=link)
            assert got[i, j] == pytest.approx(expected, abs=1e-12)


def test_integer_arrays_of_k_are_welcome(framework):
    k = framework.array([1, 3], "int32")
    assert framework.numpy(soft_topk(framework.array(X), k)).sum(-1) == pytest.approx([1, 3])


def test_numpy_arrays_mix_with_jax_ones():
    import jax.numpy as jnp

    p = soft_topk(jnp.asarray(X), np.array([1.0, 2.0]), mask=np.ones((2, 4), bool))
    assert np.asarray(p).sum(-1) == pytest.approx([1, 2])


# --- the row alone decides ---


def test_a_row_does_not_depend_on_the_others(framework, rng):
    x = rng.standard_normal((50, 33)).astype(np.float32)
    together = framework.numpy(soft_topk(framework.array(x, "float32"), 5))
    for i in (0, 7, 49):
        alone = framework.numpy(soft_topk(framework.array(x[i], "float32"), 5))
        assert np.max(np.abs(alone - together[i])) <= 2e-7
    again = framework.numpy(soft_topk(framework.array(x, "float32"), 5))
    assert np.array_equal(again, together)


def test_calls_from_several_threads(rng):
    import torch

    x = torch.tensor(rng.standard_normal((8, 20)))
    expected, answers = soft_topk(x, 3), []
    threads = [threading.Thread(target=lambda: answers.append(soft_topk(x, 3))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert all(torch.equal(answer, expected) for answer in answers)


# --- hard forward, gates, values, loss ---


def test_hard_is_k_hot_forward_with_the_soft_gradient():
    for name in ("torch", "jax"):
        framework = Framework(name)
        x = framework.array([[2.0, 0.0, 0.0, -1.0], X[0]])
        p = framework.numpy(soft_topk(x, 2, hard=True))
        assert np.array_equal(p, [[1, 1, 0, 0], [1, 0, 0, 1]])
        v = framework.array(np.random.default_rng(0).standard_normal((2, 4)))
        soft = framework.vjp(lambda x: soft_topk(x, 2), (x,), v)[0]
        hard = framework.vjp(lambda x: soft_topk(x, 2, hard=True), (x,), v)[0]
        assert np.array_equal(soft, hard)


@both
def test_hard_topk_gives_no_gradient(name):
    framework = Framework(name)
    x = framework.array(X)
    if name == "torch":
        assert not hard_topk(x.requires_grad_(), 2).requires_grad
    else:
        assert not np.any(framework.vjp(lambda x: hard_topk(x, 2), (x,), framework.array(X))[0])


def test_ties_go_to_the_lowest_index_when_hard(framework):
    x = framework.array(np.ones((1, 40)))
    assert np.array_equal(framework.numpy(hard_topk(x, 3))[0], [1] * 3 + [0] * 37)
    assert np.array_equal(framework.numpy(topk_gates(x, 3)[1])[0], [0, 1, 2])


@both
def test_gates_send_a_gradient_to_every_score(name):
    framework = Framework(name)
    x = framework.array(X[:1])
    v = framework.array([[1.0, -0.3]])
    gradient = framework.vjp(lambda x: topk_gates(x, 2)[0], (x,), v)[0]
    assert np.all(gradient != 0)


def test_gates_of_a_row_with_fewer_left_are_0(framework):
    gates, indices = topk_gates(framework.array([[-INF, 1.0, -INF, 2.0]]), 3)
    assert np.array_equal(framework.numpy(gates), [[1, 1, 0]])
    assert framework.numpy(indices)[0, :2].tolist() == [3, 1]
    assert framework.numpy(indices)[0, 2] in (0, 2)


def test_half_precision_scores_give_float32_thresholds_values_and_losses(framework):
    x = framework.array(X, "float16")
    for answer in (
        soft_topk_threshold(x, 2),
        soft_topk_sum(x, 2),
        fenchel_young_loss(x, framework.array([[1, 0, 0, 0], [0, 1, 0, 0]], "float16")),
    ):
        assert framework.dtype(answer) == "float32"


def test_a_link_without_a_mean_has_weights_but_no_value_and_no_loss(framework):
    link = CAUCHY[framework.name]
    x = framework.array(X)
    assert framework.numpy(soft_topk(x, 2, link=link)).sum(-1) == pytest.approx([2, 2])
    with pytest.raises(ValueError, match="no value and no loss"):
        soft_topk_sum(x, 2, link=link)
    with pytest.raises(ValueError, match="no value and no loss"):
        fenchel_young_loss(x, framework.array([[1, 0, 0, 0], [0, 1, 0, 0.0]]), link=link)


def test_autocast_computes_in_float32():
    import torch

    x = torch.tensor(X, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        p = soft_topk(x, 2)
        q = soft_topk(x.float(), 2)
    assert p.dtype == torch.bfloat16
    assert torch.allclose(q, soft_topk(x.float(), 2), atol=1e-6)


@every_link
def test_a_row_of_the_most_negative_number_is_a_row_of_equal_scores(framework, link):
    least = float(np.finfo("float32").min)
    rows = framework.array([[least] * 5, [1.0, 2.0, 3.0, least, least]], "float32")
    p = framework.numpy(soft_topk(rows, 4, link=link))
    assert p == pytest.approx(np.array([[0.8] * 5, [1, 1, 1, 0.5, 0.5]]), abs=1e-6)


def test_nan_beside_a_score_of_inf_is_not_overlooked(framework):
    x = framework.array([INF, NAN, 1.0])
    for function in (lambda x: kofn.softmax(x), lambda x: hard_topk(x, 1)):
        assert framework.numpy(function(x)) == pytest.approx([1, NAN, NAN], nan_ok=True)


def test_zeros_of_either_sign_are_equal_scores(framework):
    x = framework.array([-0.0, 0.0, -0.0, 0.0])
    assert np.array_equal(framework.numpy(hard_topk(x, 2)), [1, 1, 0, 0])
    assert np.array_equal(framework.numpy(kofn.topk_gates(x, 2)[1]), [0, 1])


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


def test_an_infinite_alpha_gives_nan(framework):
    p = framework.numpy(kofn.entmax(framework.array([1.0, 2.0]), framework.array(INF)))
    assert np.isnan(p).all()

"""The Fenchel–Young loss: what it equals, where it is 0, what it does at the edges."""

import math

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import kofn
from kofn import fenchel_young_loss, soft_topk, soft_topk_sum
from kofn.links.table import TABLE
from kofn.losses import softmax_loss, sparsemax_loss
from support import Framework, every_link, with_gradients

RNG = np.random.default_rng(4)
X = RNG.standard_normal((6, 9)) * 3
LABELS = RNG.integers(0, 9, 6)
ONE_HOT = np.eye(9)[LABELS]
K_HOT = (RNG.random((6, 9)) < 0.4).astype(float)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_one_hot_targets_give_cross_entropy(framework, reduction):
    for temperature in (1.0, 0.3):
        got = fenchel_young_loss(
            framework.array(X),
            framework.array(ONE_HOT),
            temperature=temperature,
            reduction=reduction,
        )
        expected = F.cross_entropy(
            torch.tensor(X) / temperature, torch.tensor(LABELS), reduction=reduction
        )
        assert framework.numpy(got) == pytest.approx(expected.numpy(), abs=1e-12)


def test_soft_targets_give_cross_entropy_less_their_entropy():
    t = np.exp(X[::-1])
    t /= t.sum(-1, keepdims=True)
    expected = F.cross_entropy(torch.tensor(X), torch.tensor(t)) + (t * np.log(t)).sum(-1).mean()
    assert fenchel_young_loss(X, t) == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_linear_and_entmax_give_their_published_losses():
    entmax = pytest.importorskip("entmax")
    x, y = torch.tensor(X), torch.tensor(LABELS)
    got = fenchel_young_loss(X, ONE_HOT, link="linear", reduction="none")
    assert got == pytest.approx(entmax.sparsemax_loss(x, y).numpy(), abs=1e-12)
    got = fenchel_young_loss(X, ONE_HOT, link="entmax", reduction="none")
    assert got == pytest.approx(entmax.entmax15_loss(x, y).numpy(), abs=1e-12)


@every_link
def test_it_is_the_value_less_the_score_of_the_target(link):
    for target in (ONE_HOT, K_HOT, K_HOT * 0.9 + 0.05):
        k = target.sum(-1)
        value = soft_topk_sum(X, k, link=link, temperature=0.7)
        expected = (value - (target * X).sum(-1)) / 0.7 + TABLE[link].omega(target).sum(-1)
        got = fenchel_young_loss(X, target, link=link, temperature=0.7, reduction="none")
        assert got == pytest.approx(expected, abs=1e-11)


@every_link
@with_gradients
def test_its_gradient_is_weights_less_target(name, link):
    framework = Framework(name)
    t = framework.array(K_HOT)
    got = framework.vjp(
        lambda x: fenchel_young_loss(x, t, link=link, temperature=0.7, reduction="sum"),
        (framework.array(X),),
        framework.array(1.0),
    )[0]
    p = soft_topk(X, K_HOT.sum(-1), link=link, temperature=0.7)
    assert got == pytest.approx((p - K_HOT) / 0.7, abs=1e-12)


@every_link
def test_it_is_0_where_the_weights_are_the_target_and_positive_elsewhere(link):
    p = soft_topk(X, 3, link=link)
    assert fenchel_young_loss(X, p, link=link, reduction="none") == pytest.approx(0, abs=1e-13)
    other = np.roll(p, 1, axis=-1)
    assert np.all(fenchel_young_loss(X, other, link=link, reduction="none") > 1e-4)
    assert np.all(fenchel_young_loss(X, K_HOT, link=link, reduction="none") >= 0)


def test_a_confident_row_keeps_its_digits_in_float32():
    """S − ⟨t, x⟩ would cancel 1e4-sized numbers to 1e-7 of loss."""
    x = np.array([[1e4 + 16, 1e4, 1e4 - 3]], np.float32)
    t = np.array([[1, 0, 0]], np.float32)
    exact = math.log1p(math.exp(-16) + math.exp(-19))
    assert fenchel_young_loss(x, t) == pytest.approx(exact, rel=1e-3)
    wide = np.array([[8.0, -9.0, -10.0]], np.float32)
    for link in ("logistic", "laplace"):
        exact = fenchel_young_loss(wide.astype(float), t.astype(float), link=link)
        assert exact < 1e-3
        assert fenchel_young_loss(wide, t, link=link) == pytest.approx(exact, rel=1e-4)


def test_it_gives_no_gradient_to_its_target():
    x, t = torch.tensor(X, requires_grad=True), torch.tensor(K_HOT, requires_grad=True)
    fenchel_young_loss(x, t).backward()
    assert x.grad is not None
    assert t.grad is None


def test_padded_rows_count_0_and_leave_the_mean(framework):
    x = np.concatenate([X, np.full((2, 9), -np.inf)])
    t = np.concatenate([ONE_HOT, ONE_HOT[:2]])
    loss = framework.numpy(fenchel_young_loss(framework.array(x), framework.array(t)))
    assert loss == pytest.approx(fenchel_young_loss(X, ONE_HOT), abs=1e-13)
    each = fenchel_young_loss(framework.array(x), framework.array(t), reduction="none")
    assert np.array_equal(framework.numpy(each)[6:], [0, 0])
    nothing = framework.array(np.full((2, 3), -np.inf))
    zeros = framework.array(np.zeros((2, 3)))
    assert framework.numpy(fenchel_young_loss(nothing, zeros)) == 0


def test_a_target_that_cannot_be_chosen_costs_infinity(framework):
    x = framework.array([[1.0, -np.inf, 2.0]])
    assert framework.numpy(fenchel_young_loss(x, framework.array([[0, 1.0, 0]]))) == np.inf
    loss = framework.numpy(fenchel_young_loss(x, framework.array([[0, 0, 1.0]])))
    assert loss == pytest.approx(math.log1p(math.exp(-1)))


def test_scores_of_inf_cost_nothing_when_wanted(framework):
    x = framework.array([[np.inf, 1.0, 2.0]])
    assert framework.numpy(fenchel_young_loss(x, framework.array([[1.0, 0, 0]]))) == 0
    assert framework.numpy(fenchel_young_loss(x, framework.array([[0, 1.0, 0]]))) == np.inf
    loss = framework.numpy(fenchel_young_loss(x, framework.array([[1.0, 0, 1.0]])))
    assert loss == pytest.approx(math.log1p(math.exp(-1)))


def test_a_nan_spoils_its_row_next_to_a_score_of_inf(framework):
    x = framework.array([[0.0, np.inf, np.nan, 1.0]])
    target = framework.array([0], "int64")
    soft = framework.array([[0.5, 0.5, 0.0, 0.0]])
    for loss in (
        lambda x: softmax_loss(x, target),
        lambda x: softmax_loss(x, target, label_smoothing=0.1),
        lambda x: softmax_loss(x, soft),
        lambda x: fenchel_young_loss(x, soft),
        lambda x: sparsemax_loss(x, target),
    ):
        assert np.isnan(framework.numpy(loss(x)))
        if framework.name != "numpy":
            (gradient,) = framework.vjp(loss, (x,), framework.array(1.0))
            assert np.isnan(gradient[0, [0, 2, 3]]).all(), gradient


def test_all_or_nothing_as_a_target_costs_0(framework):
    x = framework.array(X)
    for target in (np.zeros((6, 9)), np.ones((6, 9))):
        assert framework.numpy(fenchel_young_loss(x, framework.array(target))) == 0


def test_a_target_outside_0_and_1_gives_nan_in_its_row(framework):
    x = framework.array(X[:2])
    t = np.array([ONE_HOT[0], ONE_HOT[1]])
    t[1, :2] = (-0.5, 0.5)
    loss = framework.numpy(fenchel_young_loss(x, framework.array(t), reduction="none"))
    assert np.isfinite(loss[0])
    assert np.isnan(loss[1])


def test_dim_and_mask(framework, rng):
    keep = rng.random(X.shape) < 0.8
    t = K_HOT * keep
    expected = fenchel_young_loss(np.where(keep, X, -np.inf), t, reduction="none")
    got = fenchel_young_loss(
        framework.array(X.T.copy()),
        framework.array(t.T.copy()),
        mask=framework.array(keep.T.copy(), "bool"),
        dim=0,
        reduction="none",
    )
    assert framework.numpy(got) == pytest.approx(expected, abs=1e-12)


def test_jax_sees_a_mean_that_is_not_0():
    sigmoid = jax.nn.sigmoid
    link = kofn.Link(
        cdf=lambda z: sigmoid(z - 0.01),
        pdf=lambda z: sigmoid(z - 0.01) * sigmoid(0.01 - z),
        integral=lambda z: jax.nn.softplus(z - 0.01),
    )
    with pytest.raises(ValueError, match="mean zero"):
        kofn.soft_topk_sum(jax.numpy.asarray([1.0, 2.0, 3.0], "float32"), 2, link=link)


@every_link
@with_gradients
@pytest.mark.parametrize("size", [1e20, 1e30])
def test_scores_beyond_every_links_reach(name, link, size):
    """The loss stopped at 1.2e18 there, and what traces the code lost every gradient of the row."""
    framework = Framework(name)
    x = np.array([[0.5, -size, 1.0, -0.3], [size, 0.0, 0.4, 1.0]])
    t, temperature = np.array([[0, 1.0, 0, 0], [0, 0, 1.0, 1.0]]), np.array([0.5, 2.0])
    arguments = (framework.array(x, "float32"), framework.array(temperature, "float32"))

    def loss(x, temperature):
        return fenchel_young_loss(
            x, framework.array(t, "float32"), link=link, temperature=temperature, reduction="none"
        )

    assert framework.numpy(loss(*arguments)) == pytest.approx(size / temperature, rel=1e-6)
    in_x, in_t = framework.vjp(loss, arguments, framework.array([1.0, 1.0], "float32"))
    p = np.stack([soft_topk(row, k, link=link, temperature=s)
                  for row, k, s in zip(x, (1, 2), temperature, strict=True)])  # fmt: skip
    assert in_x == pytest.approx((p - t) / temperature[:, None], abs=1e-5)
    assert in_t == pytest.approx(-size / temperature**2, rel=1e-6)

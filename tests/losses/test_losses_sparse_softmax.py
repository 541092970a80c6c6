"""sparse_softmax_loss: log Σ_S e^{x/T} − x_t/T with S the top as it is, the target in it or not."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from kofn import softmax, sparse_softmax
from kofn.losses import softmax_loss, sparse_softmax_loss

RNG = np.random.default_rng(11)
X = RNG.standard_normal((8, 6)) * 2
LABELS = RNG.integers(0, 6, 8)
WEIGHT = np.array([0.5, 2.0, 1.0, 0.1, 3.0, 1.5])


def of_subsets(x: np.ndarray, label: int, k: int) -> float:
    """The largest log-sum-exp over sets of k, less the target's score."""
    sums = (np.logaddexp.reduce(s) for s in itertools.combinations(x.tolist(), k))
    return float(max(sums) - x[label])


@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_it_is_the_largest_over_sets_of_k(framework, k):
    for dtype, accuracy in (("float64", 1e-12), ("float32", 2e-6)):
        x, t = framework.array(X, dtype), framework.array(LABELS, "int32")
        loss = framework.as_one(lambda x, t: sparse_softmax_loss(x, t, k=k, reduction="none"))
        got = framework.numpy(loss(x, t))
        want = [of_subsets(row, label, k) for row, label in zip(X, LABELS, strict=True)]
        assert got == pytest.approx(np.array(want), abs=accuracy)
    hot = sparse_softmax_loss(X, LABELS, k=k, temperature=0.5, reduction="none")
    assert hot == pytest.approx(sparse_softmax_loss(2 * X, LABELS, k=k, reduction="none"))


def test_it_is_continuous_where_the_target_leaves_the_top():
    """With the target put into the support it jumped from 1.313 to 1.551."""
    for edge, k in ((2.0, 2), (3.0, 1), (3.0, 2)):
        around = edge + np.array([-1e-9, 0.0, 1e-9])
        x = np.stack([np.full(3, 3.0), np.full(3, 2.0), around], -1)
        each = sparse_softmax_loss(x, np.full(3, 2), k=k, reduction="none")
        assert np.ptp(each) < 1e-8
    equal = sparse_softmax_loss(np.array([[3.0, 2.0, 2.0, 2.0]]), np.array([1]), k=2)
    assert equal == pytest.approx(np.logaddexp(3, 2) - 2)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_it_is_convex_and_never_negative(k, smoothing):
    a, b = RNG.standard_normal((2, 2000, 6)) * RNG.choice([0.1, 1, 10], (2, 2000, 1))
    a[:500] = np.round(a[:500])  # ties
    t = RNG.integers(0, 6, 2000)

    def loss(x):
        return sparse_softmax_loss(x, t, k=k, label_smoothing=smoothing, reduction="none")

    share = RNG.random((2000, 1))
    between = loss(share * a + (1 - share) * b)
    chord = share[:, 0] * loss(a) + (1 - share[:, 0]) * loss(b)
    assert np.all(between <= chord + 1e-12 * (1 + np.abs(chord)))
    assert np.all(loss(a) >= 0)
    assert np.all(
        sparse_softmax_loss(a, t, p=0.8, label_smoothing=smoothing, reduction="none") >= 0
    )


def test_its_gradient_is_softmax_of_the_top_less_the_target():
    t = torch.tensor(LABELS)
    for settings in (dict(k=2), dict(k=6), dict(p=0.8)):
        x = torch.tensor(X, requires_grad=True)
        sparse_softmax_loss(x, t, temperature=0.7, reduction="sum", **settings).backward()
        p = sparse_softmax(X, temperature=0.7, **settings)
        assert x.grad.numpy() == pytest.approx((p - np.eye(6)[LABELS]) / 0.7, abs=1e-12)
        temperature = torch.tensor([0.7] * 8, dtype=torch.float64, requires_grad=True)
        assert gradcheck(
            lambda x, s, settings=settings: sparse_softmax_loss(
                x, t, temperature=s, reduction="none", **settings
            ),
            (x.detach().requires_grad_(), temperature),
            check_forward_ad=True,
            fast_mode=True,
        )
    tied = torch.tensor([[3.0, 2.0, 2.0, 0.0]], dtype=torch.float64, requires_grad=True)
    sparse_softmax_loss(tied, torch.tensor([3]), k=2).backward()
    half = softmax(np.array([3.0, 2.0]))
    assert tied.grad[0].numpy() == pytest.approx([half[0], half[1] / 2, half[1] / 2, -1])


def test_the_nucleus_jumps_as_its_docstring_says():
    t = np.full(2, 2)
    x = np.array([[3.0, 2.0, 1.0]] * 2)
    share = softmax(x[0])[:2].sum()
    few, many = (sparse_softmax_loss(x[:1], t[:1], p=share + s) for s in (-1e-6, 1e-6))
    assert few == pytest.approx(np.logaddexp(3, 2) - 1)
    assert many == pytest.approx(softmax_loss(x[:1], t[:1]))
    assert many - few > 0.05


def test_options_of_the_sparse_loss():
    """Smoothing, class weights, several labels: as for softmax_loss, and it where k = n."""
    several = (RNG.random((8, 6)) < 0.4).astype(float)
    for target in (LABELS, np.where(LABELS == 0, -100, LABELS), several):
        for reduction in ("mean", "sum", "none"):
            options = dict(weight=WEIGHT, label_smoothing=0.2, reduction=reduction)
            got = sparse_softmax_loss(X, target, k=6, **options)
            assert got == pytest.approx(softmax_loss(X, target, **options), abs=1e-12)
    with pytest.raises(ValueError, match="give k, p or min_p, or kept; got none"):
        sparse_softmax_loss(X, LABELS)


def test_edges_of_the_sparse_loss(framework):
    inf = math.inf
    x = framework.array(
        [[-inf, 2.0, 1.0, 0.0], [inf, 1.0, 0.0, 0.0], [-inf] * 4, [1.0, -inf, 0, 2]]
    )
    t = framework.array([3, 0, 1, 0], "int32")
    got = framework.numpy(sparse_softmax_loss(x, t, k=2, reduction="none"))
    want = [np.logaddexp(2, 1), 0, 0, np.logaddexp(2, 1) - 1]
    assert got == pytest.approx(np.array(want), abs=1e-6)
    mask = framework.array([False, True, True, True], "bool")
    lost = sparse_softmax_loss(
        x, framework.array([0, 0, 0, 0], "int32"), k=2, mask=mask, reduction="none"
    )
    assert np.array_equal(framework.numpy(lost), [inf, inf, 0, inf])
    bad = framework.array([[math.nan, 1.0, 0.0, 2.0], [0.0, 1.0, 2.0, 3.0]])
    each = framework.numpy(sparse_softmax_loss(bad, t[:2], k=2, reduction="none"))
    assert np.array_equal(np.isnan(each), [True, False])

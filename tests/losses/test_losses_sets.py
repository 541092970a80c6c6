"""sparse_softmax_loss of sets by k, p and min_p together or by name, and of targets outside."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from kofn import sparse_softmax
from kofn.losses import softmax_loss, sparse_softmax_loss
from pairs import pairwise
from support import each_compiler

RNG = np.random.default_rng(27)
X = RNG.standard_normal((4, 6, 12)) * 2
LABELS = RNG.integers(0, 12, (4, 6))
WAYS = ("against", "kept", "infinite")
SEVERAL = dict(k=6, p=0.9, min_p=0.03)
WEIGHTS = sparse_softmax(X, **SEVERAL)
KEPT = np.nonzero(WEIGHTS.reshape(24, 12))[1], np.r_[0, np.cumsum((WEIGHTS > 0).sum(-1))]
SETS = (SEVERAL, dict(kept=KEPT))


def by_hand(way, temperature=1.0):
    """The losses of the rows of X, and their gradients, of the sets of SEVERAL at T = 1."""
    inside, hot = WEIGHTS > 0, np.eye(12)[LABELS]
    own = np.take_along_axis(inside, LABELS[..., None], -1)[..., 0]
    joined = inside | (hot > 0) if way == "kept" else inside
    raised = np.where(joined, np.exp(X / temperature), 0)
    total = raised.sum(-1)
    loss = np.log(total) - np.take_along_axis(X, LABELS[..., None], -1)[..., 0] / temperature
    slope = (raised / total[..., None] - hot) / temperature
    if way == "infinite":
        loss, slope = np.where(own, loss, math.inf), np.where(own[..., None], slope, 0)
    return loss, slope


@pytest.mark.parametrize("of", SETS, ids=("several", "kept"))
@pytest.mark.parametrize("way", WAYS)
def test_a_target_outside_costs_what_is_asked(framework, of, way, monkeypatch):
    want, slope = by_hand(way)
    assert np.isinf(want).any() == (way == "infinite")
    for kernels in ("on", "reference"):
        monkeypatch.setenv("KOFN_KERNELS", kernels)
        for dtype, accuracy in (("float64", 1e-12), ("float32", 2e-6)):
            x, t = framework.array(X, dtype), framework.array(LABELS, "int32")

            def loss(x, t=t):
                return sparse_softmax_loss(x, t, outside=way, reduction="none", **of)

            assert framework.numpy(framework.as_one(loss)(x)) == pytest.approx(want, abs=accuracy)
            if framework.name != "numpy":
                ones = framework.array(np.where(np.isinf(want), 0, 1), dtype)
                (got,) = framework.vjp(loss, (x,), ones)
                assert got == pytest.approx(slope, abs=accuracy)


def test_the_default_joins_named_sets_alone():
    each = [sparse_softmax_loss(X, LABELS, reduction="none", **of) for of in SETS]
    assert each[0] == pytest.approx(by_hand("against")[0])
    assert each[1] == pytest.approx(by_hand("kept")[0])


@pytest.mark.parametrize("of", [dict(k=3), dict(p=0.7)], ids=("k", "p"))
@pytest.mark.parametrize("way", WAYS)
def test_k_and_p_alone_have_the_ways_too(framework, of, way):
    inside = sparse_softmax(X, **of) > 0
    own = np.take_along_axis(inside, LABELS[..., None], -1)[..., 0]
    mine = np.take_along_axis(X, LABELS[..., None], -1)[..., 0]
    total = np.log(np.where(inside, np.exp(X), 0).sum(-1))
    joined = np.where(own, total, np.logaddexp(total, mine)) - mine
    want = {"against": total - mine, "kept": joined, "infinite": np.where(own, joined, math.inf)}
    x, t = framework.array(X), framework.array(LABELS, "int64")
    got = sparse_softmax_loss(x, t, outside=way, reduction="none", **of)
    assert framework.numpy(got) == pytest.approx(want[way], abs=1e-12)


@pairwise(of=SETS, way=WAYS)
def test_derivatives_of_every_order(of, way):
    x = torch.tensor(X, requires_grad=True)
    t = torch.linspace(0.8, 1.3, 24, dtype=torch.float64).reshape(4, 6).requires_grad_()
    labels = torch.tensor(LABELS)
    of = of if "kept" in of else dict(k=6, p=0.9)

    def loss(x, t=1.0):
        each = sparse_softmax_loss(x, labels, temperature=t, outside=way, reduction="none", **of)
        return torch.where(each < math.inf, each, 0.0)

    for given in ((x,), (x, t)):
        assert gradcheck(
            loss, given, check_forward_ad=True, check_batched_grad=True, fast_mode=True
        )
        assert gradgradcheck(loss, given, check_fwd_over_rev=True, fast_mode=True)


def test_hessians_of_jax_are_those_of_torch():
    def loss(x):
        labels = LABELS[0, :2]
        labels = torch.tensor(labels) if isinstance(x, torch.Tensor) else labels
        return sparse_softmax_loss(x, labels, outside="kept", **SEVERAL)

    hessian = jax.jit(jax.hessian(loss))(jnp.asarray(X[0, :2]))
    torchs = torch.func.hessian(loss)(torch.tensor(X[0, :2]))
    assert np.asarray(hessian) == pytest.approx(torchs.numpy(), abs=1e-12)


@each_compiler
@pytest.mark.parametrize(
    "of", [pytest.param(SETS[0], marks=pytest.mark.full), SETS[1]], ids=("several", "kept")
)
def test_it_compiles_and_exports(of, backend):
    x, y = (torch.tensor(X, requires_grad=True) for _ in range(2))
    labels = torch.tensor(LABELS)

    def loss(x):
        return sparse_softmax_loss(x, labels, outside="kept", **of)

    torch._dynamo.reset()
    torch.compile(loss, fullgraph=True, backend=backend)(x).backward()
    loss(y).backward()
    assert torch.allclose(x.grad, y.grad)
    module = type("Module", (torch.nn.Module,), {"forward": lambda self, x: loss(x)})()
    saved = torch.export.export(module, (y.detach(),)).module()
    assert torch.allclose(saved(y.detach()), loss(y))
    slope = torch.func.grad(loss)(y.detach())
    assert torch.allclose(slope, y.grad)
    jitted = jax.jit(lambda x, t: sparse_softmax_loss(x, t, outside="kept", **of))
    assert float(jitted(jnp.asarray(X), jnp.asarray(LABELS))) == pytest.approx(loss(y).item())


def test_rows_that_count(framework):
    """Ignored labels and empty sets are left out of the mean; class weights are in it."""
    x = framework.array(X[0, :4])
    labels = framework.array([2, -100, 5, 1], "int64")
    kept = ([2, 3, 1, 4, 7], [0, 2, 3, 5, 5])
    each = framework.numpy(sparse_softmax_loss(x, labels, kept=kept, reduction="none"))
    want = np.logaddexp.reduce(X[0, 0, [2, 3]]) - X[0, 0, 2]
    third = np.logaddexp.reduce(X[0, 2, [4, 7, 5]]) - X[0, 2, 5]
    assert each == pytest.approx([want, 0, third, 0], abs=1e-12)
    mean = framework.numpy(sparse_softmax_loss(x, labels, kept=kept))
    assert mean == pytest.approx((want + third) / 2)
    weight = framework.array(np.arange(12.0) + 1)
    mean = framework.numpy(sparse_softmax_loss(x, labels, kept=kept, weight=weight))
    assert mean == pytest.approx((3 * want + 6 * third) / 9)
    mask = framework.array(np.arange(12) != 2, "bool")
    masked = framework.numpy(sparse_softmax_loss(x, labels, kept=kept, mask=mask, reduction="none"))
    assert np.isinf(masked[0])
    for way in WAYS:
        lost = sparse_softmax_loss(x, labels, kept=([], [0] * 5), outside=way)
        assert framework.numpy(lost) == 0


def test_special_scores(framework):
    inf, nan = math.inf, math.nan
    x = framework.array([[1.0, 2, -inf, 0], [inf, 0, inf, 1], [nan, 1, 2, 3], [0, inf, 2, nan]])
    kept = ([0, 1, 0, 2, 0, 1, 0, 2], [0, 2, 4, 6, 8])
    for labels, way, want in (
        ([2, 0, 1, 0], "kept", [inf, math.log(2), nan, math.log(1 + math.e**2)]),
        ([3, 1, 2, 1], "kept", [math.log(math.e + math.e**2 + 1), inf, nan, 0]),
        ([3, 3, 2, 1], "infinite", [inf, inf, nan, inf]),
        ([3, 3, 2, 3], "against", [math.log(math.e + math.e**2), inf, nan, nan]),
    ):
        t = framework.array(labels, "int64")
        got = sparse_softmax_loss(x, t, kept=kept, outside=way, reduction="none")
        assert framework.numpy(got) == pytest.approx(want, abs=1e-6, nan_ok=True)


def test_of_all_entries_it_is_the_softmax_loss():
    kept = np.tile(np.arange(12), 24), np.arange(25) * 12
    for reduction in ("none", "mean", "sum"):
        want = softmax_loss(X, LABELS, reduction=reduction)
        for of in (dict(kept=kept), dict(min_p=0.0), dict(k=12, p=1.0)):
            got = sparse_softmax_loss(X, LABELS, reduction=reduction, **of)
            assert got == pytest.approx(want, abs=1e-12)


def test_several_labels_are_each_compared_with_the_set(framework):
    target = (RNG.random((4, 6, 12)) < 0.3) * 0.5
    logs = np.log(np.where(WEIGHTS > 0, np.exp(X), 0).sum(-1, keepdims=True)) - X
    got = sparse_softmax_loss(
        framework.array(X), framework.array(target), reduction="none", **SEVERAL
    )
    assert framework.numpy(got) == pytest.approx((target * logs).sum(-1), abs=1e-12)


def test_ratios_of_what_was_sampled():
    """Of two policies with the same sets, the losses' difference is the log of p'/p."""
    rng = np.random.default_rng(5)
    new = X + 0.1 * rng.standard_normal(X.shape)
    drawn = WEIGHTS.argmax(-1)
    old, now = (sparse_softmax_loss(x, drawn, kept=KEPT, reduction="none") for x in (X, new))
    before, after = WEIGHTS, sparse_softmax(new, kept=KEPT)
    at = [np.take_along_axis(each, drawn[..., None], -1)[..., 0] for each in (before, after)]
    assert np.exp(old - now) == pytest.approx(at[1] / at[0])


def test_errors_of_the_loss(framework):
    x, t = framework.array(X[0]), framework.array(LABELS[0], "int64")
    with pytest.raises(ValueError, match="outside must be one of 'against', 'kept', 'infinite'"):
        sparse_softmax_loss(x, t, k=2, outside="no")
    for target, smoothing in ((framework.array(WEIGHTS[0]), 0.0), (t, 0.1)):
        with pytest.raises(ValueError, match="outside must be 'against' for a target of weights"):
            sparse_softmax_loss(x, target, k=2, outside="kept", label_smoothing=smoothing)
    sets = ([], [0] * 7)
    with pytest.raises(ValueError, match=r"label_smoothing must be 0 where kept is given; got 0.1"):
        sparse_softmax_loss(x, t, kept=sets, label_smoothing=0.1)
    with pytest.raises(ValueError, match="target must have one index per row where kept is given"):
        sparse_softmax_loss(x, framework.array(WEIGHTS[0]), kept=sets)
    with pytest.raises(ValueError, match="p must be None where kept is given"):
        sparse_softmax_loss(x, t, kept=sets, p=0.9)
    with pytest.raises(ValueError, match=r"target must have indices in \[0, 12\)"):
        sparse_softmax_loss(x, t + 12, kept=sets)

"""kofn.losses: what each equals, its gradient, its options, its edges."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck

import kofn
from kofn import entmax, fenchel_young_loss, losses, perturbed_argmax, soft_topk, softmax, sparsemax
from kofn.losses import softmax_loss, topk_loss
from support import every_link

RNG = np.random.default_rng(4)
X = RNG.standard_normal((6, 5)) * 2
LABELS = np.array([0, 3, -100, 2, 4, 1])
USED = LABELS >= 0
ONE_HOT = np.eye(5)[np.where(USED, LABELS, 0)] * USED[:, None]
K_HOT = np.array([[1, 0, 1, 0, 0], [0, 1, 1, 1, 0], [1, 0, 0, 0, 0], [0, 0, 1, 1, 0],
                  [1, 1, 0, 1, 1], [0, 0, 0, 0, 1]])  # fmt: skip
WEIGHT = np.array([0.5, 2.0, 1.0, 0.1, 3.0])

# Every loss of scores and a target, with what it needs.
LOSSES = {
    "softmax_loss": {},
    "sparsemax_loss": {},
    "entmax_loss": {},
    "topk_loss": {},
    "fenchel_young_loss": {},
    "sparse_softmax_loss": dict(k=3),
    "topk_cross_entropy": dict(k=(0.5, 0, 0.5)),
    "epsilon_cross_entropy": {},
    "accuracy_loss": {},
    "perturbed_accuracy_loss": {},
    "am_softmax": dict(temperature=0.5),
    "arcface": dict(temperature=0.5),
}
WITH_IGNORED = [name for name in LOSSES if name != "fenchel_young_loss"]


def loss_of(name):
    def loss(scores, target, **options):
        found = getattr(losses, name)(scores, target, **{**LOSSES[name], **options})
        return found[0] if isinstance(found, tuple) else found

    return loss


def test_the_table_is_complete():
    # Ragged rows have tests in test_rows_segments.py and test_losses_sets.py, topk_kl its own.
    others = {"segment_topk_loss", "segment_sparse_softmax_loss", "topk_kl"}
    assert {*LOSSES} | others == set(losses.__all__), "each loss needs a row in LOSSES"


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["integers", "weights"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_softmax_loss_is_torchs_cross_entropy(reduction, kind, weighted, smoothing):
    x = torch.tensor(X).reshape(2, 3, 5).movedim(-1, 1).contiguous()  # classes second
    t = (
        LABELS.reshape(2, 3)
        if kind == "integers"
        else np.moveaxis(K_HOT.reshape(2, 3, 5), -1, 1) / 3.0
    )
    t = torch.tensor(np.ascontiguousarray(t))
    weight = torch.tensor(WEIGHT) if weighted else None
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    options = dict(weight=weight, label_smoothing=smoothing, reduction=reduction)
    got = softmax_loss(ours, t, dim=1, ignore_index=-100, **options)
    want = F.cross_entropy(theirs, t, **options)
    assert torch.allclose(got, want, atol=1e-13)
    v = torch.tensor(np.random.default_rng(1).standard_normal(tuple(want.shape)))
    (a,), (b,) = (torch.autograd.grad(y, z, v) for y, z in ((got, ours), (want, theirs)))
    assert torch.allclose(a, b, atol=1e-13)


def test_another_ignore_index_and_a_batch_of_nothing(framework):
    x, t = framework.array(X), framework.array(np.where(USED, LABELS, 7), "int32")
    got = framework.numpy(softmax_loss(x, t, ignore_index=7))
    want = F.cross_entropy(torch.tensor(X), torch.tensor(LABELS)).item()
    assert got == pytest.approx(want, abs=1e-6)
    nothing = framework.array(np.full(6, -100), "int32")
    assert framework.numpy(softmax_loss(x, nothing)) == 0
    assert framework.numpy(losses.sparsemax_loss(x, nothing, weight=framework.array(WEIGHT))) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_sparse_losses_are_the_published_ones():
    published = pytest.importorskip("entmax")
    x, t = torch.tensor(X[USED]), torch.tensor(LABELS[USED])
    for ours, theirs in (
        (losses.sparsemax_loss, published.sparsemax_loss),
        (losses.entmax_loss, published.entmax15_loss),
    ):
        want = theirs(x, t)
        assert torch.allclose(ours(x, t, reduction="none"), want, atol=1e-12)
    want = published.entmax_bisect_loss(x, t, alpha=1.3)
    assert torch.allclose(losses.entmax_loss(x, t, 1.3, reduction="none"), want, atol=1e-9)


@pytest.mark.parametrize("name", WITH_IGNORED)
def test_integers_are_one_hot_and_ignored_rows_leave(framework, name):
    loss = loss_of(name)
    x = framework.array(np.tanh(X), "float64")
    whole = framework.array(LABELS, "int32")
    each = framework.numpy(loss(x, whole, reduction="none"))
    assert each.shape == (6,)
    assert each[2] == 0
    rows = framework.array(np.tanh(X)[USED])
    one_hot = framework.array(ONE_HOT[USED])
    wanted = framework.numpy(loss(rows, one_hot, reduction="none"))
    assert each[USED] == pytest.approx(wanted, abs=1e-5)
    assert framework.numpy(loss(x, whole)) == pytest.approx(wanted.mean(), abs=1e-5)
    assert framework.numpy(loss(x, whole, reduction="sum")) == pytest.approx(wanted.sum(), abs=1e-5)


@pytest.mark.parametrize("name", WITH_IGNORED)
def test_class_weights(name):
    loss, x = loss_of(name), np.tanh(X)
    plain, weighted = (loss(x, LABELS, reduction="none", weight=w) for w in (None, WEIGHT))
    of_row = np.where(USED, WEIGHT[np.where(USED, LABELS, 0)], 0.0)
    assert weighted == pytest.approx(plain * of_row, abs=1e-12)
    assert loss(x, LABELS, weight=WEIGHT) == pytest.approx(weighted.sum() / of_row.sum(), abs=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_padding_masks_and_dim(name):
    loss, x = loss_of(name), np.tanh(X)
    t = np.where(USED, LABELS, 0)
    keep = RNG.random(X.shape) < 0.7
    keep[np.arange(6), np.where(USED, LABELS, 0)] = True
    keep[5] = False
    target = np.where(keep, np.eye(5)[np.where(USED, LABELS, 0)], 0.0)
    masked = loss(x, target, mask=keep, reduction="none")
    away_x = np.where(keep, x, -np.inf)
    away = loss(away_x, target, reduction="none")
    assert masked == pytest.approx(away, abs=1e-12)
    assert masked[5] == 0
    assert loss(x, target, mask=keep) == pytest.approx(masked[:5].mean(), abs=1e-12)
    assert loss(away_x, t, reduction="none")[5] == 0  # an index, too
    turned = loss(x.T.copy(), target.T.copy(), mask=keep.T.copy(), dim=0, reduction="none")
    assert turned == pytest.approx(masked, abs=1e-12)
    leaf = torch.tensor(np.where(keep, x, -np.inf), requires_grad=True)
    loss(leaf, torch.tensor(target)).backward()
    assert leaf.grad.isfinite().all()
    assert not leaf.grad[~torch.tensor(keep)].any()


@pytest.mark.parametrize("name", LOSSES)
def test_derivatives(name):
    smooth = name not in ("sparsemax_loss", "epsilon_cross_entropy")
    loss = loss_of(name)
    x = torch.tensor(np.tanh(X) * (1 if name in ("am_softmax", "arcface") else 3))
    x.requires_grad_()
    t = torch.tensor([0.7, 1.3, 1.0, 2.0, 0.8, 1.1], dtype=torch.float64, requires_grad=True)
    target = torch.tensor(ONE_HOT if name != "topk_loss" else K_HOT)

    def f(x, t):
        return loss(x, target, temperature=t, reduction="none")

    assert gradcheck(f, (x, t), check_forward_ad=True, check_batched_grad=True, fast_mode=True)
    if smooth:
        assert gradgradcheck(f, (x, t), fast_mode=True)


@pytest.mark.parametrize(
    "name",
    [
        *(some := ("topk_loss", "accuracy_loss")),
        *(pytest.param(n, marks=pytest.mark.full) for n in WITH_IGNORED if n not in some),
    ],
)
def test_losses_compile_and_map(name):
    loss = loss_of(name)
    x, t = torch.tensor(np.tanh(X)), torch.tensor(LABELS)
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x, t), loss(x, t))
    each = torch.func.vmap(torch.func.grad(loss))(x, t)
    leaf = x.clone().requires_grad_()
    loss(leaf, t, reduction="sum").backward()
    assert torch.allclose(each, leaf.grad, atol=1e-12)


@every_link
def test_topk_loss_pulls_the_weights_to_the_target(link):
    x = torch.tensor(X, requires_grad=True)
    t = torch.tensor(K_HOT)
    topk_loss(x, t, link=link, temperature=0.7, reduction="sum").backward()
    p = soft_topk(X, K_HOT.sum(-1).astype(float), link=link, temperature=0.7)
    assert x.grad.numpy() == pytest.approx((p - K_HOT) / 0.7, abs=1e-12)
    same = fenchel_young_loss(X, K_HOT.astype(float), link=link)
    assert topk_loss(X, K_HOT, link=link) == pytest.approx(same, abs=1e-12)
    assert topk_loss(X, K_HOT.astype(bool), link=link) == pytest.approx(same, abs=1e-12)


def test_smoothing_keeps_the_number_of_labels():
    """Spread over the entries in play only, so that k stays Σ target."""
    keep = np.array([True, True, True, True, False])
    target = K_HOT * keep
    x = torch.tensor(X, requires_grad=True)
    topk_loss(x, torch.tensor(target), label_smoothing=0.2, mask=torch.tensor(keep)).backward()
    assert x.grad.sum(-1).numpy() == pytest.approx(np.zeros(6), abs=1e-12)
    even = 0.8 * target + 0.2 * keep * target.sum(-1, keepdims=True) / 4
    want = fenchel_young_loss(X, even, link="logistic", mask=keep)
    got = topk_loss(X, target, label_smoothing=0.2, mask=keep)
    assert got == pytest.approx(want, abs=1e-12)


def test_the_stop_gradient_form_of_the_articles():
    """⟨stop(p − t), x⟩ has the Fenchel–Young gradient; stopping x instead, as printed, has not."""
    t = torch.tensor(ONE_HOT[USED])
    for weights, loss in (
        (softmax, losses.softmax_loss),
        (sparsemax, losses.sparsemax_loss),
        (entmax, losses.entmax_loss),
    ):
        x = torch.tensor(X[USED], requires_grad=True)
        (want,) = torch.autograd.grad(loss(x, t, reduction="sum"), x)
        (got,) = torch.autograd.grad(((weights(x) - t).detach() * x).sum(), x)
        assert torch.allclose(got, want, atol=1e-13)
        (printed,) = torch.autograd.grad(((weights(x) - t) * x.detach()).sum(), x)
        assert (printed - want).abs().max() > 0.1


def test_smoothing_of_the_other_likelihoods():
    """Linear in the target; of k = 1 and the exponential link it is cross-entropy's."""
    options = dict(link="exponential", label_smoothing=0.2, weight=WEIGHT)
    rows, t = X[USED], LABELS[USED]
    got = losses.topk_cross_entropy(rows, t, 1, reduction="none", **options)
    log_p = np.log(softmax(rows))
    want = -(0.8 * np.take_along_axis(log_p, t[:, None], 1)[:, 0] + 0.2 * log_p.mean(-1))
    assert got == pytest.approx(want * WEIGHT[t], abs=1e-12)
    got = losses.epsilon_cross_entropy(rows, t, epsilon=1e-9, reduction="none", **options)
    assert got == pytest.approx(want * WEIGHT[t], abs=1e-5)


def test_topk_cross_entropy_is_what_its_formula_says(framework):
    x, t = framework.array(X[USED]), framework.array(LABELS[USED], "int32")
    rows = np.arange(USED.sum()), LABELS[USED]
    for link in ("logistic", "exponential"):
        total = sum(
            share * soft_topk(X[USED], k, link=link)[rows] for k, share in ((1, 0.25), (3, 0.75))
        )
        got = losses.topk_cross_entropy(x, t, (0.25, 0, 0.75), link=link, reduction="none")
        assert framework.numpy(got) == pytest.approx(-np.log(total), abs=1e-5)
    far = framework.array([[0.0, 500.0, 490.0]], "float32")
    loss = losses.topk_cross_entropy(far, framework.array([0], "int32"), 1, link="exponential")
    assert framework.numpy(loss) == pytest.approx(500, abs=1e-3)


def test_topk_cross_entropy_takes_a_distribution():
    t = np.zeros(6, int)
    for k in ((0.5, 0.4), (1.5, -0.5), 0, 6, (0, 0, 0, 0, 0, 1.0)):
        with pytest.raises(ValueError, match="k must be"):
            losses.topk_cross_entropy(X, t, k)
    for k in ("1", None, True, 1.5):
        with pytest.raises(TypeError, match="k must be"):
            losses.topk_cross_entropy(X, t, k)


def test_the_accuracy_losses(framework):
    x, t = framework.array(X), framework.array(K_HOT, "float64")
    p = soft_topk(X, K_HOT.sum(-1).astype(float), link="exponential")
    got = framework.numpy(losses.accuracy_loss(x, t, reduction="none"))
    assert got == pytest.approx(-(p * K_HOT).sum(-1) / K_HOT.sum(-1), abs=1e-5)
    labels = framework.array(LABELS, "int32")
    got = framework.numpy(losses.perturbed_accuracy_loss(x, labels, reduction="none"))
    assert got == pytest.approx(-(perturbed_argmax(X) * ONE_HOT).sum(-1), abs=1e-5)


def test_epsilon_keeps_a_loss_finite_where_the_weight_is_0():
    x = np.array([[3.0, 0.0, 0.0]])
    assert sparsemax(x)[0, 1] == 0
    loss = losses.epsilon_cross_entropy(x, np.array([1]), epsilon=0.01)
    assert loss == pytest.approx(math.log(1.03 / 0.01))
    with pytest.raises(ValueError, match="epsilon must be a number > 0"):
        losses.epsilon_cross_entropy(x, np.array([1]), epsilon=0.0)


def test_margins_move_the_target_alone(framework):
    cosines = np.tanh(X)
    x, t = framework.array(cosines), framework.array(LABELS, "int32")
    for function, moved in (
        (losses.am_softmax, cosines - 0.3),
        (losses.arcface, np.cos(np.arccos(cosines) + 0.3)),
    ):
        loss, logits = function(x, t, margin=0.3, temperature=0.1)
        late = cosines < -math.cos(0.3)
        if function is losses.arcface:
            moved = np.where(late, cosines - 0.3 * math.sin(0.3), moved)
        wanted = np.where(ONE_HOT == 1, moved, cosines) / 0.1
        assert framework.numpy(logits) == pytest.approx(wanted, abs=1e-4)
        again = framework.numpy(softmax_loss(logits, t))
        assert framework.numpy(loss) == pytest.approx(again, abs=1e-5)
    per_class = framework.array(np.array([0.1, 0.2, 0.3, 0.4, 0.5]))
    _, logits = losses.am_softmax(x, t, margin=per_class, temperature=1.0)
    wanted = cosines - ONE_HOT * np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    assert framework.numpy(logits) == pytest.approx(wanted, abs=1e-6)


MARGINS = [losses.am_softmax, losses.arcface]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("function", MARGINS)
def test_a_margin_moves_one_entry_of_a_row_and_copies_no_scores(function, weighted, rng):
    x = torch.tensor(rng.uniform(-1, 1, (6, 50)).astype("float32"), requires_grad=True)
    weight, kept = torch.ones(50) if weighted else None, []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each), lambda _: None):
        function(x, torch.tensor(rng.integers(0, 50, 6)), weight=weight)
    # Beside the logits, which are an answer, p − t alone has a number per entry.
    assert sum(each.numel() >= x.numel() for each in kept) == 1
    assert not any(each.data_ptr() == x.data_ptr() for each in kept)


@pytest.mark.pairs
@pytest.mark.parametrize(
    "options", [{}, dict(weight=torch.arange(1.0, 10.0)), dict(dim=0)], ids=["", "weight", "dim"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", MARGINS)
def test_margins_by_kernels_are_those_of_array_code(function, dtype, options, monkeypatch):
    """Cosines of ±1, beyond π − margin, masked, NaN; labels that do not count; and derivatives."""
    x = torch.randn(9, 9, generator=torch.Generator().manual_seed(0)).tanh().to(dtype)
    x[1, 2], x[2, 3], x[3], x[4, 4] = 1.0, -1.0, torch.finfo(dtype).min, math.nan
    x[5, 4], x[6, 2], x[0, 0], x[8, 1] = -0.99, -math.inf, 1 + 1e-6, 0.3
    labels = torch.tensor([0, 2, 3, 1, 4, 4, 2, -100, 1])
    close = dict(rtol=1e-5, atol=1e-5) if dtype.itemsize > 2 else dict(rtol=0.02, atol=0.1)

    def called(rows, margin):
        leaf = (x[rows].T if "dim" in options else x[rows]).clone().requires_grad_()
        loss, logits = function(leaf, labels[rows], margin=margin, temperature=0.3, **options)
        known = logits.double().masked_fill(~logits.isfinite(), 0.0)
        (first,) = torch.autograd.grad(loss + known.cos().sum(), leaf, create_graph=True)
        alone = function(leaf, labels[rows], margin=margin, temperature=0.3, **options)[0]
        (plain,) = torch.autograd.grad(alone, leaf)
        by = torch.linspace(0, 1, first.numel()).reshape(first.shape)
        (second,) = torch.autograd.grad((first * by).sum(), leaf)
        return loss.detach(), logits.detach(), first.detach(), plain, second

    for margin in (0.5, 2):
        for rows in ([0, 1, 2, 5, 8], [*range(3), *range(5, 9)], list(range(9))):
            monkeypatch.delenv("KOFN_KERNELS", raising=False)
            found = called(rows, margin)
            monkeypatch.setenv("KOFN_KERNELS", "reference")
            for one, other in zip(found, called(rows, margin), strict=True):
                torch.testing.assert_close(one, other, equal_nan=True, **close)


@pytest.mark.parametrize("function", MARGINS)
def test_derivatives_of_margins(function, rng):
    x = torch.tensor(rng.uniform(-0.99, 0.99, (4, 7)), requires_grad=True)
    labels = torch.tensor([0, 6, -100, 3])

    def both(x):
        return function(x, labels, temperature=0.5, reduction="sum")

    assert gradcheck(both, x)
    assert gradgradcheck(both, x)


def test_arcface_is_safe_at_the_ends_and_falls_all_the_way():
    for dtype in (torch.float32, torch.float64):
        ends = torch.tensor(
            [[1.0, 0.2], [-1.0, 0.1], [1.0 + 1e-7, 0.0], [0.99999994, 0.0]], dtype=dtype
        )
        ends.requires_grad_()
        loss, logits = losses.arcface(ends, torch.zeros(4, dtype=torch.int64))
        loss.backward()
        assert ends.grad.isfinite().all()
        assert logits.isfinite().all()
    cosines = np.linspace(-1, 1, 2001)[:, None] * np.ones(2)
    _, logits = losses.arcface(cosines, np.zeros(2001, int), temperature=1.0)
    assert np.all(np.diff(logits[:, 0]) > 0)
    margin = torch.tensor([0.5, 0.4], dtype=torch.float64, requires_grad=True)
    t = torch.tensor([0, 1])
    x = torch.tensor([[0.3, 0.2], [-0.5, 0.9]], dtype=torch.float64)
    assert gradcheck(lambda m: losses.arcface(x, t, margin=m)[0], margin)


def test_errors():
    t = np.zeros(6, int)
    for name in WITH_IGNORED:
        loss = loss_of(name)
        with pytest.raises(ValueError, match="reduction must be one of"):
            loss(X, t, reduction="average")
        with pytest.raises(ValueError, match=r"target must have the shape of scores, \(6, 5\)"):
            loss(X, t[:3])
        with pytest.raises(TypeError, match="target of indices must be integers"):
            loss(X, t.astype(float))
        with pytest.raises(ValueError, match=r"weight must have one number for each.*\(5,\)"):
            loss(X, t, weight=np.ones(6))
        with pytest.raises(TypeError, match="ignore_index must be an integer"):
            loss(X, t, ignore_index=1.5)
        with pytest.raises(TypeError, match="target is a Tensor"):
            loss(X, torch.zeros(6, dtype=torch.int64))
    with pytest.raises(ValueError, match="label_smoothing must be a number in"):
        softmax_loss(X, t, label_smoothing=1.5)
    with pytest.raises(ValueError, match="margin must be one number, or one for each"):
        losses.am_softmax(X, t, margin=np.ones(3))
    with pytest.raises(ValueError, match="margin must be an angle"):
        losses.arcface(X, t, margin=4.0)
    assert kofn.losses is losses

"""Losses and logarithms from the kernels for rows: what the reference in float64 makes of them."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

import kofn
from kofn import links, losses
from kofn.links import table
from support import LINKS, ONE_OF_EACH, full_but, names_of

INF, NAN = math.inf, math.nan
EVERY = [*(table.TABLE[name] for name in LINKS), links.entmax(1.3)]
links_of = pytest.mark.parametrize(
    "link",
    full_but([table.TABLE[name] for name in ONE_OF_EACH], EVERY),
)


def rows(rng, n=200):
    """Rows with a score of +inf, of −inf, a NaN, none available, and scores far apart."""
    x = (rng.standard_normal((6, n)) * 3).astype(np.float32)
    x[1, 3], x[2, 5], x[3, 7], x[4], x[5, ::2] = INF, -INF, NAN, -INF, -300
    return x, np.array([0.5, 1, 2, 1, 1, 0.7], np.float32)


def targets(kind, rng, n=200):
    if kind == "labels":
        return np.array([3, 3, 5, 2, 1, n - 1])
    if kind == "hot":
        return rng.random((6, n)) < 0.1
    return rng.random((6, n)).astype(np.float32)


def both_ways(function, arrays, monkeypatch):
    """(answer, cotangents) by the kernels in float32, and by the reference in float64."""
    found = []
    for backend, dtype in (("on", torch.float32), ("reference", torch.float64)):
        monkeypatch.setenv("KOFN_KERNELS", backend)
        leaves = [torch.tensor(a).to(dtype).requires_grad_() for a in arrays]
        answer = function(*leaves)
        assert ("_Recorded" in names_of(answer.grad_fn)) or backend == "reference"
        cotangent = torch.tensor(np.random.default_rng(3).standard_normal(answer.shape))
        slopes = torch.autograd.grad(answer, leaves, cotangent.to(dtype))
        found.append([a.detach().double() for a in (answer, *slopes)])
    return found


def meets(got, wanted):
    assert torch.equal(got[0].isnan(), wanted[0].isnan())
    assert torch.equal(got[0].isinf(), wanted[0].isinf())
    finite = wanted[0].isfinite()
    torch.testing.assert_close(got[0][finite], wanted[0][finite], rtol=2e-6, atol=2e-6)
    for ours, right in zip(got[1:], wanted[1:], strict=True):
        known = [0, 1, 2, 4, 5]  # row 3 has the NaN
        size = 1 + torch.linalg.vector_norm(right[known])
        assert torch.linalg.vector_norm(ours[known] - right[known]) <= 1e-5 * size
        assert torch.all(ours[3].isnan() | ~right[3].isnan())


@pytest.mark.parametrize("kind", ["labels", "hot", "soft"])
@links_of
def test_fenchel_young_losses_meet_the_reference(link, kind, rng, monkeypatch):
    t = torch.tensor(targets(kind, rng))

    def loss(x, temperature):
        options = dict(link=link, temperature=temperature, reduction="none")
        return kofn.fenchel_young_loss(x, t, **options)

    meets(*both_ways(loss, rows(rng), monkeypatch))


def test_cross_entropy_of_labels_meets_the_reference(rng, monkeypatch):
    """Also where +inf is a label, or shares with another one."""
    x, temperature = rows(rng)
    x[0, [3, 8]] = INF
    labels = torch.tensor(targets("labels", rng))

    def loss(x, temperature):
        return losses.softmax_loss(x, labels, temperature=temperature, reduction="none")

    meets(*both_ways(loss, (x, temperature), monkeypatch))
    plain = loss(torch.tensor(x), torch.tensor(temperature))
    assert torch.equal(plain.nan_to_num(-1), loss(torch.tensor(x).requires_grad_(),
                       torch.tensor(temperature)).detach().nan_to_num(-1))  # fmt: skip


@pytest.mark.parametrize("name", ["softmax_loss", "topk_loss", "sparsemax_loss", "entmax_loss"])
def test_smoothed_losses_of_labels_meet_the_reference(name, rng, monkeypatch):
    """With class weights, and with entries out of play, of which the smoothing knows."""
    x, temperature = (rng.standard_normal((5, 200)) * 3).astype("f4"), np.ones(5, "f4") * 2
    labels, weight = torch.tensor([3, 0, 199, 7, 7]), torch.tensor(rng.random(200))
    for by_class in (None, weight):
        for lost in (False, True):
            x[0, 5:9] = -INF if lost else 0

            def loss(x, t, w=by_class):
                options = dict(label_smoothing=0.2, reduction="none", temperature=t)
                return getattr(losses, name)(x, labels, weight=w, **options)

            for got, wanted in zip(*both_ways(loss, (x, temperature), monkeypatch), strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("link", [table.TABLE[name] for name in ONE_OF_EACH], ids=str)
def test_logarithms_meet_the_reference(link, rng, monkeypatch):
    k = torch.tensor([1, 7, 2.5, 3, 3, 2])

    def log_p(x, temperature):
        return kofn.log_soft_topk(x, k.to(x.dtype), link=link, temperature=temperature)

    # At the end of a support, a logarithm has no bound, and F′/F neither.
    x, temperature = rows(rng)
    meets(*both_ways(log_p, (np.round(x * 4) / 4, temperature), monkeypatch))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("name", ["softmax_loss", "topk_loss", "sparsemax_loss", "entmax_loss"])
def test_losses_of_labels_differentiate_twice(name, smoothing, rng):
    x = torch.tensor(rng.standard_normal((3, 7)), requires_grad=True)
    t = torch.tensor([0.7, 1.0, 1.5], dtype=torch.float64, requires_grad=True)
    labels, loss = torch.tensor([1, 0, 6]), getattr(losses, name)

    def f(x, t):
        options = dict(label_smoothing=smoothing, temperature=t, reduction="none")
        return loss(x, labels, **options)

    assert torch.autograd.gradcheck(f, (x, t), fast_mode=True)
    if name != "sparsemax_loss":
        assert torch.autograd.gradgradcheck(f, (x, t), fast_mode=True)


def peak(function):
    """The most bytes that PyTorch holds while it calls `function`, above what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        function()
    held = most = 0
    events = (e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]")
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@pytest.mark.parametrize("name", ["softmax_loss", "topk_loss", "sparsemax_loss", "entmax_loss"])
def test_a_loss_takes_no_more_memory_than_cross_entropy(name):
    x = torch.randn(8, 131072, requires_grad=True)
    labels = torch.arange(8)

    def run(loss):
        loss(x, labels).backward()
        x.grad = None

    run(getattr(losses, name))  # compiles
    assert peak(lambda: run(getattr(losses, name))) <= peak(lambda: run(F.cross_entropy))


def hot_rows(n, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, n, generator=generator).to(dtype)
    return x, torch.rand(3, n, generator=generator) < 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("n", [7, 100, 300, 70_000])
def test_a_target_of_any_dtype_counts_its_labels(n, dtype):
    """Bytes and numbers, in rows abreast, one after another, and in parts."""
    x, hot = hot_rows(n, dtype)
    wanted = losses.topk_loss(x.double(), hot.double(), reduction="none")
    for target in (hot, hot.to(torch.uint8), hot.long(), hot.to(dtype)):
        leaf = x.clone().requires_grad_()
        for found in (losses.topk_loss(at, target, reduction="none") for at in (x, leaf)):
            torch.testing.assert_close(found.double(), wanted, rtol=2e-6, atol=0)
        found.sum().backward()
        p = kofn.soft_topk(x.double(), hot.sum(-1).double())
        tolerance = 8e-3 if dtype == torch.bfloat16 else 2e-6
        torch.testing.assert_close(leaf.grad.double(), p - hot.double(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [130, 512, 1100, 70_000])
def test_a_label_is_a_target_of_one_one(n, dtype):
    """At the ends of a row, of its blocks and of its parts, far above the others and far below."""
    at = [i for i in (0, 129, 511, 512, 513, 1023, 1024, 65_535, 65_536, n - 1) if i < n]
    labels = torch.tensor(at)
    x = torch.randn(len(at), n, generator=torch.Generator().manual_seed(n)).to(dtype)
    x[1, at[1]], x[2, at[2]] = 30.0, -30.0
    temperature = torch.linspace(0.5, 2.0, len(at), dtype=dtype)
    found, marks = [], F.one_hot(labels, n)
    for target, kind in ((labels, dtype), (marks, torch.float64)):
        leaves = [each.to(kind).requires_grad_() for each in (x, temperature)]
        loss = losses.topk_loss(leaves[0], target, temperature=leaves[1], reduction="none")
        slopes = torch.autograd.grad(loss.sum(), leaves)
        alone = losses.topk_loss(leaves[0].detach(), target, temperature=temperature.to(kind))
        found.append([each.double() for each in (loss, alone, *slopes)])
    eps = torch.finfo(dtype).eps
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=16 * eps, atol=8 * eps)


def test_a_boolean_target_and_no_gradient_take_little_memory():
    x, hot = hot_rows(131_072)
    losses.topk_loss(x, hot)  # compiles
    assert peak(lambda: losses.topk_loss(x, hot)) < 10_000
    assert peak(lambda: losses.entmax_loss(x, torch.arange(3))) < 10_000


@pytest.mark.parametrize("kind", ["labels", "hot", "soft"])
def test_rows_that_a_kernel_gives_up_on_have_their_losses(kind, rng, monkeypatch):
    x, _ = rows(rng)
    x[0] *= 1e12
    t = torch.tensor(targets(kind, rng))

    def loss(x, temperature):
        return losses.topk_loss(x, t, temperature=temperature, reduction="none")

    ours, right = both_ways(loss, (x, np.ones(6, np.float32)), monkeypatch)
    torch.testing.assert_close(ours[0], right[0], rtol=2e-6, atol=2e-6, equal_nan=True)
    torch.testing.assert_close(ours[1][0], right[1][0], rtol=1e-5, atol=1e-5)


def test_rows_without_labels_count_if_they_have_an_available_entry():
    x, hot = hot_rows(300)
    hot[1:] = False
    x[2] = -INF
    each = losses.topk_loss(x, hot, reduction="none")
    torch.testing.assert_close(each[1:], torch.zeros(2))
    torch.testing.assert_close(losses.topk_loss(x, hot), each.sum() / 2)
    torch.testing.assert_close(losses.topk_loss(x[:2], hot[:2]), each[:2].mean())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", ["long", "equal", "near", "beyond", "soft", "short block"])
def test_a_product_of_terms_keeps_the_digits_of_each(case, dtype, rng):
    n, k = {"short block": 613, "long": 30_000}.get(case, 1024), 32
    x = rng.standard_normal((3, n)) * {"near": 0.1, "beyond": 1e-3}.get(case, 1.0)
    # Of a long row the labels lead: then its loss is made of many terms far less than 1.
    ranks = np.argsort(np.argsort(-x if case == "long" else rng.random((3, n))))
    target = ranks < (2 if case == "long" else k)
    if case == "equal":
        x[:], target = 0.0, np.arange(n) < np.full((3, 1), n // 2)  # all factors are 2
    elif case == "soft":
        target = rng.random((3, n))
    x, target = x.astype(dtype), target.astype(dtype)
    t = np.array([0.5, 1.0, 2.0])
    found = _with_slopes(x, target, t.astype(dtype))
    wanted = _by_the_definition(*(a.astype(np.longdouble) for a in (x, target, t)))
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(found[0], wanted[0].astype(float), rtol=4 * eps)
    np.testing.assert_allclose(found[1], wanted[1].astype(float), atol=8 * eps)
    # p − 1 of a label has the rounding of 1.
    scale = ((np.abs(wanted[1]) + target) * np.abs(x)).sum(-1).astype(float)
    assert (np.abs(found[2] - wanted[2].astype(float)) <= 2 * eps * scale / t**2 + 1e-30).all()


def _with_slopes(x, target, t):
    """The losses, p − t and their slopes in T, by the kernels."""
    scores, each = (torch.tensor(a).requires_grad_() for a in (x, t))
    loss = losses.topk_loss(scores, torch.tensor(target), temperature=each, reduction="none")
    in_x, in_t = torch.autograd.grad(loss.sum(), (scores, each))
    return [loss.detach().numpy(), in_x.numpy() * t[:, None], in_t.numpy()]


def _by_the_definition(x, target, t):
    """The same in 80 bits, by bisection."""
    k, z = target.sum(-1)[:, None], x / t[:, None]
    low, high = z.min(-1, keepdims=True) - 50, z.max(-1, keepdims=True) + 50
    for _ in range(90):
        theta = (low + high) / 2
        more = (1 / (1 + np.exp(theta - z))).sum(-1, keepdims=True) > k
        low, high = np.where(more, theta, low), np.where(more, high, theta)
    z = z - theta
    terms = np.log1p(np.exp(-np.abs(z))) + np.where(z > 0, (1 - target) * z, -target * z)
    inside = np.where((target > 0) & (target < 1), target, np.longdouble(0.5))
    bent = inside * np.log(inside) + (1 - inside) * np.log1p(-inside)
    terms += np.where((target > 0) & (target < 1), bent, 0)
    residual = 1 / (1 + np.exp(-z)) - target
    return [terms.sum(-1), residual, -(residual * z).sum(-1) / t]

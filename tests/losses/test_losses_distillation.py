"""topk_kl: the divergence from a teacher's k tokens and a bucket, by enumeration."""

import functools
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import torch
from torch import distributed
from torch.autograd import gradcheck, gradgradcheck

import kofn
from kofn.losses import topk_kl
from pairs import pairwise
from ranks import run_on_ranks
from support import each_compiler, full_but

RNG = np.random.default_rng(28)
N = 9
X, Y = RNG.standard_normal((2, 3, 4, N)) * 2
LOG_P = Y - np.log(np.exp(Y).sum(-1, keepdims=True))
T = RNG.random((3, 4)) + 0.5
WAYS = [(tail, reverse) for tail in ("bucket", "renormalise") for reverse in (False, True)]


def teacher(k):
    """The k most likely tokens, and their log p."""
    ids = np.argsort(-LOG_P, -1)[..., :k]
    return ids, np.take_along_axis(LOG_P, ids, -1)


def enumerated(k, tail, reverse, temperature=1.0):
    """The divergence of the k + 1 categories, term by term."""
    z = X / np.asarray(temperature)[..., None]
    q, ids = np.exp(z) / np.exp(z).sum(-1, keepdims=True), teacher(k)[0]
    p, q = (np.take_along_axis(each, ids, -1) for each in (np.exp(LOG_P), q))
    if tail == "renormalise":
        p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
    elif k < N:
        p, q = (np.concatenate([each, 1 - each.sum(-1, keepdims=True)], -1) for each in (p, q))
    p, q = (q, p) if reverse else (p, q)
    return (p * np.log(p / q)).sum(-1)


@pairwise(k=(1, 3, 8, N), way=WAYS, dtype=("float64", "float32"))
def test_it_is_the_divergence_of_k_tokens_and_a_bucket(framework, k, way, dtype):
    tail, reverse = way
    ids, log_p = teacher(k)
    given = framework.array(X, dtype), framework.array(ids, "int64"), framework.array(log_p, dtype)
    options = dict(tail=tail, reverse=reverse, temperature=framework.array(T, dtype))
    each = framework.numpy(topk_kl(*given, reduction="none", **options))
    want = enumerated(k, tail, reverse, T)
    accuracy = 1e-12 if dtype == "float64" else 2e-6
    assert each == pytest.approx(want, abs=accuracy)
    assert framework.numpy(topk_kl(*given, **options)) == pytest.approx(want.mean(), abs=accuracy)
    padded = np.concatenate([ids, np.full((3, 4, 2), -1)], -1)
    beside = np.concatenate([log_p, np.full((3, 4, 2), 7.0)], -1)
    given = given[0], framework.array(padded, "int32"), framework.array(beside, dtype)
    assert framework.numpy(topk_kl(*given, reduction="none", **options)) == pytest.approx(
        want, abs=accuracy
    )


def test_it_is_a_lower_bound_that_rises_to_the_whole():
    q = kofn.softmax(X)
    for reverse in (False, True):
        p, other = (q, np.exp(LOG_P)) if reverse else (np.exp(LOG_P), q)
        whole = (p * np.log(p / other)).sum(-1)
        before = np.zeros_like(whole)
        for k in range(1, N + 1):
            each = topk_kl(X, *teacher(k), reverse=reverse, reduction="none")
            assert (each >= before - 1e-12).all()
            before = each
        assert before == pytest.approx(whole, abs=1e-12)
    same = topk_kl(LOG_P, *teacher(3), reduction="none")
    assert (same >= 0).all()
    assert same == pytest.approx(0, abs=1e-14)


def test_what_a_sum_over_the_tokens_alone_clamps_to_0():
    """Student (.6, .4), teacher (.9, .1), k = 1, reverse: −.243, where the divergence is .311."""
    student = np.log([[0.6, 0.4]])
    got = topk_kl(student, np.array([[0]]), np.log([[0.9]]), reverse=True)
    assert got == pytest.approx(0.6 * math.log(0.6 / 0.9) + 0.4 * math.log(0.4 / 0.1))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("gap", [20.0, 45.0, 80.0])
def test_tails_keep_their_digits_where_sums_round_to_1(framework, gap, reverse):
    """1 − P and 1 − Q are e^−gap and less, far below the rounding of P and Q."""
    divergence = framework.as_one(functools.partial(topk_kl, reverse=reverse))
    x, y = np.zeros((2, 6)), np.zeros((2, 6))
    x[:, 0], y[:, 0] = gap + 1, gap
    x[1, 1], y[1, 1] = gap, gap - 1
    k = 2
    for row in range(2):
        with mpmath.workdps(80):
            logs = []
            for values in (x[row], y[row]):
                numbers = [mpmath.mpf(float(one)) for one in values]
                whole = mpmath.log(mpmath.fsum(map(mpmath.exp, numbers)))
                each = [one - whole for one in numbers]
                logs.append([*each[:k], mpmath.log(mpmath.fsum(map(mpmath.exp, each[k:])))])
            q, p = logs
            p, q = (q, p) if reverse else (p, q)
            want = float(mpmath.fsum(mpmath.exp(a) * (a - b) for a, b in zip(p, q, strict=True)))
            named = [float(one) for one in logs[1][:k]]
        given = (
            framework.array(x[row : row + 1]),
            framework.array([[0, 1]], "int64"),
            framework.array([named]),
        )
        got = float(framework.numpy(divergence(*given)))
        assert got == pytest.approx(want, abs=1e-14)
    alone = np.array([[float(-mpmath.log1p(5 * mpmath.exp(-gap)))]])
    given = framework.array(x[:1]), framework.array([[0]], "int64"), framework.array(alone)
    with mpmath.workdps(60):
        a, b = (5 * mpmath.exp(-g) / (1 + 5 * mpmath.exp(-g)) for g in (gap, gap + 1))
        a, b = (b, a) if reverse else (a, b)
        want = a * mpmath.log(a / b) + (1 - a) * mpmath.log((1 - a) / (1 - b))
    got = float(framework.numpy(divergence(*given)))
    assert got == pytest.approx(float(want), abs=1e-16, rel=1e-3)
    assert got >= 0


@pairwise(k=(1, 3, N), way=WAYS)
def test_derivatives_of_every_order(k, way):
    tail, reverse = way
    ids, log_p = (torch.tensor(each) for each in teacher(k))
    x, t = torch.tensor(X, requires_grad=True), torch.tensor(T, requires_grad=True)

    def loss(x, t=1.0):
        return topk_kl(x, ids, log_p, tail=tail, reverse=reverse, temperature=t, reduction="none")

    for given in ((x,), (x, t)):
        assert gradcheck(loss, given, check_forward_ad=True, fast_mode=True)
        assert gradgradcheck(loss, given, check_fwd_over_rev=True, fast_mode=True)
    v = RNG.standard_normal((3, 4))
    (slope,) = torch.autograd.grad((loss(x) * torch.tensor(v)).sum(), x)
    options = dict(tail=tail, reverse=reverse, reduction="none")
    on_jax = jax.jit(jax.grad(lambda x: (topk_kl(x, *teacher(k), **options) * v).sum()))
    assert np.asarray(on_jax(jnp.asarray(X))) == pytest.approx(slope.numpy(), abs=1e-12)


def test_the_gradient_is_q_less_p_on_the_tokens_and_shared_by_the_rest():
    ids, log_p = teacher(3)
    x = torch.tensor(X, requires_grad=True)
    topk_kl(x, torch.tensor(ids), torch.tensor(log_p), reduction="sum").backward()
    q, p = kofn.softmax(X), np.exp(log_p)
    want = q * (1 - (1 - p.sum(-1)) / (1 - np.take_along_axis(q, ids, -1).sum(-1)))[..., None]
    np.put_along_axis(want, ids, np.take_along_axis(q, ids, -1) - p, -1)
    assert x.grad.numpy() == pytest.approx(want, abs=1e-12)


@each_compiler
@pytest.mark.parametrize("reverse", full_but((True,), (False, True)))
def test_it_compiles_exports_and_maps(reverse, backend):
    ids, log_p = (torch.tensor(each) for each in teacher(3))

    def loss(x):
        return topk_kl(x, ids, log_p, reverse=reverse)

    x, y = (torch.tensor(X, requires_grad=True) for _ in range(2))
    torch._dynamo.reset()
    torch.compile(loss, fullgraph=True, backend=backend)(x).backward()
    loss(y).backward()
    assert torch.allclose(x.grad, y.grad)
    assert torch.allclose(torch.func.grad(loss)(y.detach()), y.grad)
    module = type("Module", (torch.nn.Module,), {"forward": lambda self, x: loss(x)})()
    saved = torch.export.export(module, (y.detach(),)).module()
    assert torch.allclose(saved(y.detach()), loss(y))
    each = torch.func.vmap(lambda x, i, p: topk_kl(x, i, p, reverse=reverse))(y, ids, log_p)
    assert torch.allclose(each.mean(), loss(y))


def test_half_precision_and_a_vocabulary():
    """In blocks of rows, with what the whole has; the gradient is of the scores' dtype."""
    x = torch.randn(5, 40_000, requires_grad=True)
    log_p, ids = torch.randn(5, 40_000).log_softmax(-1).topk(16)
    got = topk_kl(x, ids, log_p, reduction="none")
    q = x.detach().double().log_softmax(-1)
    named = q.gather(-1, ids)
    rest = q.scatter(-1, ids, -math.inf).logsumexp(-1)
    p, tail = log_p.double().exp(), torch.log1p(-log_p.double().exp().sum(-1))
    want = (p * (log_p - named)).sum(-1) + tail.exp() * (tail - rest)
    assert torch.allclose(got.double(), want, atol=2e-6)
    half = x.detach().bfloat16().requires_grad_()
    loss = topk_kl(half, ids, log_p)
    assert loss.dtype == torch.float32
    loss.backward()
    assert half.grad.dtype == torch.bfloat16


def test_special_rows(framework):
    inf, nan = math.inf, math.nan
    x = framework.array([[1.0, 2, 0, -inf], [nan, 1, 2, 3], [-inf] * 4, [1, 2, 3, 4]])
    ids = framework.array([[0, 3], [1, 2], [0, 1], [-1, -1]], "int64")
    log_p = framework.array(np.log([[0.5, 0.2], [0.4, 0.3], [0.4, 0.3], [1.0, 1.0]]))
    each = framework.numpy(topk_kl(x, ids, log_p, reduction="none"))
    assert np.isnan(each[1])
    assert np.array_equal(each[[0, 2, 3]], [inf, 0, 0])
    back = framework.numpy(topk_kl(x, ids, log_p, reverse=True, reduction="none"))
    assert np.isfinite(back[0])
    hard = framework.array([[0.0, -inf]])
    got = topk_kl(x[3:], framework.array([[3, 1]], "int64"), hard)
    assert framework.numpy(got) == pytest.approx(-np.log(kofn.softmax(np.arange(1.0, 5)))[3])
    got = topk_kl(x[3:], framework.array([[3, 1]], "int64"), hard, reverse=True)
    assert framework.numpy(got) == inf


def test_errors_name_the_argument(framework):
    ids, log_p = teacher(2)
    x, i, p = framework.array(X), framework.array(ids, "int64"), framework.array(log_p)
    with pytest.raises(ValueError, match="tail must be one of 'bucket', 'renormalise'; got 'none'"):
        topk_kl(x, i, p, tail="none")
    with pytest.raises(TypeError, match="reverse must be True or False; got 1"):
        topk_kl(x, i, p, reverse=1)
    with pytest.raises(TypeError, match="ids must be integers"):
        topk_kl(x, p, p)
    with pytest.raises(TypeError, match="log_probs must be floats"):
        topk_kl(x, i, i)
    with pytest.raises(ValueError, match=r"ids must have the batch shape \(3, 4\)"):
        topk_kl(x, i[0], p[0])
    with pytest.raises(ValueError, match=r"log_probs must have the shape of ids, \(3, 4, 2\)"):
        topk_kl(x, i, p[..., :1])
    with pytest.raises(ValueError, match=r"ids must be in \[0, 9\), or -1 for padding; got 10"):
        topk_kl(x, i * 0 + 10, p)


def divided():
    """The losses and gradients of whole rows, in each process."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    cuts = [0, *np.linspace(2, N, size).astype(int)]
    part = slice(cuts[rank], cuts[rank + 1])
    ids, log_p = (torch.tensor(each) for each in teacher(3))
    for tail, reverse in WAYS:
        options = dict(tail=tail, reverse=reverse, reduction="none")
        found = []
        for function, x in ((topk_kl, X), (kofn.distributed.topk_kl, X[..., part])):
            x, t = torch.tensor(x, requires_grad=True), torch.tensor(T, requires_grad=True)
            loss = function(x, ids, log_p, temperature=t, **options)
            (loss * loss.detach()).sum().backward()
            found.append((loss.detach(), x.grad, t.grad))
        whole, ours = found
        assert torch.allclose(ours[0], whole[0], atol=1e-12)
        assert torch.allclose(ours[1], whole[1][..., part], atol=1e-12)
        assert torch.allclose(ours[2], whole[2], atol=1e-12)


def test_a_vocabulary_in_shards(tmp_path):
    run_on_ranks(tmp_path / "store", 2, divided)


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="in jax.experimental before 0.6")
@pytest.mark.parametrize("tracked", full_but((True,), (False, True)))
def test_a_vocabulary_along_an_axis(tracked):
    size = max(n for n in (1, 3) if n <= jax.device_count())
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((size,), ("i",), axis_types=auto, devices=jax.devices()[:size])
    part, whole = jax.sharding.PartitionSpec(None, None, "i"), jax.sharding.PartitionSpec()

    def over_axis(x):
        return kofn.distributed.topk_kl(x, *teacher(3), axis_name="i")

    mapped = jax.shard_map(over_axis, mesh=mesh, in_specs=part, out_specs=whole, check_vma=tracked)
    x = jnp.asarray(X)

    def plain(x):
        return topk_kl(x, *teacher(3))

    slopes = jax.jit(jax.grad(plain))
    for ours, theirs in ((jax.jit(mapped), jax.jit(plain)), (jax.grad(jax.jit(mapped)), slopes)):
        assert np.asarray(ours(x)) == pytest.approx(np.asarray(theirs(x)), abs=1e-11)


@pytest.mark.parametrize("temperature", [0.7, "per row"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_code_and_blocks_agree(dtype, temperature, monkeypatch):
    """Scores out of play, named or not, NaN, and +inf, too."""
    x = torch.randn(6, 70, dtype=dtype)
    ids = x.topk(4).indices
    x[0, 3], x[1, 5], x[2, ids[2, 0]], x[3, ::2], x[4] = math.nan, math.inf, -math.inf, -3e38, 700
    ids[5, 0] = -1
    log_p = torch.log_softmax(torch.randn(6, 5, dtype=dtype), -1)[:, :4]
    found = []
    for serves in (True, False):
        if not serves:
            monkeypatch.setenv("KOFN_KERNELS", "reference")
        t = torch.linspace(0.5, 2, 6, dtype=dtype).requires_grad_()
        given = [x.clone().requires_grad_(), *[t][: temperature == "per row"]]
        each = topk_kl(given[0], ids, log_p, temperature=(*given, temperature)[1], reduction="none")
        slopes = torch.autograd.grad(each[each.isfinite()].sum(), given)
        found.append([each, *(slope[2:] for slope in slopes)])
    for one, other in zip(*found, strict=True):
        exact = (
            dict(rtol=1e-12, atol=1e-14) if dtype == torch.float64 else dict(rtol=1e-5, atol=1e-6)
        )
        torch.testing.assert_close(one, other, equal_nan=True, **exact)

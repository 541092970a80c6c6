"""sparse_softmax by k, p and min_p together, in the order of samplers, and over sets by name.

What k and p do alone is in test_maps_softmax_variants.py.
"""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from kofn import metrics, softmax, sparse_softmax
from kofn.losses import sparse_softmax_loss
from pairs import pairwise
from support import each_compiler, full_but

RNG = np.random.default_rng(26)
X = RNG.standard_normal((3, 4, 40)) * 2
SETS = (
    dict(k=12, p=0.9, min_p=0.05),
    dict(k=8, p=0.6),
    dict(p=0.95, min_p=0.1),
    dict(k=15, min_p=0.2),
    dict(min_p=0.07),
)
VOCABULARY = 152_064


def warped(x, k=None, p=None, min_p=None):
    """Weights as transformers' warpers make them one after another, by sorts, in float64."""
    x, inside = np.asarray(x, float), np.ones(np.shape(x), bool)

    def weights():
        e = np.where(inside, np.exp(x - x.max(-1, keepdims=True)), 0)
        return e / e.sum(-1, keepdims=True)

    if k is not None:
        inside &= x >= np.sort(x, -1)[..., -k, None]
    if p is not None:
        q, order = weights(), np.argsort(-x, -1, kind="stable")
        ranked = np.take_along_axis(q, order, -1)
        needed = np.cumsum(ranked, -1) - ranked < p
        inside &= q >= np.where(needed, ranked, np.inf).min(-1, keepdims=True)
    if min_p is not None:
        q = weights()
        inside &= q >= min_p * q.max(-1, keepdims=True)
    return weights()


def sets_of(weights):
    """(token_ids, offsets) of the entries with weight, row by row."""
    rows = weights.reshape(-1, weights.shape[-1]) > 0
    return np.nonzero(rows)[1], np.r_[0, np.cumsum(rows.sum(-1))]


@pytest.fixture(params=["on", "reference"])
def kernels(request, monkeypatch):
    monkeypatch.setenv("KOFN_KERNELS", request.param)
    return request.param


@pytest.mark.parametrize("of", SETS, ids=str)
def test_the_order_is_k_then_p_then_min_p(framework, kernels, of):
    for dtype, accuracy in (("float64", 1e-13), ("float32", 3e-7)):
        x = framework.array(X, dtype)
        got = framework.numpy(sparse_softmax(x, **of))
        want = warped(X, **of)
        assert np.array_equal(got > 0, want > 0)
        assert got == pytest.approx(want, abs=accuracy)
        hot = framework.numpy(sparse_softmax(x * 2, temperature=2.0, **of))
        assert hot == pytest.approx(want, abs=accuracy)


def test_vllm_takes_min_p_first_and_then_keeps_no_more():
    scores = np.log([[0.4, 0.25, 0.15, 0.12, 0.08]])
    here = sparse_softmax(scores, p=0.78, min_p=0.33)
    first = scores >= scores.max() + math.log(0.33)
    there = sparse_softmax(scores, p=0.78, mask=first)
    assert np.array_equal(here > 0, [[True, True, True, False, False]])
    assert np.array_equal(there > 0, [[True, True, False, False, False]])


def test_what_leaves_nothing_out_changes_no_bit(framework):
    x = framework.array(np.round(X * 2) / 2)
    for alone, beside in (
        (dict(k=5), dict(p=1.0)),
        (dict(k=5), dict(min_p=0.0)),
        (dict(p=0.7), dict(min_p=0)),
        (dict(p=1.0), dict(min_p=0)),
    ):
        each = [framework.numpy(sparse_softmax(x, **of)) for of in (alone, {**alone, **beside})]
        assert np.array_equal(*each)
    whole = framework.numpy(sparse_softmax(x, min_p=0.0))
    assert np.array_equal(whole, framework.numpy(sparse_softmax(x, p=1.0)))


def test_equal_scores_are_kept_or_left_out_together(framework, kernels):
    x = framework.array([[3.0, 1.0, 1.0, 1.0, 0.0], [2.0, 2.0, 2.0, 2.0, 1.0]])
    kept = framework.numpy(sparse_softmax(x, k=2, p=0.999, min_p=0.01)) > 0
    assert np.array_equal(kept, [[True] * 4 + [False]] * 2)
    assert np.array_equal(
        framework.numpy(sparse_softmax(x, k=4, p=0.1)) > 0, [[1, 0, 0, 0, 0], [1] * 4 + [0]]
    )
    equal = framework.numpy(sparse_softmax(x, k=2, min_p=1.0))
    assert equal == pytest.approx(np.array([[1.0, 0, 0, 0, 0], [0.25] * 4 + [0]]))


def test_rows_at_the_edges(framework, kernels):
    inf, nan = math.inf, math.nan
    x = framework.array([[-inf] * 4, [inf, 1, inf, 0], [nan, 3, 1, 0], [1, -inf, -inf, -inf]])
    for of in (dict(k=3, p=0.9), dict(min_p=0.5), dict(k=2, p=0.5, min_p=0.1)):
        p = framework.numpy(sparse_softmax(x, **of))
        assert np.array_equal(p[[0, 1, 3]], [[0] * 4, [0.5, 0, 0.5, 0], [1, 0, 0, 0]])
        assert np.isnan(p[2]).all()
        h = framework.numpy(metrics.sparse_softmax_entropy(x, **of))
        assert h[[0, 1, 3]] == pytest.approx([0, math.log(2), 0])
        assert np.isnan(h[2])
    mask = framework.array([False, True, True, True], "bool")
    p = framework.numpy(sparse_softmax(framework.array([9.0, 1, 0, -9]), k=3, p=0.99, mask=mask))
    assert p == pytest.approx([0, *softmax(np.array([1.0, 0])), 0])
    assert sparse_softmax(framework.array(np.zeros((2, 0))), min_p=0.5).shape == (2, 0)
    column = sparse_softmax(framework.array(X[0].T.copy()), dim=0, **SETS[0])
    assert pytest.approx(warped(X[0], **SETS[0])) == framework.numpy(column).T


def test_bfloat16_keeps_what_a_sampler_of_bfloat16_keeps(kernels):
    x = torch.tensor(X).bfloat16()
    for of in SETS:
        want = warped(x.double().numpy(), **of)
        got = sparse_softmax(x, **of)
        assert got.dtype == torch.bfloat16
        assert np.array_equal(got.float().numpy() > 0, want > 0)
        assert got.float().numpy() == pytest.approx(want, abs=4e-3)
        kept = sparse_softmax(x, kept=sets_of(want))
        assert kept.float().numpy() == pytest.approx(want, abs=4e-3)


@pairwise(of=(*SETS, "kept"), what=("map", "entropy"))
def test_derivatives_by_differences(of, what):
    of = dict(kept=sets_of(warped(X[:, :, :10], k=5))) if of == "kept" else of
    f = {"map": sparse_softmax, "entropy": metrics.sparse_softmax_entropy}[what]
    x = torch.tensor(X[:, :, :10], requires_grad=True)
    of = {**of, "k": min(of["k"], 6)} if "k" in of else of
    t = torch.linspace(0.7, 1.9, 12, dtype=torch.float64).reshape(3, 4).requires_grad_()
    for given in ((x, t), (x,)):
        call = lambda x, t=0.8: f(x, temperature=t, **of)  # noqa: E731
        assert gradcheck(
            call, given, check_forward_ad=True, check_batched_grad=True, fast_mode=True
        )
        assert gradgradcheck(call, given, check_fwd_over_rev=True, fast_mode=True)


def test_on_jax_derivatives_are_those_of_torch():
    kept = sets_of(warped(X, k=5))
    for of in (SETS[0], dict(kept=kept)):
        for f in (sparse_softmax, metrics.sparse_softmax_entropy):
            call = lambda x, of=of, f=f: f(x, **of)  # noqa: E731
            x = torch.tensor(X, requires_grad=True)
            answer = call(x)
            v = RNG.standard_normal(answer.shape)
            answer.backward(torch.tensor(v))
            got = jax.jit(jax.grad(lambda x: (call(x) * v).sum()))(jnp.asarray(X))  # noqa: B023
            assert np.asarray(got) == pytest.approx(x.grad.numpy(), abs=1e-12)
            if "kept" not in of:
                each = jax.vmap(call)(jnp.asarray(X))
                assert np.asarray(each) == pytest.approx(answer.detach().numpy(), abs=1e-13)
    ids, offsets = (jnp.asarray(each) for each in kept)
    padded = jnp.concatenate([ids, jnp.full(7, -1)])
    call = jax.jit(lambda x, ids, offsets: sparse_softmax(x, kept=(ids, offsets)))
    want = warped(X, k=5)
    assert np.asarray(call(jnp.asarray(X), padded, offsets)) == pytest.approx(want, abs=1e-13)
    many = jax.vmap(call, (0, None, None))(jnp.stack([X, 2 * X]), ids, offsets)
    assert np.asarray(many[0]) == pytest.approx(want, abs=1e-13)
    bad = call(jnp.asarray(X), padded.at[0].set(40), offsets)
    assert np.isnan(np.asarray(bad[0, 0])).any()
    assert not np.isnan(np.asarray(bad.reshape(12, 40)[1:])).any()


@each_compiler
@pytest.mark.parametrize("of", full_but(("several",), ("several", "kept")))
def test_it_compiles_exports_and_maps(of, backend):
    of = dict(kept=sets_of(warped(X, k=5))) if of == "kept" else SETS[0]
    kept = [torch.as_tensor(each) for each in of["kept"]] if "kept" in of else None
    of = of if kept is None else dict(kept=kept)
    for f in (sparse_softmax, metrics.sparse_softmax_entropy):
        call = lambda x, f=f: f(x, **of)  # noqa: E731
        x, y = (torch.tensor(X, requires_grad=True) for _ in range(2))
        torch._dynamo.reset()
        answer = torch.compile(call, fullgraph=True, backend=backend)(x)
        v = torch.randn_like(answer)
        answer.backward(v)
        call(y).backward(v)
        assert torch.allclose(answer, call(y))
        assert torch.allclose(x.grad, y.grad)
        module = type("Module", (torch.nn.Module,), {"forward": lambda self, x: call(x)})()  # noqa: B023
        saved = torch.export.export(module, (x.detach(),))
        assert torch.allclose(saved.module()(y.detach()), answer)
        slope = torch.func.grad(lambda x: (call(x) * v).sum())(y.detach())  # noqa: B023
        assert torch.allclose(slope, y.grad)
        two = torch.func.vmap(call)(torch.stack([y.detach(), 2 * y.detach()]))
        assert torch.allclose(two[0], answer)


# Sets by name.


def test_sets_may_be_lists_arrays_or_an_object(framework):
    x, want = framework.array(X), warped(X, k=5)
    ids, offsets = sets_of(want)
    for kept in (
        (ids, offsets),
        [ids.tolist(), offsets.tolist()],
        (framework.array(ids, "int32"), framework.array(offsets, "int64")),
        SimpleNamespace(token_ids=ids.tolist(), offsets=offsets.tolist()),
        (np.r_[ids, -1, -1], offsets),
    ):
        assert framework.numpy(sparse_softmax(x, kept=kept)) == pytest.approx(want, abs=1e-13)
    turned = framework.array(np.moveaxis(X, -1, 1).copy())
    found = framework.numpy(sparse_softmax(turned, kept=(ids, offsets), dim=1))
    assert np.moveaxis(found, 1, -1) == pytest.approx(want, abs=1e-13)
    one = framework.numpy(sparse_softmax(framework.array(X[0, 0]), kept=([3, 0], [0, 2])))
    assert one[[0, 3]] == pytest.approx(softmax(X[0, 0, [0, 3]]))
    assert one.sum() == pytest.approx(1)


def test_sets_meet_masks_temperatures_and_special_scores(framework):
    inf, nan = math.inf, math.nan
    x = framework.array(
        [[1.0, 2, 3, 4], [inf, 0, inf, 1], [nan, 1, 2, 3], [0, nan, inf, 1], [-inf, 1, 2, 3]]
    )
    kept = ([1, 3, 0, 1, 2, 0, 2, 0, 3, 0], [0, 2, 5, 7, 9, 10])
    p = framework.numpy(sparse_softmax(x, kept=kept))
    assert p[0] == pytest.approx([0, 0.1192029, 0, 0.8807971], abs=1e-6)
    assert np.array_equal(p[1], [0.5, 0, 0.5, 0])
    assert np.isnan(p[2]).any()
    assert p[3] == pytest.approx(
        [0.2689414, 0, 0, 0.7310586], abs=1e-6
    )  # what is outside is not read
    assert np.array_equal(p[4], [0] * 4)
    h = framework.numpy(metrics.sparse_softmax_entropy(x, kept=kept))
    assert h[[1, 4]] == pytest.approx([math.log(2), 0])
    assert np.isnan(h[2])
    mask = framework.array([True, False, True, True], "bool")
    masked = framework.numpy(sparse_softmax(x, kept=kept, mask=mask))
    assert np.array_equal(masked[0], [0, 0, 0, 1])
    t = framework.array([1.0, 1, 1, 2, 1])
    warm = framework.numpy(sparse_softmax(x, kept=kept, temperature=t))
    assert warm[3] == pytest.approx([0.3775407, 0, 0, 0.6224593], abs=1e-6)
    empty = framework.numpy(sparse_softmax(x, kept=([], [0] * 6)))
    assert np.array_equal(empty, np.zeros((5, 4)))


class Sizes(TorchDispatchMode):
    """Records what arrays operations make that are not views."""

    def __init__(self, size):
        super().__init__()
        self.size, self.made = size, []

    def __torch_dispatch__(self, operation, types, given=(), named=None):
        answers = operation(*given, **(named or {}))
        if "detach" in str(operation):  # the same memory
            return answers
        for each in answers if isinstance(answers, (tuple, list)) else [answers]:
            if isinstance(each, torch.Tensor) and each._base is None and each.numel() >= self.size:
                self.made.append(str(operation))
        return answers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sets_take_no_array_of_the_scores_but_their_gradient(dtype):
    x = torch.randn(8, 5000).to(dtype).requires_grad_()
    kept = torch.arange(40) * 100, torch.arange(9) * 5
    labels = torch.randint(0, 5000, (8,))
    for call in (
        lambda: sparse_softmax_loss(x, labels, kept=kept),
        lambda: metrics.sparse_softmax_entropy(x, kept=kept).sum(),
    ):
        with Sizes(x.numel()) as forward:
            loss = call()
        assert forward.made == []
        with Sizes(x.numel()) as back:
            (slope,) = torch.autograd.grad(loss, x)
        assert (slope != 0).sum() >= 40
        assert len(back.made) <= 2, back.made  # zeros, and these with the gradient


@pytest.mark.parametrize("of", [dict(k=50, p=0.95, min_p=0.01), "kept"], ids=str)
@pytest.mark.parametrize(("dtype", "accuracy"), [("float32", 1e-6), ("float64", 1e-12)])
def test_a_vocabulary_equals_dense_masking(of, dtype, accuracy):
    x = RNG.standard_normal((3, VOCABULARY)).astype(dtype) * 3
    labels = RNG.integers(0, VOCABULARY, 3)
    labels[0] = x[0].argmax()
    want = warped(x, **(dict(k=50, p=0.95, min_p=0.01)))
    of = dict(kept=sets_of(want)) if of == "kept" else of
    scores = torch.tensor(x, requires_grad=True)
    np.testing.assert_allclose(sparse_softmax(x, **of), want, rtol=0, atol=accuracy)
    entropy = metrics.sparse_softmax_entropy(scores, **of)
    logs = np.log(np.where(want > 0, want, 1))
    whole = -(want * logs).sum(-1)
    assert entropy.detach().numpy() == pytest.approx(whole, rel=accuracy)
    (slope,) = torch.autograd.grad(entropy.sum(), scores)
    right = -want * (logs + whole[:, None])
    np.testing.assert_allclose(slope, right, rtol=0, atol=3 * accuracy)
    loss = sparse_softmax_loss(scores, torch.tensor(labels), outside="kept", reduction="none", **of)
    raised = np.where(want > 0, np.exp(x.astype(float)), 0)
    np.put_along_axis(
        raised,
        labels[:, None],
        np.exp(np.take_along_axis(x.astype(float), labels[:, None], -1)),
        -1,
    )
    q = raised / raised.sum(-1, keepdims=True)
    mine = np.take_along_axis(q, labels[:, None], -1)[:, 0]
    assert loss.detach().numpy() == pytest.approx(-np.log(mine), rel=accuracy, abs=accuracy)
    (slope,) = torch.autograd.grad(loss.sum(), scores)
    np.put_along_axis(q, labels[:, None], mine[:, None] - 1, -1)
    np.testing.assert_allclose(slope, q, rtol=0, atol=accuracy)


def test_errors_name_the_argument_and_its_value(framework):
    x = framework.array(X[0])
    for kept, message in (
        (([0], [0, 1]), r"offsets of kept has 2 entries; it must have 5, one more than scores has"),
        (([0, 1], [0, 1, 2, 1, 2]), "got 2 before 1"),
        (([0, 1], [0, 1, 1, 1, 1]), r"end with the number of token_ids.*got 0 and 1 for 2"),
        (([0, 40], [0, 1, 2, 2, 2]), r"must be in \[0, 40\), or -1 for padding; got 40"),
        (([0, -2], [0, 1, 2, 2, 2]), "got -2"),
        (([7, 3, 7], [0, 0, 3, 3, 3]), "must differ in a row; row 1 has 7 twice"),
        (([[7]], [0, 0, 1, 1, 1]), "must have one dimension"),
    ):
        with pytest.raises(ValueError, match=message):
            sparse_softmax(x, kept=kept)
    for kept in (5, ([0],), "ab", {0: 1}):
        with pytest.raises(TypeError, match=r"kept must be a pair \(token_ids, offsets\)"):
            sparse_softmax(x, kept=kept)
    with pytest.raises(TypeError, match=r"token_ids of kept must be integers; got dtype .*float64"):
        sparse_softmax(x, kept=(np.array([0.5]), [0, 1, 1, 1, 1]))
    with pytest.raises(ValueError, match=r"k must be None where kept is given.*got 3"):
        sparse_softmax(x, k=3, kept=([], [0] * 5))
    for min_p in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match=r"min_p must be a number in \[0, 1\]"):
            sparse_softmax(x, min_p=min_p)

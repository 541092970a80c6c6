"""Ragged rows: every segment has the answers and derivatives of the dense row that it is."""

import math
import warnings
from functools import partial

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import kofn
from kofn import links
from kofn.arrays.segments import segment_sum
from kofn.losses import segment_topk_loss, topk_loss
from kofn.rows.segments import form as segment_form
from kofn.rows.segments import order as segment_order
from rows_of_users import DTYPES, draw
from support import (
    CAUCHY,
    GRADIENT,
    LINKS,
    ONE_OF_EACH,
    WEIGHTS,
    Framework,
    full_but,
    jax_x64,
)

INF, NAN = math.inf, math.nan


class Ragged:
    """Rows of several lengths, some empty: their numbers, and the same as one shuffled axis."""

    def __init__(self, framework, lengths=(3, 0, 5, 1, 8, 2, 40, 4), seed=0, dtype="float64"):
        rng = np.random.default_rng(seed)
        self.framework, self.dtype, self.lengths = framework, dtype, lengths
        self.count, self.size = len(lengths), sum(lengths)
        self.ptr = np.concatenate([[0], np.cumsum(lengths)])
        self.order = rng.permutation(self.size)
        self.ids = np.repeat(np.arange(self.count), lengths)[self.order]
        self.x = 3 * rng.standard_normal(self.size)
        self.k = np.minimum(rng.uniform(0.2, 4, self.count), lengths)
        self.t = rng.uniform(0.3, 2, self.count)

    def array(self, values, dtype=None):
        return self.framework.array(values, dtype or self.dtype)

    @property
    def of(self):
        """What says where the entries are, for shuffled ones."""
        ids = self.framework.array(self.ids, "int32")
        return {"segment_ids": ids, "num_segments": self.count}

    def shuffled(self, values, dtype=None):
        return self.array(np.asarray(values)[self.order], dtype)

    def rows(self, values):
        return [values[a:b] for a, b in zip(self.ptr[:-1], self.ptr[1:], strict=True)]

    def dense(self, function, *per_entry):
        """function(row, k, temperature) of every row in NumPy, in the order of the entries."""
        rows = zip(*(self.rows(each) for each in (self.x, *per_entry)), self.k, self.t, strict=True)
        found = [np.asarray(function(*row)) if len(row[0]) else np.zeros(0) for row in rows]
        return np.concatenate(found)[self.order]

    def meets(self, answer, wanted, tolerance=None):
        found = self.framework.numpy(answer)
        assert found.shape == wanted.shape
        tolerance = WEIGHTS[self.dtype] if tolerance is None else tolerance
        np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)


@pytest.fixture(params=["kernels", "array code", "nothing read"])
def backends(request, monkeypatch):
    """Where ids are not read, as on a GPU, the array code serves as it is."""
    monkeypatch.setenv("KOFN_KERNELS", "reference" if request.param == "array code" else "on")
    if request.param == "nothing read":
        monkeypatch.setattr(segment_form, "is_at_hand", lambda x: False)


@pytest.fixture(params=["on", "reference"])
def kernels(request, monkeypatch):
    monkeypatch.setenv("KOFN_KERNELS", request.param)


@pytest.mark.pairs
@pytest.mark.usefixtures("backends")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("link", [*LINKS, "cauchy", "alpha"])
def test_weights_are_those_of_the_rows(framework, link, dtype):
    if framework.name == "jax" and link not in ONE_OF_EACH:
        pytest.skip("the same array code is tested on NumPy")
    ragged = Ragged(framework, dtype=dtype)
    of = {"cauchy": CAUCHY["numpy"], "alpha": links.entmax(1.3)}.get(link, link)
    own = CAUCHY[framework.name] if link == "cauchy" else of
    wanted = ragged.dense(lambda x, k, t: kofn.soft_topk(x, k, temperature=t, link=of))
    k, t = ragged.array(ragged.k), ragged.array(ragged.t)
    found = kofn.segment_soft_topk(
        ragged.shuffled(ragged.x), k, temperature=t, link=own, **ragged.of
    )
    ragged.meets(found, wanted)


@pytest.mark.usefixtures("backends")
def test_every_function_answers_as_for_the_rows(framework):
    ragged = Ragged(framework)
    x, k, t = ragged.shuffled(ragged.x), ragged.array(ragged.k), ragged.array(ragged.t)
    of, dense = ragged.of, ragged.dense

    def each(function):
        rows = zip(ragged.rows(ragged.x), ragged.k, ragged.t, strict=True)
        return np.array([function(*row) for row in rows])

    ragged.meets(
        kofn.segment_soft_topk(x, k, temperature=t, hard=True, **of),
        dense(lambda x, k, t: kofn.hard_topk(x, k)),
    )
    ragged.meets(kofn.segment_hard_topk(x, k, **of), dense(lambda x, k, t: kofn.hard_topk(x, k)))
    ragged.meets(
        kofn.segment_softmax(x, temperature=t, **of),
        dense(lambda x, k, t: kofn.softmax(x, temperature=t)),
    )
    ragged.meets(
        kofn.segment_sparsemax(x, temperature=t, **of),
        dense(lambda x, k, t: kofn.sparsemax(x, temperature=t)),
    )
    ragged.meets(
        kofn.segment_entmax(x, 1.5, temperature=t, **of),
        dense(lambda x, k, t: kofn.entmax(x, 1.5, temperature=t)),
    )
    ragged.meets(
        kofn.segment_soft_topk_sum(x, k, temperature=t, **of),
        each(lambda x, k, t: kofn.soft_topk_sum(x, k, temperature=t)),
    )
    ragged.meets(
        kofn.segment_soft_topk_threshold(x, k, temperature=t, **of),
        each(lambda x, k, t: kofn.soft_topk_threshold(x, k, temperature=t)),
    )


@pytest.mark.usefixtures("backends")
def test_an_alpha_for_each_segment(framework):
    ragged = Ragged(framework)
    alpha = np.linspace(1, 2, ragged.count)
    of_row = iter(alpha[np.array(ragged.lengths) > 0])
    wanted = ragged.dense(lambda x, k, t: kofn.entmax(x, next(of_row)))
    ragged.meets(
        kofn.segment_entmax(ragged.shuffled(ragged.x), ragged.array(alpha), **ragged.of), wanted
    )


@pytest.mark.parametrize("low", [1.25, 1.0], ids=["kernels serve all", "and not all"])
def test_a_learned_alpha_for_each_segment(low):
    """Segments of several lengths are blocks of rows, and each row has its own."""
    lengths = [3, 5, 3, 1, 5, 8]
    x = torch.randn(sum(lengths), dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    alpha = torch.linspace(low, 1.9, len(lengths), dtype=torch.float64)
    ptr = torch.tensor([0, *np.cumsum(lengths)])
    c = torch.linspace(-1, 2, len(x), dtype=torch.float64)

    def slopes(function):
        leaves = x.clone().requires_grad_(), alpha.clone().requires_grad_()
        answer = function(*leaves)
        return answer.detach(), *torch.autograd.grad((answer * c).sum(), leaves)

    def one_by_one(x, alpha):
        parts = zip(x.split(lengths), alpha, strict=True)
        return torch.cat([kofn.entmax(part, one) for part, one in parts])

    found = slopes(lambda x, alpha: kofn.segment_entmax(x, alpha, ptr=ptr))
    for one, other in zip(found, slopes(one_by_one), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("link", full_but(ONE_OF_EACH))
def test_formulas_of_users(link, dtype):
    """The dense rows are tested against oracles; segments of other lengths must not differ."""
    rows = draw(np.random.default_rng(5), 300, 24, dtype)
    lengths = np.random.default_rng(6).integers(1, 25, 300)
    k = np.minimum(rows.k, lengths)
    wide = "float64" if dtype == "float64" else "float32"
    x = torch.tensor(rows.x, dtype=getattr(torch, dtype))
    k, t = (torch.tensor(n, dtype=getattr(torch, wide)) for n in (k, rows.temperature))
    inside = torch.arange(24) < torch.tensor(lengths)[:, None]
    wanted = kofn.soft_topk(x, k, link=link, temperature=t, mask=inside)[inside]
    ptr = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]))
    found = kofn.segment_soft_topk(x[inside], k, ptr=ptr, link=link, temperature=t)
    assert found.dtype == x.dtype
    np.testing.assert_allclose(
        found.double().numpy(), wanted.double().numpy(), rtol=0, atol=WEIGHTS[dtype]
    )


@pytest.mark.usefixtures("backends")
def test_edges(framework):
    ragged = Ragged(framework, (2, 3, 3, 2, 0, 3))
    x = [-INF, -INF, INF, 1.0, -INF, 1.0, NAN, 2.0, 5.0, 5.0, 0.3, 0.2, 0.1]
    k = ragged.array([1.0, 1.0, 1.0, 1.0, 2.0, 3.0])
    of = {"ptr": framework.array(ragged.ptr, "int32")}
    found = framework.numpy(kofn.segment_soft_topk(framework.array(x), k, **of))
    np.testing.assert_allclose(
        found, [0, 0, 1, 0, 0, NAN, NAN, NAN, 0.5, 0.5, 1, 1, 1], rtol=0, atol=1e-12
    )
    hard = framework.numpy(kofn.segment_hard_topk(framework.array(x), k, **of))
    np.testing.assert_array_equal(hard, [0, 0, 1, 0, 0, NAN, NAN, NAN, 1, 0, 1, 1, 1])
    none = framework.numpy(kofn.segment_soft_topk(framework.array(x), 0, **of))
    assert np.nansum(none) == 0
    # More than there are: all of them; a negative or missing number: NaN in that segment alone.
    many = framework.numpy(kofn.segment_soft_topk(framework.array(x), 7, **of))
    np.testing.assert_array_equal(many[[2, 3, 8, 9, 10, 11, 12]], 1)
    odd = framework.array([1.0, NAN, 1.0, -1.0, 1.0, 1.0])
    spoiled = np.isnan(framework.numpy(kofn.segment_soft_topk(framework.array(x), odd, **of)))
    np.testing.assert_array_equal(spoiled, [*[0] * 2, 1, 1, 0, 1, 1, 1, 1, 1, 0, 0, 0])
    theta = framework.numpy(kofn.segment_soft_topk_threshold(framework.array(x), k, **of))
    assert np.isnan(theta[[0, 2, 4]]).all()
    assert theta[5] == -INF


@pytest.mark.usefixtures("backends")
def test_a_mask_and_a_ratio(framework):
    x = framework.array([3.0, 2.0, 1.0, 0.0, 5.0, 4.0, 1.0])
    ptr = framework.array([0, 4, 7], "int32")
    mask = framework.array([True, False, True, True, True, True, True], "bool")
    found = framework.numpy(kofn.segment_hard_topk(x, ratio=0.5, ptr=ptr, mask=mask))
    np.testing.assert_array_equal(found, [1, 0, 1, 0, 1, 1, 0])
    whole = framework.numpy(kofn.segment_hard_topk(x, ratio=1.0, ptr=ptr))
    np.testing.assert_array_equal(whole, 1)
    thirty = framework.array(np.arange(30.0), "float32")
    tenth = kofn.segment_hard_topk(thirty, ratio=0.1, ptr=framework.array([0, 30], "int32"))
    assert framework.numpy(tenth).sum() == 3


@pytest.mark.usefixtures("backends")
def test_columns_have_their_own_rows(framework, rng):
    x, k = rng.standard_normal((9, 2, 3)), rng.uniform(0.5, 2, (2, 2, 3))
    ids = np.array([0, 1, 1, 0, 1, 0, 0, 1, 1])
    of = {"segment_ids": framework.array(ids, "int32"), "num_segments": 2}
    weights, sums = (
        framework.as_one(partial(function, **of))
        for function in (kofn.segment_soft_topk, kofn.segment_soft_topk_sum)
    )
    found = framework.numpy(weights(framework.array(x), framework.array(k)))
    same = framework.numpy(weights(framework.array(x), framework.array(k[:, 0, 0])))
    sums = sums(framework.array(x), framework.array(k))
    assert tuple(sums.shape) == (2, 2, 3)
    for i, j in np.ndindex(2, 3):
        for row in (0, 1):
            each = x[ids == row, i, j]
            wanted = kofn.soft_topk(each, k[row, i, j])
            np.testing.assert_allclose(found[ids == row, i, j], wanted, rtol=0, atol=1e-12)
            wanted = kofn.soft_topk(each, k[row, 0, 0])
            np.testing.assert_allclose(same[ids == row, i, j], wanted, rtol=0, atol=1e-12)


def _loss(reduction, x, target, t, **of):
    return segment_topk_loss(x, target, temperature=t, reduction=reduction, **of)


@pytest.mark.usefixtures("backends")
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_the_loss_of_each_segment(framework, reduction):
    ragged = Ragged(framework)
    clicks = np.random.default_rng(1).random(ragged.size) < 0.4
    rows = zip(ragged.rows(ragged.x), ragged.rows(clicks.astype(float)), ragged.t, strict=True)
    each = np.array([topk_loss(x, c, temperature=t) if len(x) else 0.0 for x, c, t in rows])
    wanted = {"none": each, "sum": each.sum(), "mean": each.sum() / 7}[reduction]
    target = ragged.framework.array(clicks[ragged.order], "bool")
    found = _loss(reduction, ragged.shuffled(ragged.x), target, ragged.array(ragged.t), **ragged.of)
    np.testing.assert_allclose(ragged.framework.numpy(found), wanted, rtol=1e-12)


def _sum(x, k, t, **of):
    return kofn.segment_soft_topk_sum(x, k, temperature=t, **of)


def _theta(x, k, t, **of):
    return kofn.segment_soft_topk_threshold(x, k, temperature=t, **of)


def _weights(link, x, k, t, **of):
    return kofn.segment_soft_topk(x, k, temperature=t, link=link, **of)


DIFFERENTIABLE = {
    "logistic": partial(_weights, "logistic"),
    "normal": partial(_weights, "normal"),
    "sum": _sum,
    "theta": _theta,
}


@pytest.mark.usefixtures("backends")
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_derivatives_on_torch(name):
    ragged = Ragged(Framework("torch"), (3, 5, 1, 4), seed=2)
    ragged.k = np.minimum(ragged.k, np.array(ragged.lengths) - 0.4)
    leaves = [ragged.shuffled(ragged.x), ragged.array(ragged.k), ragged.array(ragged.t)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    function = partial(DIFFERENTIABLE[name], **ragged.of)
    assert gradcheck(function, leaves)
    assert gradgradcheck(function, leaves, fast_mode=True)


@pytest.mark.parametrize(
    "name",
    [
        "theta",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("logistic", "normal", "sum")),
    ],
)
def test_jax_has_the_derivatives_of_torch(name):
    def derivatives(framework):
        ragged = Ragged(Framework(framework), (3, 5, 1, 4), seed=2)
        x, k, t = ragged.shuffled(ragged.x), ragged.array(ragged.k), ragged.array(ragged.t)
        function = partial(DIFFERENTIABLE[name], **ragged.of)
        if framework == "torch":
            return torch.func.hessian(lambda x: (function(x, k, t) ** 2).sum())(x).numpy()
        return np.asarray(jax.jit(jax.hessian(lambda x: (function(x, k, t) ** 2).sum()))(x))

    np.testing.assert_allclose(
        derivatives("jax"), derivatives("torch"), rtol=0, atol=10 * GRADIENT["float64"]
    )


def test_transforms_of_torch():
    ragged = Ragged(Framework("torch"), (3, 5, 1, 4))
    x, k, of = ragged.shuffled(ragged.x), ragged.array(ragged.k), ragged.of

    def function(x):
        return (kofn.segment_soft_topk(x, k, **of) ** 2).sum()

    leaf = x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(function(leaf), leaf)
    close = partial(torch.testing.assert_close, rtol=0, atol=1e-12)
    close(torch.func.grad(function)(x), wanted)
    close(torch.func.jvp(function, (x,), (torch.ones_like(x),))[1], wanted.sum())
    many = torch.stack([x, 2 * x, -x])
    each = torch.stack([torch.func.grad(function)(one) for one in many])
    close(torch.vmap(torch.func.grad(function))(many), each)
    hard = torch.vmap(lambda x: kofn.segment_hard_topk(x, 1, **of))(many)
    close(hard, torch.stack([kofn.segment_hard_topk(one, 1, **of) for one in many]))


def _compares_compiled(function, dynamic, gradient):
    ragged = Ragged(Framework("torch"))
    ptr, found = torch.tensor(ragged.ptr), []
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for call in (function, compiled):
        leaf = ragged.array(ragged.x).requires_grad_(gradient)
        answer = call(leaf, ptr)
        found.append((answer, *(torch.autograd.grad(answer.sum(), leaf) if gradient else ())))
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_compiled():
    def function(x, ptr):
        hard = kofn.segment_hard_topk(x, 2, ptr=ptr)
        return kofn.segment_soft_topk(x, 0.5, ptr=ptr) * hard

    _compares_compiled(function, dynamic=True, gradient=False)


@pytest.mark.full
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_with_gradients(dynamic):
    _compares_compiled(lambda x, ptr: kofn.segment_soft_topk(x, 2, ptr=ptr) ** 2, dynamic, True)


def test_jagged_tensors_come_in_and_go_out():
    rows = [torch.tensor([2.0, 1.0]), torch.tensor([0.5, 3.0, 1.0])]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
    weights = kofn.segment_soft_topk(nested, 1)
    assert weights.is_nested
    assert weights.shape[0] == 2
    wanted = torch.cat([kofn.soft_topk(row, 1) for row in rows])
    torch.testing.assert_close(weights.values(), wanted, rtol=0, atol=1e-6)
    weights.values().square().sum().backward()
    assert nested.grad.is_nested
    labels = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0, 0.0])]
    target = torch.nested.nested_tensor(labels, layout=torch.jagged)
    assert segment_topk_loss(nested, target) > 0
    with pytest.raises(ValueError, match="defines its segments"):
        kofn.segment_soft_topk(nested, 1, ptr=torch.tensor([0, 2, 5]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says once in a process that they are a prototype
        strided = torch.nested.nested_tensor(rows, layout=torch.strided)
    with pytest.raises(TypeError, match=r"layout=torch\.jagged"):
        kofn.segment_soft_topk(strided, 1)


@hypothesis.given(st.lists(st.integers(0, 12), min_size=1, max_size=40), st.booleans())
def test_laws(lengths, shuffles):
    ragged = Ragged(Framework("torch"), tuple(lengths), seed=len(lengths), dtype="float32")
    x = ragged.shuffled(ragged.x) if shuffles else ragged.array(ragged.x)
    ids = torch.tensor(ragged.ids if shuffles else np.sort(ragged.ids))
    k = ragged.array(ragged.k)
    weights = kofn.segment_soft_topk(x, k, segment_ids=ids, num_segments=ragged.count)
    total = torch.zeros(ragged.count).index_add(0, ids, weights)
    torch.testing.assert_close(total, k, rtol=2e-6, atol=1e-6)
    assert ((weights >= 0) & (weights <= 1)).all()
    moved = x + torch.arange(ragged.count)[ids]  # a shift of a segment changes nothing
    shifted = kofn.segment_soft_topk(moved, k, segment_ids=ids, num_segments=ragged.count)
    torch.testing.assert_close(shifted, weights, rtol=0, atol=3e-6)
    hard = kofn.segment_hard_topk(x, k, segment_ids=ids, num_segments=ragged.count)
    torch.testing.assert_close(
        torch.zeros(ragged.count).index_add(0, ids, hard), k, rtol=1e-6, atol=1e-6
    )


def test_nothing_at_all(framework):
    none, ptr = framework.array([]), framework.array([0], "int32")
    assert tuple(kofn.segment_soft_topk(none, 1, ptr=ptr).shape) == (0,)
    assert tuple(kofn.segment_soft_topk_sum(none, 1, ptr=ptr).shape) == (0,)
    three = framework.array([0, 0, 0, 0], "int32")
    sums = framework.numpy(kofn.segment_soft_topk_sum(none, 1, ptr=three))
    np.testing.assert_array_equal(sums, [0, 0, 0])
    loss = segment_topk_loss(none, none, ptr=three)
    assert float(loss) == 0


@pytest.mark.usefixtures("kernels_on")
def test_what_autograd_keeps_is_freed_and_changes_in_place_are_seen():
    x = torch.randn(6, dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([0, 1, 0, 1, 1, 0])
    scores = x * 1
    weights = kofn.segment_soft_topk(scores, 1, segment_ids=ids)
    wanted = torch.autograd.grad(weights[0], x, retain_graph=True)[0]
    ids.zero_()  # the order of the entries is kofn's own by now
    assert torch.equal(torch.autograd.grad(weights[0], x, retain_graph=True)[0], wanted)
    with torch.no_grad():
        scores.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        weights.sum().backward()


@pytest.mark.usefixtures("kernels_on")
def test_equal_segments_are_dense_rows_to_the_bit():
    x = torch.randn(64, 100, generator=torch.Generator().manual_seed(0))
    found = kofn.segment_soft_topk(x.reshape(-1), 3, ptr=torch.arange(0, 6401, 100))
    assert torch.equal(found.view(64, 100), kofn.soft_topk(x, 3))


BAD = [
    ({}, ValueError, "either segment_ids or ptr; got neither"),
    ({"ptr": [0, 3, 5], "segment_ids": [0] * 5}, ValueError, "got both"),
    ({"ptr": [0, 4, 2, 5]}, ValueError, "ptr must not decrease; got 4 before 2"),
    ({"ptr": [0, 4]}, ValueError, "end with 5, the number of entries; got 0 and 4"),
    ({"ptr": [0, 3, 5], "num_segments": 3}, ValueError, "num_segments is 3, but ptr has 2"),
    ({"segment_ids": [0, 0, 2, 1, 1], "num_segments": 2}, ValueError, r"in \[0, 2\).*got 2"),
    ({"segment_ids": [0, 0, -1, 1, 1]}, ValueError, "at least 0; got -1"),
    ({"segment_ids": [0, 1]}, ValueError, r"shape \(2,\); it must be \(5,\)"),
    ({"segment_ids": [0.0] * 5}, TypeError, "segment_ids must be integers"),
    ({"ptr": [0, 5], "ratio": 0.5}, ValueError, "either k or ratio; got k=1 and ratio=0.5"),
    ({"ptr": [0, 5], "k": None}, ValueError, "either k or ratio"),
    ({"ptr": [0, 5], "k": None, "ratio": 1.5}, ValueError, r"number in \(0, 1\]; got 1.5"),
    ({"ptr": [0, 5], "k": -1}, ValueError, "k must be a number ≥ 0; got -1"),
    ({"ptr": [0, 3, 5], "k": [1.0, 1.0, 1.0]}, ValueError, r"k has shape \(3,\).*2 segments"),
    ({"ptr": [0, 5], "num_segments": -1}, ValueError, "num_segments must be an integer ≥ 0"),
    ({"ptr": [[0, 5]]}, ValueError, "ptr has shape"),
    ({"segment_ids": [0, 0, 0, 0, 1 << 50]}, ValueError, r"below 2\*\*40; got 1125899906842624"),
]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_errors_name_what_is_wrong(kind, options, error, message):
    make = torch.tensor if kind == "torch" else np.array
    scores = make([1.0, 2.0, 3.0, 4.0, 5.0])
    options = {
        key: make(value) if isinstance(value, list) else value
        for key, value in {"k": 1, **options}.items()
    }
    with pytest.raises(error, match=message):
        kofn.segment_soft_topk(scores, **options)


def test_where_ids_are_not_read_unassigned_entries_have_no_weight():
    x = jnp.array([2.0, 9.0, 1.0, 0.5, 9.0, 3.0])
    ids = jnp.array([0, -1, 0, 1, 5, 1])
    inside = np.array([True, False, True, True, False, True])
    found = jax.jit(lambda x, ids: kofn.segment_soft_topk(x, 1, segment_ids=ids, num_segments=2))(
        x, ids
    )
    wanted = kofn.segment_soft_topk(np.asarray(x)[inside], 1, ptr=np.array([0, 2, 4]))
    np.testing.assert_allclose(np.asarray(found)[inside], wanted, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(np.asarray(found)[~inside], 0)
    ptr = jnp.array([1, 3, 5])
    found = np.asarray(jax.jit(lambda x, ptr: kofn.segment_hard_topk(x, 1, ptr=ptr))(x, ptr))
    np.testing.assert_array_equal(found, [0, 1, 0, 0, 1, 0])
    with pytest.raises(ValueError, match="num_segments must be given"):
        jax.jit(lambda ids: kofn.segment_softmax(x, segment_ids=ids))(ids)


@pytest.mark.usefixtures("backends")
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32"])
def test_narrow_ids_hold_more_segments_than_they_can_count(framework, dtype):
    rng = np.random.default_rng(1)
    x, ids = rng.standard_normal(900).astype("float32"), rng.integers(0, 200, 900)
    of = {"segment_ids": framework.array(ids, dtype), "num_segments": 300}
    found = kofn.segment_softmax(framework.array(x, "float32"), **of)
    wanted = kofn.segment_softmax(x, segment_ids=ids)
    np.testing.assert_allclose(framework.numpy(found), wanted, rtol=0, atol=1e-6)
    ptr = framework.array([0, 4, 6], dtype)
    best = kofn.segment_hard_topk(framework.array(np.arange(6.0)), 1, ptr=ptr)
    np.testing.assert_array_equal(framework.numpy(best), [0, 0, 0, 1, 0, 1])


def test_labels_of_unassigned_entries_do_not_count():
    x, clicks = jnp.array([2.0, 9.0, 1.0, 0.5, 9.0, 3.0]), jnp.array([1, 1, 0, 0, 1, 1])
    of = {"segment_ids": jnp.array([0, -1, 0, 1, 5, 1]), "num_segments": 2}
    found = segment_topk_loss(x, clicks, reduction="none", **of)
    alone = segment_topk_loss(
        np.array([2.0, 1.0, 0.5, 3.0]), np.array([1, 0, 0, 1]), ptr=np.array([0, 2, 4]),
        reduction="none",
    )  # fmt: skip
    np.testing.assert_allclose(np.asarray(found), alone, rtol=1e-12)


@pytest.mark.usefixtures("backends")
def test_a_ratio_of_long_segments_is_rounded_up(framework):
    x = framework.array(np.random.default_rng(0).standard_normal(100_001))
    ptr = framework.array([0, 100_001], "int32")
    for ratio, k in ((0.5, 50_001), (0.1, 10_001), (1e-13, 1)):
        assert framework.numpy(kofn.segment_hard_topk(x, ratio=ratio, ptr=ptr)).sum() == k


@pytest.mark.usefixtures("backends")
@pytest.mark.parametrize("columns", [3, 5])
def test_a_mask_per_entry_is_that_of_all_columns(framework, columns, rng):
    x, mask = rng.standard_normal((5, columns)), np.array([True, True, False, True, True])
    of = {"ptr": framework.array([0, 3, 5], "int32")}
    found = kofn.segment_softmax(framework.array(x), mask=framework.array(mask, "bool"), **of)
    each = [
        kofn.segment_softmax(x[:, i], mask=mask, ptr=np.array([0, 3, 5])) for i in range(columns)
    ]
    np.testing.assert_allclose(framework.numpy(found), np.stack(each, -1), rtol=0, atol=1e-12)


def test_jagged_masks_and_targets_must_have_the_parts_of_the_scores():
    def jagged(*parts):
        return torch.nested.nested_tensor([torch.tensor(p) for p in parts], layout=torch.jagged)

    scores = jagged([2.0, 1.0], [0.5, 3.0, 1.0])
    mask = jagged([True, False], [True, True, False])
    found = kofn.segment_softmax(scores, mask=mask).values()
    torch.testing.assert_close(found[[0, 1, 4]], torch.tensor([1.0, 0.0, 0.0]))
    with pytest.raises(ValueError, match="mask must have parts of the same lengths"):
        kofn.segment_softmax(scores, mask=jagged([True, True, True], [True, True]))
    with pytest.raises(ValueError, match="target must have parts of the same lengths"):
        segment_topk_loss(scores, jagged([1.0, 0.0, 0.0], [0.0, 1.0]))
    with pytest.raises(TypeError, match="mask is a nested tensor, and scores is not"):
        kofn.segment_softmax(scores.values(), ptr=scores.offsets(), mask=mask)


def test_sums_of_long_segments_keep_their_digits():
    """In float32, adding up two million numbers in a row loses four digits."""
    x = np.random.default_rng(0).random(2_000_000, np.float32)
    ids = (np.arange(x.size) % 3).astype(np.int32)
    wanted = np.bincount(ids, x.astype(np.float64))
    with jax_x64(False):
        lanes = segment_sum(jnp.asarray(x), jnp.asarray(ids), 3)
    of_torch = segment_sum(torch.tensor(x), torch.tensor(ids), 3)
    for found in (lanes, of_torch, segment_sum(x, ids, 3)):
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        *(("torch", _theta), ("jax without x64", _sum)),
        *(pytest.param("jax", one, marks=pytest.mark.full) for one in (_theta, _sum)),
        pytest.param("torch", _sum, marks=pytest.mark.full),
        pytest.param("jax without x64", _theta, marks=pytest.mark.full),
    ],
)
def test_derivatives_of_long_segments_keep_their_digits(name, function, monkeypatch):
    """What comes back of a number per segment is a sum over all of its entries."""
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    framework, n = Framework(name.split()[0]), 60_000
    x = 1e-4 * np.random.default_rng(0).standard_normal(n).astype("f4")

    def gradients(dtype):
        x_, k, t, v, ids = (
            framework.array(values, to)
            for values, to in (
                *((each, dtype) for each in (x, [n / 4], [5.0], [-0.37])),
                (np.zeros(n), "int32"),
            )
        )
        of = {"segment_ids": ids, "num_segments": 1}
        return framework.vjp(lambda x, k, t: function(x, k, t, **of), (x_, k, t), v)

    wanted = gradients("float64")
    with jax_x64("without" not in name):
        found = gradients("float32")
    for one, other in zip(found, wanted, strict=True):
        assert np.linalg.norm(one - other) <= 2e-6 * np.linalg.norm(other)


def test_nothing_compiled_is_called_where_kernels_are_off(monkeypatch):
    def refuse():
        raise AssertionError("compiled code was looked for")

    monkeypatch.setenv("KOFN_KERNELS", "reference")
    monkeypatch.setattr(segment_order.kernels, "copies", refuse)
    found = kofn.segment_hard_topk(np.arange(4.0), 1, segment_ids=np.array([1, 0, 1, 0]))
    np.testing.assert_array_equal(found, [0, 0, 1, 1])

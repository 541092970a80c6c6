"""Metrics against brute force, and the bounds of the errors they measure."""

import jax
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import kofn
from kofn import hard_topk, links, metrics, soft_topk, softmax
from kofn.metrics.jacobian import _largest_eigenvalue
from support import LINKS, every_link

ONE = np.array([0.5, 0.3, 0.2, 0.0])
ON_WEIGHTS = {
    "support_size": metrics.support_size,
    "sparsity": metrics.sparsity,
    "effective_support": metrics.effective_support,
    "entropy": metrics.entropy,
    "hard_gap": lambda p, **rest: metrics.hard_gap(p, 1, **rest),
    "hard_gap linf": lambda p, **rest: metrics.hard_gap(p, 1, norm="linf", **rest),
}
VALUES = {
    "support_size": 3.0,
    "sparsity": 0.25,
    "effective_support": 1 / 0.38,
    "entropy": -(0.5 * np.log(0.5) + 0.3 * np.log(0.3) + 0.2 * np.log(0.2)),
    "hard_gap": 1.0,
    "hard_gap linf": 0.5,
}
each = pytest.mark.parametrize("name", ON_WEIGHTS)


@each
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_values_are_those_of_the_formulas(framework, name, dtype):
    p = framework.array(np.stack([ONE, ONE[::-1]]), dtype)
    answer = ON_WEIGHTS[name](p)
    assert framework.is_kind(answer)
    assert framework.dtype(answer) == ("float64" if dtype == "float64" else "float32")
    assert tuple(answer.shape) == (2,)
    rounding = {"float64": 1e-14, "float32": 1e-6, "float16": 2e-3}[dtype]
    np.testing.assert_allclose(framework.numpy(answer), VALUES[name], rtol=rounding)


@each
def test_masked_entries_are_as_if_deleted_and_nan_stays_in_its_row(framework, name):
    rows = np.array([[0.5, 9.0, 0.3, 0.2, 0.0], [0.5, np.nan, 0.3, 0.2, 0.0], [np.nan] * 5])
    mask = np.ones((3, 5), bool)
    mask[:2, 1] = False
    answer = ON_WEIGHTS[name](framework.array(rows), mask=framework.array(mask, "bool"))
    np.testing.assert_allclose(framework.numpy(answer), [VALUES[name]] * 2 + [np.nan], rtol=1e-14)


@each
def test_any_dimension_and_empty_rows(framework, name):
    p = np.broadcast_to(ONE[:, None], (2, 4, 3))
    answer = ON_WEIGHTS[name](framework.array(p), dim=1)
    np.testing.assert_allclose(framework.numpy(answer), np.full((2, 3), VALUES[name]), rtol=1e-14)
    assert ON_WEIGHTS[name](framework.array(np.zeros((0, 3)))).shape == (0,)
    if not name.startswith("hard_gap"):  # of nothing one cannot choose 1
        nothing = framework.numpy(ON_WEIGHTS[name](framework.array(np.zeros((2, 0)))))
        np.testing.assert_array_equal(nothing, [np.nan] * 2 if name == "sparsity" else [0, 0])
    zeros = framework.numpy(ON_WEIGHTS[name](framework.array(np.zeros(3))))
    assert zeros == (1 if name == "sparsity" else 0)


def test_support_above_a_level():
    assert metrics.support_size(ONE, above=0.2) == 2
    with pytest.raises(ValueError, match="above must be a finite number ≥ 0; got -1"):
        metrics.support_size(ONE, above=-1)


def test_entropy_and_effective_support_are_regularisers_with_a_gradient():
    p = torch.tensor(ONE[:3], requires_grad=True)
    for function in (metrics.entropy, metrics.effective_support):
        assert torch.autograd.gradcheck(function, p)
    zero = torch.tensor(ONE, requires_grad=True)
    metrics.entropy(zero).backward()
    np.testing.assert_allclose(zero.grad, [*(-1 - np.log(ONE[:3])), 0])
    assert np.isnan(metrics.entropy(np.array([1.1, -0.1])))


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_effective_support_has_no_scale(scale):
    assert metrics.effective_support(scale * ONE) == pytest.approx(1 / 0.38)


@given(seed=st.integers(0, 10**6), k=st.sampled_from([1, 2, 2.5, 4]))
def test_the_gap_is_twice_the_weight_outside(seed, k):
    x = np.random.default_rng(seed).normal(size=6)
    p = soft_topk(x, k)
    np.testing.assert_allclose(metrics.hard_gap(p, k), np.abs(p - hard_topk(x, k)).sum())
    if k == int(k):
        outside = 2 * np.sort(p)[: 6 - int(k)].sum()
        np.testing.assert_allclose(metrics.hard_gap(p, k), outside, atol=1e-14)
    largest = np.abs(p - hard_topk(x, k)).max()
    np.testing.assert_allclose(metrics.hard_gap(p, k, norm="linf"), largest, atol=1e-14)


def test_the_gap_where_fewer_are_left_and_at_ties():
    x = np.array([1.0, 0.0, -np.inf, -np.inf])
    assert metrics.hard_gap(soft_topk(x, 3), 3) == 0
    assert metrics.hard_gap(soft_topk(np.array([3.0, 3.0, 0.0]), 1, temperature=0.01), 1) == 1
    with pytest.raises(ValueError, match="norm must be one of 'l1', 'linf'; got 'l2'"):
        metrics.hard_gap(ONE, 1, norm="l2")


# --- order ---


def overtaking(x, p):
    """The entries that outweigh one whose score is at least theirs, by looking at every pair."""
    over = [any(x[i] >= x[j] and p[j] > p[i] for i in range(len(x))) for j in range(len(x))]
    return sum(over)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=7))
def test_order_violations_are_those_of_all_pairs(pairs):
    x, p = np.array(pairs, float).T
    assert metrics.order_violations(x, p) == overtaking(x, p)


def test_order_violations_everywhere(framework):
    x = framework.array([[3.0, 2.0, 2.0, 0.0], [1.0, 2.0, 3.0, 4.0], [1.0, np.nan, 0.0, 0.0]])
    p = framework.array([[0.5, 0.6, 0.7, 0.2], [0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]])
    answer = framework.numpy(metrics.order_violations(x, p))
    np.testing.assert_array_equal(answer, [2, 0, np.nan])
    mask = framework.array([False, True, True, True], "bool")
    answer = framework.numpy(metrics.order_violations(x, p, mask=mask))
    np.testing.assert_array_equal(answer, [1, 0, np.nan])
    # A rounding is none.
    nearly = framework.array([0.25, np.nextafter(0.25, 1)])
    assert framework.numpy(metrics.order_violations(framework.array([1.0, 0.0]), nearly)) == 0
    flat = framework.numpy(metrics.order_violations(x[:, :1], p[:, :1]))
    np.testing.assert_array_equal(flat, [0, 0, 0])
    with pytest.raises(ValueError, match=r"weights must have the shape of scores, \(3, 4\)"):
        metrics.order_violations(x, p[0])


def test_the_maps_have_none_and_the_iteration_of_the_articles_has():
    from test_docs_sources import article_iterative

    x = np.random.default_rng(0).standard_normal((500, 5)) * 3
    for link in LINKS:
        assert metrics.order_violations(x, soft_topk(x, 3, link=link)).max() == 0
    bad = np.stack([article_iterative(row, 3) for row in x])
    assert (metrics.order_violations(x, bad) > 0).sum() > 50


# --- the Jacobian ---


def jacobian(x, k, link, temperature):
    """∂p/∂(scores/T), densely, by automatic differentiation."""
    x = torch.tensor(x)
    function = lambda x: soft_topk(x, k, link=link, temperature=temperature)  # noqa: E731
    return temperature * torch.func.jacrev(function)(x).numpy()


@pytest.mark.parametrize("link", [*LINKS, links.entmax(1.2)], ids=str)
@pytest.mark.parametrize(("k", "temperature"), [(1, 1.0), (2.5, 0.3), (5, 3.0)])
def test_norms_are_those_of_the_dense_jacobian(link, k, temperature):
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=9)
        dense = jacobian(x, k, link, temperature)
        got = metrics.jacobian_norm(x, k, link=link, temperature=temperature)
        assert got == pytest.approx(np.linalg.norm(dense, 2), rel=1e-9, abs=1e-12)
        got = metrics.jacobian_norm(x, k, link=link, temperature=temperature, norm="l1")
        assert got == pytest.approx(np.abs(dense).sum() / 2, rel=1e-9, abs=1e-12)


@given(st.lists(st.sampled_from([0.0, 1e-9, 0.1, 0.1 + 1e-12, 0.25]), min_size=1, max_size=8))
def test_the_largest_eigenvalue_meets_lapack_at_ties_and_zeros(w):
    w = np.array(w)
    assume(w.max() > 0)
    matrix = np.diag(w) - np.outer(w, w) / w.sum()
    got = w.max() * _largest_eigenvalue(w / w.max())
    assert got == pytest.approx(np.linalg.eigvalsh(matrix)[-1], abs=1e-15)


def test_known_norms():
    n = 8
    zeros = np.zeros(n)
    # Equal scores: w(1 − 11ᵀ/n), whose largest eigenvalue is w.
    assert metrics.jacobian_norm(zeros, 2) == pytest.approx(2 / n * (1 - 2 / n))
    p = softmax(np.arange(4.0))
    got = metrics.jacobian_norm(np.arange(4.0), 1, link="exponential", norm="l1")
    assert got == pytest.approx(1 - (p**2).sum())
    # A clear winner: both norms are of the size of what is left, to its own digits.
    x = np.array([40.0, 0.0])
    left = softmax(x)[1]
    for norm, factor in (("l1", 2), ("l2", 2)):
        got = metrics.jacobian_norm(x, 1, norm=norm, link="exponential")
        assert got == pytest.approx(factor * left, rel=1e-3)


def test_norms_are_0_where_no_weight_moves(framework):
    x = framework.array([3.0, 2.0, -np.inf, 0.0])
    mask = framework.array([False] * 4, "bool")
    for norm in ("l1", "l2"):
        for k in (0, 4):
            assert framework.numpy(metrics.jacobian_norm(x, k, norm=norm)) == 0
        cold = metrics.jacobian_norm(x, 1, link="linear", temperature=0.5, norm=norm)
        assert framework.numpy(cold) == 0
        assert framework.numpy(metrics.jacobian_norm(x, 2, mask=mask, norm=norm)) == 0
        assert framework.numpy(metrics.jacobian_norm(x[:1], 1, norm=norm)) == 0
        bad = metrics.jacobian_norm(framework.array([1.0, np.nan, 0.0]), 1, norm=norm)
        assert np.isnan(framework.numpy(bad))
    with pytest.raises(ValueError, match="norm must be one of 'l1', 'l2'"):
        metrics.jacobian_norm(x, 1, norm="linf")


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_norms_agree_between_frameworks_dtypes_and_shapes(framework, norm):
    x = np.random.default_rng(1).normal(size=(3, 8))
    expected = [metrics.jacobian_norm(row, 2, temperature=0.5, norm=norm) for row in x]
    for dtype, rounding in (("float64", 1e-12), ("float32", 1e-5)):
        got = metrics.jacobian_norm(
            framework.array(x.T, dtype), 2, temperature=0.5, norm=norm, dim=0
        )
        assert framework.dtype(got) == dtype
        np.testing.assert_allclose(framework.numpy(got), expected, rtol=rounding)


def test_metrics_compile():
    x = jax.numpy.asarray([[2.0, 1.0, 0.5, -1.0]])
    got = jax.jit(lambda x: metrics.jacobian_norm(x, 2))(x)
    np.testing.assert_allclose(got, metrics.jacobian_norm(np.asarray(x), 2))

    def measured(p):
        return metrics.entropy(p) + metrics.effective_support(p) + metrics.hard_gap(p, 1)

    compiled = torch.compile(measured, backend="aot_eager", fullgraph=True)
    p = torch.tensor(ONE)
    torch.testing.assert_close(compiled(p), measured(p))


# --- how all of them move with the temperature, and the articles' bounds ---


@every_link
@given(seed=st.integers(0, 10**6), k=st.sampled_from([1, 2, 3.5]))
def test_softness_rises_with_the_temperature(link, seed, k):
    x = np.random.default_rng(seed).normal(size=7)
    t = np.geomspace(0.01, 100, 25)
    p = soft_topk(np.broadcast_to(x, (25, 7)), k, link=link, temperature=t)
    for measure in (
        metrics.effective_support(p),
        metrics.hard_gap(p, k),
        metrics.entropy(p),
        # What proves all three: a colder row majorises a warmer one.
        *(-np.cumsum(-np.sort(-p, axis=-1), axis=-1).T),
    ):
        assert np.diff(measure).min() > -1e-9


def test_the_largest_gap_of_one_entry_need_not_rise():
    x = np.array([10.0, 0.01, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    cold, warm = soft_topk(np.stack([x, x]), 2, temperature=np.array([1.0, 1e4]))
    assert metrics.hard_gap(cold, 2, norm="linf") > metrics.hard_gap(warm, 2, norm="linf")


CONSTANT = {"logistic": 1.0, "laplace": 1.0, "normal": np.e}


@pytest.mark.parametrize("link", [*CONSTANT, "exponential"])
@given(
    seed=st.integers(0, 10**6),
    k=st.integers(1, 6),
    temperature=st.floats(0.02, 5.0),
)
def test_the_squared_gap_is_of_order_exp_of_minus_delta_over_t(link, seed, k, temperature):
    """‖p − hard‖² ≤ 2c·k(n − k)·e^(−Δ/T), Δ from the k-th score to the next (docs/maps.md)."""
    x = np.random.default_rng(seed).normal(size=7)
    ordered = np.sort(x)[::-1]
    delta = ordered[k - 1] - ordered[k]
    p = soft_topk(x, k, link=link, temperature=temperature)
    squared = ((p - hard_topk(x, k)) ** 2).sum()
    if link == "exponential":  # one-sided: the square of the others' bound
        bound = 2 * (7 - k) ** 2 * np.exp(-2 * delta / temperature)
    else:
        bound = 2 * CONSTANT[link] * k * (7 - k) * np.exp(-delta / temperature)
    assert squared <= bound * (1 + 1e-9) + 1e-30


def test_the_bound_is_attained():
    for temperature in (0.3, 0.1, 0.05):
        p = soft_topk(np.array([1.0, 0.0]), 1, temperature=temperature)
        ratio = ((p - [1, 0]) ** 2).sum() / np.exp(-1 / temperature) / 2
        assert 1 - 2.1 * np.exp(-0.5 / temperature) < ratio <= 1


@pytest.mark.parametrize(("link", "width"), [("linear", 1), ("entmax", 2), (1.25, 4), (3.0, 0.5)])
@given(seed=st.integers(0, 10**6), k=st.integers(1, 6))
def test_a_bounded_link_is_hard_just_when_its_support_fits_into_delta(link, width, seed, k):
    x = np.random.default_rng(seed).normal(size=7)
    delta = -np.diff(np.sort(x)[::-1])[k - 1]
    link = links.entmax(link) if isinstance(link, float) else link
    just = delta / width
    for temperature in (0.999 * just, 0.1 * just):
        p = soft_topk(x, k, link=link, temperature=temperature)
        # Of 600 such rows in one θ is a rounding off, and so is then a weight.
        assert metrics.hard_gap(p, k) <= 4.5e-16
    assert metrics.hard_gap(soft_topk(x, k, link=link, temperature=1.05 * just), k) > 0


def test_everything_is_public():
    assert kofn.temperature_for is metrics.temperature_for
    assert all(getattr(metrics, name).__doc__ for name in metrics.__all__)

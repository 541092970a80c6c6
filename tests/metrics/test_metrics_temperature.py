"""temperature_for: the softness that was asked for is there, and what cannot be had is decided."""

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kofn import links, metrics, soft_topk, softmax, temperature_for
from kofn.metrics import temperature_search
from support import CAUCHY, every_link

X = np.random.default_rng(0).normal(size=(4, 9))
MEASURES = {
    "support": lambda p, k: metrics.effective_support(p),
    "gap": lambda p, k: metrics.hard_gap(p, k),
}
measures = pytest.mark.parametrize("name", MEASURES)


def check_softness(name, link, seed, k, share):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=8) * 10 ** rng.normal()
    whole, part = divmod(k, 1)
    ends = {
        "support": (k**2 / (whole + part**2), 8),
        "gap": (0, 2 * max(whole * (1 - k / 8), k * (1 - np.ceil(k) / 8))),
    }
    low, high = ends[name]
    wanted = low + share * (high - low)
    t = temperature_for(x, k, link=link, **{name: wanted})
    got = MEASURES[name](soft_topk(x, k, link=link, temperature=t), k)
    assert got == pytest.approx(wanted, abs=1e-9)


@measures
@every_link
@settings(max_examples=5)  # of some sixty maps each
@given(seed=st.integers(0, 10**6), k=st.sampled_from([1, 2, 4.5]), share=st.floats(0.02, 0.9))
def test_the_softness_is_the_one_asked_for(name, link, seed, k, share):
    check_softness(name, link, seed, k, share)


@measures
@pytest.mark.parametrize("link", [links.entmax(1.2), CAUCHY["numpy"]], ids=["1.2", "cauchy"])
def test_the_softness_is_the_one_asked_for_of_other_links(name, link):
    check_softness(name, link, 0, 4.5, 0.3)


@measures
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_per_row_and_for_a_batch(framework, name, dtype):
    wanted = {"support": 3.0, "gap": 0.5}[name]
    x = framework.array(X, dtype)
    t = temperature_for(x, 2, **{name: wanted}, per_row=True)
    assert framework.is_kind(t)
    assert tuple(t.shape) == (4,)
    assert framework.dtype(t) == ("float64" if dtype == "float64" else "float32")
    exact = framework.numpy(x)  # the scores as the dtype has them
    t = framework.numpy(t)
    rounding = 1e-9 if dtype == "float64" else 1e-4
    measure = MEASURES[name]
    got = measure(soft_topk(exact, 2, temperature=t), 2)
    np.testing.assert_allclose(got, wanted, atol=rounding)
    one = temperature_for(x, 2, **{name: wanted})
    assert one.shape == ()
    assert framework.dtype(one) == ("float64" if dtype == "float64" else "float32")
    got = measure(soft_topk(exact, 2, temperature=float(one)), 2)
    assert got.mean() == pytest.approx(wanted, abs=rounding)
    assert t.min() < float(one) < t.max()


def test_it_is_in_the_units_of_the_scores_and_blind_to_a_shift():
    t = temperature_for(X, 2, support=3.0, per_row=True)
    np.testing.assert_allclose(temperature_for(1e6 * X + 7, 2, support=3, per_row=True), 1e6 * t)
    np.testing.assert_allclose(
        temperature_for(X.T, 2, support=3, dim=0, per_row=True), t, rtol=1e-12
    )


def test_numbers_per_row_and_masks():
    k, wanted = np.array([1.0, 2.0, 2.5, 3.0]), np.array([1.5, 3.0, 4.0, 4.0])
    t = temperature_for(X, k, support=wanted, per_row=True)
    for row in range(4):
        alone = temperature_for(X[row], float(k[row]), support=wanted[row])
        assert t[row] == pytest.approx(alone, rel=1e-12)
    mask = np.ones((4, 9), bool)
    mask[:, 3:5] = False
    t = temperature_for(X, 2, gap=0.3, mask=mask, per_row=True)
    np.testing.assert_allclose(
        t, temperature_for(np.delete(X, [3, 4], 1), 2, gap=0.3, per_row=True)
    )
    lowest = np.where(mask, X, np.finfo(np.float64).min)
    np.testing.assert_allclose(temperature_for(lowest, 2, gap=0.3, per_row=True), t, rtol=1e-9)


def test_the_links_of_a_learned_alpha():
    alpha = np.array([1.2, 1.5, 1.8, 2.0])
    t = temperature_for(X, 2, link=links.entmax(alpha), support=2.5, per_row=True)
    for row in range(4):
        alone = temperature_for(X[row], 2, link=links.entmax(alpha[row]), support=2.5)
        assert t[row] == pytest.approx(alone, rel=1e-9)


def test_softmax_is_asked_for_by_its_link():
    t = temperature_for(X, 1, link="exponential", support=4.0)
    assert metrics.effective_support(softmax(X, temperature=float(t))).mean() == pytest.approx(4)


def test_ties_get_the_coldest_end_and_equal_weights_the_warmest():
    tied = np.array([3.0, 3.0, 0.0, -1.0])
    t = temperature_for(tied, 1, support=1.5)
    assert t == pytest.approx(3 * 2.0**-60)
    np.testing.assert_array_equal(soft_topk(tied, 1, temperature=t), [0.5, 0.5, 0, 0])
    # Just as soft as the tie is, it is at any temperature up to the one that admits the third.
    assert temperature_for(tied, 1, link="linear", support=2.0) == pytest.approx(6)
    assert temperature_for(tied, 1, support=4.0) == pytest.approx(4 * 2.0**20)
    masked = np.array([True, True, False, False])
    assert temperature_for(tied, 1, support=3.0, mask=masked) == 1.0


def test_rows_without_an_effect_get_a_usable_number(framework):
    x = framework.array([[2.0, 2.0, 2.0], [2.0, 1.0, -np.inf], [-np.inf] * 3, [3.0, 2.0, np.nan]])
    t = framework.numpy(temperature_for(x, 2, support=2.5, per_row=True))
    # Less than all of three equal scores cannot be had; the others are as they are at any T.
    np.testing.assert_array_equal(t, [1, 1, 1, np.nan])
    assert np.isnan(framework.numpy(temperature_for(x, 2, support=2.5)))
    assert framework.numpy(temperature_for(x[:3], 3, support=3.0)) == 1
    assert temperature_for(framework.array(np.zeros((0, 3))), 2, support=2.5).shape == ()
    empty = temperature_for(framework.array(np.zeros((0, 3))), 2, support=2.5, per_row=True)
    assert empty.shape == (0,)


def test_padding_does_not_count():
    padded = np.concatenate([X, np.full((3, 9), -np.inf)])
    t = temperature_for(X, 2, support=3.0)
    assert temperature_for(padded, 2, support=3.0) == pytest.approx(t, rel=1e-12)


@pytest.mark.parametrize(("link", "width"), [("linear", 1), ("entmax", 2), (1.25, 4)])
def test_a_gap_of_0_is_where_a_bounded_link_becomes_hard(link, width):
    link = links.entmax(link) if isinstance(link, float) else link
    for k in (1, 3):
        t = temperature_for(X, k, link=link, gap=0.0, per_row=True)
        delta = -np.diff(np.sort(X)[:, ::-1])[:, k - 1]
        np.testing.assert_allclose(t, delta / width, rtol=1e-3 if width == 4 else 1e-7)
        assert metrics.hard_gap(soft_topk(X, k, link=link, temperature=t), k).max() < 1e-14


def test_the_search_ends_at_its_bound_with_a_choice_that_is_no_softer(monkeypatch):
    usual = temperature_for(X, 2, gap=0.5, per_row=True)
    monkeypatch.setitem(temperature_search.ROUNDS, "float64", 7)
    ended = temperature_for(X, 2, gap=0.5, per_row=True)
    assert (ended < usual).all()
    assert (metrics.hard_gap(soft_topk(X, 2, temperature=ended), 2) <= 0.5).all()


def test_the_search_ends_as_near_as_it_says():
    t = temperature_for(X, 2, support=3.0, per_row=True)
    found, next_to = (
        metrics.effective_support(soft_topk(X, 2, temperature=each))
        for each in (t, t * (1 + 1e-12))
    )
    assert (found <= 3 + 1e-14).all()
    assert (next_to > 3 + 1e-14).all()


def test_there_is_no_gradient_and_compilers_take_it():
    x = torch.tensor(X, requires_grad=True)
    alpha = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    t = temperature_for(x, torch.tensor(2.0), link=links.entmax(alpha), gap=0.5)
    assert not t.requires_grad
    with jax.enable_x64(True):
        found = jax.jit(lambda x: temperature_for(x, 2, gap=0.5, per_row=True))(
            jax.numpy.asarray(X)
        )
    np.testing.assert_allclose(found, temperature_for(X, 2, gap=0.5, per_row=True), rtol=1e-9)


def test_torch_compiles_it_without_its_sixty_maps():
    x, k = torch.tensor(X), torch.tensor([2.0, 1.0, 2.5, 3.0])
    wanted = torch.tensor([3.0, 2.0, 4.0, 3.5])

    def f(x, k):
        one = temperature_for(x, 2, gap=0.5, link="linear")
        each = temperature_for(x, k, support=wanted, per_row=True)
        mapped = torch.func.vmap(lambda x: temperature_for(x, 2, gap=0.5))(x.reshape(2, 2, 9))
        return one, each, mapped

    graphs = []

    def count(graph, inputs):
        graphs.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return graph.forward

    torch._dynamo.reset()
    for got, want in zip(
        torch.compile(f, fullgraph=True, backend=count)(x, k), f(x, k), strict=True
    ):
        assert torch.allclose(got, want, rtol=1e-9)
        assert got.shape == want.shape
    assert graphs[0] < 300  # unrolled there would be thousands


@pytest.mark.parametrize(
    ("more", "error", "words"),
    [
        ({}, TypeError, "give either support= or gap=.*got neither"),
        ({"support": 3, "gap": 1}, TypeError, "give either support= or gap=.*got both"),
        ({"support": 1.9}, ValueError, r"support must be a number in \[k, n\] \(here \[2, 9\]\)"),
        ({"support": 9.1}, ValueError, r"support must be a number in \[k, n\].*got 9.1"),
        (
            {"gap": -0.1},
            ValueError,
            r"gap must be a number in \[0, 3.11111\]",
        ),
        ({"gap": 3.2}, ValueError, "gap must be a number in .*; got 3.2"),
        ({"gap": "0.1"}, TypeError, "gap must be a number in .*, or an array; got '0.1'"),
        ({"gap": np.ones(3)}, ValueError, r"gap has shape \(3,\); it must broadcast"),
        ({"gap": torch.ones(4)}, TypeError, "gap is a Tensor and scores a ndarray"),
        ({"gap": 1, "per_row": 1}, TypeError, "per_row must be True or False; got 1"),
        ({"gap": 1, "link": "cubic"}, ValueError, "link must be"),
        ({"gap": 1, "k": 10}, ValueError, "k must be a number in"),
        ({"gap": 1, "dim": 2}, ValueError, "dim must be in"),
    ],
)
def test_what_cannot_be_is_refused(more, error, words):
    with pytest.raises(error, match=words):
        temperature_for(X, **{"k": 2, **more})

"""Fused rows against the reference: one answer, whatever the row, the threads, the process."""

import numpy as np
import pytest
import torch

import kofn
from kofn.kernels import contract
from kofn.kernels.cpu.rows import launch, layout
from kofn.kernels.cpu.runtime import memory
from kofn.kernels.cpu.runtime.layout import PART
from pairs import pairwise
from support import (
    GRADIENT,
    LINKS,
    ONE_OF_EACH,
    SYMMETRIC,
    TOTAL_BOUND,
    TWO_TAILS,
    WEIGHTS,
    full_but,
)

pytestmark = pytest.mark.pairs

INF, NAN = np.inf, np.nan
SERVED = [link for link in LINKS if contract.kind_of(kofn.links.TABLE[link].inner) is not None]
POWERS = [kofn.links.entmax(alpha) for alpha in (1.2, 1.37, 1.9)]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Memory that a kernel leaves unwritten holds NaN."""

    def poison(like, shape):
        if isinstance(like, np.ndarray):
            return np.full(shape, NAN, like.dtype)
        return like.new_full(shape, NAN)

    def memory_of(x):
        return memory.memory_of(x)._replace(
            empty=poison, empty_like=lambda like: poison(like, like.shape)
        )

    monkeypatch.setattr(launch, "memory_of", memory_of)


def cotangents(x, k, t, v, link):
    leaves = [torch.tensor(a, requires_grad=True) for a in (x, k, t)]
    p = kofn.soft_topk(leaves[0], leaves[1], link=link, temperature=leaves[2])
    found = torch.autograd.grad(p, leaves, torch.tensor(v))
    return p.detach().numpy(), *(g.numpy() for g in found)


def test_the_variable_that_turns_kernels_off_knows_two_values(monkeypatch):
    x = np.array([2.0, 1.0, 0.5])
    for value, on in (("on", True), ("", True), ("reference", False)):
        monkeypatch.setenv("KOFN_KERNELS", value)
        assert (kofn.kernels.serving_of("rows", x, "numpy", kofn.links.logistic) is launch) == on
    monkeypatch.setenv("KOFN_KERNELS", "bogus")
    for call in (kofn.soft_topk, kofn.soft_topk_sum, kofn.soft_topk_threshold):
        with pytest.raises(ValueError, match="must be 'on' or 'reference', got 'bogus'"):
            call(x, 2)
    with pytest.raises(ValueError, match="KOFN_KERNELS"):
        kofn.KSubset(x, 2).marginals()


def test_the_links_that_are_served():
    assert set(LINKS) <= set(SERVED)


@pairwise(n=[1, 7, 1000, 9001], dtype=["float32", "float64"], link=SERVED + POWERS)
def test_weights_and_cotangents_are_the_reference(link, dtype, n, reference, rng):
    count = 6
    for spread in (0.0, 0.3, 3.0, 12.0):
        x = (spread * rng.standard_normal((count, n))).astype(dtype)
        k = (n * rng.uniform(0.02, 0.98, count)).astype(dtype)
        t = rng.uniform(0.3, 2.0, count).astype(dtype)
        v = rng.standard_normal((count, n)).astype(dtype)
        ours = cotangents(x, k, t, v, link)
        exact = reference(cotangents, *(a.astype(np.float64) for a in (x, k, t, v)), link)
        assert np.max(np.abs(ours[0] - exact[0])) <= WEIGHTS[dtype]
        off = np.abs(ours[0].sum(-1, dtype=np.float64) - k)
        assert np.all(off <= TOTAL_BOUND[dtype] * k)
        for got, wanted in zip(ours[1:], exact[1:], strict=True):
            # What moves with T is a sum that cancels, wholly so where all scores are equal.
            size = np.linalg.norm(wanted) + (0.02 * n**0.5 if spread else n)
            assert np.linalg.norm(got - wanted) <= GRADIENT[dtype] * size


@pytest.mark.parametrize("link", SERVED + POWERS[1:2], ids=str)
@pytest.mark.parametrize("spread", [0.0, 1.0, 1e3, 3e4, 1e7])
def test_the_threshold_alone_is_the_references(link, spread, reference, kernels_alone, rng):
    x = (spread * rng.standard_normal((5, 300))).astype(np.float32)
    x[1, :40] = -INF
    # Between the scores of a wide row any θ chooses 7 by a link with bounded support.
    part = 0 if link in TWO_TAILS else 0.5
    k = np.array([7 + part, 200 + part, 0, 300, NAN], np.float32)
    exact = reference(
        kofn.soft_topk_threshold, x.astype(np.float64), k.astype(np.float64), link=link
    )
    if spread < 1e6:
        kernels_alone()
    theta = kofn.soft_topk_threshold(x, k, link=link)
    size = 1e-6 + 2e-7 * np.abs(exact)
    assert np.array_equal(np.isfinite(theta), np.isfinite(exact))
    assert np.all(np.abs(theta[:2] - exact[:2]) <= size[:2])
    assert np.array_equal(theta[2:], exact[2:], equal_nan=True)


@pytest.mark.parametrize("link", SERVED + POWERS[1:2], ids=str)
def test_the_edges_are_the_reference(link, reference):
    x = np.array(
        [
            [1.0, 2.0, -1.0, 0.5, 0.0],
            [1.0, NAN, -1.0, 0.5, 0.0],
            [INF, 2.0, -1.0, INF, INF],
            [INF, 2.0, -1.0, -INF, 0.0],
            [-INF, -INF, -1.0, -INF, 3.0],
            [-INF, -INF, -INF, -INF, -INF],
            [INF, NAN, -1.0, -INF, 0.0],
            [3.0, 3.0, 3.0, 3.0, 3.0],
        ]
    )
    v = np.linspace(-1, 2, x.size).reshape(x.shape)
    for k in (0.0, 0.5, 2.0, 3.0, 4.5, 5.0, NAN, -1.0, 7.0):
        for t in (1.0, 1e-3, NAN, INF, -1.0):
            ks, ts = np.full(8, k), np.full(8, t)
            ours, theirs = cotangents(x, ks, ts, v, link), reference(cotangents, x, ks, ts, v, link)
            assert ours[0] == pytest.approx(theirs[0], abs=1e-12, nan_ok=True)
            whole = np.isfinite(theirs[0]).all(-1)
            for got, wanted in zip(ours[1:], theirs[1:], strict=True):
                assert got[whole] == pytest.approx(wanted[whole], abs=1e-10, nan_ok=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_plateau_of_one_point_has_its_weights(dtype):
    """To the last digit, though two kinks are in one place."""
    x = np.array([INF, 2.0, -1.0, -INF, 0.0], dtype)
    assert kofn.soft_topk(x, 3, link="linear").tolist() == [1, 1, 0, 0, 1]


@pytest.mark.parametrize("link", SYMMETRIC)
def test_one_entry_with_all_the_slope_keeps_its_small_difference_from_the_mean(link, reference):
    """Σ F′(g − ḡ) = 0, where g − ḡ of that entry is below the rounding of ḡ."""
    far = 4 if link == "normal" else 9
    x = np.array([[0.1, -far, -far - 1, far + 0.5, far + 1]], np.float32)
    v = np.array([[1000.1, -3.0, 2.0, 5.0, 1.0]], np.float32)
    k, t = np.array([2.5], np.float32), np.array([1.0], np.float32)
    ours = cotangents(x, k, t, v, link)[1]
    exact = reference(cotangents, *(a.astype(np.float64) for a in (x, k, t, v)), link)[1]
    assert np.linalg.norm(ours - exact) <= 2e-5 * np.linalg.norm(exact)
    assert abs(ours.sum(dtype=np.float64)) <= 1e-6 * np.abs(ours).sum()


@pytest.mark.parametrize("link", SERVED)
def test_what_is_not_chosen_may_carry_any_cotangent(link):
    x = torch.tensor([[2.0, -INF, 1.0, 0.5, -1e30]], requires_grad=True)
    v = torch.tensor([[0.3, NAN, -1.0, 2.0, INF]])
    (g,) = torch.autograd.grad(kofn.soft_topk(x, 2, link=link), x, v)
    wanted = torch.autograd.grad(kofn.soft_topk(x, 2, link=link), x, v.nan_to_num(0, 0, 0))[0]
    assert torch.equal(g, wanted)
    assert torch.isfinite(g).all()


@pytest.mark.parametrize("link", SERVED)
@pytest.mark.parametrize("hidden", [-1e4, -1e9, float(np.finfo("float32").min)])
def test_additive_masks_cost_nothing(link, hidden, kernels_alone, rng):
    x = rng.standard_normal((20, 300)).astype(np.float32)
    away = rng.random(x.shape) < 0.4
    wanted = kofn.soft_topk(np.where(away, -np.float32(INF), x), 20, link=link)
    kernels_alone()
    got = kofn.soft_topk(np.where(away, np.float32(hidden), x), 20, link=link)
    assert np.max(np.abs(got - wanted)) <= 5e-7


@pytest.mark.parametrize("link", SERVED)
@pytest.mark.parametrize("k", [20.0, 20.5])
def test_wide_rows_are_solved_by_the_kernel(link, k, kernels_alone, rng, reference):
    x = (1000 * rng.standard_normal((50, 300))).astype(np.float32)
    exact = reference(kofn.soft_topk, x.astype(np.float64), k, link=link)
    kernels_alone()
    assert np.max(np.abs(kofn.soft_topk(x, k, link=link) - exact)) <= WEIGHTS["float32"]


def test_the_number_of_threads_changes_no_bit(rng):
    x = torch.tensor(rng.standard_normal((64, 1500)), dtype=torch.float32)
    before = torch.get_num_threads()
    answers = []
    for workers in (1, 2, 5):
        torch.set_num_threads(workers)
        leaf = x.clone().requires_grad_()
        p = kofn.soft_topk(leaf, 33)
        answers.append((p, *torch.autograd.grad((p * p).sum(), leaf)))
    torch.set_num_threads(before)
    for other in answers[1:]:
        assert all(torch.equal(a, b) for a, b in zip(answers[0], other, strict=True))


LONGEST = {launch.abreast_up_to(launch.FORWARD, kind) for kind in layout.SERVED}
AROUND = sorted(
    {1, 2, 7, 8, 9, 15, 16, 17, 33, 64, *(n + i for n in LONGEST for i in (-1, 0, 1)), 200}
)


def of_all_sorts(n, count, dtype, rng):
    """Rows with all that a search treats apart, side by side, each with its own k and T."""
    x = rng.standard_normal((count, n)) * rng.choice([0.1, 1, 30, 1000], (count, 1))
    x[1::9] = np.where(rng.random(x[1::9].shape) < 0.3, -INF, x[1::9])
    x[2::9, 0] = INF
    x[3::9, n // 2] = NAN
    x[4::9] = -INF
    x[5::9] = 2.0
    x[6::9, n // 3 :] = -1e9
    x[7::9, : n // 2] = np.round(x[7::9, : n // 2])
    k = rng.choice([1, 0, 0.4, 1, 2, 0.3 * n, n / 2, n - 0.5, n, NAN], count)
    t = rng.choice([0.01, 0.5, 1, 1, 1, 3], count)
    return x.astype(dtype), k.astype(dtype), t.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "link",
    full_but(LINKS[:1], ONE_OF_EACH),
)
@pytest.mark.parametrize("n", AROUND)
def test_a_row_does_not_depend_on_the_others(n, link, dtype, rng):
    x, k, t = of_all_sorts(n, 53, dtype, rng)
    v = rng.standard_normal(x.shape).astype(dtype)
    together = cotangents(x, k, t, v, link)
    for count in (1, 15, 16, 17):
        rows = rng.choice(len(x), count, replace=False)
        some = cotangents(x[rows], k[rows], t[rows], v[rows], link)
        for got, wanted in zip(some, together, strict=True):
            assert np.array_equal(got, wanted[rows], equal_nan=True)
    theta = kofn.soft_topk_threshold(x, k, link=link, temperature=t)
    backwards = kofn.soft_topk_threshold(x[::-1], k[::-1], link=link, temperature=t[::-1])
    assert np.array_equal(theta[::-1], backwards, equal_nan=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("link", SERVED)
def test_short_rows_are_the_reference(link, dtype, reference, rng):
    for n in AROUND:
        x = rng.standard_normal((17, n)) * rng.choice([0.1, 1, 10], (17, 1))
        k, t = rng.uniform(0.02, 0.98, 17) * n, rng.uniform(0.3, 2, 17)
        k[::4] = min(1, n / 2)
        given = [a.astype(dtype) for a in (x, k, t, rng.standard_normal(x.shape))]
        ours = cotangents(*given, link)
        exact = reference(cotangents, *(a.astype(np.float64) for a in given), link)
        # 10 temperatures and more from 0 float32 scores lose some digits of z.
        assert np.max(np.abs(ours[0] - exact[0])) <= 3 * WEIGHTS[dtype]
        off = np.abs(ours[0].sum(-1, dtype=np.float64) - given[1])
        assert np.all(off <= 1e-6 * given[1])
        size = np.linalg.norm(exact[1]) + 0.02 * n**0.5
        assert np.linalg.norm(ours[1] - exact[1]) <= 10 * GRADIENT[dtype] * size


@pytest.mark.parametrize("count", [1, 3])
def test_a_long_row_is_shared_in_parts_that_depend_on_nothing(count, reference, rng):
    n = 3 * PART + 77
    x = torch.tensor(rng.standard_normal((count, n)), dtype=torch.float32)
    x[0, :9] = -INF
    v = torch.tensor(rng.standard_normal((count, n)), dtype=torch.float32)
    before = torch.get_num_threads()
    answers = []
    for workers in (1, 2, 5):
        torch.set_num_threads(workers)
        leaf = x.clone().requires_grad_()
        p = kofn.soft_topk(leaf, n / 3)
        answers.append((p.detach(), *torch.autograd.grad(p, leaf, v)))
    torch.set_num_threads(before)
    for other in answers[1:]:
        assert all(torch.equal(a, b) for a, b in zip(answers[0], other, strict=True))
    exact = reference(kofn.soft_topk, x.double(), n / 3)
    assert torch.max(torch.abs(answers[0][0] - exact)) <= WEIGHTS["float32"]
    spoiled = x.clone()
    spoiled[0, n // 2] = NAN
    p = kofn.soft_topk(spoiled, n / 3)
    assert torch.isnan(p[0, 9:]).all()
    assert torch.equal(p[1:], answers[0][0][1:])


@pytest.mark.parametrize("n", [PART + 1, pytest.param(3 * PART - 5, marks=pytest.mark.full)])
@pytest.mark.parametrize("link", SERVED + POWERS[1:2], ids=str)
def test_rows_in_parts_have_the_gradient_and_the_value_of_the_reference(link, n, reference, rng):
    """Parts that differ, in scores and cotangent: what is added up is no extreme of them."""
    trend = np.linspace(-1, 2, n)
    x, v = (trend + rng.standard_normal((2, n)) for _ in range(2))
    v[1] -= 3
    k, t = np.array([0.3 * n, 5.0]), np.array([1.0, 0.2])
    ours, exact = cotangents(x, k, t, v, link), reference(cotangents, x, k, t, v, link)
    for got, wanted in zip(ours, exact, strict=True):
        assert np.linalg.norm(got - wanted) <= 1e-11 * np.linalg.norm(wanted)
    ours, exact = valued(x, k, t, link), reference(valued, x, k, t, link)
    for got, wanted in zip(ours, exact, strict=True):
        assert np.linalg.norm(got - wanted) <= 1e-11 * np.linalg.norm(wanted)


def valued(x, k, t, link):
    leaves = [torch.tensor(a, requires_grad=True) for a in (x, k, t)]
    total = kofn.soft_topk_sum(leaves[0], leaves[1], link=link, temperature=leaves[2])
    return [total.detach().numpy(), *(g.numpy() for g in torch.autograd.grad(total.sum(), leaves))]


def test_read_only_and_strided_rows(rng):
    x = rng.standard_normal((6, 10)).astype(np.float32)
    wanted = kofn.soft_topk(x.copy(), 3)
    x.flags.writeable = False
    assert np.array_equal(kofn.soft_topk(x, 3), wanted)
    wide = np.repeat(x, 2, axis=1)[:, ::2]
    assert np.array_equal(kofn.soft_topk(wide, 3), wanted)
    assert np.array_equal(kofn.soft_topk(np.asfortranarray(x), 3), wanted)
    assert np.array_equal(kofn.soft_topk(torch.tensor(x).t().contiguous().t(), 3).numpy(), wanted)


def test_the_environment_turns_the_kernels_off(monkeypatch):
    monkeypatch.setattr(launch, "weights", None)
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    assert kofn.soft_topk(np.array([1.0, 2.0, 3.0]), 2).sum() == pytest.approx(2)


def test_a_link_of_ones_own_is_never_taken_for_a_built_in():
    cauchy = kofn.Link(lambda z: 0.5 + np.arctan(z) / np.pi, lambda z: 1 / (np.pi * (1 + z * z)))
    cauchy.name = "logistic"
    assert contract.kind_of(cauchy) is None


@pairwise(t=[0.3, 0.05, 1e-3], hidden=[-1e8, -1e9, -1e12], link=SERVED + POWERS)
def test_additive_masks_do_no_harm_at_a_low_temperature(link, hidden, t, rng):
    """Between such a mask and the scores float32 has numbers hundreds of temperatures apart."""
    x = (5 * rng.standard_normal((200, 64))).astype(np.float32)
    x[rng.random(x.shape) < 0.7] = hidden
    x[:, :2] = 0.5
    for k in (1.0, 1.5):
        p = kofn.soft_topk(x, k, link=link, temperature=t)
        assert np.max(np.abs(p.sum(-1, dtype=np.float64) / k - 1)) <= 1e-5


def test_scores_far_from_0_at_a_low_temperature():
    x = np.array([461564.28125, 461527.5625, 461548.78125, 461612.15625, 461505.25], np.float32)
    p = kofn.soft_topk(x, 2.5, temperature=1e-4)
    assert p == pytest.approx(np.array([1, 0, 0.5, 1, 0]), abs=1e-6)


def test_tensors_that_have_no_plain_memory():
    x = torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal(kofn.soft_topk(torch._neg_view(x), 1), kofn.soft_topk(-x, 1))
    assert kofn.soft_topk(torch._efficientzerotensor((3,)), 1).tolist() == pytest.approx(
        [1 / 3] * 3
    )

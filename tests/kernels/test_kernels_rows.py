"""Fused rows where users go: outliers, masks, tiny units, plateaus, whatever the k."""

import platform
import re

import numpy as np
import pytest
import torch
from numba import cfunc

import kofn
from kofn import links, soft_topk, soft_topk_sum, soft_topk_threshold
from kofn.kernels import contract
from kofn.kernels.cpu.rows import frame, layout, loops
from kofn.kernels.cpu.runtime import intrinsics
from rows_of_users import draw, hold, hold_gradients
from support import BOUNDED, ENDLESS, LINKS

pytestmark = pytest.mark.pairs

INF = np.inf
LOWEST = float(np.finfo("float32").min)
EVERY = (*LINKS, 1.2, 1.37, 1.9)
TYPES = ("float32", "float64")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("link", EVERY)
@pytest.mark.parametrize(
    ("count", "n"),
    [
        (400, 9),
        (40, 150),
        *(pytest.param(*a, marks=pytest.mark.full) for a in ((48_000, 9), (2000, 150))),
    ],
)
def test_the_laws_hold(count, n, link, dtype, rng):
    hold(draw(rng, count, n, dtype), link, "numpy")


@pytest.mark.parametrize(
    ("x", "k", "link", "temperature", "wanted"),
    [
        ([4.6, 1e15], 1.047, "laplace", 1.0, [0.047, 1]),
        ([1e30, 0.008, 0.0058], 1.037, "normal", 0.025, None),
        ([5, -1e9, -1e9 - 64], 2, "normal", 1.0, [1, 1, 0]),
        ([1, 1, -1e9, -1e9, -1e9 - 64], 4, "normal", 0.1, [1, 1, 1, 1, 0]),
        ([1e30, 0.3, 0.1, -1e30], 1.5, "entmax", 1.0, None),
        ([0.5, 0.1, 0.1, 0.1], 2.25, "laplace", 1e-30, [1, 1.25 / 3, 1.25 / 3, 1.25 / 3]),
    ],
)
@pytest.mark.parametrize("dtype", TYPES)
def test_outliers_lead_no_search(x, k, link, temperature, wanted, dtype):
    p = soft_topk(np.array(x, dtype), k, link=link, temperature=temperature)
    assert p.sum(dtype=float) == pytest.approx(k, rel=1e-6)
    if wanted is not None:
        assert p == pytest.approx(np.array(wanted), abs=1e-6)


@pytest.mark.parametrize("link", EVERY)
def test_units_do_not_matter(link, rng):
    """Where squares of scores underflow, or overflow: the kernel sees to the first by itself."""
    link = link if isinstance(link, str) else links.entmax(link)
    x = rng.standard_normal((20, 40)).astype(np.float32)
    exact = soft_topk(x.astype(float), 4.5, link=link, temperature=2.0)
    for unit in (1e-24, 1e-29, 1e24):
        scaled = (x * np.float32(unit)).astype(np.float32)
        p = soft_topk(scaled, 4.5, link=link, temperature=2 * unit)
        assert np.max(np.abs(p - exact)) <= 2e-6


@pytest.mark.parametrize("dtype", TYPES)
def test_many_scores_at_the_end_of_the_support(dtype, rng, kernels_alone):
    """One more step of θ and all of them enter: the sum of the weights stays k all the same."""
    kernels_alone()
    bound = {"float32": 5e-7, "float64": 1e-14}[dtype]
    for n in (10, 99, 400, 3000):
        for k in (1, 2, 5, 7):
            for _ in range(4):
                temperature = np.exp2(rng.uniform(-60, 45)).astype(dtype)
                base = np.dtype(dtype).type(rng.standard_normal()) * temperature
                x = np.where(np.arange(n) < k, base + temperature, base)
                p = soft_topk(x, k, link="linear", temperature=float(temperature))
                assert p.sum(dtype=float) == pytest.approx(k, rel=bound)


@pytest.mark.parametrize("link", [LINKS[0], *BOUNDED])
@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_a_step_that_was_the_last_too_soon(link, spread, rng, kernels_alone):
    """One score in 1,000 rows enters the support, or reaches the weight 1: the search goes on."""
    kernels_alone()
    x = (spread * rng.standard_normal((8000, 130))).astype(np.float32)
    p = soft_topk(x, 1, link=link)
    assert np.max(np.abs(p.sum(-1, dtype=float) - 1)) <= 5e-7
    assert np.max(np.abs(p - soft_topk(x.astype(float), 1, link=link))) <= 5e-7


@pytest.mark.parametrize("link", EVERY)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_get_the_same_where_the_temperature_is_a_number(link, dtype):
    link = link if isinstance(link, str) else links.entmax(link)
    draw = torch.Generator().manual_seed(0)
    x, g = (torch.randn(9, 200, generator=draw).to(getattr(torch, dtype)) for _ in range(2))
    x.requires_grad_()
    learned = torch.tensor(0.7, requires_grad=True)
    with_t, alone = (soft_topk(x, 5, temperature=t, link=link) for t in (learned, 0.7))
    slopes = [torch.autograd.grad(p, x, g)[0] for p in (with_t, alone)]
    assert torch.equal(*slopes)
    assert bool(slopes[0].any())


@pytest.mark.parametrize("link", EVERY)
@pytest.mark.parametrize("spoilt", [np.nan, INF, 3e38])
def test_scores_out_of_play_may_have_any_cotangent(link, spoilt, rng):
    """A sum with such a one tells, and that row is gone over once more, with care."""
    link = link if isinstance(link, str) else links.entmax(link)
    for n in (9, 40, 150, 700):
        x, g = rng.standard_normal((2, 20, n)).astype("float32")
        x[:10, ::3] = -INF
        x[10:, ::5] = LOWEST
        gone = x < -1e30
        found = []
        for each in (0, spoilt):
            leaf, given = torch.tensor(x, requires_grad=True), torch.tensor(np.where(gone, each, g))
            p = soft_topk(leaf, 3, temperature=2, link=link)
            found.append(torch.autograd.grad(p, leaf, given.float())[0].numpy())
        assert np.abs(found[1] - found[0]).max() <= 1e-6 * np.abs(found[0]).max()
        assert not found[1][gone].any()


@pytest.mark.parametrize("link", ENDLESS)
def test_scores_out_of_play_have_no_slope_however_near_they_are(link, rng):
    x = np.full((4, 60), np.float32(LOWEST / 2))
    for least in range(1, 9):  # most are among the next numbers above, a temperature apart
        x = np.where(np.arange(60) % 9 < least, x, np.nextafter(x, np.float32(0)))
    gone = x <= LOWEST / 2
    leaf = torch.tensor(x, requires_grad=True)
    p = soft_topk(leaf, 3, temperature=3e31, link=link)
    (slope,) = torch.autograd.grad(
        p, leaf, torch.tensor(1e30 * rng.standard_normal(x.shape)).float()
    )
    assert not slope[gone].any()
    assert slope[~gone].all()


def test_a_sum_that_was_off_in_tiny_units():
    unit = np.float32(2.0829783e-19)
    x = np.array([2, 2, 2, 0, -3, 2, 0, 3, 2], np.float32) * unit
    p = soft_topk(x, 1, link="linear", temperature=float(unit))
    assert p.sum(dtype=float) == pytest.approx(1, abs=3e-7)


def test_tiny_units_need_no_reference(kernels_alone, rng):
    x = rng.standard_normal((20, 40)).astype(np.float32)
    kernels_alone()
    soft_topk(x * np.float32(1e-24), 4, temperature=2e-24)


# --- deleted scores ---


@pytest.mark.parametrize("n", [6, 200])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("link", EVERY)
def test_half_of_the_least_number_is_minus_inf(link, dtype, n, rng):
    """To the last bit: weights, thresholds, sums and every cotangent, NaN beside them included."""
    link = link if isinstance(link, str) else links.entmax(link)
    least = np.finfo(dtype).min
    x = rng.standard_normal((7, n)).astype(dtype)
    away = rng.random(x.shape) < 0.4
    away[1], away[2, 1:] = True, True
    x[3, 0], x[4, 1] = INF, np.nan
    away[3:5, :2] = False
    k = np.array([1.0, 1.5, 3.0, 2.0, 2.0, 0.0, n], dtype)
    v = torch.tensor(np.where(away, np.nan, rng.standard_normal(x.shape)).astype(dtype))
    kinds = rng.choice([least, least / 2, 0.75 * least], x.shape).astype(dtype)
    ours, theirs = (
        answers(np.where(away, hidden, x).astype(dtype), k, link, v) for hidden in (kinds, -INF)
    )
    for got, wanted in zip(ours, theirs, strict=True):
        assert np.array_equal(got, wanted, equal_nan=True)
    assert np.all(ours[0][away] == 0)
    assert np.all(ours[1][away] == 0)
    assert np.all(ours[4][away] == 0)


def answers(x, k, link, v):
    """(weights, their cotangents, S_k, its cotangents, θ)."""
    x, k = torch.tensor(x, requires_grad=True), torch.tensor(k, requires_grad=True)
    t = torch.full_like(k, 0.7, requires_grad=True)
    p = soft_topk(x, k, link=link, temperature=t)
    s = soft_topk_sum(x, k, link=link, temperature=t)
    theta = soft_topk_threshold(x.detach(), k.detach(), link=link, temperature=0.7)
    back = torch.autograd.grad(p, (x, k, t), v)
    of_sum = torch.autograd.grad(s, (x, k, t), torch.ones_like(s))
    found = [p, *back[:1], back[1], back[2], of_sum[0], *of_sum[1:], s, theta]
    return [a.detach().numpy() for a in found]


@pytest.mark.parametrize("dtype", TYPES)
def test_a_score_just_above_half_of_the_least_number_is_one(dtype):
    least = np.finfo(dtype).min / 2
    above = np.nextafter(least, np.array(0, dtype))
    x = np.array([above, least, above, least], dtype)
    for link in LINKS:
        assert soft_topk(x, 1, link=link) == pytest.approx([0.5, 0, 0.5, 0], rel=1e-6, abs=0)
        tensor = torch.tensor(x, requires_grad=True)
        p = soft_topk(tensor, 1, link=link, temperature=1e29)
        (g,) = torch.autograd.grad(p, tensor, torch.tensor([1.0, 5.0, 2.0, 7.0]).to(tensor))
        assert p.tolist() == pytest.approx([0.5, 0, 0.5, 0], rel=1e-6, abs=0)
        assert g[1] == g[3] == 0
    assert kofn.softmax(np.full(4, least, dtype)).tolist() == [0, 0, 0, 0]


def test_subsets_do_not_choose_what_is_deleted():
    y = np.array([1.0, LOWEST, 0.5, LOWEST / 2, 0.1], np.float32)
    for k in (1, 2, 3):
        masked = kofn.KSubset(np.where(y < -1e30, -INF, y).astype(np.float32), k).marginals()
        assert np.array_equal(kofn.KSubset(y, k).marginals(), masked)


# --- gradients ---


def cotangents(x, k, t, v, link):
    leaves = [torch.tensor(a, requires_grad=True) for a in (x, k, t)]
    p = soft_topk(leaves[0], leaves[1], link=link, temperature=leaves[2])
    return [g.numpy() for g in torch.autograd.grad(p, leaves, torch.tensor(v))]


@pytest.mark.parametrize(
    ("count", "link"),
    [(300, link) for link in EVERY]
    + [pytest.param(20_000, link, marks=pytest.mark.full) for link in EVERY],
)
def test_gradients_of_odd_rows_are_those_in_float64(count, link, rng, monkeypatch):
    rows = draw(rng, count, 9, "float32")
    link = link if isinstance(link, str) else links.entmax(link)
    v = rng.standard_normal(rows.x.shape)
    single = [a.astype(np.float32) for a in (rows.x, rows.k, rows.temperature, v)]
    ours = cotangents(*single, link)
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    hold_gradients(rows, v, ours, lambda *given: cotangents(*given, link), link)


@pytest.mark.parametrize("link", ENDLESS)
@pytest.mark.parametrize("temperature", [1e30, 3e31])
def test_a_threshold_beyond_the_greatest_float_is_finite(link, temperature):
    """θ is T·ln(4/k) above equal scores of finfo.max; the gradient is that of equal zeros."""

    def gradients(shift, t):
        x = torch.full((4,), shift, requires_grad=True)
        k = torch.tensor(6e-5, requires_grad=True)
        p = kofn.soft_topk(x, k, link=link, temperature=t)
        in_x, in_k = torch.autograd.grad(p, (x, k), torch.tensor([1.0, 0.5, -0.5, 0.2]))
        return t * in_x.numpy(), in_k.numpy()

    far = gradients(torch.finfo(torch.float32).max, temperature)
    for got, wanted in zip(far, gradients(0.0, 1.0), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86-64 assembly")
@pytest.mark.parametrize("name", ["full_statistics", "peak"])
def test_extremes_are_found_by_vector_code(name):
    """A `peak` that LLVM left scalar took twice as long as the rest of softmax."""
    made = cfunc(intrinsics.PASS, **frame.OPTIONS)(getattr(loops, name)(0, np.float32))
    assert re.search(r"v?pmaxsd\s+.*[xyz]mm", made._library.get_asm_str())


def test_entmax_in_float32_takes_alpha_less_1_before_it_rounds(rng):
    """The rounding of α was so much of α − 1 that each θ was off to the same side by 1e-6."""
    x = rng.standard_normal((64, 1000)).astype("f4")
    for alpha in (1.2, 1.3):
        one, other = (
            soft_topk_threshold(rows, 1, link=links.entmax(alpha)) for rows in (x, x.astype("f8"))
        )
        assert abs(np.mean(one - other)) < 3e-7


@pytest.mark.parametrize("link", ["logistic", "normal"])
def test_a_long_last_step_is_held_to_the_sum(link, rng):
    """Few of these scores share a sum, so the third order of such a step is too little."""
    x = rng.standard_t(2, (600, 200)).astype(np.float32)
    for k, temperature in ((1, 0.3), (3, 0.1), (32, 0.1)):
        found = soft_topk(x, k, link=link, temperature=temperature).astype(np.float64)
        exact = soft_topk(x.astype(np.float64), k, link=link, temperature=temperature)
        assert np.max(np.abs(found.sum(-1) - k)) <= 4e-7 * k
        assert np.max(np.abs(found - exact)) <= 4e-7


@pytest.mark.parametrize("n", [130, 700, 5000])
@pytest.mark.parametrize("kind", layout.HAVE_ROUGH)
def test_few_weights_do_not_pay_for_the_rounding_of_many(kind, n, rng):
    """An evaluation that adds up F next to 1 knows ΣF to 1e-7 of itself: too little for these."""
    alpha = dict(zip(contract.OF_ALPHA, contract.SPECIAL_ALPHA, strict=False)).get(kind, 0.0)
    link, whole = contract.link_of(kind, alpha), n * 7 // 8
    x = np.where(np.arange(n) < whole, 3.0, -3.0) + 0.1 * rng.standard_normal((100, n))
    x[:, :3] = 0.2 * rng.standard_normal((100, 3))
    x = x.astype(np.float32)
    for k in (whole - 1.75, whole - 2.5):  # float32 has these
        found = soft_topk(x, k, link=link).astype(np.float64)
        exact = soft_topk(x.astype(np.float64), k, link=link)
        assert np.max(np.abs(found - exact)) <= 4e-7


def test_a_sum_that_rounds_to_k_is_not_taken_for_it():
    """ΣF of 200 weights, all but one of them near 1, was 199.75 in float32, and not otherwise."""
    x = np.random.default_rng(2).standard_normal((1, 200)).astype(np.float32)
    x[0, 3] = -2.722933292388916
    found, exact = (soft_topk(x.astype(t), 199.75, link="linear") for t in ("f4", "f8"))
    assert np.max(np.abs(found - exact)) <= 4e-7


@pytest.mark.parametrize("n", [8, 13, 33, 96])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("link", EVERY)
def test_a_row_has_its_bits_among_hard_rows_in_every_lane(link, dtype, n, rng):
    """Rows abreast are evaluated together until the last is found: what one of them keeps of its
    own last evaluation, its slope above all, mends its weights.
    """
    far = np.array([0, 100], dtype)
    link = link if isinstance(link, str) else links.entmax(link)
    for k, temperature in ((1.0, 0.3), (1.0, 1.0), (n // 4 + 0.3, 1.0), (n - 1.0, 0.05)):
        rows = rng.standard_normal((32, n)).astype(dtype) + far[rng.integers(2, size=(32, 1))]
        rows[:12] = np.round(2 * rows[:12]) / 2
        hard = rng.standard_normal((15, n)) * 100
        hard[8:] = np.round(hard[8:])
        for i, row in enumerate(rows):
            lane = i % 16
            among = np.insert(hard.astype(dtype), lane, row, axis=0)
            given = {"temperature": temperature, "link": link}
            for function in soft_topk, soft_topk_threshold:
                alone = function(row[None], k, **given)[0]
                assert np.array_equal(function(among, k, **given)[lane], alone), (k, i)

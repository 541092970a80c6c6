"""One row that is read block by block: the same answers as for the row in memory."""

import math

import numpy as np
import pytest
import torch

import kofn
from kofn import hard_topk, links, soft_topk, soft_topk_threshold, streaming
from kofn.streaming import blocks, threshold
from kofn.streaming import choice as hard_choice
from support import BOUNDED, LINKS, ONE_OF_EACH, every_link, full_but

full = pytest.mark.full


@pytest.fixture(params=["on", "reference"], autouse=True)
def kernels(request, monkeypatch):
    monkeypatch.setenv("KOFN_KERNELS", request.param)
    monkeypatch.setenv("KOFN_NUM_THREADS", "1")
    monkeypatch.setattr(blocks, "BLOCK", 256)


def row(n=1000, dtype=np.float64, spread=1.0, seed=0):
    return (np.random.default_rng(seed).standard_normal(n) * spread).astype(dtype)


def parts_of(x):
    """The row in arrays of several shapes and layouts."""
    first, second = x[:30].reshape(5, 6), x[30:430].reshape(20, 20)
    return [first, np.asfortranarray(second), x[430:430], x[430:]]


@every_link
@pytest.mark.parametrize("temperature", [1.0, pytest.param(0.05, marks=full), 1e-3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_theta_and_weights_are_those_of_the_row(link, temperature, dtype):
    x = row(dtype=dtype, spread=3.0)
    for k in (0.5, 10, 499.5, 990):
        how = {"link": link, "temperature": temperature}
        exact = x.astype(np.float64)
        wanted = soft_topk(exact, k, **how)
        tolerance = 1e-6 if dtype == np.float32 else 1e-12
        found = streaming.soft_topk(parts_of(x), k, **how)
        found = np.concatenate([each.ravel() for each in found])
        assert found.dtype == dtype
        np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)
        assert abs(found.sum(dtype=np.float64) - k) <= tolerance * k
        slope = (wanted * (1 - wanted)).sum()  # where there is none, a whole interval is right
        if slope > 1e-9:
            theta = streaming.soft_topk_threshold(parts_of(x), k, **how)
            scale = (temperature + abs(theta) * tolerance) / min(slope, 1)
            assert abs(theta - soft_topk_threshold(exact, k, **how)) <= 10 * tolerance * scale


EDGES = {
    "one": [2.0],
    "ties": [1.0] * 200,
    "two values": [0.0] * 100 + [1.0] * 100,
    "masked": [-math.inf, 3.0, 1.0, -math.inf, np.finfo(np.float32).min] + [0.5] * 100,
    "all masked": [-math.inf] * 5,
    "top": [math.inf, 1.0, math.inf, 0.0, -1.0, -math.inf],
    "only top": [math.inf] * 3,
    "nan": [1.0, math.nan, 2.0, math.inf, -math.inf],
    "zeros": [0.0, -0.0, 0.0, -0.0],
    "far": [1e30, -1e30, 1e20, 5.0, 4.0, 3.0, 1.0],
    "masks": [-1e9] * 70 + [0.1 * i for i in range(100)],
    "plateau": [10, 9.5, 9.2, -9, -10, -9.5, -9.9],
    "wide plateau": [1000.0] * 3 + [0.0] * 4,
    "tiny": [1e-42, 2e-42, 0.0, -1e-42],
}


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize("link", full_but(ONE_OF_EACH))
def test_edges_are_those_of_the_row(name, link):
    x = np.array(EDGES[name], np.float32)
    for k in {0, 1, 2.5, 3, len(x)}:
        if k > len(x):
            continue
        wanted = soft_topk(x, k, link=link)
        np.testing.assert_allclose(
            streaming.soft_topk(x, k, link=link), wanted, rtol=0, atol=2e-6, err_msg=str(k)
        )
        np.testing.assert_array_equal(streaming.hard_topk(x, k), hard_topk(x, k), err_msg=str(k))
        theta = soft_topk_threshold(x, k, link=link)
        found = streaming.soft_topk_threshold(x, k, link=link)
        bounded = link in BOUNDED and not ((wanted > 0) & (wanted < 1)).any()
        if not (math.isfinite(theta) and bounded):
            np.testing.assert_allclose(found, theta, rtol=1e-5, atol=1e-5, err_msg=str(k))


@pytest.mark.parametrize("temperature", [1.0, 0.3, 0.1])
def test_the_plateau_has_the_published_thresholds(temperature):
    x = np.array([10, 9.5, 9.2, -9, -10, -9.5, -9.9])
    wanted = {1.0: 0.141781, 0.3: 0.081942, 0.1: 0.097899}[temperature]
    assert abs(streaming.soft_topk_threshold(x, 3, temperature=temperature) - wanted) < 1e-6


@pytest.mark.parametrize(
    ("dtype", "few"), [(np.float16, 8), (np.float32, 8), (np.float64, 8), (np.float64, 1 << 20)]
)
def test_hard_choices_are_those_of_the_row(dtype, few, monkeypatch):
    monkeypatch.setattr(hard_choice, "FEW", few)
    rng = np.random.default_rng(1)
    for x in (row(900, dtype), rng.integers(-3, 3, 900).astype(dtype), np.zeros(900, dtype)):
        for k in (1, 17, 449.25, 899):
            found = streaming.hard_topk(parts_of(x), k)
            found = np.concatenate([each.ravel() for each in found])
            np.testing.assert_array_equal(found, hard_topk(x, k))
            if k == int(k):
                indices = streaming.topk_indices(parts_of(x), int(k))
                np.testing.assert_array_equal(indices, np.flatnonzero(found))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_are_blocks_too(dtype):
    x = torch.as_tensor(row(500)).to(dtype)
    parts = [x[:100].reshape(10, 10).T.contiguous().T, x[100:]]
    whole = torch.cat([each.reshape(-1) for each in parts])
    wanted = soft_topk(whole, 20)
    found = torch.cat([each.reshape(-1) for each in streaming.soft_topk(parts, 20)])
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6 if dtype.itemsize > 2 else 1e-2)
    learned = [each.clone().requires_grad_() for each in parts]
    found = streaming.hard_topk(learned, 20)
    assert torch.equal(torch.cat([each.reshape(-1) for each in found]), hard_topk(whole, 20))


def test_equal_scores_around_a_wide_gap_take_few_passes():
    """What θ depends on is kept as scores and their numbers, however often they occur."""
    passes, x = [], np.repeat([0.0, 1000.0, 2000.0], 1000)
    theta = streaming.soft_topk_threshold(x, 1000, progress=lambda *now: passes.append(now[1:]))
    assert abs(theta - soft_topk_threshold(x, 1000)) < 1e-9
    assert passes.count((3000, 3000)) <= 4 + 12


@pytest.mark.parametrize(("seed", "k"), [(47, 1), (78, 2), (119, 2)])
def test_a_gap_without_a_score_that_theta_depends_on(seed, k):
    """Newton's method does not find these; all scores next to them have a weight of 0."""
    x = row(300, np.float32, spread=3.0, seed=seed)
    wanted = soft_topk(x.astype(np.float64), k, link="entmax", temperature=0.01)
    found = streaming.soft_topk(x, k, link="entmax", temperature=0.01)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


@every_link
def test_array_code_over_blocks_serves_every_link(link, monkeypatch):
    """It raised TypeError for links that take a special function, such as the logistic one."""
    monkeypatch.setattr(threshold, "LOOKS", 0)
    monkeypatch.setattr(threshold, "FEW", 0)
    wanted = soft_topk(row(300), 20, link=link)
    np.testing.assert_allclose(streaming.soft_topk(row(300), 20, link=link), wanted, atol=1e-12)


def test_the_least_number_of_each_dtype_masks():
    least = [np.finfo(dtype).min for dtype in ("float16", "float32", "float64")]
    x = [np.array([1, low], low.dtype) for low in least]
    assert [p.tolist() for p in streaming.hard_topk(x, 4)] == [[1, 0]] * 3
    assert [p.tolist() for p in streaming.soft_topk(x, 4)] == [[1, 0]] * 3
    assert streaming.topk_indices(x, 5).tolist() == [0, 2, 4]


def test_no_entries_and_one():
    assert math.isnan(streaming.soft_topk_threshold([], 0))
    assert streaming.soft_topk(np.zeros((0, 3)), 0).shape == (0, 3)
    assert streaming.topk_indices([np.zeros(0), np.ones(1)], 1).tolist() == [0]


def test_a_link_of_the_users_own():
    cauchy = kofn.Link(
        cdf=lambda z: 0.5 + np.arctan(z) / math.pi, pdf=lambda z: 1 / (math.pi * (1 + z * z))
    )
    x = row(300)
    x[5] = -math.inf
    wanted = soft_topk(x, 20, link=cauchy)
    np.testing.assert_allclose(streaming.soft_topk(x, 20, link=cauchy), wanted, atol=1e-12)
    steep = links.entmax(2.5)
    wanted = soft_topk(x, 20, link=steep)
    np.testing.assert_allclose(streaming.soft_topk(x, 20, link=steep), wanted, atol=1e-9)


def test_it_takes_few_passes_and_tells():
    seen = []
    x = row(5000, np.float32)
    streaming.soft_topk_threshold(x, 50, progress=lambda *now: seen.append(now))
    assert [what for what, done, n in seen if done == n] == ["survey", "threshold"]
    seen.clear()
    streaming.topk_indices(x, 50, progress=lambda *now: seen.append(now))
    assert [what for what, done, n in seen if done == n] == ["survey", "choice", "indices"]


def test_threads_change_nothing(monkeypatch):
    x, found = row(5000, np.float32), []
    for number in ("1", "3"):
        monkeypatch.setenv("KOFN_NUM_THREADS", number)
        weights = streaming.soft_topk(x, 70)
        found.append((weights.tobytes(), streaming.hard_topk(np.round(x), 70).tobytes()))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: streaming.soft_topk_threshold(x, 5), ValueError, "k must be a number in"),
        (lambda x: streaming.soft_topk_threshold(x, 1, temperature=0), ValueError, "temperature"),
        (lambda x: streaming.soft_topk_threshold(x.astype(int), 1), TypeError, "scores"),
        (lambda x: streaming.soft_topk_threshold("x.npy", 1), TypeError, "scores"),
        (lambda x: streaming.soft_topk(x, 1, out=x[:2]), ValueError, "as many entries"),
        (lambda x: streaming.soft_topk([x], 1, out=x), TypeError, "out must be"),
        (lambda x: streaming.soft_topk(x, 1, out="w.npy"), TypeError, "out must be"),
        (lambda x: streaming.soft_topk(x, 1, out=np.zeros(4, int)), TypeError, "out must have"),
        (lambda x: streaming.hard_topk(x, 1.5, out=np.zeros(4, bool)), TypeError, "out must have"),
        *(
            (lambda x, d=d: streaming.hard_topk(x, 1, out=np.zeros(4, d)), TypeError, "integer or")
            for d in ("U3", "M8[s]", complex, object)
        ),
        *(
            (lambda x, d=d: streaming.hard_topk(x * math.nan, 1, out=np.zeros(4, d)), *named)
            for d in (bool, int)
            for named in [(ValueError, "scores are NaN")]
        ),
        (lambda x: streaming.topk_indices(x, 1.5), TypeError, "k"),
        (lambda x: streaming.topk_indices(x * math.nan, 1), ValueError, "NaN"),
        (lambda x: streaming.hard_topk(x, 1, progress=3), TypeError, "progress"),
    ],
)
def test_bad_use_is_named(call, error, words):
    with pytest.raises(error, match=words):
        call(np.arange(4.0))


@pytest.mark.parametrize("link", BOUNDED)
def test_a_threshold_that_is_not_unique(link):
    x = np.array([10, 9, 8.5, -5, -7, -9])
    weights = soft_topk(x, 3, link=link)
    np.testing.assert_array_equal(streaming.soft_topk(x, 3, link=link), weights)
    for theta in (
        soft_topk_threshold(x, 3, link=link),
        streaming.soft_topk_threshold(x, 3, link=link),
    ):
        assert -5 < theta < 8.5


STEEP = [
    (np.float32, [-1.9e-6, 6.7e-6, -1.1e-5, -6.9e-6], 3.9999999999999996, 5.5e-23, "laplace"),
    (np.float32, [-0.34, 0.54, 0.33, -0.62, 0.4], 2.3e-8, 9.1e-21, "exponential"),
    (np.float16, [0.997, 1.001, 1.002, 0.998, 1.003], 4.000078534041965, 1.2e-20, "logistic"),
    (np.float32, [71825336.0] * 4 + [-(2.0**127), 71825328.0], 3e-185, 0.00276, "logistic"),
    (np.float32, [0.0, 3.4e38, 3.4028234e38], 1e-30, 4e31, "laplace"),
]


@pytest.mark.parametrize(("dtype", "x", "k", "temperature", "link"), STEEP)
def test_a_theta_far_from_all_numbers_of_its_type_has_weights(dtype, x, k, temperature, link):
    x, how = np.array(x, dtype), {"link": link, "temperature": temperature}
    assert not math.isnan(streaming.soft_topk_threshold(x, k, **how))
    found = streaming.soft_topk(x, k, **how).astype(float)
    assert abs(found.sum() - k) <= 2e-6 * k + 1e-37 + (1e-3 * k if dtype == np.float16 else 0)
    assert 0 <= found.min() <= found.max() <= 1


def test_theta_is_two_floats_where_one_is_temperatures_apart_from_the_next():
    x = 1 + np.array([2, 1, -1, -2, -1]) * 2.0**-52
    found = streaming.soft_topk(x, 1.0, link="laplace", temperature=1.4e-8)
    assert abs(found.sum() - 1) <= 1e-12
    x = np.array([3, 0, 2], np.float32) * np.float32(2.0**-23) + 1
    found = streaming.soft_topk(x, 1e-4, link="normal", temperature=7e-13)
    assert abs(found.sum(dtype=float) - 1e-4) <= 2e-10


def hard_row(rng, dtype):
    """A row of scores and numbers as far from 1 as their types allow: (x, k, T)."""
    info, n = np.finfo(dtype), int(rng.integers(2, 12))
    spread = 10.0 ** rng.uniform(-38, 38)
    x = [
        rng.standard_normal(n) * spread,
        rng.integers(-3, 4, n) * spread,
        rng.standard_normal(n) * 10.0 ** rng.uniform(-38, 38, n),
        rng.standard_normal(n) + spread,
        rng.integers(-4, 5, n) * float(info.smallest_subnormal),
        1 + rng.integers(-3, 4, n) * float(info.eps),
    ][rng.integers(6)]
    x = np.clip(x, info.min, info.max).astype(dtype)
    for special, share in ((np.inf, 0.15), (-np.inf, 0.15), (np.nan, 0.05), (info.min, 0.1)):
        if rng.random() < share:
            x[rng.integers(n)] = special
    near = 10.0 ** rng.uniform(-30, 0), 10.0 ** rng.uniform(-8, 0), rng.uniform(0, n)
    k = [*near, n - 10.0 ** rng.uniform(-16, 0), rng.integers(0, n + 1)][rng.integers(5)]
    return x, float(k), 10.0 ** rng.uniform(-38, 38)


@pytest.mark.parametrize("count", [25, pytest.param(1000, marks=full)])
def test_no_numbers_of_a_row_raise(rng, count):
    chosen = (*LINKS, links.entmax(1.001), links.entmax(1.3), links.entmax(2.5))
    for _ in range(count):
        dtype = (np.float16, np.float32, np.float64)[rng.integers(3)]
        x, k, temperature = hard_row(rng, dtype)
        how = {"link": chosen[rng.integers(len(chosen))], "temperature": temperature}
        if rng.random() < 0.5:
            x = torch.from_numpy(x)
        found = np.asarray(streaming.soft_topk(x, k, **how)).astype(float)
        x = np.asarray(x)
        live = x > np.finfo(dtype).min / 2
        if np.isnan(x).any():
            assert np.isnan(found[np.isnan(x) | (live & (x < math.inf))]).all()
            continue
        assert 0 <= found.min() <= found.max() <= 1, (x, k, how)
        wanted = min(k, live.sum())
        small = np.finfo(np.float64 if dtype == np.float64 else np.float32).smallest_normal
        if temperature * wanted / x.size < small:  # what a link with an end needs of T·z
            continue
        # z is rounded twice, and a weight e^−z is that much off; z is up to −log(k/n).
        rounding = 2e-16 if dtype == np.float64 else 1.2e-7
        digits = 2 * rounding * (1 - math.log(wanted / (2 * x.size))) if wanted else 0.0
        digits += {2: 2e-3, 4: 1e-6, 8: 1e-11}[x.itemsize]
        # A weight z^(2/3) of entmax(2.5) is that large where T·z is the least number, at T = 1e-31.
        least = 1e-8 if how["link"] is chosen[-1] else np.finfo(dtype).smallest_normal
        assert abs(found.sum() - wanted) <= digits * wanted + x.size * least, (x, k, how)

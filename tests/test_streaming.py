"""One row that is read block by block: the same answers as for the row in memory."""

import math

import numpy as np
import pytest
import torch

import kofn
from kofn import hard_topk, links, soft_topk, soft_topk_threshold, streaming
from kofn.rows import block_choice, blocks
from support import every_link

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


OTHERS = [pytest.param(link, marks=full) for link in ("linear", "normal", "laplace")]

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
@pytest.mark.parametrize("link", ["logistic", "exponential", "entmax", *OTHERS])
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
        bounded = link in ("entmax", "linear") and not ((wanted > 0) & (wanted < 1)).any()
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
    monkeypatch.setattr(block_choice, "FEW", few)
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


@pytest.mark.parametrize("link", ["linear", "entmax"])
def test_a_threshold_that_is_not_unique(link):
    x = np.array([10, 9, 8.5, -5, -7, -9])
    weights = soft_topk(x, 3, link=link)
    np.testing.assert_array_equal(streaming.soft_topk(x, 3, link=link), weights)
    for theta in (
        soft_topk_threshold(x, 3, link=link),
        streaming.soft_topk_threshold(x, 3, link=link),
    ):
        assert -5 < theta < 8.5

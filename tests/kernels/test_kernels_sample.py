"""Hard choices of long rows, searched between two scores of a sample, are those of a sort."""

import math
from statistics import NormalDist

import numpy as np
import pytest

import kofn
from kofn.kernels.cpu.choice import launch, sample
from kofn.kernels.cpu.runtime.layout import AT_ONCE

NAN, INF = math.nan, math.inf
MIDDLE = sample.LEAST, 1000, sample.LEAST_OF_MANY, 5 * sample.LEAST_OF_MANY + 37
LONG = sample.SHORTEST, 2 * sample.SHORTEST + 37, 4 * sample.SHORTEST - 1
KINDS = (
    "normal", "Cauchy", "bimodal", "tied", "equal", "sorted", "falling", "repeated",
    "misleading", "masked", "all masked", "infinite", "extreme", "uniform", "exponential", "huge",
)  # fmt: skip


def scores(kind, n, number, rng):
    x = rng.standard_normal(n).astype(number)
    top = np.finfo(number).max
    if kind == "Cauchy":
        x = rng.standard_cauchy(n).astype(number)
    if kind == "bimodal":
        x[rng.random(n) < 0.3] += 1000
    if kind == "tied":
        x = rng.integers(-3, 4, n).astype(number)
    if kind == "equal":
        x[:] = 0.5
    if kind == "sorted":
        x.sort()
    if kind == "falling":
        x = -np.sort(-x)
    if kind == "repeated":  # at the pace at which the sample goes
        x = np.where(np.arange(n) % sample.SHARE == 0, x + 100, x).astype(number)
    if kind == "misleading":  # equal scores wherever the sample looks
        size = min(n // sample.SHARE // AT_ONCE * AT_ONCE, sample.MOST)
        x[[sample.place_of.py_func(i, n, size) for i in range(size)]] = 0.5
    if kind == "masked":
        x[rng.random(n) < 0.5] = -INF
    if kind == "all masked":
        x[:] = -INF
    if kind == "infinite":
        x[rng.random(n) < 0.2] = INF
    if kind == "uniform":
        x = rng.random(n).astype(number)
    if kind == "exponential":
        x = rng.exponential(size=n).astype(number)
    if kind == "huge":  # squares of it are infinite
        x *= np.sqrt(top)
    if kind == "extreme":
        x = rng.choice([-top / 4, -0.0, 0.0, np.finfo(number).tiny, top], n).astype(number)
    return x


def by_a_sort(x, k):
    """The weights of the k largest in play, of equal ones the first; a rest of k to the next."""
    order = np.argsort(-x, kind="stable")
    order = order[x[order] > np.finfo(x.dtype).min / 2]
    p = np.zeros_like(x)
    p[order] = np.clip(k - np.arange(order.size), 0, 1)
    return p


@pytest.mark.parametrize("number", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_of_a_stable_sort_are_chosen(kind, number):
    rng = np.random.default_rng(0)
    for n in (*MIDDLE, *LONG):
        x = scores(kind, n, number, rng)
        for k in (1, 8, n // 8, n // 2, n // 2 + 0.25, n - 1, n, n + 1):
            assert np.array_equal(launch.hard(x[None], float(k))[0], by_a_sort(x, k)), (n, k)


def test_scores_of_half_precision_are_chosen_as_those_of_a_sort():
    torch = pytest.importorskip("torch")
    x = torch.tensor(scores("normal", 2 * LONG[1], np.float32, np.random.default_rng(1)))
    for dtype in (torch.bfloat16, torch.float16):
        half = x.reshape(2, -1).to(dtype)
        for k in (8, LONG[1] // 8, LONG[1] - 1):
            chosen = kofn.hard_topk(half, k).float().numpy()
            assert np.array_equal(chosen, [by_a_sort(row, k) for row in half.float().numpy()])


def test_the_place_of_a_share_of_normal_scores_is_its_quantile():
    for share in np.linspace(0.0005, 0.9995, 33):
        assert abs(sample._normal.py_func(share) + NormalDist().inv_cdf(share)) < 5e-4


@pytest.mark.parametrize("n", MIDDLE)
@pytest.mark.parametrize("wide", [True, False])
def test_mean_and_variance_tell_between_which_normal_scores_the_kth_is(n, wide):
    for x in np.random.default_rng(2).standard_normal((20, n)):
        for k in (8, n // 32, n // 9, n // 3):
            low, high = sample._bracket_of_normal(x, k, -INF, wide)
            in_tail = k <= sample.TAIL * n
            if (wide and in_tail) or (n >= sample.LEAST_OF_MANY and (wide or in_tail)):
                assert low < np.sort(x)[-k] < high
                assert ((x >= low) & (x <= high)).mean() < 0.3
            else:
                assert low > high


@pytest.mark.parametrize("place", [0, 777, LONG[1] - 1])
def test_nan_spoils_all_of_a_long_row_but_what_is_out_of_play(place):
    x = scores("masked", LONG[1], np.float32, np.random.default_rng(2))
    x[place] = NAN
    p = launch.hard(x[None], 9.0)[0]
    assert np.array_equal(np.isnan(p), ~(x == -INF))


def brackets(x, k, size):
    """The share of rows in which the k-th largest is between two of the sample; of scores there."""
    n = x.shape[-1]
    places = [sample.place_of.py_func(i, n, size) for i in range(size)]
    assert places == sorted(set(places))
    assert 0 <= places[0] < places[-1] < n
    most, fewest = sample.ranks_of.py_func(n, k, size)
    some = -np.sort(-x[:, places])
    low = some[:, fewest - 1] if fewest <= size else np.full(len(x), -INF)
    high = some[:, most - 1] if most > 0 else np.full(len(x), INF)
    t = -np.sort(-x)[:, k - 1]
    inside = (x >= low[:, None]) & (x <= high[:, None])
    return np.mean((low <= t) & (t <= high)), inside.mean()


@pytest.mark.parametrize("k", [1, 8, 200, 1024, 2000, 2047])
def test_a_sample_hardly_ever_misleads_and_leaves_few_scores(k):
    x = np.random.default_rng(3).standard_normal((300, 2048))
    found, left = brackets(x, k, 256)
    assert found > 0.97
    assert left < 0.2
    found, left = brackets(np.sort(x), k, 256)
    assert found == 1


def test_places_of_a_sample_do_not_keep_a_pace():
    x = np.zeros(LONG[0])
    x[:: sample.SHARE] = 1
    places = [sample.place_of.py_func(i, x.size, 512) for i in range(512)]
    assert 4 < x[places].sum() < 64


def test_losses_and_weights_of_the_largest_are_those_of_the_whole_softmax():
    x = scores("normal", 2 * LONG[0], np.float32, np.random.default_rng(4)).reshape(2, -1)
    k = LONG[0] // 8
    p, _ = launch.truncated(x, k, None, 1.0, None, True)
    e = np.exp(x.astype(float)) * [by_a_sort(row, k) for row in x]
    assert np.abs(p - e / e.sum(-1, keepdims=True)).max() < 1e-6

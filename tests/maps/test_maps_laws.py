"""Laws that every link obeys in every framework and dtype, for rows nobody chose by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import oracles
from kofn import (
    entmax,
    hard_topk,
    soft_topk,
    soft_topk_sum,
    soft_topk_threshold,
    softmax,
    sparsemax,
    topk_gates,
)
from kofn.links import table
from support import CAUCHY, LINKS, TOTAL, WEIGHTS, Framework, every_link

pytestmark = pytest.mark.pairs

DTYPES = ("float64", "float32", "bfloat16", "float16")
N = 7  # one length, so that XLA compiles once per link and dtype

scores = hnp.arrays(
    np.float32, (3, N), elements=st.floats(-30, 30, width=16, allow_subnormal=False)
)
counts = st.floats(0, N, width=16)
temperatures = st.floats(0.0625, 8, width=16)


def ulps(dtype: str) -> float:
    return {"float64": 1e-14, "float32": 5e-7, "bfloat16": 8e-3, "float16": 1e-3}[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("link", [*LINKS, "cauchy"])
@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_weights_are_in_range_sum_to_k_and_keep_the_order(name, link, dtype):
    framework = Framework(name)
    if name == "numpy" and dtype == "bfloat16":
        pytest.skip("NumPy has no bfloat16 of its own")
    chosen = CAUCHY[name] if link == "cauchy" else link

    @given(scores, counts, temperatures)
    def law(x, k, t):
        array = framework.array(x, dtype)
        weights = soft_topk(array, k, link=chosen, temperature=t)
        assert framework.is_kind(weights)
        assert framework.dtype(weights) == dtype
        assert weights.shape == array.shape
        p = framework.numpy(weights)
        assert np.all((p >= 0) & (p <= 1))
        # n entries, each rounded to the dtype.
        assert np.max(np.abs(p.sum(-1) - k)) <= max(TOTAL[dtype] * k, N * 0.5 * ulps(dtype))
        for row, answer in zip(framework.numpy(array), p, strict=True):
            order = np.argsort(row, kind="stable")
            assert np.all(np.diff(answer[order]) >= -ulps(dtype))
            ties = np.diff(row[order]) == 0
            assert np.all(np.abs(np.diff(answer[order])[ties]) <= ulps(dtype))

    law()


@every_link
def test_weights_follow_permutations_and_shifts_and_scale_with_temperature(framework, link):
    @given(scores, counts, st.permutations(range(N)), st.integers(-64, 64))
    def law(x, k, order, shift):
        p = framework.numpy(soft_topk(framework.array(x, "float64"), k, link=link))
        permuted = framework.numpy(soft_topk(framework.array(x[:, order]), k, link=link))
        assert np.max(np.abs(permuted - p[:, order])) <= 1e-12
        moved = framework.array(x.astype(np.float64) + shift)  # not rounded to single precision
        shifted = framework.numpy(soft_topk(moved, k, link=link))
        assert np.max(np.abs(shifted - p)) <= 1e-12
        scaled = framework.array(x.astype(np.float64) * 8)
        hotter = framework.numpy(soft_topk(scaled, k, link=link, temperature=8.0))
        assert np.max(np.abs(hotter - p)) <= 1e-12

    law()


@every_link
def test_towards_temperature_zero_it_is_the_hard_topk(framework, link):
    @given(hnp.arrays(np.float32, (3, N), elements=st.integers(-20, 20).map(float), unique=True))
    def law(x):
        array = framework.array(x, "float32")
        for k in (1, 3, 6):
            for temperature in (1e-3, 1e-20, 1e-40):
                p = framework.numpy(soft_topk(array, k, link=link, temperature=temperature))
                assert np.array_equal(p, framework.numpy(hard_topk(array, k)))

    law()


@every_link
def test_value_is_convex_and_above_the_exact_sum(framework, link):
    @given(scores, scores, st.integers(1, N - 1), temperatures)
    def law(x, y, k, t):
        def value(z):
            array = framework.array(z.astype(np.float64))
            return framework.numpy(soft_topk_sum(array, k, link=link, temperature=t))

        a, b, middle = value(x), value(y), value((x.astype(np.float64) + y) / 2)
        assert np.all(middle <= (a + b) / 2 + 1e-10)
        exact = np.array([oracles.best_subset_sum(row, k) for row in x])
        assert np.all(a >= exact - 1e-10)

    law()


def test_at_k_1_the_links_are_the_maps_people_know(framework):
    @given(scores, temperatures)
    def law(x, t):
        array = framework.array(x, "float64")

        def p(link):
            return framework.numpy(soft_topk(array, 1, link=link, temperature=t))

        def near(a, b):
            return np.max(np.abs(framework.numpy(a) - b)) <= 1e-12

        assert near(softmax(array, temperature=t), p("exponential"))
        assert near(sparsemax(array, temperature=t), p("linear"))
        assert near(entmax(array, temperature=t), p("entmax"))
        assert near(entmax(array, 1.0, temperature=t), p("exponential"))
        assert near(entmax(array, 2.0, temperature=t), p("linear"))

    law()


@every_link
def test_the_threshold_gives_the_weights_back(framework, link):
    """θ is in score units and in the zero-mean convention: p = F((x − θ)/T)."""

    @given(scores, st.floats(0.5, N - 0.5), temperatures)
    def law(x, k, t):
        array = framework.array(x, "float64")
        theta = framework.numpy(soft_topk_threshold(array, k, link=link, temperature=t))
        z = (x - theta[:, None]) / t
        p = framework.numpy(soft_topk(array, k, link=link, temperature=t))
        assert np.max(np.abs(table.TABLE[link].cdf(z) - p)) <= 1e-11

    law()


def test_gates_are_the_weights_of_the_largest_scores(framework):
    @given(scores, st.integers(0, N))
    def law(x, k):
        array = framework.array(x, "float32")
        gates, indices = topk_gates(array, k)
        p = framework.numpy(soft_topk(array, k))
        indices = framework.numpy(indices)
        assert indices.shape == (3, k)
        assert np.array_equal(np.take_along_axis(p, indices, -1), framework.numpy(gates))
        chosen = np.zeros_like(p)
        np.put_along_axis(chosen, indices, 1.0, -1)
        assert np.array_equal(chosen, framework.numpy(hard_topk(array, k)))

    law()


def test_hard_topk_is_rank_clipped(framework):
    @given(scores, counts)
    def law(x, k):
        got = framework.numpy(hard_topk(framework.array(x, "float32"), k))
        for row, answer in zip(x, got, strict=True):
            order = sorted(range(N), key=lambda i: (-row[i], i))
            wanted = np.zeros(N)
            wanted[order] = np.clip(k - np.arange(N), 0, 1)
            assert np.allclose(answer, wanted, atol=1e-6)

    law()


def test_half_precision_is_the_float32_answer_rounded(framework, rng):
    for dtype in ("bfloat16", "float16"):
        if framework.name == "numpy" and dtype == "bfloat16":
            continue
        x = framework.array(rng.standard_normal((4, 50)), dtype)
        p = framework.numpy(soft_topk(x, 5))
        wide = framework.numpy(soft_topk(framework.array(framework.numpy(x), "float32"), 5))
        assert np.max(np.abs(p - wide)) <= WEIGHTS[dtype]

"""KSubset against enumeration and an 80-bit table: values and laws."""

import math

import jax
import numpy as np
import pytest

from kofn import KSubset, hard_topk
from oracles import subset as oracles
from support import Framework

TOLERANCE = {"float64": 1e-12, "float32": 2e-6}
INF = math.inf


def normal(shape, seed=3):
    return np.random.default_rng(seed).standard_normal(shape)


def close(got, wanted, tolerance):
    return np.allclose(np.asarray(got, float), np.asarray(wanted, float), rtol=0, atol=tolerance)


# --- against the oracles ---

SMALL = {
    "spread": [1.3, -0.4, 0.2, 2.1, -1.7, 0.9],
    "ties": [0.0] * 6,
    "two values": [1.0, 1.0, 1.0, -1.0, -1.0, -1.0],
    "wide": [30.0, 10.0, 9.5, -9.0, -10.0, -40.0],
    "masked": [1.3, -INF, 0.2, 2.1, -INF, 0.9],
    "far": [3e4, 2.0, 1.0, 0.0, -1.0, -3e4],
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_answer_meets_enumeration(framework, name, dtype):
    y = np.asarray(SMALL[name])
    other = np.where(y == -INF, y, normal(6))
    tolerance = TOLERANCE[dtype] * max(1, np.abs(y[np.isfinite(y)]).max() / 10)
    v = normal(6, seed=4)
    for k in range(1 + int(np.isfinite(y).sum())):
        choice = KSubset(framework.array(y, dtype), k)
        exact = oracles.enumerate_subsets(y, k)
        answers = {
            "log_partition": (choice.log_partition(), exact.log_partition),
            "marginals": (choice.marginals(), exact.marginals),
            "entropy": (choice.entropy(), exact.entropy),
            "covariance": (
                choice.covariance_vector_product(framework.array(v, dtype)),
                exact.covariance @ v,
            ),
        }
        subsets = framework.array(exact.subsets.astype(float), dtype)
        log_p = np.log(np.maximum(exact.probabilities, 1e-300))
        got = framework.numpy(choice.log_prob(subsets))
        assert close(np.exp(got), exact.probabilities, tolerance)
        likely = log_p > -50
        assert close(got[likely], log_p[likely], 10 * tolerance)
        p_other = oracles.enumerate_subsets(other, k).probabilities
        kl = (exact.probabilities * (log_p - np.log(p_other))).sum()
        answers["kl"] = (choice.kl(KSubset(framework.array(other, dtype), k)), kl)
        for what, (answer, wanted) in answers.items():
            assert framework.dtype(answer) == dtype, what
            assert close(framework.numpy(answer), wanted, tolerance), (what, k)


GRID = [(n, std) for n in (2, 3, 5, 12, 50, 200) for std in (0.0, 0.1, 1.0, 5.0, 30.0, 1000.0)]


def assert_the_table_is_met(n, std, dtype, tolerance):
    for k in sorted({1, 2, n // 3, n // 2, n - 2, n - 1} - {0, n}):
        if k < 0:
            continue
        y = (np.random.default_rng(n + k).standard_normal(n) * std).astype(dtype)
        choice, exact = KSubset(y, k), oracles.table(y, k)
        got = choice.marginals()
        assert close(got, exact.marginals, tolerance)
        assert np.linalg.norm(got - exact.marginals) <= tolerance * np.linalg.norm(exact.marginals)
        scale = n + float(np.abs(y).sum())
        assert close(choice.log_partition() / scale, exact.log_partition / scale, tolerance)
        assert got.sum(dtype=np.float64) == pytest.approx(k, rel=tolerance)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("n", "std"), GRID)
def test_marginals_and_log_partition_meet_the_table(n, std, dtype):
    assert_the_table_is_met(n, std, dtype, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("std", [0.0, 1.0, 30.0])
def test_long_rows_meet_the_table(std, dtype):
    y = (normal(1000) * std).astype(dtype)
    for k in (100, 700):
        assert close(KSubset(y, k).marginals(), oracles.table(y, k).marginals, TOLERANCE[dtype])


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("std", [0.0, 0.1, 1.0, 5.0, 30.0, 1000.0])
@pytest.mark.parametrize("n", [400, 999, 1000])
def test_the_full_grid_meets_the_table(n, std, dtype):
    # The table's own numbers are of the size of Σ|y|: 80 bits of 10⁶ are good to some 1e-12.
    assert_the_table_is_met(n, std, dtype, max(TOLERANCE[dtype], 5e-12 if std == 1000 else 0))


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_streaming_over_nodes_changes_nothing(name, monkeypatch):
    framework = Framework(name)
    y = normal((3, 40))
    v = framework.array(normal((3, 40), seed=4))

    def answers():
        choice = KSubset(framework.array(y), 7)
        return choice.marginals(), choice.log_partition(), choice.covariance_vector_product(v)

    together = answers()
    monkeypatch.setattr("kofn.arrays.flow.AT_ONCE", 0)
    jax.clear_caches()
    for a, b in zip(together, answers(), strict=True):
        assert close(a, b, 1e-14)


# --- laws ---


def test_marginals_sum_to_k_keep_the_order_and_share_ties():
    y = np.round(normal((20, 60)) * 3, 1)
    for k in (1, 5, 30, 59):
        p = KSubset(y, k).marginals()
        assert np.all((p >= 0) & (p <= 1))
        assert p.sum(axis=-1) == pytest.approx(np.full(20, k), rel=1e-14)
        order = np.argsort(y, axis=-1, kind="stable")
        step = np.diff(np.take_along_axis(p, order, -1), axis=-1)
        assert np.all(step >= -1e-15)
        assert np.all(step[np.diff(np.take_along_axis(y, order, -1), axis=-1) == 0] == 0)


def test_a_shift_of_the_logits_moves_log_partition_alone():
    y = normal(30)
    a, b = KSubset(y, 4), KSubset(y + 100.0, 4)
    assert close(a.marginals(), b.marginals(), 1e-12)
    assert close(a.entropy(), b.entropy(), 1e-11)
    assert b.log_partition() == pytest.approx(a.log_partition() + 400)


def test_what_is_left_out_is_a_subset_too():
    y = normal(25) * 3
    assert close(KSubset(y, 7).marginals(), 1 - KSubset(-y, 18).marginals(), 1e-13)
    assert close(KSubset(y, 7).entropy(), KSubset(-y, 18).entropy(), 1e-12)


def test_k_1_is_softmax_and_low_temperatures_are_the_mode():
    y = normal((3, 12))
    assert close(KSubset(y, 1).marginals(), np.exp(y) / np.exp(y).sum(-1, keepdims=True), 1e-14)
    cold = KSubset(y / 1e-4, 5)
    assert close(cold.marginals(), cold.mode(), 1e-12)
    assert np.array_equal(cold.mode(), hard_topk(y, 5))
    assert close(cold.log_prob(cold.mode()), 0, 1e-12)


def test_entropy_of_ties_counts_subsets():
    assert KSubset(np.zeros(50), 20).entropy() == pytest.approx(math.log(math.comb(50, 20)))


def test_a_million_entries_in_float32():
    y = normal(1_000_000).astype(np.float32)
    single, double = KSubset(y, 300_000), KSubset(y.astype(np.float64), 300_000)
    assert close(single.marginals(), double.marginals(), 2e-7)
    assert float(single.log_partition()) == pytest.approx(float(double.log_partition()), rel=1e-6)


def test_no_row_of_nodes_is_ever_in_memory():
    import tracemalloc

    y = normal(400_000).astype(np.float32)
    choice, v = KSubset(y, 1000), y[::-1].copy()
    choice.marginals()
    for method, arguments in ((choice.marginals, ()), (choice.covariance_vector_product, (v,))):
        tracemalloc.start()
        method(*arguments)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 25 * y.nbytes

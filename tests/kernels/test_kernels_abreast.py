"""Choices of rows whose k-th scores are found abreast are those of rows one by one."""

import itertools
import math

import numpy as np
import pytest

from kofn.kernels.contract import OF_SCORES, SMALLEST
from kofn.kernels.cpu.choice import launch
from kofn.kernels.cpu.choice.abreast import _batcher, _bitonic
from kofn.kernels.cpu.choice.layout import BLOCK, kept_of

SIZES = 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 48, 64, 65, 127, 128, 200, 255, 256, 257, 512, 1000, 1024
ROWS = 1, 15, 16, 17, 35


def scores(kind, shape, number, rng):
    """Scores without anything special, or with much of it."""
    x = rng.standard_normal(shape).astype(number)
    if kind == "ties":
        return np.round(x)
    if kind == "zeros":
        return np.where(x > 0, number(0.0), number(-0.0))
    if kind == "masked":
        x[rng.random(shape) < 0.4] = -math.inf
        x[rng.random(shape) < 0.2] = np.finfo(number).min
    if kind == "NaN":
        x[rng.random(shape) < 0.02] = math.nan
        x[rng.random(shape) < 0.1] = math.inf
    return x


@pytest.mark.parametrize("number", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["usual", "ties", "zeros", "masked", "NaN"])
def test_a_number_for_all_rows_chooses_as_one_for_each(kind, number):
    rng = np.random.default_rng(0)
    for n in SIZES:
        x = scores(kind, (int(rng.choice(ROWS)), n), number, rng)
        whole = [0, 1, n // 2, n // 2 + 1, n - 1, n, n + 1, int(rng.integers(1, n + 1))]
        for k in (*whole, 0.5, n / 3, math.nan):
            each = np.full(len(x), k, number)
            chosen = launch.hard(x, float(number(k)))
            assert np.array_equal(chosen, launch.hard(x, each), equal_nan=True), (n, k)


@pytest.mark.parametrize("number", [np.float32, np.float64])
def test_the_largest_are_chosen(number):
    rng = np.random.default_rng(1)
    for n in SIZES:
        x = scores("usual", (20, n), number, rng)
        for k in {1, n // 4 + 1, n // 2 + 1, n}:
            ranks = np.argsort(np.argsort(-x, axis=-1), axis=-1)
            assert np.array_equal(launch.hard(x, float(k)), (ranks < k).astype(number)), (n, k)


@pytest.mark.parametrize("number", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["usual", "ties", "zeros", "masked", "NaN"])
def test_indices_are_those_of_a_stable_sort(kind, number):
    rng = np.random.default_rng(2)
    for n in SIZES:
        x = scores(kind, (int(rng.choice(ROWS)), n), number, rng)
        out_of_play = (x <= np.finfo(number).min / 2) | np.isnan(x)
        keys = {OF_SCORES: np.where(out_of_play, math.inf, -x), SMALLEST: x}
        for (way, key), k in itertools.product(keys.items(), {1, n // 3 + 1, n // 2 + 1, n}):
            order = np.argsort(key, axis=-1, kind="stable")[:, :k]
            assert np.array_equal(launch.largest(x, k, way), order), (n, k, way)


def test_networks_sort():
    """By the law of zeros and ones: what sorts these sorts all."""
    bits = np.arange(2**BLOCK)[:, None] >> np.arange(BLOCK) & 1
    falling = -np.sort(-bits, axis=-1)
    rising_once = bits[np.count_nonzero(bits != np.roll(bits, 1, -1), axis=-1) <= 2]
    for pairs, given in ((_batcher(BLOCK), bits), (_bitonic(BLOCK), rising_once)):
        columns = [*given.T.copy()]
        for i, j in pairs:
            columns[i], columns[j] = columns[i] | columns[j], columns[i] & columns[j]
        assert np.array_equal(np.stack(columns, -1), falling[given.dot(1 << np.arange(BLOCK))])


def test_rows_abreast_take_little_memory():
    assert max(kept_of(n, k) for n in SIZES for k in range(1, n + 1)) == 128
    assert kept_of(1024, 16) == BLOCK
    assert kept_of(1024, 17) == kept_of(1025, 1) == 0

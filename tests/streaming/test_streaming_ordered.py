"""kofn.streaming.topk and quantile: those of the whole row, in little memory."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kofn
from kofn import streaming
from kofn.maps.ordered.interpolated import INTERPOLATIONS
from kofn.streaming import blocks, statistics

INF, NAN = np.inf, np.nan
DTYPES = ["float32", "float64", "float16", "int32", "uint8", "int64"]


@pytest.fixture(params=["on", "reference"])
def small_blocks(request, monkeypatch):
    """Many blocks, and few numbers that fit into memory."""
    monkeypatch.setenv("KOFN_KERNELS", request.param)
    monkeypatch.setattr(blocks, "BLOCK", 64)
    monkeypatch.setattr(statistics, "FEW", 40)


def numbers(seed, n, dtype, ties, special):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n) * rng.choice([1e-3, 1.0, 100.0])
    x = np.round(x) if ties else x
    if "int" in dtype:
        return (x + 100).clip(0, 200).astype(dtype)
    x = x.astype(dtype)
    if special:
        x[:: max(n // 7, 1)] = rng.choice([INF, -INF, -0.0, 0.0, np.finfo(dtype).min])
        if special == "NaN":
            x[rng.integers(n, size=3)] = np.copysign(NAN, rng.choice([-1, 1]))
    return x


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.sampled_from([1, 5, 64, 1000]),
    share=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    dtype=st.sampled_from(DTYPES),
    ties=st.booleans(),
    special=st.sampled_from(["", "ends", "NaN"]),
    largest=st.booleans(),
)
def check_largest(seed, n, share, dtype, ties, special, largest):
    x = numbers(seed, n, dtype, ties, special)
    k = round(share * n)
    wanted = kofn.topk(x, k, largest=largest)
    for row in (x, [x[: n // 3], x[n // 3 :]]):
        found = streaming.topk(row, k, largest=largest)
        assert np.array_equal(found.values, wanted.values, equal_nan="float" in dtype)
        assert np.array_equal(found.indices, wanted.indices)
        assert found.indices.dtype == np.int64


@pytest.mark.usefixtures("small_blocks")
def test_the_largest_are_those_of_the_whole_row():
    check_largest()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("way", ["rising", "falling", "equal"])
def test_rows_in_order_are_no_harder(way):
    x = {"rising": 1.0, "falling": -1.0, "equal": 0.0}[way] * np.arange(5000.0)
    for largest in (True, False):
        found, wanted = streaming.topk(x, 70, largest=largest), kofn.topk(x, 70, largest=largest)
        assert np.array_equal(found.indices, wanted.indices)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.sampled_from([1, 5, 64, 1000]),
    dtype=st.sampled_from(["float32", "float64", "float16"]),
    ties=st.booleans(),
    special=st.sampled_from(["", "ends", "NaN"]),
    interpolation=st.sampled_from(INTERPOLATIONS),
    ignore_nan=st.booleans(),
)
def check_quantiles(seed, n, dtype, ties, special, interpolation, ignore_nan):
    x = numbers(seed, n, dtype, ties, special)
    q = np.array([0.0, 0.3, 0.5, 0.77, 1.0, -1.0])
    how = dict(interpolation=interpolation, ignore_nan=ignore_nan)
    wanted = kofn.quantile(x.astype(np.float64), q, **how)
    for row in (x, [x[: n // 3], x[n // 3 :]]):
        found = streaming.quantile(row, q, **how)
        assert found.dtype == np.float64
        assert np.array_equal(found, wanted, equal_nan=True)
        assert isinstance(streaming.quantile(row, 0.5, **how), float)


@pytest.mark.usefixtures("small_blocks")
def test_quantiles_are_those_of_the_whole_row():
    check_quantiles()


def test_half_types_of_torch_have_no_mask():
    x = torch.tensor([1.0, -3.0, torch.finfo(torch.bfloat16).min, 2.0], dtype=torch.bfloat16)
    least = streaming.topk(x, 2, largest=False)
    assert np.array_equal(least.indices, [2, 1])
    assert least.values[0] == torch.finfo(torch.bfloat16).min
    assert streaming.quantile(x, 0.0) == torch.finfo(torch.bfloat16).min
    both = [torch.tensor([1.0, 2.0]), np.array([4.0], dtype=np.float64)]
    assert streaming.quantile(both, 0.5) == 2.0


def test_a_smooth_quantile_is_that_of_the_whole_row():
    x = np.random.default_rng(0).standard_normal(3000)
    for q in (0.1, np.array([0.2, 0.9])):
        wanted = kofn.quantile(x, q, temperature=0.3)
        assert np.allclose(streaming.quantile(x, q, temperature=0.3), wanted, rtol=1e-9)
    x[5] = NAN
    wanted = kofn.quantile(x, 0.1, temperature=0.3, ignore_nan=True)
    found = streaming.quantile(x, 0.1, temperature=0.3, ignore_nan=True)
    assert np.isclose(found, wanted, rtol=1e-9)
    assert np.isnan(streaming.quantile(x, 0.1, temperature=0.3))


def test_no_numbers():
    none = np.zeros(0, np.float32)
    assert np.isnan(streaming.quantile(none, 0.5))
    assert streaming.topk(none, 0).values.dtype == np.float32
    assert streaming.topk([none, np.ones(2, np.float32)], 1).indices == [0]


def test_passes_are_few_and_told(tmp_path):
    x = np.random.default_rng(0).standard_normal(3 * blocks.BLOCK).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    row = np.load(tmp_path / "x.npy", mmap_mode="r")
    told = []
    streaming.topk(row, 10, progress=lambda *what: told.append(what))
    assert told == [("largest", (i + 1) * blocks.BLOCK, len(x)) for i in range(3)]
    told.clear()
    found = streaming.quantile(
        row, np.array([0.1, 0.5, 0.9]), progress=lambda *what: told.append(what)
    )
    assert np.array_equal(found, np.quantile(x.astype(np.float64), [0.1, 0.5, 0.9]))
    assert len(told) == 2 * 3


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: streaming.topk(x, 5), ValueError, r"k must be an integer in \[0, n\]"),
        (lambda x: streaming.topk(x, 1.5), TypeError, "k must be an integer"),
        (lambda x: streaming.topk([x, x.astype("f4")], 1), TypeError, "arrays of one dtype; got"),
        (lambda x: streaming.topk("x", 1), TypeError, "x must be a torch.Tensor"),
        (lambda x: streaming.topk(x, 1, progress=3), TypeError, "progress must be a function"),
        (lambda x: streaming.quantile(x, 2.0), ValueError, "q must be a number in"),
        (lambda x: streaming.quantile(x.astype(int), 0.5), TypeError, "x must have dtype float"),
        (lambda x: streaming.quantile(x, 0.5, interpolation="best"), ValueError, "interpolation"),
    ],
)
def test_errors_name_the_argument(call, error, words):
    with pytest.raises(error, match=words):
        call(np.zeros(4))

"""NumPy arrays in the other order of bytes, as FITS, NetCDF and networks have them."""

import numpy as np
import pytest

import kofn
from calls import CALLS
from kofn import streaming

SERVED = [call for call in CALLS if "numpy" in call.frameworks]
INTEGERS = ("i2", "i4", "i8", "u2", "u4", "u8")


def swapped(value):
    """The same numbers in the other order of bytes."""
    if isinstance(value, np.ndarray) and value.dtype.itemsize > 1:
        return value.astype(value.dtype.newbyteorder("S"))
    return value


@pytest.mark.parametrize("kernels", ["on", pytest.param("reference", marks=pytest.mark.full)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("call", SERVED, ids=lambda call: call.name)
def test_answers_are_those_of_native_numbers(call, dtype, kernels, monkeypatch):
    monkeypatch.setenv("KOFN_KERNELS", kernels)
    given = call.made("numpy", dtype)
    others = {name: swapped(value) for name, value in given.items()}
    check(call("numpy", dtype), call("numpy", dtype, **others))


def check(wanted, found):
    assert len(found) == len(wanted)
    for one, other in zip(wanted, found, strict=True):
        one, other = np.asarray(one), np.asarray(other)
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype.newbyteorder("=")


FUNCTIONS = {
    "topk": lambda x, m: kofn.topk(x, 3),
    "topk of the smallest": lambda x, m: kofn.topk(x, 3, largest=False, mask=m),
    "quantile": lambda x, m: kofn.quantile(x, 0.3, dim=-1),
    "quantile, mask": lambda x, m: kofn.quantile(x, 0.3, dim=0, mask=m),
    "quantile, soft": lambda x, m: kofn.quantile(x, 0.3, temperature=0.5),
    "hard_topk": lambda x, m: kofn.hard_topk(x, 2.5, mask=m),
    "segment_topk": lambda x, m: kofn.segment_topk(x, 2, ptr=swapped(np.array([0, 2, 3]))),
    "streaming.topk": lambda x, m: streaming.topk([x, x], 4),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_keep_their_order(function, dtype):
    x = np.random.default_rng(1).integers(0, 500, (3, 6)).astype(dtype)
    mask = np.random.default_rng(2).random((3, 6)) < 0.7
    wanted, found = (FUNCTIONS[function](each, mask) for each in (x, swapped(x)))
    many = isinstance(wanted, tuple)
    check(*((wanted, found) if many else ((wanted,), (found,))))


@pytest.mark.parametrize("dtype", [">f4", ">f8"])
def test_files_of_either_order_are_read_by_blocks(dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(streaming.blocks, "BLOCK", 256)
    x = np.random.default_rng(3).standard_normal(1000).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    file, native = np.load(tmp_path / "x.npy", mmap_mode="r"), x.astype(x.dtype.newbyteorder("="))
    assert not file.dtype.isnative
    for function, argument in (
        (streaming.soft_topk, 20),
        (streaming.soft_topk_threshold, 20),
        (streaming.hard_topk, 20),
        (streaming.topk_indices, 20),
        (streaming.topk, 20),
        (streaming.quantile, 0.3),
        (lambda x, k: streaming.soft_assignment(x.reshape(-1, 4), k), 1),
    ):
        wanted, found = function(native, argument), function(file, argument)
        many = isinstance(wanted, tuple)
        check(*((wanted, found) if many else ((wanted,), (found,))))


def test_what_is_per_entry_has_the_order_of_the_scores():
    x = np.array([3.0, 1.0, 2.0, 5.0], ">f8")
    values, indices = kofn.topk(x, 2)
    assert (values.tolist(), indices.tolist()) == ([5.0, 3.0], [3, 0])
    assert values.dtype == kofn.soft_topk(x, 2).dtype == x.dtype

"""Keys of floats stand in the order of the floats, in every framework."""

import numpy as np
import pytest

from kofn.arrays.keys import in_order, keys_of, numbers_of, with_one_nan

DTYPES = ("float16", "float32", "float64")


def numbers(dtype):
    info = np.finfo(dtype)
    sizes = [0.0, info.smallest_subnormal, info.smallest_normal, 1.0, 1 + info.eps, info.max]
    sizes = np.array([*sizes, np.inf], dtype)
    return np.concatenate([-sizes[::-1], sizes])


def of(framework, x):
    if framework == "numpy":
        return x
    return pytest.importorskip("torch").from_numpy(x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_keys_stand_in_the_order_of_the_numbers(framework, dtype):
    check(of(framework, numbers(dtype)), dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32"])  # float64 is not JAX's default
def test_keys_of_jax_do_so(dtype):
    check(pytest.importorskip("jax").numpy.asarray(numbers(dtype)), dtype)


def check(x, dtype):
    n = x.shape[-1] // 2
    exact, keys = np.asarray(in_order(x)), np.asarray(keys_of(x))
    assert keys.dtype.itemsize == np.dtype(dtype).itemsize
    assert (np.diff(exact.astype(object)) > 0).all()  # −0 before 0
    assert keys[n - 1] == keys[n] == 0
    assert (np.delete(keys, n - 1) == np.delete(exact, n - 1)).all()
    back = np.asarray(numbers_of(in_order(x), dtype))
    assert back.tobytes() == np.asarray(x).tobytes()


def test_a_nan_stands_beyond_the_infinity_of_its_sign():
    x = np.array([-np.nan, -np.inf, np.inf, np.nan], np.float32)
    assert (np.diff(keys_of(x).astype(object)) > 0).all()
    keys = keys_of(with_one_nan(x))
    assert keys[0] == keys[3] > keys[2]


def test_integers_are_their_own_keys():
    x = np.array([3, -4, 0])
    assert keys_of(x) is x
    assert with_one_nan(x) is x

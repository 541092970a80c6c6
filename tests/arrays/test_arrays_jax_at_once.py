"""Several sums, or maxima, by one operation."""

import jax
import jax.numpy as jnp
import numpy as np

from kofn.arrays.jax.at_once import maxima, sums
from kofn.arrays.jax.axes import as_integers
from kofn.arrays.keys import numbers_of


def test_sums_are_those_of_each_array_and_have_their_derivatives(rng):
    x, y = (jnp.asarray(rng.standard_normal((3, 7)), "float32") for _ in range(2))
    found = sums(x > 0, x, y[:, :1])
    assert np.allclose(found[0], (x > 0).sum(-1))
    assert found[0].dtype == x.dtype
    assert np.allclose(found[1], x.sum(-1), atol=1e-5)
    assert np.allclose(found[2], 7 * y[:, 0], atol=1e-5)  # arrays may broadcast
    slope = jax.grad(lambda x: (sums(x > 0, x * x)[1] * y[:, 0]).sum())(x)
    assert np.allclose(slope, 2 * x * y[:, :1], atol=1e-5)


def test_maxima_keep_nan_and_know_rows_without_entries(rng):
    x = rng.standard_normal((3, 7)).astype("float32")
    x[0, 2], x[1] = np.nan, -np.inf
    for each in (x, x[:, :0]):
        (found,) = maxima(as_integers(jnp.asarray(each)))
        expected = each.max(-1, initial=-np.inf)
        assert np.array_equal(numbers_of(found, "float32"), expected, equal_nan=True)

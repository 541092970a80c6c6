"""Projections: dtypes, dims, masks, scales of any size, infinities, and what is refused."""

import math

import numpy as np
import pytest
import torch

from kofn import projections
from kofn.projections import (
    projection_box_section,
    projection_capped_simplex,
    projection_l1_ball,
    projection_simplex,
    projection_sparse_simplex,
    projection_sparse_vector,
)
from oracles.projections import close, oracle_simplex
from support import Framework

FRAMEWORKS = ["numpy", "torch", "jax"]
INF, NAN = math.inf, math.nan
EVERY = [
    (projection_simplex, 2.0),
    (projection_capped_simplex, 3),
    (projection_l1_ball, 2.0),
    (projection_sparse_vector, 3),
    (projection_sparse_simplex, 3, 2.0),
    (projection_box_section, -1.0, 1.0, 1.0, 2.0),
]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_types_are_computed_in_float32(dtype):
    x = torch.tensor(np.random.default_rng(0).standard_normal((3, 40)), dtype=getattr(torch, dtype))
    for function, *more in EVERY:
        found = function(x, *more)
        assert found.dtype == x.dtype
        assert torch.equal(found, function(x.float(), *more).to(x.dtype))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_dim_says_what_a_vector_is(framework):
    one = Framework(framework)
    x = np.random.default_rng(0).standard_normal((3, 4, 5))
    for function, *more in EVERY:
        found = one.numpy(function(one.array(x, "float32"), *more, dim=1))
        last = one.numpy(function(one.array(np.moveaxis(x, 1, -1), "float32"), *more))
        close(np.moveaxis(found, 1, -1), last, dtype="float32")
        whole = one.numpy(function(one.array(x, "float32"), *more, dim=None))
        flat = one.numpy(function(one.array(x.reshape(-1), "float32"), *more))
        assert whole.shape == x.shape
        close(whole.reshape(-1), flat, dtype="float32")
        none = one.array(np.zeros((3, 0)), "float32")
        if function in (projection_simplex, projection_l1_ball):
            assert function(none, *more).shape == (3, 0)


def test_masked_entries_are_zero():
    x = np.array([[3.0, 1.0, 2.5], [1.0, 2.0, 3.0]])
    mask = np.array([[False, True, True], [False, False, False]])
    close(projection_simplex(x, mask=mask), [[0.0, 0.0, 1.0], [0.0] * 3])
    close(projection_sparse_simplex(x, 1, 2.0, mask=mask), [[0.0, 0.0, 2.0], [0.0] * 3])
    close(projection_capped_simplex(x[:1], 2, mask=mask[:1]), [[0.0, 1.0, 1.0]])
    whole = projection_simplex(x, 1.0, dim=None, mask=mask)
    close(whole, [[0.0, 0.0, 1.0], [0.0] * 3])


def test_scales_and_counts_per_vector():
    x = np.random.default_rng(0).standard_normal((3, 5))
    scale = np.array([0.5, 1.0, -1.0])
    found = projection_simplex(x, scale)
    for row, point, size in zip(x[:2], found, scale, strict=False):
        close(point, oracle_simplex(row, size))
    assert np.isnan(found[2]).all()
    few = projection_sparse_vector(x, np.array([0, 1, 5]))
    assert [np.count_nonzero(row) for row in few] == [0, 1, 5]
    counts = projection_capped_simplex(x, np.array([1.0, 2.5, 6.0]))
    close(counts[:2].sum(-1), [1.0, 2.5])
    assert np.isnan(counts[2]).all()


def test_infinite_entries_of_a_sparse_vector_are_kept():
    found = projection_sparse_vector(np.array([1.0, -INF, 2.0, INF]), 3)
    assert np.array_equal(found, [0.0, -INF, 2.0, INF])


@pytest.mark.parametrize("function", [projection_sparse_vector, projection_sparse_simplex])
def test_a_nan_and_a_k_out_of_range_are_nan(function):
    x = np.array([[1.0, NAN, 3.0], [1.0, NAN, INF], [3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    found = function(x, np.array([1.0, 1.0, 7.0, 1.5]))
    assert np.isnan(found).all()
    assert np.isnan(function(x[0], 1)).all()


def test_an_infinite_entry_goes_to_its_bound():
    for x, lower, upper, w, c, wanted in (
        ([INF, 0.2], 0.0, 1.0, 1.0, 1.0, [1.0, 0.0]),
        ([-INF, 0.2], 0.0, 1.0, 1.0, 0.7, [0.0, 0.7]),
        ([INF, 0.2], 0.0, 1.0, np.array([-1.0, 1.0]), -0.5, [1.0, 0.5]),
        ([INF, 0.2], 0.0, INF, 1.0, 1.0, [NAN, NAN]),
        ([0.1, 0.2], 0.0, 1.0, 1.0, np.array(INF), [NAN, NAN]),
    ):
        found = projection_box_section(np.array(x), lower, upper, w, c)
        close(np.nan_to_num(found, nan=9.0), np.nan_to_num(wanted, nan=9.0))


@pytest.mark.parametrize("size", [1e-36, 1e-25, 1e19, 1e30])
def test_weights_and_scales_of_any_size(size):
    x, one = np.array([0.8, 0.5, 0.1], np.float32), np.float32(size)
    w, c = one * np.array([1, 2, 1], np.float32), np.array(one)
    close(projection_box_section(x, 0.0, 1.0, w, c), [0.64, 0.18, 0.0], dtype="float32")
    far = projection_simplex(one * np.array([1, 0, 0], np.float32), 2 * float(one))
    close(far / one, [4 / 3, 1 / 3, 1 / 3], dtype="float32")
    wide = projection_simplex(np.array([1e30, 0, -1e30], np.float32), np.array(one))
    assert np.isclose(wide.sum(dtype=np.float64), size, rtol=1e-5)
    ball = projection_l1_ball(one * np.array([3, -2, 0], np.float32), np.array(one))
    close(ball / one, [1, 0, 0], dtype="float32")


def test_sums_that_overflow_warn_of_nothing():
    close(projection_l1_ball(np.array([3e38, 3e38], np.float32)), [0.5, 0.5], dtype="float32")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: projection_simplex(x, 0.0), ValueError, "scale must be a finite number > 0"),
        (lambda x: projection_simplex([1.0]), TypeError, "x must be a torch.Tensor"),
        (
            lambda x: projection_simplex(x, np.ones(7)),
            ValueError,
            r"scale has shape .*\(x\.shape without dim\)",
        ),
        (lambda x: projection_sparse_vector(x, 6), ValueError, r"k must be an integer in \[0, n\]"),
        (lambda x: projection_sparse_vector(x, 1.5), TypeError, "k must be an integer"),
        (lambda x: projection_capped_simplex(x, 6), ValueError, r"k must be a number in \[0, n\]"),
        (lambda x: projection_box_section(x, 0.0, 1.0, 1.0, INF), ValueError, "c must be a finite"),
        (lambda x: projection_box_section(x, "0", 1.0, 1.0, 1.0), TypeError, "lower must be a"),
        (lambda x: projection_box_section(x, 0.0, NAN, 1.0, 1.0), ValueError, "upper must be a"),
        (lambda x: projection_box_section(x, 0.0, 1.0, INF, 1.0), ValueError, "w must be a finite"),
    ],
)
def test_errors_name_the_argument(call, error, words):
    with pytest.raises(error, match=words):
        call(np.zeros((3, 5)))


def test_all_names_are_listed():
    assert dir(projections) == projections.__all__


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("scale", [1e-21, 2.0, 1e21])
def test_a_vector_takes_a_scale_as_a_number_or_as_an_array_of_one(framework, scale):
    array = Framework(framework).array
    x = array(np.array([3.0, 1.0, 2.0]) * scale)
    for project in (
        projection_simplex,
        lambda x, scale: projection_sparse_simplex(x, 2, scale),
        projection_l1_ball,
    ):
        wanted = np.array([1.0, 0, 0]) * scale
        for given in (scale, array(np.array(scale))):
            found = Framework(framework).numpy(project(x, given))
            assert abs(found - wanted).max() <= 1e-12 * scale

"""Projections: the closest point of a set, with the derivatives of the map to it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kofn import soft_topk
from kofn.projections import (
    projection_box_section,
    projection_capped_simplex,
    projection_l1_ball,
    projection_simplex,
    projection_sparse_simplex,
    projection_sparse_vector,
)
from oracles.projections import close, oracle_box_section, oracle_simplex
from support import Framework, full_but

FRAMEWORKS = ["numpy", "torch", "jax"]
INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("framework", FRAMEWORKS)
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.sampled_from([1, 2, 7, 130]),
    spread=st.sampled_from([1e-12, 1e-3, 1.0, 1e5]),
    scale=st.sampled_from([1e-3, 1.0, 7.5]),
    dtype=st.sampled_from(["float32", "float64"]),
    ties=st.booleans(),
)
def test_the_point_is_the_closest(framework, seed, n, spread, scale, dtype, ties):
    rng = np.random.default_rng(seed)
    if framework == "jax":
        n, dtype = min(n, 7), "float32"  # a shape is a program
    x = rng.standard_normal((3, n))
    x = ((np.round(x) if ties else x) * spread).astype(dtype)
    size = spread + scale
    one, wide = Framework(framework), x.astype(np.float64)
    array = one.array(x, dtype)

    def holds(function, oracle, *more):
        found = function(array, *more)
        assert one.dtype(found) == dtype
        assert found.shape == array.shape
        for row, point in zip(wide, one.numpy(found), strict=True):
            close(point, oracle(row), size, dtype)

    holds(projection_simplex, lambda row: oracle_simplex(row, scale), scale)
    k = min(2, n)
    holds(
        projection_capped_simplex,
        lambda row: oracle_box_section(row, 0.0, 1.0, np.ones(n), k) if k < n else np.ones(n),
        k,
    )

    def ball(row):
        if np.abs(row).sum() <= scale:
            return row
        return np.sign(row) * oracle_simplex(np.abs(row), scale)

    holds(projection_l1_ball, ball, scale)

    def few(row, values):
        kept = np.argsort(-values, kind="stable")[:k]
        return kept, np.zeros(n)

    def sparse_vector(row):
        kept, point = few(row, np.abs(row))
        point[kept] = row[kept]
        return point

    holds(projection_sparse_vector, sparse_vector, k)

    def sparse_simplex(row):
        kept, point = few(row, row)
        point[kept] = oracle_simplex(row[kept], scale)
        return point

    holds(projection_sparse_simplex, sparse_simplex, k, scale)


def test_a_sparse_point_is_the_closest_of_all_with_so_few_entries():
    from itertools import combinations

    rng = np.random.default_rng(0)
    for _ in range(20):
        x = rng.standard_normal(6)
        found = projection_sparse_simplex(x, 2, 1.5)
        others = []
        for pair in combinations(range(6), 2):
            point = np.zeros(6)
            point[list(pair)] = oracle_simplex(x[list(pair)], 1.5)
            others.append(np.sum((point - x) ** 2))
        assert np.sum((found - x) ** 2) <= min(others) + 1e-12


@pytest.mark.parametrize("framework", FRAMEWORKS)
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.sampled_from([1, 2, 7, 130]),
    spread=st.sampled_from([1e-3, 1.0, 1e5]),
    dtype=st.sampled_from(["float32", "float64"]),
    open_ends=st.booleans(),
    share=st.sampled_from([0.0, 0.2, 0.5, 1.0]),
)
def test_a_box_section_is_by_its_threshold(framework, seed, n, spread, dtype, open_ends, share):
    rng = np.random.default_rng(seed)
    if framework == "jax":
        n, dtype = min(n, 7), "float32"
    x = (rng.standard_normal((3, n)) * spread).astype(dtype)
    lower = (rng.standard_normal((3, n)) - 1).astype(dtype)
    upper = (lower + rng.exponential(size=(3, n))).astype(dtype)
    w = rng.standard_normal((3, n)).astype(dtype)
    w[np.abs(w) < 0.1] = 0.5
    ends = np.where(w > 0, lower, upper), np.where(w > 0, upper, lower)
    low, high = ((w.astype(np.float64) * end).sum(-1) for end in ends)
    c = (low + share * (high - low)).astype(dtype)
    if open_ends and 0 < share < 1:
        lower[:, ::3], upper[:, ::2] = -INF, INF
    one = Framework(framework)
    found = one.numpy(
        projection_box_section(*(one.array(each, dtype) for each in (x, lower, upper, w, c)))
    ).astype(np.float64)
    assert (found >= lower).all()
    assert (found <= upper).all()
    rounding = 1e-13 if dtype == "float64" else 1e-5
    assert np.allclose(
        (w * found).sum(-1), c, rtol=0, atol=rounding * (np.abs(w * found).sum(-1) + 1).max()
    )
    if 0 < share < 1:
        rows = zip(x, lower, upper, w, c, found, strict=True)
        for *row, point in rows:
            wanted = oracle_box_section(*(np.asarray(each, np.float64) for each in row))
            assert np.allclose(point, wanted, rtol=rounding, atol=10 * rounding * max(spread, 1))


def test_the_simplex_is_a_box_section():
    x = np.random.default_rng(0).standard_normal((4, 9))
    close(projection_box_section(x, 0.0, INF, 1.0, 1.5), projection_simplex(x, 1.5))
    close(projection_box_section(x, 0.0, 1.0, 1.0, 3.0), projection_capped_simplex(x, 3))
    assert np.array_equal(projection_capped_simplex(x, 3), soft_topk(x, 3, link="linear"))


def test_an_empty_section_is_nan():
    x = np.zeros((4, 3))
    c = np.array([-0.1, 0.0, 3.0, 3.1])
    found = projection_box_section(x, 0.0, 1.0, 1.0, c)
    assert np.isnan(found[[0, 3]]).all()
    assert np.array_equal(found[1:3], [[0.0] * 3, [1.0] * 3])
    assert np.isnan(projection_box_section(x, 1.0, 0.0, 1.0, 1.5)).all()
    bad = projection_box_section(np.array([[1.0, NAN], [1.0, 2.0]]), 0.0, 1.0, 1.0, 1.0)
    assert np.isnan(bad[0]).all()
    assert np.array_equal(bad[1], [0.0, 1.0])
    free = projection_box_section(
        np.array([5.0, 2.0]), np.array([-INF, 0.0]), np.array([INF, 1.0]), np.array([0.0, 1.0]), 0.5
    )
    assert np.array_equal(free, [5.0, 0.5])


def rows(seed, *shape, size=1.0):
    rng = np.random.default_rng(seed)
    return torch.tensor(size * rng.standard_normal(shape), requires_grad=True)


def scales(seed, *shape, size=1.0):
    rng = np.random.default_rng(seed)
    return torch.tensor(size * rng.uniform(0.5, 1.5, shape), requires_grad=True)


DIFFERENTIATED = {
    "simplex": (projection_simplex, lambda: (rows(0, 3, 6), scales(1, 3))),
    "capped simplex": (projection_capped_simplex, lambda: (rows(0, 3, 6), scales(1, 3))),
    "l1 ball": (projection_l1_ball, lambda: (rows(0, 3, 6), scales(1, 3))),
    "inside of the ball": (projection_l1_ball, lambda: (rows(0, 3, 6), scales(1, 3, size=99))),
    "sparse vector": (lambda x: projection_sparse_vector(x, 3), lambda: (rows(0, 3, 6),)),
    "sparse simplex": (
        lambda x, scale: projection_sparse_simplex(x, 3, scale),
        lambda: (rows(0, 3, 6), scales(1, 3)),
    ),
    "box section": (
        projection_box_section,
        lambda: (
            rows(0, 3, 6),
            scales(1, 3, 6, size=-1),
            scales(2, 3, 6),
            rows(3, 3, 6),
            rows(4, 3, size=0.1),
        ),
    ),
    "box section, open": (
        lambda x, w, c: projection_box_section(x, 0.0, INF, w, c),
        lambda: (rows(0, 3, 6), scales(3, 3, 6), scales(4, 3)),
    ),
}


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_jacobians_are_exact(name):
    function, arguments = DIFFERENTIATED[name]
    assert torch.autograd.gradcheck(function, arguments())
    assert torch.autograd.gradgradcheck(function, arguments(), fast_mode=True)


@pytest.mark.parametrize("name", full_but([*DIFFERENTIATED][1::2], DIFFERENTIATED))
def test_jax_has_the_same_points_and_jacobians(name):
    function, arguments = DIFFERENTIATED[name]
    given = arguments()
    wanted = function(*given)
    cotangent = torch.linspace(-1, 1, wanted.numel(), dtype=wanted.dtype).reshape(wanted.shape)
    slopes = torch.autograd.grad(wanted, given, cotangent)
    found, pull = jax.vjp(
        jax.jit(function), *(jnp.asarray(each.detach().numpy()) for each in given)
    )
    close(found, wanted.detach().numpy(), dtype="float32")
    for each, slope in zip(pull(jnp.asarray(cotangent.numpy())), slopes, strict=True):
        close(each, slope.numpy(), 10, "float32")


@pytest.mark.parametrize("name", full_but([*DIFFERENTIATED][::3], DIFFERENTIATED))
def test_transforms_and_the_compiler_take_them(name):
    function, arguments = DIFFERENTIATED[name]
    given = arguments()
    wanted = function(*given).detach()
    mapped = torch.func.vmap(function)(*given)
    close(mapped.detach(), wanted)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    again = compiled(*given)
    close(again.detach(), wanted)
    fresh = arguments()
    for found, slope in zip(
        torch.autograd.grad(again.square().sum(), given),
        torch.autograd.grad(function(*fresh).square().sum(), fresh),
        strict=True,
    ):
        close(found, slope.numpy(), 10)

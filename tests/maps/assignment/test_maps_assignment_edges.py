"""soft_assignment where margins, masks, shapes or types are special, and what it refuses."""

import math

import numpy as np
import pytest
import torch

from kofn import links, soft_assignment, soft_assignment_prices
from oracles.assignment import margins, matrix

INF, NAN = math.inf, math.nan


def test_margins_that_take_nothing_or_everything_decide_others(framework):
    if framework.name == "jax":
        pytest.skip("as slow to compile as all else; the code is the same")
    x = matrix(4, 3)
    k, c = np.array([0.0, 3, 1, 2]), np.array([3.0, 1, 2])
    # Row 1 takes all, so column 1 is full; then of column 0 all but row 0 take it.
    given = [framework.array(a) for a in (x, k, c)]
    w = framework.numpy(soft_assignment(*given))
    assert w.tolist() == [[0, 0, 0], [1, 1, 1], [1, 0, 0], [1, 0, 1]]
    rows, columns = map(framework.numpy, soft_assignment_prices(*given))
    assert rows[0] == INF
    assert rows[1] == -INF
    assert columns.tolist()[1:] == pytest.approx([NAN, NAN], nan_ok=True)
    for k in (0, 3):
        w = framework.numpy(soft_assignment(framework.array(x), k))
        assert w.tolist() == np.full((4, 3), k / 3).tolist()


def test_small_and_large_margins():
    x = matrix(20, 5)
    k = np.full(20, 1.0)
    for share in (1e-30, 1e-9):
        c = np.array([share, 5, 5, 5, 5 - share])
        w = soft_assignment(x, k, c, temperature=0.3)
        assert margins(w, k, c) < 1e-9
    c = np.array([20 - 1e-9, 20 - 5.0, 2, 2, 1 + 1e-9])
    assert abs(soft_assignment(x, k * 2, c, temperature=0.3).sum(0) - c).max() < 1e-9


def test_padding_takes_nothing():
    x, mask = matrix(8, 4), np.ones((8, 4), bool)
    mask[6:] = False
    w = soft_assignment(x, 1, mask=mask)
    assert np.all(w[6:] == 0)
    assert abs(w[:6] - soft_assignment(x[:6], 1)).max() < 1e-14
    mask[:, 3] = False
    w = soft_assignment(x, 1, mask=mask)
    assert abs(w[:6, :3] - soft_assignment(x[:6, :3].copy(), 1)).max() < 1e-14
    assert soft_assignment_prices(x, 1, mask=mask)[1][3] != 0


def test_what_is_impossible_is_nan():
    x = np.stack([matrix(4, 3)] * 2)
    k = np.ones((2, 4))
    apart = np.array([[2.0, 1, 1], [2, 1, 2]])
    w = soft_assignment(x, k, apart)
    assert margins(w[0], k[0], apart[0]) < 1e-9
    assert np.isnan(w[1]).all()
    # Three rows have nothing but column 0, which takes two.
    mask = np.ones((2, 4, 3), bool)
    mask[1, :3, 1:] = False
    w = soft_assignment(x, k, apart[0], mask=mask)
    assert np.isfinite(w[0]).all()
    assert np.isnan(w[1]).all()
    # No single row or column tells: rows 0 to 2 have two columns, which take two.
    mask = np.ones((2, 4, 3), bool)
    mask[1, :3, 2] = False
    w = soft_assignment(x, k, np.array([1.0, 1, 2]), mask=mask)
    assert np.isfinite(w[0]).all()
    assert np.isnan(w[1]).all()
    for bad in (np.array([1.0, NAN, 1, 1]), np.array([1.0, -1, 2, 2]), np.array([4.0, 0, 0, 0])):
        assert np.isnan(soft_assignment(x[0], bad, np.array([1.0, 1, 2]))).all()
    assert np.isnan(soft_assignment(x, 1, temperature=np.array([1.0, -1.0]))[1]).all()


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor])
def test_numbers_that_masks_make_impossible_are_refused(convert):
    x, mask = matrix(4, 3), np.array([True, True, False])
    padded = convert(np.where(mask, x, -INF))
    for given, options in ((padded, {}), (convert(x), dict(mask=convert(mask)))):
        w = soft_assignment(given, 1, 2.0, **options)
        assert abs(np.asarray(w).sum(0) - [2, 2, 0]).max() < 1e-9
        with pytest.raises(ValueError, match=r"capacity must be 2 \(or None\).* 2 columns .*got 1"):
            soft_assignment(given, 1, 4 / 3, **options)
        with pytest.raises(ValueError, match="k must be at most 2, for there is a row"):
            soft_assignment(given, 2.5, **options)
    mask = convert(np.array([[True, False, True]] * 3 + [[True, True, True]]))
    with pytest.raises(ValueError, match=r"capacity must be at most 1, for .* column .* got 1.33"):
        soft_assignment(convert(x), 1, mask=mask)
    rows = np.arange(10)[:, None] < np.array([10, 2])[:, None, None]  # of a batch, each its own
    w = np.asarray(soft_assignment(convert(matrix(20, 2).reshape(2, 10, 2)), 1, mask=convert(rows)))
    assert abs(w.sum(-2) - [[5, 5], [1, 1]]).max() < 1e-9
    padding = convert(np.array([True, True, True, False])[:, None])
    with pytest.raises(ValueError, match=r"capacity must be 1 .*what 3 rows.* got 1.33"):
        soft_assignment(convert(x), 1, 4 / 3, mask=padding)


def test_a_nan_and_an_infinity_stay_in_their_matrix(framework):
    if framework.name == "jax":
        pytest.skip("the code is the same")
    for bad in (NAN, INF):
        x = np.stack([matrix(4, 3)] * 2)
        x[1, 2, 1] = bad
        for hard in (False, True):
            w = framework.numpy(soft_assignment(framework.array(x), 1, hard=hard))
            assert np.isfinite(w[0]).all()
            assert np.isnan(w[1]).all()


def test_edges_of_shapes(framework):
    if framework.name == "jax":
        pytest.skip("the code is the same")
    for shape in ((0, 4, 3), (2, 0, 3), (2, 4, 0), (0, 0)):
        w = soft_assignment(framework.array(np.zeros(shape)), 0)
        assert tuple(w.shape) == shape
    one = soft_assignment(framework.array(matrix(5, 1)), 0.4)
    assert abs(framework.numpy(one) - 0.4).max() < 1e-12
    one = soft_assignment(framework.array(matrix(1, 5)), 2)
    assert abs(framework.numpy(one) - 0.4).max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_float64_rounded(dtype):
    x = torch.tensor(matrix(9, 4)).to(dtype)
    wanted = soft_assignment(x.double(), 2, temperature=0.5)
    assert torch.equal(soft_assignment(x, 2, temperature=0.5), wanted.to(dtype))
    assert all(p.dtype is torch.float32 for p in soft_assignment_prices(x, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_capacities_in_half_precision_match_up_to_their_rounding(dtype):
    x, k = torch.tensor(matrix(3, 5)).to(dtype), torch.tensor([1.0, 2, 1.5])
    capacity = torch.full((5,), 0.9, dtype=dtype)
    w = soft_assignment(x.double(), k, capacity)
    assert margins(w, k, np.full(5, 0.9)) < 1e-9
    assert soft_assignment(x, k, capacity + 0.1).isnan().all()
    assert soft_assignment(x, k, capacity.float() + 1e-3).isnan().all()


def test_numbers_that_cannot_be_are_refused_by_name():
    x = matrix(4, 3)
    cases = {
        r"capacity must be 1.33333 \(or None\).*got 1": (ValueError, (x, 1, 1)),
        r"capacity must be a number in \[0, 4\].*got 5": (ValueError, (x, 1, 5)),
        r"k must be a number in \[0, 3\].*got 4": (ValueError, (x, 4)),
        r"k must be a number in \[0, 3\].*got nan": (ValueError, (x, NAN)),
        r"k has shape \(3,\)": (ValueError, (x, np.ones(3))),
        r"capacity has shape \(4,\)": (ValueError, (x, 1, np.ones(4))),
        r"k must be a number": (TypeError, (x, "1")),
        r"capacity is a Tensor": (TypeError, (x, 1, torch.ones(3))),
        r"scores must have at least two dimensions.*\(3,\)": (ValueError, (x[0], 1)),
        r"scores must have dtype": (TypeError, (x.astype(int), 1)),
    }
    for message, (kind, given) in cases.items():
        with pytest.raises(kind, match=message):
            soft_assignment(*given)
    options = {
        r"temperature must be a finite number > 0": dict(temperature=0),
        r"temperature has shape \(4,\)": dict(temperature=np.ones(4)),
        r"link must be": dict(link="cubic"),
        r"mask must be boolean": dict(mask=np.ones((4, 3))),
        r"hard must be True or False": dict(hard="no"),
        r"alpha has shape \(4,\)": dict(link=links.entmax(np.full(4, 1.5))),
    }
    for message, option in options.items():
        with pytest.raises((TypeError, ValueError), match=message):
            soft_assignment(x, 1, **option)


# What it costs.


def test_a_column_that_takes_all_has_no_finite_price_whatever_rounding_made_of_it():
    rng = np.random.default_rng(0)
    for _ in range(50):
        plan = rng.random((3, 3))
        plan[:, 0] = 1  # its sum is 3, up to the capacities' factor Σk/Σc
        rows, columns = soft_assignment_prices(matrix(3, 3), plan.sum(1), plan.sum(0))
        assert columns[0] == -INF
        assert abs(columns[1:].mean()) < 1e-12
        assert np.isfinite(rows).all()


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("k", [[3.0, 1, 1], [0.0, 2, 2], [3.0, 3, 3]])
def test_a_nan_is_seen_where_the_margins_settle_its_row(k, hard):
    x = torch.zeros(2, 3, 3, dtype=torch.float64)
    x[0, 0, 0] = math.nan
    w = soft_assignment(x, torch.tensor(k), torch.full((3,), sum(k) / 3), hard=hard)
    assert torch.all(torch.isnan(w[0, 1:]))
    assert not torch.any(torch.isnan(w[1]))
    assert torch.all(torch.isnan(w[0, 0]) | (w[0, 0] == 0))

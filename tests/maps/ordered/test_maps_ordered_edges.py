"""quantile and segment_quantile of rows with a NaN, of nothing but −inf, and of one number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import kofn
from kofn import streaming
from support import Framework

NAN, INF = np.nan, np.inf
X = np.array([[1.0, NAN, 2.0, 5.0], [1.0, 2.0, 4.0, 3.0], [NAN, NAN, NAN, NAN]])
MASK = np.array([[True, True, True, False], [True] * 4, [False] * 4])
WAYS = [dict(interpolation=how) for how in ("linear", "lower", "midpoint")] + [
    dict(temperature=0.5)
]


def rows(x, q, mask, **how):
    return kofn.quantile(x, q, dim=-1, mask=mask, **how)


def segments(x, q, mask, **how):
    flat = None if mask is None else mask.reshape(-1)
    ptr = torch.arange(0, 13, 4) if isinstance(x, torch.Tensor) else jnp.arange(0, 13, 4)
    return kofn.segment_quantile(x.reshape(-1), q, ptr=ptr, mask=flat, **how)


@pytest.fixture(params=["on", "reference"], autouse=True)
def kernels(request, monkeypatch):
    monkeypatch.setenv("KOFN_KERNELS", request.param)


@pytest.mark.parametrize("how", WAYS, ids=lambda how: "-".join(map(str, how.values())))
@pytest.mark.parametrize("function", [rows, segments])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_of_a_row_with_a_nan_are_nan_but_for_masked_entries(function, how, masked):
    x, q = torch.tensor(X, requires_grad=True), torch.tensor(0.3, requires_grad=True)
    mask = torch.tensor(MASK) if masked else None
    found = function(x, q, mask, **how)
    assert found.isnan().tolist() == [True, False, True]
    found.sum().backward()
    playing = MASK if masked else np.ones_like(MASK)
    assert x.grad.isnan().numpy().tolist() == (playing & np.isnan(X).any(-1)[:, None]).tolist()
    assert not x.grad[~torch.tensor(playing)].any()
    assert float(x.grad[1].sum()) == pytest.approx(1.0)
    if how != dict(temperature=0.5):
        # The second row alone: no other learns of a NaN.
        alone = torch.tensor(X[1:2], requires_grad=True)
        kofn.quantile(alone, q.detach(), dim=-1, **how).sum().backward()
        assert torch.equal(alone.grad[0], x.grad[1])


@pytest.mark.parametrize("function", [rows, segments])
def test_and_in_jax(function):
    slopes = jax.jit(jax.grad(lambda x: function(x, 0.3, None).sum()))(jnp.asarray(X))
    assert np.isnan(slopes).tolist() == np.isnan(X).any(-1)[:, None].repeat(4, 1).tolist()


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_the_smooth_quantile_of_nothing_but_minus_infinity_is_that(name):
    of = {"numpy": np.asarray, "torch": torch.tensor, "jax": jnp.asarray}[name]
    as_one = Framework(name).as_one
    x = of(np.array([[-INF] * 3, [INF] * 3, [-INF, -INF, 1.0], [-INF, NAN, -INF]]))
    smooth = as_one(lambda x, mask=None: kofn.quantile(x, 0.2, dim=-1, temperature=0.5, mask=mask))
    found = np.asarray(smooth(x))
    assert np.array_equal(found, [-INF, INF, -INF, NAN], equal_nan=True)
    ptr = of(np.array([0, 3, 6, 9, 12]))
    ragged = as_one(lambda x, ptr: kofn.segment_quantile(x, 0.2, ptr=ptr, temperature=0.5))
    found = np.asarray(ragged(x.reshape(-1), ptr))
    assert np.array_equal(found, [-INF, INF, -INF, NAN], equal_nan=True)
    mask = of(np.array([[False] * 3, [True] * 3, [True] * 3, [True, False, True]]))
    found = np.asarray(smooth(x, mask))
    assert np.array_equal(found, [NAN, INF, -INF, -INF], equal_nan=True)


def test_by_blocks_too():
    assert streaming.quantile(np.array([-INF] * 3), 0.5, temperature=0.5) == -INF


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_one_number_is_a_row(name):
    of = {"numpy": np.asarray, "torch": torch.tensor, "jax": jnp.asarray}[name]
    for number in (3.0, 3):
        for how in ({}, dict(keepdim=True), dict(mask=of(np.array(True))), dict(temperature=0.5)):
            found = kofn.quantile(of(np.array(number)), 0.3, **how)
            assert tuple(found.shape) == ()
            assert float(found) == pytest.approx(3.0)
    several = kofn.quantile(of(np.array(3.0)), of(np.array([0.1, 0.9])))
    assert np.asarray(several).tolist() == [3.0, 3.0]
    assert np.isnan(float(kofn.quantile(of(np.array(3.0)), 0.3, mask=of(np.array(False)))))
    with pytest.raises(ValueError, match="x must have at least one dimension"):
        kofn.quantile(of(np.array(3.0)), 0.3, dim=0)

"""Logits from marginals."""

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from kofn import KSubset
from test_distributions_k_subset import close

INF = math.inf


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("std", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("n", [2, 3, 12, 300])
def test_from_marginals_finds_the_logits(n, std, dtype):
    for k in sorted({1, n // 2, n - 1} - {0}):
        y = (np.random.default_rng(n).standard_normal((3, n)) * std).astype(dtype)
        pi = KSubset(y, k).marginals()
        found = KSubset.from_marginals(pi)
        assert found.k.tolist() == [k] * 3
        assert found.logits.dtype == dtype
        near = 1e-13 if std < 2 else 1e-9  # an entry of 1 − 1e-14 is known to two digits
        assert close(found.marginals(), pi, near if dtype == "float64" else 1e-6)
        if std < 2 and dtype == "float64":
            shift = found.logits - y
            assert np.ptp(shift, axis=-1).max() < 1e-9


def test_from_marginals_in_every_framework(framework):
    pi = np.array([[0.9, 0.6, 0.4, 0.1], [1.0, 0.5, 0.0, 0.5], [0.75] * 4, [0.0] * 4])
    found = KSubset.from_marginals(framework.array(pi.T), dim=0)
    assert framework.numpy(found.k).tolist() == [2, 2, 3, 0]
    assert close(framework.numpy(found.marginals()), pi.T, 1e-14)
    logits = framework.numpy(found.logits)
    assert logits[0, 1] == INF
    assert logits[2, 1] == -INF


def test_half_types_need_not_sum_to_more_digits_than_they_have():
    pi = KSubset(torch.linspace(-1, 1, 12), 5).marginals().bfloat16()
    found = KSubset.from_marginals(pi)
    assert found.logits.dtype == torch.bfloat16
    assert int(found.k) == 5
    assert torch.allclose(found.marginals().float(), pi.float(), atol=1e-2)


@pytest.mark.parametrize("pi", [[0.5, 0.6], [1.2, 0.8], [-0.1, 1.1], [math.nan, 1.0]])
def test_marginals_that_none_has(framework, pi):
    with pytest.raises(ValueError, match="pi must be marginals"):
        KSubset.from_marginals(framework.array(pi))


def test_a_sum_is_judged_by_what_rounding_leaves_open():
    half = np.full(2000, 0.5, np.float32)
    with pytest.raises(ValueError, match=r"sums from 1000\.3"):
        KSubset.from_marginals(np.append(half, np.float32(0.3)))
    with pytest.raises(ValueError, match=r"sums from 6\.48"):
        KSubset.from_marginals(torch.full((10,), 0.65, dtype=torch.bfloat16))
    third = torch.full((300,), 1 / 3, dtype=torch.bfloat16)  # they sum to 100.2
    assert int(KSubset.from_marginals(third).k) == 100


@pytest.mark.parametrize("shape", [(3, 0), (0, 4)])
def test_marginals_of_nothing(shape):
    found = KSubset.from_marginals(np.zeros(shape))
    assert found.logits.shape == shape
    assert np.all(found.k == 0)


@pytest.mark.full
def test_from_marginals_under_jit():
    good = jnp.asarray([[0.5, 0.9, 0.6], [0.5, 0.9, 0.7]])
    found = jax.jit(lambda pi: KSubset.from_marginals(pi).marginals())(good)
    assert close(found[0], good[0], 1e-14)
    assert np.isnan(found[1]).all()


def test_numpy_has_bfloat16_from_others():
    pi = np.array([0.75, 0.75, 0.5]).astype(ml_dtypes.bfloat16)
    choice = KSubset.from_marginals(pi)
    assert choice.k == 2
    np.testing.assert_allclose(choice.marginals().astype(float), pi.astype(float), atol=2.0**-7)

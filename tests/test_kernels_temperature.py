"""The kernels' gradient in T, where scores differ by much less than T."""

import numpy as np
import pytest
import torch

from kofn import soft_topk
from support import GRADIENT, every_link


def gradient(x, v, link):
    """That in T of Σpv, of each row."""
    temperature = x.new_ones(x.shape[0]).requires_grad_()
    (soft_topk(x, 3, link=link, temperature=temperature) * v).sum().backward()
    return temperature.grad.double()


@every_link
@pytest.mark.parametrize("n", [100, 1000, 9001])
@pytest.mark.parametrize("spread", [1.0, 0.01, 1e-4])
def test_rounding_of_the_mean_cotangent_does_not_reach_it(kernels_on, link, n, spread):
    """What is left of Σu = 0 would be multiplied by z, which is far from 0 where k/n is small."""
    rng = np.random.default_rng(n)
    x = torch.tensor(spread * rng.standard_normal((8, n)), dtype=torch.float32)
    v = torch.tensor(rng.standard_normal((8, n)), dtype=torch.float32)
    wanted = gradient(x.double(), v.double(), link)
    found = gradient(x, v, link)
    assert float((found - wanted).norm() / wanted.norm()) <= GRADIENT["float32"] / 2

"""The kernels' gradient in T, where scores differ by much less than T."""

import math

import numpy as np
import pytest
import torch

from kofn import fenchel_young_loss, log_soft_topk, soft_topk
from kofn.kernels import contract
from kofn.kernels.cpu.rows.layout import KNOWS_OMEGA
from kofn.losses import topk_loss
from pairs import pairwise
from support import ENDLESS, GRADIENT, INNER, LINKS

pytestmark = pytest.mark.pairs

SPREADS = [1.0, 0.01, 1e-3, 1e-4]


def rows_of(spread, n):
    """Scores and cotangents."""
    rng = np.random.default_rng(n)
    drawn = spread * rng.standard_normal((8, n)), rng.standard_normal((8, n))
    return tuple(torch.tensor(one, dtype=torch.float32) for one in drawn)


def gradient(answer, x, temperature=1.0):
    """That in T, of each row, of the sum of answer(x, T)."""
    each = x.new_full(x.shape[:1], temperature).requires_grad_()
    answer(x, each).sum().backward()
    return each.grad.double()


def assert_close(found, wanted):
    assert float((found - wanted).norm() / wanted.norm()) <= GRADIENT["float32"] / 2


@pairwise(spread=[1.0, 0.01, 1e-4], n=[100, 1000, 9001], link=LINKS)
def test_rounding_of_the_mean_cotangent_does_not_reach_it(kernels_on, link, n, spread):
    """What is left of Σu = 0 would be multiplied by z, which is far from 0 where k/n is small."""

    def weighed(x, t):
        return soft_topk(x, 3, link=link, temperature=t) * v.to(x.dtype)

    x, v = rows_of(spread, n)
    assert_close(gradient(weighed, x), gradient(weighed, x.double()))


# A log has no bound next to an end.
@pairwise(n=[100, 1000], spread=SPREADS, link=ENDLESS)
def test_nor_does_that_of_the_mean_slope_of_logarithms(kernels_on, link, spread, n):
    def weighed(x, t):
        return log_soft_topk(x, 3, link=link, temperature=t) * v.to(x.dtype)

    x, v = rows_of(spread, n)
    assert_close(gradient(weighed, x, 5.0), gradient(weighed, x.double(), 5.0))


@pairwise(kind=["hot", "label", "soft"], n=[100, 1000], spread=SPREADS, link=LINKS)
def test_nor_does_that_of_weights_reach_losses(kernels_on, link, spread, n, kind):
    """Σp is k up to rounding, which z would multiply."""

    def loss(x, t):
        options = {"link": link, "temperature": t, "reduction": "none"}
        if kind == "label":
            return topk_loss(x, torch.arange(len(x)), **options)
        if kind == "soft":
            return fenchel_young_loss(x, (3 * v.softmax(-1)).to(x.dtype), **options)
        return fenchel_young_loss(x, torch.arange(n).expand_as(x) < 3, **options)

    x, v = rows_of(spread, n)
    assert_close(gradient(loss, x, 5.0), gradient(loss, x.double(), 5.0))


SOFT = [name for name in ENDLESS if contract.kind_of(INNER[name]) in KNOWS_OMEGA]


@pytest.mark.parametrize("link", SOFT)
@pytest.mark.parametrize("spread", [1e-3, 1e-4])
@pytest.mark.parametrize("k", [3, 100])
def test_nor_does_the_rounding_of_many_weights_alike_reach_losses(kernels_on, link, spread, k):
    """Each weight is good to 8 units of 2⁻²⁴, and equal ones have equal errors.

    With a thousand values or more, √70 of such errors may stand for one. It was 160 units where z
    was rounded first.
    """

    def loss(x, t):
        target = (k * v.softmax(-1)).to(x.dtype)
        return fenchel_young_loss(x, target, link=link, temperature=t, reduction="none")

    x, v = (one[:4] for one in rows_of(spread, 70_000))
    found, wanted = gradient(loss, x), gradient(loss, x.double())
    assert float((found - wanted).norm() / wanted.norm()) <= 8 * math.sqrt(70) * 2.0**-24

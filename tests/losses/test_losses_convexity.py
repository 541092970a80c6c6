"""What docs/losses.md says of the shape of each loss, on random segments."""

import numpy as np
import pytest
import torch

from kofn import soft_topk, soft_topk_sum
from kofn.losses import softmax_loss
from test_losses_family import LOSSES, loss_of

CONVEX = {"softmax_loss", "sparsemax_loss", "entmax_loss", "topk_loss", "fenchel_young_loss",
          "sparse_softmax_loss", "am_softmax"}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_which_losses_are_convex(name):
    rng = np.random.default_rng(0)
    count = 300
    a, b = rng.standard_normal((2, count, 5)) * rng.choice([0.3, 1, 5], (2, count, 1))
    if name in ("am_softmax", "arcface"):  # cosines
        a, b = np.tanh(a), np.tanh(b)
    t, share = rng.integers(0, 5, count), rng.random((count, 1))
    if name == "fenchel_young_loss":
        t = np.eye(5)[t]
    at_a, at_b, between = (
        loss_of(name)(x, t, reduction="none") for x in (a, b, share * a + (1 - share) * b)
    )
    above = between - (share[:, 0] * at_a + (1 - share[:, 0]) * at_b)
    assert (above.max() <= 1e-12) == (name in CONVEX)


def test_the_average_of_the_k_largest_losses():
    rng = np.random.default_rng(1)
    x, t = torch.tensor(rng.standard_normal((12, 4)) * 3), torch.tensor(rng.integers(0, 4, 12))
    each = softmax_loss(x, t, reduction="none").requires_grad_()
    hard = soft_topk_sum(each, 3, temperature=1e-4) / 3
    assert torch.allclose(hard, each.topk(3).values.mean(), atol=1e-4)
    (slope,) = torch.autograd.grad(soft_topk_sum(each, 3, temperature=0.5) / 3, each)
    assert torch.allclose(slope, soft_topk(each.detach(), 3, temperature=0.5) / 3, atol=1e-12)

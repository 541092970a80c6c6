"""The gradient in T of rows in several processes, where scores differ by less than T."""

import numpy as np
import pytest
import torch
from torch import distributed

import kofn.distributed
from ranks import joined
from support import GRADIENT

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="PyTorch without torch.distributed"
)

N = 1000


def gradient(what, spread, dtype):
    """One process has the whole rows, by the code for parts of them."""
    rng = np.random.default_rng(5)
    x, v = (torch.tensor(rng.standard_normal((4, N)).astype("f4")).to(dtype) for _ in range(2))
    t = torch.full((4,), 5.0, dtype=dtype, requires_grad=True)
    x, options = np.float32(spread) * x, {"temperature": t, "group": distributed.group.WORLD}
    if what == "weights":
        answer = kofn.distributed.soft_topk(x, 3, **options) * v
    elif what == "knapsack":
        costs = 1 + v.abs()
        answer = kofn.distributed.soft_knapsack(x, costs, 3.0, **options) * v
    else:
        hot = (torch.arange(N) < 3).to(dtype).expand(4, N)
        target = hot if what == "loss" else 3 * v.softmax(-1)
        answer = kofn.distributed.fenchel_young_loss(x, target, reduction="sum", **options)
    return torch.autograd.grad(answer.sum(), t)[0].double()


@pytest.mark.parametrize("spread", [1.0, 1e-3])
@pytest.mark.parametrize("what", ["weights", "loss", "soft loss", "knapsack"])
def test_what_rounding_leaves_of_a_sum_of_0_does_not_reach_it(what, spread, tmp_path):
    with joined(distributed.FileStore(str(tmp_path / "store"), 1), 0, 1):
        found, wanted = (gradient(what, spread, dtype) for dtype in (torch.float32, torch.float64))
    assert (found - wanted).norm() <= GRADIENT["float32"] / 4 * wanted.norm()

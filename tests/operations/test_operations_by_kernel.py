"""Rows that a kernel gives up on, wherever the memory of its answers is."""

import math

import numpy as np
import pytest
import torch

import kofn
from kofn import losses
from kofn.operations import by_kernel

SPREAD = torch.tensor([[3e7, 2e7, 1.0, 0.5, -2e7, 0.0]])


def spread():
    """Rows that kernels may give up on, and some that they do not."""
    few = torch.tensor([1e9, 1.0, 1e-3])[:, None] * SPREAD
    return torch.cat((few, SPREAD / 1e7))


def with_costs(function, **options):
    def call():
        x = torch.tensor([[3.0, 2.0, 1.0, 0.5]]).repeat(5, 1)
        costs, budget = torch.tensor([[4.0, 1.0, 1.0, 2.0]]).repeat(5, 1), torch.full((5,), 4.0)
        x[0, 1], x[1, 0], costs[2, 0] = math.nan, math.inf, math.nan
        budget[3] = 8.0
        leaves = [row.requires_grad_() for row in (x, costs, budget)]
        answer = function(*leaves, temperature=0.01, **options)
        return answer.detach(), *torch.autograd.grad(answer.sum(), leaves)

    return call


CALLS = {
    "weights": lambda: kofn.soft_topk(spread(), 2, temperature=1e-3),
    "one row": lambda: kofn.soft_topk(spread()[0], 2, temperature=1e-3),
    "threshold": lambda: kofn.soft_topk_threshold(spread(), 2, temperature=1e-3),
    "sum": lambda: kofn.soft_topk_sum(spread(), 2, temperature=1e-3),
    "loss": lambda: losses.topk_loss(spread(), spread() > 1e-3, reduction="none"),
    "knapsack": with_costs(kofn.soft_knapsack),
    "hard knapsack": with_costs(kofn.soft_knapsack, hard=True),
    "price": with_costs(kofn.soft_knapsack_threshold),
    "value": with_costs(kofn.soft_knapsack_value),
}


@pytest.mark.parametrize("name", CALLS)
def test_answers_of_array_code_reach_a_devices_memory(name, monkeypatch, kernels_on):
    """What NumPy sees of a tensor on a device is a copy."""
    wanted = CALLS[name]()
    numpy, read = torch.Tensor.numpy, []

    def copied(x, *, force=False):
        read.append(force)
        return numpy(x.detach().clone()) if force else numpy(x)

    monkeypatch.setattr(torch.Tensor, "numpy", copied)
    found = CALLS[name]()
    assert any(read), "no row was given up on"
    for one, other in zip(*map(torch.utils._pytree.tree_leaves, (found, wanted)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("like", [np.zeros, torch.zeros])
def test_rows_and_layers_are_put_where_they_are(like):
    answer, pair = like((3, 2)), like((2, 3))
    where = np.array([True, False, True])
    by_kernel.put(answer, where, np.array([[1.0, 2.0], [3.0, 4.0]]))
    by_kernel.put(pair, (slice(None), where), np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert answer.tolist() == [[1, 2], [0, 0], [3, 4]]
    assert pair.tolist() == [[1, 0, 2], [3, 0, 4]]

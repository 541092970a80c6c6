"""Routers and attention on two processes: DistributedDataParallel and fully_shard, by gloo."""

import copy

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from kofn import nn
from ranks import run_on_ranks

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not distributed.is_available(), reason="PyTorch without torch.distributed"),
]

H, E, TOKENS = 16, 8, 12


class Block(torch.nn.Module):
    """Attention, then experts that are matrices."""

    def __init__(self):
        super().__init__()
        self.attention = nn.SparseAttention(H, 4, learned=("alpha",), batch_first=True)
        self.router = nn.TopKRouter(H, E, 2, balance=1e-2)
        self.experts = torch.nn.Parameter(torch.randn(E, H, H) / 4)

    def forward(self, x):
        x = x + self.attention(x, x, x, is_causal=True, need_weights=False)[0]
        _, weights, indices = self.router(x)
        each = torch.einsum("th,tkhi->tki", x.flatten(0, 1), self.experts[indices])
        return (weights[..., None] * each).sum(1)


def trained(model, batches, *process_group):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        nn.step_routers(model, *process_group)


def same_as_one_process(wrap):
    """Two processes with half of each batch have the parameters and the bias of one with all."""
    torch.manual_seed(0)
    alone, batches = Block(), [torch.randn(4, TOKENS // 4, H) for _ in range(6)]
    model = wrap(copy.deepcopy(alone))
    rank = distributed.get_rank()
    trained(model, [x.chunk(2)[rank] for x in batches])
    trained(alone, batches, None)
    state = getattr(model, "module", model).state_dict()
    for name, wanted in alone.state_dict().items():
        found = state[name].full_tensor() if hasattr(state[name], "full_tensor") else state[name]
        assert torch.allclose(found, wanted, atol=1e-5), name
    assert (state["router.balance.net_steps"] != 0).any()


def replicated():
    same_as_one_process(DistributedDataParallel)


def sharded():
    from torch.distributed.fsdp import fully_shard

    same_as_one_process(fully_shard)


def several_forward_passes():
    """Two batches a step: each process keeps its own load, though buffers are those of rank 0."""
    torch.manual_seed(0)
    router, rank = nn.TopKRouter(H, E, 2, balance=1e-2), distributed.get_rank()
    model = DistributedDataParallel(router)
    batches = torch.randn(2, 2, TOKENS, H)
    for x in batches[rank]:
        model(x)[1].square().sum().backward()
    alone = nn.TopKRouter(H, E, 2, balance=1e-2)
    alone.load_state_dict(router.state_dict())
    for x in batches[rank]:
        alone(x)
    assert torch.equal(router.counts, alone.counts)
    for x in batches[1 - rank]:
        alone(x)
    nn.step_routers(model, distributed.group.WORLD)
    alone.step(None)
    assert torch.equal(router.balance.net_steps, alone.balance.net_steps)


@pytest.mark.parametrize("task", [replicated, sharded, several_forward_passes])
def test_two_processes_train_as_one(tmp_path, task):
    run_on_ranks(tmp_path / "store", 2, task)

"""TopKSAE on two processes: DistributedDataParallel and fully_shard, by gloo."""

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


def same_as_one_process(wrap):
    """Each input has its own k: two processes with half of each batch train as one with all."""
    torch.manual_seed(0)
    alone = nn.TopKSAE(16, 40, 4, gradient="chosen")
    batches = torch.randn(4, 8, 16)
    model = wrap(copy.deepcopy(alone))
    for net, rank in ((model, distributed.get_rank()), (alone, slice(None))):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x in batches:
            x = x if net is alone else x.chunk(2)[rank]
            optimizer.zero_grad()
            (net(x).reconstruction - x).square().mean().backward()
            optimizer.step()
            getattr(net, "module", net).step()
    state = getattr(model, "module", model).state_dict()
    for name, wanted in alone.state_dict().items():
        found = state[name].full_tensor() if hasattr(state[name], "full_tensor") else state[name]
        assert torch.allclose(found, wanted, atol=1e-5), name


def replicated():
    same_as_one_process(DistributedDataParallel)


def sharded():
    from torch.distributed.fsdp import fully_shard

    same_as_one_process(fully_shard)


@pytest.mark.parametrize("task", [replicated, sharded])
def test_two_processes_train_as_one(tmp_path, task):
    run_on_ranks(tmp_path / "store", 2, task)

"""nn.record_routing and nn.replay_routing in compiled programs, and in several processes."""

import copy

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from kofn import nn
from ranks import run_on_ranks
from support import full_but
from test_nn_router import H, T, own_seed
from test_nn_router_replay import Model, choices, gradients

__all__ = ["own_seed"]  # a fixture

needs_processes = pytest.mark.skipif(
    not distributed.is_available(), reason="PyTorch without torch.distributed"
)


class Counting:
    """A backend that counts the programs which are compiled."""

    def __init__(self):
        self.programs = 0

    def __call__(self, graph, inputs):
        self.programs += 1
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)


@pytest.mark.parametrize("balance", full_but(["quantile"], [1e-2, "quantile"]))
def test_one_program_serves_every_replay(balance):
    torch._dynamo.reset()
    plain, backend = Model(layers=2, balance=balance), Counting()
    model = copy.deepcopy(plain)
    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=False)
    for told in (choices(n * T, layers=2) for n in (3, 1, 2)):
        told[::5] = -1
        batches = torch.randn(len(told) // T, T, H)
        with nn.replay_routing(model, told), nn.record_routing(model) as record:
            found = [gradients(model, compiled(x).square().sum()) for x in batches]
        with nn.replay_routing(plain, told), nn.record_routing(plain) as wanted:
            for x, each in zip(batches, found, strict=True):
                for one, other in zip(each, gradients(plain, plain(x).square().sum()), strict=True):
                    assert torch.allclose(one, other, atol=1e-5)
        assert torch.equal(record.indices, wanted.indices)
        assert torch.equal(record.indices[told >= 0], told[told >= 0])
    assert backend.programs == 1
    for one, other in zip(model.routers, plain.routers, strict=True):
        assert torch.equal(one.counts, other.counts)
        assert torch.equal(one.replayed, other.replayed)
    with (
        pytest.raises(ValueError, match=r"'routers.0' has been given 12 tokens; got 11"),
        nn.replay_routing(model, choices(T - 1, layers=2)),
    ):
        compiled(x)
    with nn.record_routing(model) as record:  # without a replay, it chooses by itself
        compiled(x)
    with nn.record_routing(plain) as wanted:
        plain(x)
    assert torch.equal(record.indices, wanted.indices)


@pytest.mark.parametrize(
    "outermost",
    [
        "reentrant checkpoint",
        *(pytest.param(one, marks=pytest.mark.full) for one in ("compiled", "checkpoint")),
    ],
)
def test_compiled_code_and_checkpoints_replay_the_same(outermost):
    torch._dynamo.reset()
    plain = Model(layers=2)
    model = copy.deepcopy(plain)
    inner = model if outermost == "compiled" else torch.compile(model, backend="aot_eager")
    reentrant = outermost.startswith("reentrant")
    outer = lambda x: checkpoint(inner, x, use_reentrant=reentrant)  # noqa: E731
    if outermost == "compiled":
        outer = torch.compile(outer, fullgraph=True, backend="aot_eager")
    told = choices(3 * T, layers=2)
    batches = [torch.randn(T, H, requires_grad=True) for _ in range(3)]
    with nn.replay_routing(plain, told):
        wanted = [gradients(plain, plain(x).square().sum()) for x in batches]
    with nn.replay_routing(model, told), nn.record_routing(model) as record:
        losses = [outer(x).square().sum() for x in batches]
        for place in (1, 2, 0):
            found = gradients(model, losses[place])
            for one, other in zip(found, wanted[place], strict=True):
                assert torch.allclose(one, other, atol=1e-5)
    assert torch.equal(record.indices, told)
    for one, other in zip(model.routers, plain.routers, strict=True):
        assert torch.equal(one.replayed, other.replayed)
    if outermost != "compiled":  # there, the compiler knows what the backward pass needs
        with nn.replay_routing(model, told[:T]):
            loss = outer(batches[0]).square().sum()
        with pytest.raises(RuntimeError, match=r"again after its nn\.replay_routing had ended"):
            loss.backward()


@pytest.mark.full
def test_it_compiles_with_inductor():
    torch._dynamo.reset()
    plain = Model(balance="quantile")
    model, told, x = copy.deepcopy(plain), choices(T), torch.randn(T, H)
    compiled = torch.compile(model, fullgraph=True)
    with nn.replay_routing(model, told), nn.record_routing(model) as record:
        found = gradients(model, compiled(x).square().sum())
    with nn.replay_routing(plain, told):
        wanted = gradients(plain, plain(x).square().sum())
    assert torch.equal(record.indices, told)
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def same_as_one_process(wrap, reentrant=None):
    """Two processes that replay their halves train as one that replays all."""
    torch.manual_seed(0)
    plain, rank = Model(balance=1e-2), distributed.get_rank()
    model = copy.deepcopy(plain)
    model.reentrant = reentrant
    model = wrap(model)
    for _ in range(3):
        told, x = choices(2 * T), torch.randn(2 * T, H)
        told[::5] = -1
        for net, part, each in ((model, told.chunk(2)[rank], x.chunk(2)[rank]), (plain, told, x)):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            with nn.replay_routing(net, part), nn.record_routing(net) as record:
                net(each).square().mean().backward()
            optimizer.step()
            nn.step_routers(net, *((None,) if net is plain else ()))
            assert torch.equal(record.indices[part >= 0], part[part >= 0])
    state = getattr(model, "module", model).state_dict()
    assert state.keys() == plain.state_dict().keys()
    for name, wanted in plain.state_dict().items():
        found = state[name].full_tensor() if hasattr(state[name], "full_tensor") else state[name]
        assert torch.allclose(found, wanted, atol=1e-5), name
    assert (state["routers.0.balance.net_steps"] != 0).any()


def replicated():
    same_as_one_process(DistributedDataParallel)


def sharded():
    from torch.distributed.fsdp import fully_shard

    same_as_one_process(fully_shard)


def sharded_with_checkpoints():
    from torch.distributed.fsdp import fully_shard

    same_as_one_process(fully_shard, reentrant=False)


@pytest.mark.full
@needs_processes
def test_two_processes_replay_as_one(tmp_path):
    run_on_ranks(tmp_path / "store", 2, replicated, sharded, sharded_with_checkpoints)

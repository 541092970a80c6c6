"""nn.prune under torch.compile and export, on two processes, and with functional calls."""

import copy

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from kofn import nn
from ranks import run_on_ranks

COOL = nn.PruningSchedule(10, temperature=(0.02, 0.01))
X = torch.randn(16, 1, 4, 4, generator=torch.Generator().manual_seed(0))
WAYS = {
    "global": dict(amount=0.8),
    "blocks": dict(amount=0.8, pattern=(1, 4), exclude="0"),
    "2:4": dict(pattern="2:4", exclude="0"),
    "subsets": dict(pattern="2:4", exclude="0", choice="k_subset"),
    "costs": dict(amount=0.8, costs="flops", example_inputs=X),
    "magnitude": dict(amount=0.8, scores="magnitude"),
    "layers": dict(amount=0.8, scope="layer", link="laplace"),
}


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def cnn():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 12),
        torch.nn.Tanh(),
        torch.nn.Linear(12, 4),
    )


def pruned(way, schedule=COOL):
    model = cnn()
    pruner = nn.prune(model, schedule=schedule, **WAYS[way])
    pruner.clock.owner.steps += 3
    return model, pruner


def one_ordinary(*ways):
    others = [pytest.param(way, marks=pytest.mark.full) for way in ways[1:]]
    return pytest.mark.parametrize("way", [ways[0], *others])


@one_ordinary(*WAYS)
def test_it_compiles_as_one_graph_that_serves_the_next_steps(way):
    torch._dynamo.reset()
    model, pruner = pruned(way)
    back = torch.randn(16, 4)

    def grads(net):
        return torch.autograd.grad((net(X) * back).sum(), list(model.parameters()))

    wanted = grads(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(grads(compiled), wanted, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5 * float(theirs.norm()))
    stats = torch._dynamo.utils.counters["stats"]
    before = stats["unique_graphs"]
    for _ in range(3):
        pruner.step()
        assert torch.allclose(compiled(X), model(X), atol=1e-6)
    assert stats["unique_graphs"] == before
    pruner.freeze()
    assert torch.allclose(compiled(X), model(X), atol=1e-6)


@one_ordinary("global", "2:4")
def test_an_exported_model_is_right_for_other_numbers_of_rows(way):
    model, pruner = pruned(way)
    rows = ({0: torch.export.Dim("rows", min=2)},)
    program = torch.export.export(model.eval(), (X,), dynamic_shapes=rows)
    assert torch.allclose(program.module()(X[:5]), model(X[:5]), atol=1e-6)
    plain = pruner.finalize()
    program = torch.export.export(plain, (X,), dynamic_shapes=rows)
    assert "kofn" not in str(program.graph)
    assert torch.allclose(program.module()(X[:5]), plain(X[:5]), atol=1e-6)


def test_two_threads_may_call_a_model():
    from concurrent.futures import ThreadPoolExecutor

    model, _ = pruned("global")

    def grads(x):
        return torch.autograd.grad(model(x).square().sum(), list(model.parameters()))

    batches = [X * (i + 1) for i in range(8)]
    alone = [grads(x) for x in batches]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(grads, batches))
    for ours, theirs in zip(together, alone, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert torch.allclose(a, b, atol=1e-5 * float(b.norm()) + 1e-8)


def trained(model, pruner, optimizer, batches):
    for x in batches:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        pruner.step(optimizer)


def replicated():
    """Two processes with half of each batch have the parameters and masks of one with all."""
    torch.manual_seed(0)
    batches, rank = [torch.randn(16, 1, 4, 4) for _ in range(10)], distributed.get_rank()
    for way in ("global", "2:4"):
        alone, pruner = pruned(way, nn.PruningSchedule(13, temperature=(0.02, 0.01)))
        twin, other = copy.deepcopy((alone, pruner))
        model = DistributedDataParallel(twin)
        for net, handle, parts in (
            (alone, pruner, batches),
            (model, other, [x.chunk(2)[rank] for x in batches]),
        ):
            groups = [{"params": handle.other_parameters()}, handle.score_parameters(0.1)]
            trained(net, handle, torch.optim.SGD(groups, lr=0.1), parts)
        assert pruner.frozen
        assert other.frozen
        pruner.finalize(), other.finalize()
        for ours, theirs in zip(twin.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-5)


def sharded():
    """fully_shard after prune is refused by name; a finalized model may be sharded."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model, pruner = pruned("global")
    fully_shard(model)
    with pytest.raises(TypeError, match=r"call fully_shard before nn\.prune"):
        pruner.finalize()
    model, pruner = pruned("global")
    plain = pruner.finalize()(X).detach()
    fully_shard(model)
    assert torch.allclose(model(X), plain, atol=1e-6)


@pytest.mark.full
@pytest.mark.skipif(not distributed.is_available(), reason="PyTorch without torch.distributed")
@pytest.mark.parametrize("task", [replicated, sharded])
def test_two_processes(tmp_path, task):
    run_on_ranks(tmp_path / "store", 2, task)


@pytest.mark.parametrize("scores", ["learned", "magnitude"])
def test_an_average_goes_on_when_the_mask_is_fixed(scores):
    """As docs/nn_pruning.md says."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    pruner = nn.prune(model, 0.5, schedule=3, scores=scores)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.module, twin = copy.deepcopy((model, pruner))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    weights = []
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).pow(2).sum().backward()
        optimizer.step()
        pruner.step()
        if pruner.frozen and not twin.frozen:
            twin.freeze()
        averaged.update_parameters(model)
        weights.append(pruner.members[0].original.detach().clone())
    masks = pruner.masks()
    assert all(torch.equal(mask, masks[name]) for name, mask in twin.masks().items())
    mean = torch.stack(weights).mean(0)
    assert torch.allclose(averaged.module[0].weight, mean * masks["0.weight"], atol=1e-6)

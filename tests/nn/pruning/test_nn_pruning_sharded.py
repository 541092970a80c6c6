"""nn.prune under fully_shard: processes with shards do what one process with whole weights does."""

import copy

import pytest
import torch
from torch import distributed

from kofn import nn
from ranks import joined, run_on_ranks

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="PyTorch without torch.distributed"
)

X = torch.randn(16, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def of_unit_size(name, weight):
    return (weight / weight.square().mean().sqrt()).abs()


def of_columns(name, module):
    return 1.0 + (torch.arange(module.weight.numel()) % 5).view(module.weight.shape).double()


WAYS = {
    "global": dict(amount=0.8),
    "2:4": dict(pattern="2:4", exclude="0"),
    "costs": dict(amount=0.8, costs=of_columns),
    "blocks": dict(amount=0.8, pattern=(1, 4), exclude="0"),
    "subsets": dict(pattern="2:4", exclude="0", choice="k_subset"),
    "flops": dict(amount=0.8, costs="flops", example_inputs=X),
    "magnitude": dict(amount=0.8, scores="magnitude"),
    "function": dict(amount=0.8, scores=of_unit_size),
    "layers": dict(amount=0.8, scope="layer", link="laplace"),
    "linear": dict(budget=100, link="linear"),
}
SCHEDULE = nn.PruningSchedule(8, temperature=(0.02, 0.01), frozen=0.25)


def network(dtype=torch.float32):
    """Shards of 7 rows are uneven; of 3 rows, the last of four processes has none."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 7, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(112, 12),
        torch.nn.Tanh(),
        torch.nn.Linear(12, 3),
    )
    return model.to(dtype)


def sharded(dtype=torch.float32, **options):
    from torch.distributed.fsdp import fully_shard

    model = network(dtype)
    for layer in (model[0], model[3]):
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def optimizer_of(pruner, rate=0.1):
    groups = [{"params": pruner.other_parameters()}]
    if pruner.members[0].scores is not None:
        groups.append(pruner.score_parameters(rate))
    return torch.optim.SGD(groups, lr=rate)


def pair(way, schedule=SCHEDULE, dtype=torch.float32, **options):
    """A model in one process and a sharded one, with their pruners and optimizers."""
    pairs, given = [], dict(WAYS[way])
    if "example_inputs" in given:
        given["example_inputs"] = X.to(dtype)
    for model in (network(dtype), sharded(dtype, **options)):
        pruner = nn.prune(model, schedule=schedule, **given)
        pairs.append((model, pruner, optimizer_of(pruner)))
    return pairs


def part(x):
    return x.chunk(distributed.get_world_size())[distributed.get_rank()]


def passed(model, pruner, x):
    mine = part(x) if hasattr(pruner, "backward") else x
    model(mine).square().mean().backward()


def stepped(pruner, optimizer):
    optimizer.step()
    pruner.step(optimizer)
    optimizer.zero_grad()


def batches(number=8):
    return torch.randn(number, 8, 1, 4, 4, generator=torch.Generator().manual_seed(1))


def same(ours, theirs, atol=1e-6):
    theirs = dict(theirs)
    for name, value in ours:
        assert torch.allclose(whole(value), theirs[name], atol=atol), name


def off(ours, theirs):
    """The norm of a difference, as a part of the norm."""
    return float((whole(ours) - theirs).norm()) / (float(theirs.norm()) + 1e-3)


def same_masks(pruner, other):
    theirs = other.masks()
    for name, mask in pruner.masks().items():
        assert mask.dtype == torch.bool
        assert torch.equal(whole(mask), theirs[name]), name


def found(row):
    """(step, θ) of the last step."""
    return row.members[0].trail.view(torch.float64)[0].tolist()


def trains_as_one(way):
    """Thresholds, gradients, masks and weights are those of one process at every step.

    In float64, but for the scores: temperatures of 0.01 multiply the rounding of a score that a
    function computes by a hundred.
    """
    (alone, pruner, one), (model, other, two) = pair(way, dtype=torch.float64)
    for x in batches().double():
        passed(alone, pruner, x), passed(model, other, x)
        for ours, theirs in zip(other.members, pruner.members, strict=True):
            assert off(ours.held.grad, theirs.original.grad) < 1e-6, way
            if theirs.scores is not None and not other.frozen:
                assert off(ours.scores.grad, theirs.scores.grad) < 1e-6, way
        for ours, theirs in zip(other.choosers, pruner.choosers, strict=True):
            if hasattr(theirs.members[0], "trail"):
                assert found(ours) == pytest.approx(found(theirs), abs=1e-6)
        same_masks(other, pruner)
        stepped(pruner, one), stepped(other, two)
    assert other.frozen
    assert repr(other) == repr(pruner)
    pruner.finalize(), other.finalize()
    assert list(model.state_dict()) == list(network().state_dict())
    same(model.named_parameters(), alone.named_parameters())
    passed(alone, pruner, X.double()), passed(model, other, X.double())
    same(gradients(model), gradients(alone))


def gradients(model):
    return [(name, each.grad) for name, each in model.named_parameters()]


def compared(ours, theirs):
    """Assert equal gradients of two pruners' scores and weights."""
    for mine, its in zip(ours.members, theirs.members, strict=True):
        assert torch.allclose(whole(mine.held.grad), its.original.grad, atol=1e-7)
        assert torch.allclose(whole(mine.scores.grad), its.scores.grad, atol=1e-7)


def adds_gradients_up():
    """Two passes before a step, a call of eval() in between, zero_grad() after the forward."""
    (alone, pruner, one), (model, other, two) = pair("global")
    for _ in range(2):
        for net, handle, optimizer in ((alone, pruner, one), (model, other, two)):
            passed(net, handle, X), stepped(handle, optimizer)
    first, second = batches(2)
    for x in (first, second):
        passed(alone, pruner, x), passed(model, other, x)
        with torch.no_grad():
            ours, theirs = model.eval()(part(X)), alone.eval()(X)
        assert torch.allclose(ours, part(theirs), atol=1e-6)
        model.train(), alone.train()
        model(part(X))  # and nothing comes of it
    compared(other, pruner)
    for net, optimizer in ((alone, one), (model, two)):
        value = net(first if net is alone else part(first)).square().mean()
        optimizer.zero_grad(set_to_none=False)
        value.backward()
    compared(other, pruner)
    norms = [torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3) for net in (alone, model)]
    assert float(whole(norms[1])) == pytest.approx(float(norms[0]), rel=1e-5)
    compared(other, pruner)


def takes_parts_of_the_model():
    """A layer that is called alone has its mask; passes through it cannot be added up."""
    (alone, pruner, one), (model, other, two) = pair("global")
    passed(alone, pruner, X), passed(model, other, X)
    stepped(pruner, one), stepped(other, two)
    x = torch.randn(4, 112, generator=torch.Generator().manual_seed(2))
    alone[3](x).square().mean().backward()
    model[3](part(x)).square().mean().backward()
    assert torch.allclose(
        whole(other.members[1].scores.grad), pruner.members[1].scores.grad, atol=1e-7
    )
    with pytest.raises(RuntimeError, match="call the model, or zero_grad"):
        model[3](part(x)).square().mean().backward()


def continues_from_a_state():
    """A state from the middle, or with a fixed mask, goes into a new sharded model."""
    _, (model, pruner, optimizer) = pair("global")
    for x in batches(3):
        passed(model, pruner, x), stepped(pruner, optimizer)
    _, (twin, other, other_optimizer) = pair("global")
    twin.load_state_dict(copy.deepcopy(model.state_dict()))
    for x in batches(5):
        for net, handle, how in ((model, pruner, optimizer), (twin, other, other_optimizer)):
            passed(net, handle, x), stepped(handle, how)
    assert pruner.frozen
    assert other.frozen
    _, (third, last, _) = pair("global")
    third.load_state_dict(model.state_dict())
    assert last.frozen
    for (name, ours), (_, theirs) in zip(
        model.state_dict().items(), twin.state_dict().items(), strict=True
    ):
        assert torch.allclose(whole(ours).float(), whole(theirs).float(), atol=1e-6), name
    outputs = [net(part(X)) for net in (model, twin, third)]
    assert torch.allclose(outputs[0], outputs[1], atol=1e-6)
    assert torch.equal(outputs[0], outputs[2])


def breaks_ties_as_one_process():
    """Scores that are all equal: the first weights are kept, whole rows of other processes too."""
    for amount in (0.0, 0.3, 0.77, 1.0):
        handles = []
        for model in (network(), sharded()):
            for each in model.parameters():
                whole_ones = torch.ones_like(each)
                each.data.copy_(whole_ones)
            handles.append(nn.prune(model, amount, schedule=8, scores="magnitude"))
        same_masks(handles[1], handles[0])
        total = sum(int(whole(mask).sum()) for mask in handles[1].masks().values())
        assert total == handles[0].choosers[0].kept


def counts_what_it_sends():
    """Numbers are summed, never scores: at most 64 bytes at a time, twice in a backward pass."""
    _, (model, pruner, optimizer) = pair("global")
    sent, gathered = [], []
    plain, gather = distributed.all_reduce, distributed.all_gather_into_tensor

    def all_reduce(tensor, *rest, **options):
        sent.append(tensor.numel() * tensor.itemsize)
        return plain(tensor, *rest, **options)

    def all_gather(output, *rest, **options):
        gathered.append(output.numel() * output.itemsize)
        return gather(output, *rest, **options)

    distributed.all_reduce, distributed.all_gather_into_tensor = all_reduce, all_gather
    try:
        for place, x in enumerate(batches(5)):
            sent.clear(), gathered.clear()
            value = model(part(x)).square().mean()
            forward = len(sent)
            value.backward()
            optimizer.step(), pruner.step(optimizer), optimizer.zero_grad()
            assert max(sent) <= 64
            assert len(sent) - forward == 2
            assert forward <= (12 if place < 2 else 5), (place, forward)
            padded = 4 * (8 * 9 + 8 + 12 * 113 + 4 * 13)
            assert sum(gathered) <= 2 * padded, gathered
    finally:
        distributed.all_reduce, distributed.all_gather_into_tensor = plain, gather


def keeps_masks_exact_in_mixed_precision():
    """Weights are gathered in bfloat16; the mask and θ come from float32 scores."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    (alone, pruner, one), (model, other, two) = pair("global", mp_policy=half)
    for x in batches(3):
        passed(alone, pruner, x), passed(model, other, x)
        for mine, its in list(zip(other.members, pruner.members, strict=True))[1:]:
            for ours, wanted in (
                (mine.held.grad, its.original.grad),
                (mine.scores.grad, its.scores.grad),
            ):
                assert float((whole(ours) - wanted).norm()) <= 0.02 * float(wanted.norm())
        stepped(pruner, one), stepped(other, two)
    assert found(other.choosers[0]) == pytest.approx(found(pruner.choosers[0]), abs=1e-5)


def prunes_a_model_that_has_run():
    (alone, pruner, one), (model, *_) = pair("global")
    model = sharded()
    with torch.no_grad():
        model(part(X))
    other = nn.prune(model, schedule=SCHEDULE, **WAYS["global"])
    two = optimizer_of(other)
    for x in batches(3):
        passed(alone, pruner, x), passed(model, other, x)
        compared(other, pruner)
        stepped(pruner, one), stepped(other, two)


def refuses_by_name():
    from torch.distributed.fsdp import fully_shard

    model = network()
    pruner = nn.prune(model, 0.5, schedule=10)
    fully_shard(model)
    with pytest.raises(TypeError, match=r"call fully_shard before nn\.prune"):
        pruner.finalize()
    model = network()
    fully_shard(model[3])
    with pytest.raises(ValueError, match=r"0\.weight is whole in every process"):
        nn.prune(model, 0.5, schedule=10)
    with pytest.raises(ValueError, match="two samples would differ"):
        nn.prune(sharded(), pattern="2:4", choice="k_subset_sample", exclude="0", schedule=10)
    if distributed.get_world_size() == 2:
        with pytest.raises(ValueError, match=r"6 rows in each of 2 processes, which blocks of 4"):
            nn.prune(sharded(), 0.5, pattern=(4, 1), exclude=["0", "5"], schedule=10)
    with pytest.raises(ValueError, match=r"must return a DTensor of the weight's shape"):
        nn.prune(sharded(), 0.5, scores=lambda _, weight: whole(weight), schedule=10).masks()
    model = sharded()
    if distributed.get_rank() == 0:
        model[3].weight.to_local().detach()[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"3\.weight must be finite"):
        nn.prune(model, 0.5, schedule=10)
    model = sharded()
    pruner = nn.prune(model, 0.5, schedule=10)
    optimizer = torch.optim.SGD(pruner.other_parameters(), lr=0.1)
    passed(model, pruner, X), optimizer.step()
    with pytest.raises(RuntimeError, match=r"does not have the scores of 0\.weight"):
        pruner.step()
    with torch.no_grad():
        if distributed.get_rank() == 0:
            pruner.members[1].scores.to_local()[0, 0] = torch.inf
    with pytest.raises(ValueError, match=r"the scores of 3\.weight must be finite"):
        pruner.masks()


def ordinary():
    """What one process can do; fully_shard takes seconds to import in each new one."""
    for way in ("global", "2:4", "costs"):
        trains_as_one(way)
    adds_gradients_up()
    takes_parts_of_the_model()
    continues_from_a_state()
    breaks_ties_as_one_process()
    counts_what_it_sends()
    refuses_by_name()


def every():
    ordinary()
    for way in WAYS:
        trains_as_one(way)
    keeps_masks_exact_in_mixed_precision()
    prunes_a_model_that_has_run()
    if distributed.get_world_size() == 4:
        replicates_shards()


def replicates_shards():
    """Two replicas of two shards train as one process."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    (alone, pruner, one), (model, other, two) = pair("global", mesh=mesh)
    for x in batches(4):
        passed(alone, pruner, x), passed(model, other, x)
        compared(other, pruner)
        stepped(pruner, one), stepped(other, two)
    same_masks(other, pruner)


def test_it_masks_the_shards_of_one_process():
    with joined(distributed.HashStore(), 0, 1):
        ordinary()


@pytest.mark.full
@pytest.mark.parametrize("processes", [2, 4])
def test_every_way_is_that_of_one_process(tmp_path, processes):
    run_on_ranks(tmp_path / "store", processes, every)

"""Routers that choose from the tokens of all processes: as one process with all tokens."""

import copy
import pickle

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from kofn import nn
from ranks import joined, run_on_ranks
from test_distributed import close

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="PyTorch without torch.distributed"
)

H, E = 6, 4
CUTS = {2: (0, 9, 24), 4: (0, 9, 9, 20, 24)}  # uneven, and one process without tokens
X = torch.randn(24, H, generator=torch.Generator().manual_seed(0))
X[3], X[20] = X[2], X[2]  # ties
PADDING = torch.rand(24, generator=torch.Generator().manual_seed(1)) < 0.7


def mine(values):
    cuts, rank = CUTS[distributed.get_world_size()], distributed.get_rank()
    return values[cuts[rank] : cuts[rank + 1]]


def router(**options):
    torch.manual_seed(0)
    return nn.TopKRouter(H, E, 1.5, inference_threshold=True, **options)


def passed(net, x, mask, out):
    """Weights per token and expert, and the gradient of the router's parameters."""
    net.zero_grad()
    logits, weights, indices = net(x, mask)
    each = torch.zeros_like(logits).scatter(-1, indices, weights)
    (each * out).sum().backward()
    return each.detach(), net.weight.grad


def choose_as_one(selection):
    out = torch.randn(24, E, generator=torch.Generator().manual_seed(2))
    options = dict(selection=selection, gates="mixture", temperature=0.7)
    if selection == "budget":
        options["balance"] = 1e-2
    alone, net = router(**options), router(**options, process_group=distributed.group.WORLD)
    for mask in (None, PADDING):
        wanted, slope = passed(alone, X, mask, out)
        found, part = passed(net, mine(X), None if mask is None else mine(mask), mine(out))
        assert close(found, mine(wanted), 1e-6), selection
        assert torch.equal(found > 0, mine(wanted) > 0), selection
        part = part.clone()
        distributed.all_reduce(part)  # as DistributedDataParallel does
        assert close(part, slope, 1e-5), selection
        alone.step(None), net.step()
        if selection == "expert_choice":
            tokens = 24 if mask is None else int(mask.sum())
            taken = (found > 0).sum(0)
            distributed.all_reduce(taken)
            assert taken.tolist() == [-(-tokens * 3 // 8)] * E
    for name, buffer in alone.named_buffers():
        assert close(dict(net.named_buffers())[name].float(), buffer.float(), 1e-6), name
    alone.eval(), net.eval()
    with torch.no_grad():
        assert close(net(mine(X))[1], mine(alone(X)[1]), 1e-6)


def a_nan_is_masked(selection):
    """For the tokens of all processes, and in its own row it is NaN."""
    nets = [router(selection=selection, process_group=distributed.group.WORLD) for _ in range(2)]
    x, rest = X.clone(), torch.ones(24, dtype=torch.bool)
    x[5], rest[5] = torch.nan, False
    found, wanted = nets[0](mine(x)), nets[1](mine(X), mine(rest))
    here = mine(rest)
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours[here], theirs[here])
    assert found[1][~here].isnan().all()
    for name, buffer in nets[0].named_buffers():
        assert torch.equal(buffer, dict(nets[1].named_buffers())[name]), name


def nan_tokens():
    for selection in ("expert_choice", "budget"):
        a_nan_is_masked(selection)


def expert_choice():
    choose_as_one("expert_choice")


def budget():
    choose_as_one("budget")


def copies():
    world = distributed.group.WORLD
    net = router(selection="expert_choice", process_group=world)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(twin(mine(X))[1], net(mine(X))[1])
    assert set(net.state_dict()) == set(router(selection="expert_choice").state_dict())
    with pytest.raises(ValueError, match="process_group is for selection='expert_choice' or"):
        nn.TopKRouter(H, E, 2, process_group=world)
    with pytest.raises(TypeError, match=r"process_group must be None, a torch\.distributed"):
        router(selection="expert_choice", process_group=True)


def loss_of(weight, x, mask, **group):
    logits = x @ weight
    return nn.load_balancing_loss(logits, logits.topk(2).indices, mask, **group)


def balanced_as_one():
    """The loss of all tokens in every process, and the mean of the gradients is its gradient."""
    weight = torch.randn(H, E, generator=torch.Generator().manual_seed(3), requires_grad=True)
    for mask in (None, PADDING, PADDING & False):
        wanted = loss_of(weight, X, mask)
        (slope,) = torch.autograd.grad(wanted, weight)
        part = None if mask is None else mine(mask)
        found = loss_of(weight, mine(X), part, process_group=distributed.group.WORLD)
        assert close(found.detach(), wanted.detach(), 1e-6)
        (own,) = torch.autograd.grad(found, weight)
        distributed.all_reduce(own)
        assert close(own / distributed.get_world_size(), slope, 1e-5)


def balanced_in_ddp():
    torch.manual_seed(4)
    net = torch.nn.Linear(H, E)
    model = DistributedDataParallel(copy.deepcopy(net))
    for called, x, group in ((net, X, None), (model, mine(X), distributed.group.WORLD)):
        logits = called(x)
        chosen = logits.topk(2).indices
        loss = nn.load_balancing_loss(logits, chosen, process_group=group)
        (loss + 0 * logits.sum()).backward()
    assert close(model.module.weight.grad, net.weight.grad, 1e-5)


def balanced_compiled():
    weight = torch.randn(H, E, generator=torch.Generator().manual_seed(3), requires_grad=True)

    def loss(x):
        return loss_of(weight, x, None, process_group=distributed.group.WORLD)

    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    found, wanted = compiled(mine(X)), loss(mine(X))
    assert close(found.detach(), wanted.detach(), 1e-6)
    assert close(*(torch.autograd.grad(each, weight)[0] for each in (found, wanted)), 1e-6)


LOSSES = [balanced_as_one, balanced_in_ddp]
TASKS = [nan_tokens, expert_choice, budget, copies, *LOSSES, balanced_compiled]


def test_a_load_of_all_processes(tmp_path):
    run_on_ranks(tmp_path / "store", 2, *LOSSES)


def test_in_one_process_the_loss_of_all_processes_is_the_usual_one():
    with joined(distributed.HashStore(), 0, 1):
        logits = torch.randn(9, E, generator=torch.Generator().manual_seed(5), requires_grad=True)
        wanted = nn.load_balancing_loss(logits, logits.topk(2).indices)
        world = distributed.group.WORLD
        found = nn.load_balancing_loss(logits, logits.topk(2).indices, process_group=world)
        assert close(found.detach(), wanted.detach(), 1e-6)
        assert close(*(torch.autograd.grad(each, logits)[0] for each in (found, wanted)), 1e-6)
        with pytest.raises(TypeError, match=r"process_group must be None, a torch\.distributed"):
            nn.load_balancing_loss(logits, logits.topk(2).indices, process_group=2)


@pytest.mark.full
@pytest.mark.parametrize("processes", [2, 4])
def test_tokens_of_all_processes(tmp_path, processes):
    run_on_ranks(tmp_path / "store", processes, *TASKS)


def test_a_token_with_a_nan_is_masked_for_the_other_process(tmp_path):
    run_on_ranks(tmp_path / "store", 2, nan_tokens)


def test_it_is_the_usual_choice_in_one_process():
    """What the choice of several processes does, in a group of one."""
    with joined(distributed.HashStore(), 0, 1):
        for selection in ("expert_choice", "budget"):
            options = dict(selection=selection, temperature=0.7)
            alone = router(**options)
            net = router(**options, process_group=distributed.group.WORLD)
            out = torch.ones(24, E).cumsum(0)
            for ours, theirs in zip(
                passed(net, X, PADDING, out), passed(alone, X, PADDING, out), strict=True
            ):
                assert close(ours, theirs, 1e-5)

"""Steps of routers in two processes: by the tokens of both, unless process_group=None is given."""

import copy
import inspect
from datetime import timedelta

import pytest
import torch
from torch import distributed

import test_nn_ddp
from kofn import nn
from ranks import joined, run_on_ranks
from test_distributed import counted

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="PyTorch without torch.distributed"
)

H = 6


def routers(*experts, **options):
    torch.manual_seed(0)
    options = dict(balance=1e-2, normalize=False) | options
    return torch.nn.ModuleList(nn.TopKRouter(H, each, 1, **options) for each in experts)


def steps_of(model):
    return [each.balance.net_steps for each in model if each.balance is not None]


def stepped(model, batches, *process_group):
    """Bias steps after each batch of tokens, which every router sees."""
    for tokens in batches:
        for each in model:
            each(tokens)
        nn.step_routers(model, *process_group)
    return steps_of(model)


def tokens():
    """Ten batches of this process, whose load is not that of the other one, and of both."""
    torch.manual_seed(1)
    both = torch.randn(10, 2, 12, H) + torch.tensor([2.0, -2.0])[:, None, None]
    return both[:, distributed.get_rank()], both.flatten(1, 2)


def the_tokens_of_all_processes_count():
    mine, both = tokens()
    model = routers(8, 4)
    model.append(nn.TopKRouter(H, 3, 2, temperature=lambda step: 1.0 + step))
    alone, one, local = (copy.deepcopy(model) for _ in range(3))
    wanted = stepped(alone, both, None)
    with counted() as sizes:
        found = stepped(model, mine)
    assert all(map(torch.equal, found, wanted))
    assert model[2].steps == alone[2].steps == 10
    assert sizes == [16, 8 * (8 + 4)] * 10  # one message for all routers, after a comparison
    # The method of one router, too; and None, which is not the default.
    for tokens_of_step in mine:
        one[0](tokens_of_step), one[0].step()
    assert torch.equal(one[0].balance.net_steps, wanted[0])
    with counted() as sizes:
        own = stepped(local, mine, None)
    assert not sizes
    assert not all(map(torch.equal, own, wanted))


def a_router_with_a_step_of_its_own_keeps_it():
    class Counting(nn.TopKRouter):
        calls = 0

        def step(self, *process_group):
            self.calls += 1
            super().step(*process_group)

    mine, both = tokens()
    model = torch.nn.ModuleList([Counting(H, 4, 2, balance=1e-2)])
    alone = copy.deepcopy(model)
    assert torch.equal(stepped(model, mine)[0], stepped(alone, both, None)[0])
    assert model[0].calls == 10


def a_mismatch_is_an_error_in_every_process():
    rank = distributed.get_rank()
    for mine, words in (
        (routers(8, 8, 4)[: 3 - rank], r"1 of 4 experts with balance=0\.01"),
        (routers(8, 4 + 4 * rank), r"2 of 8 experts with balance=0\.01"),
        (routers(8, balance=1e-2 * (1 + rank)), r"1 of 8 experts with balance=0\.02"),
        (routers(8, balance=None if rank else 1e-2), "stepped no router with balance"),
    ):
        before = copy.deepcopy(steps_of(mine))
        with pytest.raises(
            ValueError, match=rf"^nn\.step_routers: .*{words}.*Step the same router"
        ):
            nn.step_routers(mine)
        assert all(map(torch.equal, steps_of(mine), before))
    with pytest.raises(
        ValueError, match=r"^TopKRouter\.step: the ranks were called with different"
    ):
        routers(8 + rank)[0].step()
    with pytest.raises(TypeError, match="process_group must be None, a torch"):
        nn.step_routers(routers(8), "world")


def a_process_that_stays_local_ends_the_others_by_the_timeout():
    group = distributed.new_group(timeout=timedelta(seconds=2))
    distributed.barrier()  # a process that ended now would end the other's new group
    if distributed.get_rank() == 1:
        nn.step_routers(routers(8), None)
        return
    with pytest.raises(
        RuntimeError, match=r"^nn\.step_routers: .* not called nn\.step_routers with"
    ):
        nn.step_routers(routers(8), group)


def where_reading_waits_a_change_of_one_process_is_no_mixture_of_messages():
    from kofn.nn.routing import together

    group, usual = distributed.new_group(timeout=timedelta(seconds=2)), together._waits
    together._waits = lambda device: True
    try:
        for model in (routers(8, 4), routers(8, 4), routers(6), routers(6)):
            with counted() as sizes:
                nn.step_routers(model, group)
            assert sizes == [16, 8 * sum(each.num_experts for each in model)]
        error, message = (
            (ValueError, r"^nn\.step_routers: this process stepped routers: 1 of 8.*Step the same")
            if distributed.get_rank() == 0
            else (RuntimeError, r"^nn\.step_routers")
        )
        with pytest.raises(error, match=message):
            nn.step_routers(routers(6 + 2 * (distributed.get_rank() == 0)), group)
        distributed.barrier()
    finally:
        together._waits = usual
        together._agreed.pop(group, None)


TASKS = [
    the_tokens_of_all_processes_count,
    a_router_with_a_step_of_its_own_keeps_it,
    a_mismatch_is_an_error_in_every_process,
    test_nn_ddp.sharded,
    where_reading_waits_a_change_of_one_process_is_no_mixture_of_messages,
    a_process_that_stays_local_ends_the_others_by_the_timeout,
]


def test_two_processes(tmp_path):
    run_on_ranks(tmp_path / "store", 2, *TASKS)


def test_a_process_by_itself_sends_no_message():
    torch.manual_seed(0)
    batches = torch.randn(3, 12, H)
    wanted = stepped(routers(8), batches)
    with joined(distributed.HashStore(), 0, 1), counted() as sizes:
        assert torch.equal(stepped(routers(8), batches)[0], wanted[0])
    assert not sizes


def test_the_default_is_told_apart_from_none():
    for function in (nn.TopKRouter.step, nn.step_routers):
        default = inspect.signature(function).parameters["process_group"].default
        assert repr(default) == "<the default group>"

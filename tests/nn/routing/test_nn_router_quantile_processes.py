"""Balance by quantiles in two processes: the bias is that of one process with all tokens."""

import copy

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from kofn import nn
from ranks import run_on_ranks
from test_distributed import counted

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="PyTorch without torch.distributed"
)

H = 6


def rank():
    return distributed.get_rank()


def routers(*experts, **options):
    torch.manual_seed(0)
    options = dict(balance="quantile", normalize=False) | options
    return torch.nn.ModuleList(nn.TopKRouter(H, each, 1, **options) for each in experts)


def torchtitan_sums_the_histograms_of_two_layers():
    """Its test of two ranks: layers alone, and together."""
    layers = torch.tensor(
        [
            [[0.92, 0.68, 0.31, 0.07], [0.07, 0.31, 0.92, 0.68]],
            [[0.68, 0.92, 0.07, 0.31], [0.31, 0.07, 0.68, 0.92]],
        ]
    )
    alone = [
        [[-0.5, -0.1, 0.1, 0.5], [0.5, 0.1, -0.5, -0.1]],
        [[-0.1, -0.5, 0.5, 0.1], [0.1, 0.5, -0.1, -0.5]],
    ]
    together = [[-0.2, 0.2, -0.2, 0.2], [0.2, -0.2, 0.2, -0.2]]
    for group, wanted in (
        ((None,), torch.tensor(alone)[:, rank()]),
        ((), torch.tensor(together)),
    ):
        model = routers(4, 4, score_function="sigmoid", bins=10)
        for net, scores in zip(model, layers[:, rank()], strict=True):
            net.balance.observe(scores.expand(4, 4))
        with counted() as sizes:
            nn.step_routers(model, *group)
        # One message for both layers, after a comparison.
        assert sizes == ([] if group else [16, 8 * 2 * 4 * (10 + 2)])
        for net, bias in zip(model, wanted, strict=True):
            assert torch.allclose(net.balance(), bias, atol=1e-6)
            assert not net.balance.histogram.any()


def batches():
    """Of three steps with two calls: this process's tokens, whose range is another, and all."""
    generator = torch.Generator().manual_seed(1)
    both = torch.randn(3, 2, 2, 40, H, generator=generator)
    both = both * torch.tensor([0.1, 3.0])[:, None, None] + torch.tensor([1.0, -2.0])[:, None, None]
    return both[:, :, rank()], both.flatten(1, 2)


def the_histograms_of_both_are_that_of_all_tokens():
    mine, both = batches()
    for options in (
        dict(bins=50),
        dict(bins=50, score_function="sigmoid"),
        dict(bins=50, selection="budget"),
        dict(bins=50, ema=0.5),
    ):
        model = routers(8, 4, **options)
        alone = copy.deepcopy(model)
        for part, whole in zip(mine, both, strict=True):
            for net, one in zip(model, alone, strict=True):
                # The choice of a budget depends on who is there; what it requires does not.
                net(part[0]), net(part[1]), one(whole[0]), one(whole[1:].flatten(0, 1))
            with counted() as sizes:
                nn.step_routers(model)
            found = "score_function" not in options
            assert sizes == [16, *([8 * 2 * 2] if found else []), 8 * (50 + 2) * (8 + 4)]
            nn.step_routers(alone, None)
            for net, one in zip(model, alone, strict=True):
                assert torch.equal(net.balance(), one.balance()), options
        assert model[0].balance().any()


def exact_quantiles_are_averaged_by_tokens():
    torch.manual_seed(2)
    scores = torch.randn(30, 8)
    part = scores[:10] if rank() == 0 else scores[10:]
    net, wanted = routers(8)[0], 0.0
    for each, weight in ((scores[:10], 1 / 3), (scores[10:], 2 / 3)):
        alone = routers(8)[0]
        alone.balance.observe(each)
        alone.step(None)
        wanted = wanted + weight * alone.balance()
    net.balance.observe(part)
    net.step()
    assert torch.allclose(net.balance(), wanted, atol=1e-6)
    # A process without tokens changes nothing.
    if rank() == 0:
        net.balance.observe(scores)
    net.step()
    alone = routers(8)[0]
    alone.balance.bias.copy_(wanted)
    alone.balance.observe(scores)
    alone.step(None)
    assert torch.allclose(net.balance(), alone.balance(), atol=1e-5)


def rules_may_be_mixed():
    mine, both = batches()
    torch.manual_seed(0)
    model = torch.nn.ModuleList(
        nn.TopKRouter(H, 8, 2, balance=balance, bins=bins)
        for balance, bins in (("quantile", None), (1e-2, None), ("quantile", 20), (None, None))
    )
    alone = copy.deepcopy(model)
    for part, whole in zip(mine[0], both[0].unflatten(0, (2, 2)), strict=True):
        for net, one in zip(model, alone, strict=True):
            net(part), one(whole[0]), one(whole[1])
    with counted() as sizes:
        nn.step_routers(model)
    nn.step_routers(alone, None)
    assert sizes == [16, 8 * 2, 8 * (16 + 8 + 8 * (20 + 2))]
    assert torch.allclose(model[0].balance(), alone[0].balance(), atol=1e-6)
    assert torch.equal(model[1].balance(), alone[1].balance())
    assert torch.equal(model[2].balance(), alone[2].balance())


def a_mismatch_is_an_error_in_every_process():
    for mine, words in (
        (routers(8, bins=10 + rank()), r"1 of 8 experts with balance='quantile', .*bins=11"),
        (routers(8, bins=None if rank() else 10), r"bins=None"),
        (routers(8, ema=0.5 * rank()), r"ema=0\.5"),
        (
            routers(8, bins=10, score_function="sigmoid" if rank() else "softmax"),
            "unit=True",
        ),
        (routers(8, selection="budget" if rank() else "hard"), "centred=False"),
    ):
        with pytest.raises(ValueError, match=rf"^nn\.step_routers: .*{words}.*Step the same"):
            nn.step_routers(mine)


def buffers_of_the_first_process_leave_the_load_alone():
    torch.manual_seed(0)
    net = nn.TopKRouter(H, 8, 2, balance="quantile", bins=30)
    alone, model = copy.deepcopy(net), DistributedDataParallel(net)
    mine, both = batches()
    for x in mine[0]:
        model(x)[1].square().sum().backward()
    for x in both[0]:
        alone(x)
    nn.step_routers(model)
    alone.step(None)
    assert torch.equal(net.balance(), alone.balance())


def a_sharded_router_has_the_bias_of_one_process():
    from torch.distributed.fsdp import fully_shard

    mine, both = batches()
    for bins in (None, 30):
        torch.manual_seed(0)
        net = nn.TopKRouter(H, 8, 2, balance="quantile", bins=bins)
        alone, model = copy.deepcopy(net), fully_shard(net)
        for part, whole in zip(mine, both.unflatten(1, (2, 2)), strict=True):
            for x, pair in zip(part, whole, strict=True):
                model(x)[1].square().sum().backward()
                alone(pair[0]), alone(pair[1])
            nn.step_routers(model)
            alone.step(None)
            assert torch.allclose(model.balance(), alone.balance(), atol=1e-6)
        assert "balance.bias" in model.state_dict()


TASKS = [
    torchtitan_sums_the_histograms_of_two_layers,
    the_histograms_of_both_are_that_of_all_tokens,
    exact_quantiles_are_averaged_by_tokens,
    rules_may_be_mixed,
    a_mismatch_is_an_error_in_every_process,
    buffers_of_the_first_process_leave_the_load_alone,
    a_sharded_router_has_the_bias_of_one_process,
]


def test_two_processes(tmp_path):
    run_on_ranks(tmp_path / "store", 2, *TASKS)

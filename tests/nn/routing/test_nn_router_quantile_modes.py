"""Balance by quantiles: checkpoints, compiled code, what is saved, groups, and what is refused."""

import copy
import io

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from kofn import nn
from kofn.maps.balance import Groups, required_bias
from test_nn_router import E, H, K, T, own_seed
from test_nn_router_quantile import WAYS, every_way, router, routing, skewed, sums_of, violation

__all__ = ["own_seed"]  # a fixture


@every_way
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_counts_a_token_once(way, use_reentrant):
    net, x = router(way), torch.randn(T, H, requires_grad=True)
    twin = copy.deepcopy(net)
    checkpoint(lambda x: net(x)[1], x, use_reentrant=use_reentrant).sum().backward()
    twin(x)
    wanted = sums_of(twin)
    assert all(torch.equal(each, wanted[name]) for name, each in sums_of(net).items())
    assert any(each.any() for each in wanted.values())


@pytest.mark.parametrize("outermost", ["compiled", "checkpoint"])
@pytest.mark.parametrize(
    "way",
    [
        way if way in ("exact", "bins") else pytest.param(way, marks=pytest.mark.full)
        for way in WAYS
    ],
)
def test_compiled_code_and_checkpoints_count_once(way, outermost):
    torch._dynamo.reset()
    net, x = router(way), torch.randn(T, H, requires_grad=True)
    twin = copy.deepcopy(net)
    inner = net if outermost == "compiled" else torch.compile(net, backend="aot_eager")
    outer = lambda x: checkpoint(inner, x, use_reentrant=False)[1]  # noqa: E731
    if outermost == "compiled":
        outer = torch.compile(outer, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        outer(x).square().sum().backward()
        twin(x)
    wanted = sums_of(twin)
    for name, each in sums_of(net).items():
        assert torch.allclose(each.double(), wanted[name].double(), atol=1e-6), name


@pytest.mark.parametrize(
    "way",
    [way if way == "exact" else pytest.param(way, marks=pytest.mark.full) for way in WAYS],
)
def test_it_compiles_as_one_graph_and_keeps_addresses(way):
    torch._dynamo.reset()
    net = router(way)
    places = {name: each.data_ptr() for name, each in net.named_buffers()}
    places |= {name: getattr(net.balance, name).data_ptr() for name in net.balance.SUMS}
    twin, compiled = copy.deepcopy(net), torch.compile(net, fullgraph=True, backend="aot_eager")
    for tokens in (T, 2 * T, T):
        x = torch.randn(tokens, H)
        for one, other in zip(compiled(x), twin(x), strict=True):
            assert torch.allclose(one, other, atol=1e-6)
        net.step(), twin.step()
        assert torch.allclose(net.balance(), twin.balance(), atol=1e-6)
    now = {name: each.data_ptr() for name, each in net.named_buffers()}
    now |= {name: getattr(net.balance, name).data_ptr() for name in net.balance.SUMS}
    assert now == places


@every_way
def test_the_state_is_the_bias(way):
    net, x = router(way), torch.randn(64, H)
    net(x), net.step()
    names = {"weight", "balance.bias"}
    running = {"running.cut", "running.threshold", "running.updates"}
    assert set(net.state_dict()) == (names | running if net.running else names)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    loaded = router(way)
    loaded.load_state_dict(torch.load(file), strict=True)
    for one, other in zip(net.eval()(x), loaded.eval()(x), strict=True):
        assert torch.equal(one, other)


def test_the_bias_of_a_model_in_bfloat16_is_float32():
    net = router("exact").bfloat16()
    assert net.weight.dtype == torch.bfloat16
    for _ in range(2):
        net(torch.randn(T, H, dtype=torch.bfloat16))
        net.step()
    assert net.balance().dtype == torch.float32
    assert net.balance.tokens.dtype == torch.int64
    assert not torch.equal(net.balance(), net.balance().bfloat16().float())


def test_it_starts_from_nothing_after_a_device_without_memory():
    for way in WAYS:
        net = router(way, device="meta").to_empty(device="cpu")
        net.balance.bias.fill_(7)
        for name in net.balance.SUMS:
            getattr(net.balance, name).fill_(7)
        net.reset_parameters()
        wanted = sums_of(router(way))
        assert all(torch.equal(each, wanted[name]) for name, each in sums_of(net).items())
        assert not net.balance().any()


def test_a_checkpoint_of_the_sign_rule_goes_on_with_quantiles():
    old = nn.TopKRouter(H, E, K, balance=1e-3)
    old.balance.net_steps.copy_(torch.arange(E))
    net = router()
    net.load_state_dict(old.state_dict())
    assert torch.equal(net.weight, old.weight)
    assert not net.balance().any()


def test_routers_of_an_older_kofn_have_no_groups():
    net = nn.TopKRouter(H, E, K, balance=1e-3)
    for name in ("score_function", "groups", "per_sequence"):
        net.__dict__.pop(name)
    twin = copy.deepcopy(net)
    net(torch.randn(T, H)), net.step()
    assert repr(twin).startswith("TopKRouter(\n  16 to 8 experts, k=2, selection='hard'")


def test_groups_are_those_of_deepseek():
    net = routing(12, 3, n_group=4, topk_group=2, score_function="sigmoid")
    net.balance.bias.copy_(torch.linspace(-0.2, 0.3, 12))
    logits = torch.randn(50, 12)
    weights, indices = net.choose(logits)
    scores = logits.sigmoid()
    biased = (scores + net.balance()).view(-1, 4, 3)
    groups = biased.topk(2).values.sum(-1).topk(2).indices
    opened = torch.zeros(50, 4, dtype=torch.bool).scatter(1, groups, True)
    masked = biased.masked_fill(~opened[..., None], -torch.inf).flatten(1)
    assert torch.equal(indices, masked.topk(3).indices)
    chosen = scores.gather(1, indices)
    assert torch.allclose(weights, chosen / chosen.sum(-1, keepdim=True))
    rate = routing(12, 3, n_group=4, topk_group=2, score_function="sigmoid", balance=0.1)
    rate.balance.net_steps.copy_(torch.arange(12))
    assert rate.choose(logits)[1].shape == (50, 3)


@pytest.mark.parametrize("topk_group", [1, 2])
def test_groups_become_even_though_a_token_takes_all_experts_of_them(topk_group):
    net = routing(16, 4 * topk_group, n_group=4, topk_group=topk_group)
    for _ in range(8):
        net.statistics()
        net.choose(skewed(2048, 16))
        net.step()
    assert violation(net) < 0.25


def test_what_an_expert_requires_opens_its_group():
    """With a little more than that, the token takes the expert; with less, it does not."""
    scores = torch.randn(40, 8).double()
    for groups, k in ((None, 2), (Groups(4, 2), 2), (Groups(4, 1), 2)):
        required = required_bias(scores, scores, k, groups)
        net = routing(8, k, balance=None, **({} if groups is None else
                      dict(n_group=groups.number, topk_group=groups.chosen)))  # fmt: skip
        chosen = torch.zeros(40, 8).scatter(1, net.choose(scores)[1], 1) > 0
        assert torch.equal(chosen, required < 0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(balance="quantiles"), ValueError, "balance must be None, 'quantile' or a .*got 'qua"),
        (dict(balance="quantile", selection="soft"), ValueError, "balance is for selection='hard'"),
        (
            dict(balance="quantile", bins=1),
            ValueError,
            "bins must be None or an integer ≥ 2; got 1",
        ),
        (dict(balance="quantile", bins=10.5), TypeError, "bins must be None or an integer ≥ 2"),
        (dict(balance="quantile", ema=1.0), ValueError, r"ema must be a number in \[0, 1\); got 1"),
        (dict(balance="quantile", ema=-0.1), ValueError, r"ema must be a number in \[0, 1\)"),
        (dict(balance=0.1, bins=10), ValueError, "bins is for balance='quantile'; got 10 with 0.1"),
        (dict(ema=0.5), ValueError, "ema is for balance='quantile'; got 0.5 with None"),
        (dict(per_sequence=True), ValueError, "per_sequence is for balance='quantile'; got True"),
        (dict(per_sequence=1), TypeError, "per_sequence must be True or False; got 1"),
        (
            dict(balance="quantile", selection="budget", per_sequence=True),
            ValueError,
            "per_sequence is for selection='hard'; got True",
        ),
        (dict(score_function="tanh"), ValueError, "score_function must be one of 'softmax', 'sig"),
        (
            dict(score_function="sigmoid", selection="soft"),
            ValueError,
            "score_function is for selection='hard' or 'budget'; got 'sigmoid'",
        ),
        (dict(n_group=4), ValueError, "n_group and topk_group go together; got 4 and None"),
        (dict(n_group=3, topk_group=1), ValueError, "n_group must divide num_experts = 8 .*got 3"),
        (dict(n_group=8, topk_group=4), ValueError, "n_group must divide .* at least 2; got 8"),
        (
            dict(n_group=4, topk_group=5),
            ValueError,
            r"topk_group must be .*\[1, n_group\] \(here 4",
        ),
        (dict(k=4, n_group=4, topk_group=1), ValueError, "k must be at most 2, the experts in"),
        (
            dict(n_group=4, topk_group=2, selection="budget"),
            ValueError,
            "n_group is for selection='hard'; got 4 with 'budget'",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        nn.TopKRouter(**{**dict(hidden_size=H, num_experts=E, k=K), **arguments})


def test_it_says_what_it_is():
    assert "QuantileBias(8 experts, bins=1000)" in repr(router("bins"))
    assert "QuantileBias(8 experts, ema=0.9)" in repr(router(ema=0.9))
    assert "n_group=4, topk_group=2" in repr(router("groups"))
    assert "score_function='sigmoid'" in repr(router("sigmoids"))

"""nn.TopKRouter(balance="quantile"): what holds of the load and of the bias."""

import copy

import pytest
import torch

from kofn import nn
from kofn.maps.balance import bias_of_share, required_bias
from kofn.nn.routing.routing import Routing
from test_nn_router import E, H, K, T, own_seed

__all__ = ["own_seed"]  # a fixture


WAYS = {
    "exact": {},
    "bins": dict(bins=1000),
    "sigmoids": dict(score_function="sigmoid"),
    "bins of sigmoids": dict(score_function="sigmoid", bins=1000),
    "groups": dict(n_group=4, topk_group=2),
    "budget": dict(selection="budget", inference_threshold=True),
    "bins of a budget": dict(selection="budget", bins=1000),
    "sequences": dict(per_sequence=True),
}
every_way = pytest.mark.parametrize("way", WAYS)


def router(way="exact", k=K, **changes):
    return nn.TopKRouter(H, E, k, **{"balance": "quantile", **WAYS[way], **changes})


def routing(experts, k, **options):
    """A router without its linear layer."""
    normalize = k > 1 and options.get("selection") != "budget"
    return Routing(experts, k, **dict(balance="quantile", normalize=normalize) | options)


def sums_of(net):
    """What the balance has added up."""
    return {name: getattr(net.balance, name).clone() for name in net.balance.SUMS}


def violation(net):
    return net.statistics()["max_violation"].item()


def skewed(tokens, experts, generator=None):
    scores = torch.randn(tokens, experts, generator=generator)
    return scores + torch.linspace(-1, 1, experts)


@every_way
def test_the_load_is_even_from_the_second_batch_on(way):
    net = routing(16, 2, **WAYS[way])
    found = []
    for _ in range(6):
        net.choose(skewed(2048, 16), None, 2048)
        found.append(violation(net))
        net.step()
    assert found[0] > 1.5 or way == "sequences"
    assert max(found[1:]) < (0.5 if way == "groups" else 0.3)
    assert max(found[3:]) < 0.3


@every_way
def test_in_a_batch_that_comes_again_the_load_becomes_even(way):
    """As far as one alternation a step does it."""
    net, scores = routing(16, 2, **WAYS[way]), skewed(1024, 16)
    for _ in range(12):
        net.choose(scores, None, 1024)
        net.step()
    net.statistics()
    net.choose(scores, None, 1024)
    assert violation(net) < (0.2 if way == "sequences" else 0.06)


def test_a_budget_gives_each_expert_exactly_its_share_and_looks_at_no_other_token():
    net, scores = routing(8, 2, selection="budget"), skewed(64, 8)
    net.choose(scores)
    net.step(), net.statistics()
    weights, indices = net.choose(scores)
    counts = (net.statistics()["load"] * 128).round()
    assert torch.equal(counts, torch.full((8,), 16.0))
    other = torch.cat([scores[:10], scores[10:] + 5 * torch.randn(54, 8)])
    again = net.choose(other)
    assert torch.equal(weights[:10] > 0, again[0][:10] > 0)
    assert torch.equal(indices[:10][weights[:10] > 0], again[1][:10][weights[:10] > 0])
    alone = net.eval().choose(scores[:1])
    assert torch.equal(alone[0] > 0, weights[:1] > 0)


def test_without_a_step_a_budget_is_spent_as_without_a_balance():
    scores = skewed(64, 8)
    for one, other in zip(
        routing(8, 2, selection="budget").choose(scores),
        routing(8, 2, selection="budget", balance=None).choose(scores),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_the_bias_leaves_the_gates_alone():
    net = router()
    net.balance.bias[5] = 100
    logits, weights, indices = net(torch.randn(T, H))
    assert (indices == 5).any(-1).all()
    assert torch.allclose(weights, logits.gather(1, indices).softmax(-1))
    assert not net.balance.bias.requires_grad


@every_way
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_scores_of_any_size(way, scale):
    if "sigmoid" in way and scale != 1:
        return
    net, other = routing(8, 2, **WAYS[way]), routing(8, 2, **WAYS[way])
    scores = skewed(512, 8)
    for each, by in ((net, 1.0), (other, scale)):
        for _ in range(2):
            each.choose(scores * by, None, 512)
            each.step()
    assert other.balance().isfinite().all()
    assert torch.allclose(
        other.balance() / scale, net.balance(), rtol=1e-4, atol=1e-2 if "bins" in way else 1e-5
    )
    assert (other.balance() != 0).any()


def test_calls_count_by_their_tokens():
    scores, net = skewed(90, 6), routing(6, 2)
    biases = []
    for part in (scores[:30], scores[30:]):
        net.balance.observe(part)
        biases.append(bias_of_share(required_bias(part, part, 2), 2, None)[0])
    net.step()
    wanted = (biases[0] + 2 * biases[1]) / 3
    assert torch.allclose(net.balance(), wanted - wanted.mean(), atol=1e-6)


@every_way
def test_masked_tokens_do_not_count(way):
    net, alone = router(way), None
    alone = copy.deepcopy(net)
    x = torch.randn(3, 4, H)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    net(x, mask), alone(x[mask])
    net.step(), alone.step()
    assert torch.allclose(net.balance(), alone.balance(), atol=1e-6)
    assert net.balance().any()
    before = net.balance().clone()
    net(x, mask & False)
    net.step()
    assert torch.equal(net.balance(), before)


@every_way
def test_without_tokens_the_state_is_kept(way):
    net = router(way)
    net.balance.bias.copy_(torch.arange(E))
    for x in (None, torch.randn(0, H), torch.full((T, H), torch.nan)):
        if x is not None:
            net(x)
        net.step()
        assert net.balance().tolist() == list(range(E))
    assert all(not each.isnan().any() for each in sums_of(net).values())


@every_way
def test_tokens_with_nan_do_not_count(way):
    net, x = router(way), torch.randn(T, H)
    alone = copy.deepcopy(net)
    net(torch.cat([x[:5], torch.full((2, H), torch.nan), x[5:]])), alone(x)
    net.step(), alone.step()
    assert torch.allclose(net.balance(), alone.balance(), atol=1e-6)


@every_way
def test_an_expert_that_no_token_may_use_keeps_its_bias(way):
    net, scores = routing(8, 2, **WAYS[way]), skewed(64, 8)
    scores[:, 3] = -torch.inf
    for _ in range(3):
        weights, _ = net.choose(scores, None, 64)
        net.step()
        assert net.balance().isfinite().all()
    assert weights.isfinite().all()


@every_way
def test_with_all_experts_there_is_nothing_to_balance(way):
    if way == "groups":
        return
    net = router(way, k=E, gates="mixture", normalize=False)
    net(torch.randn(T, H))
    net.step()
    assert not net.balance().any()


@every_way
def test_ties(way):
    net = router(way)
    with torch.no_grad():
        net.weight.zero_()
    for _ in range(3):
        _, weights, _ = net(torch.randn(64, H))
        net.step()
        assert net.balance().isfinite().all()
        assert weights.isfinite().all()
        assert net.balance().abs().max() <= 1


@every_way
def test_evaluation_observes_nothing(way):
    net, x = router(way).eval(), torch.randn(T, H)
    before = sums_of(net)
    net(x)
    assert all(torch.equal(each, before[name]) for name, each in sums_of(net).items())
    net.step()
    assert not net.balance().any()


def test_a_sequence_has_a_bias_by_its_earlier_tokens():
    torch.manual_seed(0)
    loads = []
    for options in (dict(), dict(per_sequence=True)):
        net, uneven = routing(8, 2, **options), []
        for _ in range(4):
            topics = torch.randn(4, 1, 8)  # what a sequence prefers
            scores = torch.randn(4, 512, 8) + topics
            _, indices = net.choose(scores.flatten(0, 1), None, 512)
            of_each = torch.nn.functional.one_hot(indices, 8).sum(1).view(4, 512, 8).sum(1)
            uneven.append((of_each.max(1).values / 128 - 1).mean())
            net.step()
        loads.append(sum(uneven[1:]) / 3)
    assert loads[1] < loads[0] / 2.5


def test_a_token_does_not_see_later_ones_of_its_sequence():
    net = router("sequences")
    net.balance.bias.copy_(torch.randn(E))
    x = torch.randn(2, 300, H)
    other = torch.cat([x[:, :200], torch.randn(2, 100, H)], 1)
    other[1] = x[1]
    one, two = net(x)[2].view(2, 300, K), net(other)[2].view(2, 300, K)
    assert torch.equal(one[0, :200], two[0, :200])
    assert torch.equal(one[1], two[1])
    assert not torch.equal(one[0, 200:], two[0, 200:])
    alone = router("sequences")
    alone.load_state_dict(net.state_dict())
    assert torch.equal(alone(x[:1])[2].view(300, K), one[0])
    usual = router()
    usual.load_state_dict(net.state_dict())
    assert torch.equal(usual(x)[2].view(2, 300, K)[:, :64], one[:, :64])  # 16·8/2
    assert not torch.equal(usual(x)[2].view(2, 300, K), one)
    for mode in (net.eval(), usual.eval()):
        assert torch.equal(mode(x)[2], usual(x)[2])

"""Balance by quantiles at the limits: experts without tokens, outliers, ties, loading."""

import copy

import pytest
import torch

from kofn import nn
from kofn.maps.balance import Groups, bias_of_share, even_places, required_bias
from kofn.nn.routing.histogram import places_of_share, without_outliers
from kofn.nn.routing.quantile import QuantileBias, observed
from kofn.nn.routing.sequences import biases_of_sequences
from test_nn_router import E, H, K, T, own_seed
from test_nn_router_quantile import WAYS, every_way, router, routing, skewed, sums_of, violation

__all__ = ["own_seed"]  # a fixture

LEAST = torch.finfo(torch.float32).min


def stepped(net, scores, steps):
    """The violations of steps with scores() each."""
    found = []
    for _ in range(steps):
        each = scores()
        net.choose(each, None, len(each))
        found.append(violation(net))
        net.step()
    return found


@pytest.mark.parametrize("score", [-1e4, -1e30, 1e30, LEAST, -torch.inf])
@pytest.mark.parametrize("bins", [None, 1000])
def test_a_few_scores_of_any_size_leave_the_load_even(score, bins):
    net = routing(8, 2, bins=bins)

    def scores():
        found = skewed(1024, 8)
        found[:10, 3] = score
        return found

    assert max(stepped(net, scores, 6)[1:]) < 0.35
    assert net.balance().abs().max() < 2


def test_half_of_the_experts_may_be_far_below():
    net = routing(16, 2, bins=1000)
    far = torch.zeros(2048, 16).scatter(1, torch.rand(2048, 16).argsort(1)[:, :8], -1e4)
    assert max(stepped(net, lambda: skewed(2048, 16) + far, 8)[2:]) < 0.35


@pytest.mark.parametrize("experts", [2, 3, 4, 5, 7, 8, 64])
def test_usual_numbers_are_no_outliers(experts):
    scores = torch.randn(4096, experts) * torch.linspace(0.1, 5, experts)
    required = required_bias(scores, scores, 1)
    assert torch.equal(without_outliers(required, torch.zeros(experts)), required)


def test_an_outlier_is_limited_by_its_own_token():
    scores, bias = torch.randn(6, 8), torch.randn(8)
    scores[0, 2], scores[1, 5], scores[2, 0] = -1e9, 1e9, -torch.inf
    required = required_bias(scores, scores + bias, 2)
    found = without_outliers(required, bias)
    other = torch.ones(6, 8, dtype=torch.bool)
    other[0, 2] = other[1, 5] = False
    assert torch.equal(found[other], required[other])
    assert 50 < found[0, 2] < 1000
    assert -1000 < found[1, 5] < -50
    for i in range(6):
        assert torch.equal(without_outliers(required[i : i + 1], bias), found[i : i + 1])


def test_histograms_with_outliers_add_up():
    scores = skewed(600, 8)
    scores[::50, 3], scores[7::90, 0], scores[100:, 6] = -1e30, 1e5, -torch.inf
    whole, net = routing(8, 2, bins=300), routing(8, 2, bins=300)
    whole.balance.observe(scores)
    for part in (scores[300:], scores[:7], scores[7:300]):
        net.balance.observe(part)
    wanted = sums_of(whole)
    assert all(torch.equal(each, wanted[name]) for name, each in sums_of(net).items())
    assert net.balance.infinite.tolist()[1] == [0, 0, 0, 0, 0, 0, 500, 0]


@every_way
@pytest.mark.parametrize("ema", [0.0, 0.5])
def test_the_bias_of_an_expert_that_no_token_may_use_stays_as_it_is(way, ema):
    net = routing(8, 2, **WAYS[way], ema=ema)
    net.balance.bias.copy_(torch.tensor([0, 0, 0, 0.125, -0.125, 0, 0, 0]))

    def scores():
        found = skewed(1024, 8)
        found[:, 3] = -torch.inf
        return found

    found = stepped(net, scores, 12)
    net_steps = net.balance().clone()
    assert net.balance()[3] == 0.125
    if WAYS[way].get("selection") != "budget":
        assert abs(net.balance().mean()) < 1e-6
    assert net.balance().abs().max() < 4
    if way != "groups":  # where its neighbour cannot be used either
        assert max(found[-4:]) < 0.4  # of the other seven: 8/7 of the mean of eight
    stepped(net, scores, 12)
    assert (net.balance() - net_steps).abs().max() < 0.5


@pytest.mark.parametrize("options", [{}, dict(score_function="sigmoid")])
@pytest.mark.parametrize("few", [0.05, 0.12])
def test_an_expert_that_few_tokens_may_use_gets_them_with_bins_as_without(options, few):
    exact, counted = routing(8, 2, **options), routing(8, 2, bins=1000, **options)
    for _ in range(6):
        scores = skewed(2048, 8)
        scores[torch.rand(2048) > few, 3] = -torch.inf
        loads = []
        for net in (exact, counted):
            net.choose(scores)
            loads.append(net.statistics()["load"])
            net.step()
    for load in loads:
        assert abs(load[3] - few / 2) < 0.01
        assert (load[[0, 1, 2, 4, 5, 6, 7]] - (1 - few / 2) / 7).abs().max() < 0.03
    # The greatest number of a batch varies; those of the others are close.
    assert torch.allclose(exact.balance(), counted.balance(), atol=0.05)


def test_even_places():
    usable = torch.tensor([[10.0, 10, 10, 10], [10, 0, 10, 10], [2, 10, 10, 0], [1, 1, 1, 1]])
    forced = torch.zeros(4, 4)
    found = even_places(forced, usable, torch.full((4, 1), 10.0), 1)
    assert torch.equal(found[0], torch.full((4,), 2.5))
    assert torch.allclose(found[1], torch.tensor([10 / 3, 0, 10 / 3, 10 / 3]))
    assert torch.equal(found[2], torch.tensor([2.0, 4, 4, 0]))
    assert torch.equal(found[3], torch.ones(4))
    forced[0, 1], forced[2, 0] = 7, 2
    again = even_places(forced, usable, torch.full((4, 1), 10.0), 1)
    assert torch.equal(again[0], torch.tensor([1.0, 7, 1, 1]))
    assert torch.equal(again[1:], found[1:])
    numpy = even_places(*(each.numpy() for each in (forced, usable, torch.full((4, 1), 10.0))), 1)
    assert torch.equal(torch.from_numpy(numpy), again)


@pytest.mark.parametrize("bins", [None, 1000])
def test_tokens_with_k_allowed_experts_count(bins):
    """They take those, whatever the bias; the others even the load."""
    scores = skewed(1024, 8)
    scores[:300, 2:] = -torch.inf
    net = routing(8, 2, bins=bins)
    for _ in range(12):
        net.choose(scores)
        net.step()
    net.statistics()
    net.choose(scores)
    load = net.statistics()["load"] * 2048
    assert (load[:2] - 300).abs().max() < 30
    assert (load[2:] - 1448 / 6).abs().max() < 25
    only = routing(8, 2, bins=bins)
    only.choose(scores[:300])
    only.step()
    assert not only.balance().any()


def test_required_bias_of_infinite_scores():
    inf = torch.inf
    scores = torch.tensor([[1.0, 2, -inf, -inf], [1, 2, 3, -inf]])
    found = required_bias(scores, scores, 2)
    assert found.tolist() == [[-inf, -inf, inf, inf], [0, -1, -2, inf]]
    bias, tokens = bias_of_share(found, 2, None)
    assert tokens == 2
    assert bias[3].isnan()
    assert bias[:3].tolist() == [0, -1, -2]


@pytest.mark.parametrize("bins", [None, 500])
def test_groups_of_two_with_one_excluded(bins):
    net = routing(8, 2, n_group=4, topk_group=2, bins=bins)
    scores = skewed(512, 8)
    scores[:, 3] = -torch.inf
    net.choose(scores)
    counted = net.balance.tokens if bins is None else net.balance.histogram.sum(1)
    assert counted.tolist() == [512, 512, 0, 0, 512, 512, 512, 512]
    required = required_bias(scores, scores, 2, Groups(4, 2))
    assert (required[:, [2, 3]] == torch.inf).all()
    assert not required.isnan().any()
    alone = required_bias(scores, scores, 2, Groups(4, 3))
    assert not alone.isnan().any()
    scores[:, [0, 5]] = -torch.inf
    assert not required_bias(scores, scores, 2, Groups(4, 2)).isnan().any()


@pytest.mark.parametrize("selection", ["hard", "budget"])
@pytest.mark.parametrize("balance", ["quantile", 0.1])
def test_a_sigmoid_of_nothing_is_not_chosen(selection, balance):
    net = routing(8, 2, selection=selection, score_function="sigmoid", balance=balance)
    if balance == "quantile":
        net.balance.bias[3] = 5
    else:
        net.balance.net_steps[3] = 50
    for score in (-torch.inf, LEAST):
        scores = skewed(64, 8)
        scores[:, 3] = score
        weights, indices = net.choose(scores)
        assert not ((indices == 3) & (weights > 0)).any()
        if selection == "hard":
            assert not (indices == 3).any()


@pytest.mark.parametrize("bins", [None, 1000])
@pytest.mark.parametrize("score", [1.5, 0.0, -3.7])
def test_a_budget_of_equal_scores_keeps_its_experts(bins, score):
    net = routing(8, 2, selection="budget", bins=bins)
    for _ in range(3):
        weights, _ = net.choose(torch.full((512, 8), score))
        net.step()
        assert net.balance().any()
    assert (weights > 0).all()
    scores = skewed(512, 8)
    scores[:, 5] = scores[:, 5].clamp(max=0.5)  # many ties at the top, where the level lies
    other = routing(8, 2, selection="budget", bins=bins)
    for _ in range(3):
        other.statistics()
        other.choose(scores)
        other.step()
    assert other.statistics()["load"][5] > 0.06


def test_a_step_to_levels_of_zero_is_a_step():
    net = routing(4, 2, selection="budget")
    scores = torch.tensor([[-1.0], [0.0], [1.0], [2.0]]).expand(4, 4).clone()
    scores[:2] = -torch.arange(2)[:, None] - 1.0
    net.choose(torch.tensor([[2.0], [1.0], [0.0], [-1.0]]).expand(4, 4))
    net.step()
    assert net.balance().any()
    assert net.balance().abs().max() < 1e-30
    weights, _ = net.choose(torch.full((3, 4), -1.0))
    assert not weights.any()


@every_way
def test_what_was_observed_before_a_load_is_not_used_after_it(way):
    net, source = router(way), router(way)
    source.balance.bias.copy_(torch.linspace(-1, 1, E))
    net(torch.randn(T, H))
    net.load_state_dict(source.state_dict())
    net.step()
    assert torch.equal(net.balance(), source.balance())


def test_a_sequence_has_a_bias_from_enough_tokens_without_padding_on():
    scores, mask = torch.randn(1024, 8), torch.ones(1024, dtype=torch.bool)
    mask[:60] = False
    found = biases_of_sequences(scores, torch.zeros(8), 2, 1024, mask)
    assert not found[mask][:64].any()  # 16·8/2 = 64 tokens are needed
    assert found[mask][64:].any(-1).all()
    usual = biases_of_sequences(scores, torch.zeros(8), 2, 1024, torch.ones_like(mask))
    assert usual[64:].any(-1).all()
    assert not usual[:64].any()


@pytest.mark.parametrize("where", ["left", "right", "between"])
def test_padding_of_a_sequence_changes_nothing(where):
    scores, length = torch.randn(200, 8), 300
    mask = torch.ones(length, dtype=torch.bool)
    mask[{"left": range(100), "right": range(200, 300), "between": range(0, 200, 2)}[where]] = False
    padded = torch.full((length, 8), torch.nan)
    padded[mask] = scores
    found = biases_of_sequences(padded, torch.zeros(8), 2, length, mask)
    alone = torch.ones(200, dtype=torch.bool)
    assert torch.equal(found[mask], biases_of_sequences(scores, torch.zeros(8), 2, 200, alone))


@pytest.mark.parametrize("bins", [None, 100])
def test_biases_that_float32_cannot_hold_are_not_taken(bins):
    net = routing(8, 2, bins=bins)
    net.choose(skewed(64, 8).double() * 1e60)
    net.step()
    assert not net.balance().any()
    net.choose(skewed(64, 8))
    net.step()
    assert net.balance().any()
    assert net.balance().isfinite().all()


@pytest.mark.parametrize("balance", ["quantile", 0.1])
@pytest.mark.parametrize("old", ["quantile", 0.1])
@pytest.mark.parametrize("bins", [None, 30])
def test_a_router_without_memory_gets_that_of_what_it_loads(balance, old, bins):
    if (balance, old) == (0.1, "quantile"):
        return
    source = nn.TopKRouter(H, E, K, balance=old)
    source(torch.randn(T, H)), source.step()
    bins = bins if balance == "quantile" else None
    net = nn.TopKRouter(H, E, K, balance=balance, bins=bins, device="meta")
    assert net(torch.randn(T, H, device="meta"))[1].shape == (T, K)
    net.load_state_dict(source.state_dict(), assign=True)
    net.step()
    if balance == old:
        assert torch.equal(net.balance(), source.balance())
    assert net.statistics()["assignments"] == 0
    net(torch.randn(T, H)), net.step()
    assert net.balance().any()
    assert net.statistics()["assignments"] == T * K


def test_a_bias_in_bfloat16_that_is_assigned_becomes_float32():
    net, state = router(), {name: each.bfloat16() for name, each in router().state_dict().items()}
    net.load_state_dict(state, assign=True)
    assert net.weight.dtype == torch.bfloat16
    assert net.balance().dtype == torch.float32
    net(torch.randn(T, H, dtype=torch.bfloat16)), net.step()
    assert net.balance().dtype == torch.float32


def test_without_counts_places_are_unknown():
    empty = torch.zeros(3, 5, dtype=torch.int64)
    assert places_of_share(empty, 1).isnan().all()
    infinite = torch.tensor([[4, 0, 0], [0, 4, 0]])
    counts = torch.zeros(3, 5, dtype=torch.int64)
    counts[2, 1] = 4
    found = places_of_share(counts, 1, infinite)
    assert found[:2].isnan().all()
    assert 1 <= found[2] <= 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(balance=-1.0), "balance must be None, 'quantile' or a finite number > 0; got -1"),
        (dict(balance=[1]), r"balance must be None, 'quantile' or a finite number > 0; got \[1"),
        (dict(ema=torch.tensor([0.1, 0.2])), "ema is for balance='quantile'; got tensor"),
        (dict(bins=torch.tensor([1, 2])), "bins is for balance='quantile'; got tensor"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        nn.TopKRouter(H, E, K, **arguments)


def test_a_correction_bias_of_a_model_in_bfloat16_is_float32():
    """As in the routers of transformers; those are tested where it is there."""
    pytest.importorskip("transformers")
    from kofn.integrations.transformers.routers.patched import CorrectionBias, PatchedRouter

    net = PatchedRouter.__new__(PatchedRouter)
    torch.nn.Module.__init__(net)
    net.num_experts, net.top_k = E, K
    net.weight = torch.nn.Parameter(torch.randn(E, H))
    net.register_buffer("e_score_correction_bias", torch.randn(E))
    net.routing = routing(E, K, score_function="sigmoid")
    net.routing.balance = CorrectionBias(net, K, None, 0.0)
    whole, before = torch.nn.Sequential(net), net.e_score_correction_bias.clone()
    whole.bfloat16()
    assert net.weight.dtype == torch.bfloat16
    assert torch.equal(net.routing.balance(), before)
    assert copy.deepcopy(net).routing.balance().dtype == torch.float32


TOKENS = {
    "usual": lambda x: x,
    "tied": torch.round,
    "zeros": lambda x: torch.where(x > 0, 0.0, -0.0),
    "alike": torch.ones_like,
    "large": lambda x: x * 1e30,
    "infinite": lambda x: x.masked_fill(x > 2, torch.inf),
    "excluded": lambda x: x.masked_fill(x < -1, LEAST),
    "without": lambda x: x.masked_fill(x < -1, -torch.inf),
    "unknown": lambda x: x.masked_fill(x < -1, torch.nan),
    "too large": lambda x: (x * 2e38).clamp(-3e38, 3e38),
}
FINITE = "usual", "tied", "zeros", "alike", "large"


@pytest.mark.parametrize("bins", [None, 3, 300])
@pytest.mark.parametrize("kind", TOKENS)
def test_compiled_code_observes_tokens_bit_by_bit(kind, bins):
    """What is not finite it leaves alone, and then it changes nothing."""
    done = set()
    few = (1, 4, 2), (3, 2, 1), (40, 8, 7), (256, 6, 2), (100, 37, 5)
    for tokens, experts, k in (*few, (1030, 64, 8), (2048, 16, 1)):
        one, other = QuantileBias(experts, k, bins), QuantileBias(experts, k, bins)
        for step in range(4):
            scores = TOKENS[kind](torch.randn(tokens, experts))
            compared = scores.masked_fill(scores <= LEAST / 2, -torch.inf)
            before = [getattr(one, name).clone() for name in one.SUMS]
            done.add(at_once := observed(one, scores, None, None))
            if not at_once:
                assert all(map(torch.equal, before, sums_of_balance(one)))
                one.observe(compared)
            other.observe(compared)
            for ours, theirs in zip(sums_of_balance(one), sums_of_balance(other), strict=True):
                assert ours.numpy().tobytes() == theirs.numpy().tobytes()
            if step % 2:  # a second call of a step has a grid, which its range may widen
                one.move(one.load()), other.move(other.load())
                assert torch.equal(one.bias, other.bias)
    assert done == {True} if kind in FINITE else False in done


def sums_of_balance(balance):
    return [getattr(balance, name) for name in balance.SUMS]


@pytest.mark.parametrize("experts", [4, 8, 64])
def test_compiled_code_leaves_tokens_with_outliers_alone(experts):
    one, other = QuantileBias(experts, 2, 300), QuantileBias(experts, 2, 300)
    scores = torch.randn(100, experts)
    assert observed(one, scores, None, None)
    other.observe(scores)
    scores[99, 1] = -1e9
    assert not observed(one, scores, None, None)
    assert all(map(torch.equal, sums_of_balance(one), sums_of_balance(other)))

"""Balance by quantiles: worked examples of other libraries, and histograms that add up."""

import copy
import math

import pytest
import torch

from kofn.maps.balance import bias_of_share, required_bias
from kofn.nn.routing.histogram import Grid, counts_in_range, places_of_share, range_of
from kofn.nn.routing.quantile import QuantileBias
from test_nn_router import own_seed
from test_nn_router_quantile import WAYS, routing, skewed, sums_of

__all__ = ["own_seed"]  # a fixture


def occupied(histogram):
    """{bin: count} of each expert."""
    return [{int(i): int(row[i]) for i in row.nonzero()} for row in histogram]


def test_torchtitan_solves_a_histogram():
    net = routing(4, 1, score_function="sigmoid", bins=10)
    for expert, pair in enumerate(((2, 3), (4, 5), (6, 7), (8, 9))):
        net.balance.histogram[expert, pair[0]] = 2
        net.balance.histogram[expert, pair[1]] = 6
    net.step()
    assert torch.allclose(net.balance(), torch.tensor([-0.6, -0.2, 0.2, 0.6]))
    assert not net.balance.histogram.any()


def test_torchtitan_counts_what_the_cutoff_requires():
    net = routing(4, 2, score_function="sigmoid", bins=20)
    net.balance.bias.copy_(torch.tensor([0.0, 0.2, -0.1, 0.1]))
    logits = torch.tensor([[2.0, 1, 0, -1], [-0.5, 0.5, 1.5, 2.5]])
    weights, indices = net.choose(logits)
    assert indices.tolist() == [[1, 0], [3, 1]]
    wanted = torch.tensor([[0.453551, 0.546449], [0.597531, 0.402469]])
    assert torch.allclose(weights, wanted, atol=1e-6)
    assert [sorted(each) for each in occupied(net.balance.histogram)] == [
        [5, 12],
        [6, 10],
        [8],
        [7, 10],
    ]
    assert net.balance.histogram[2, 8] == 2


def test_torchtitan_counts_each_token_once_per_expert_and_nothing_in_eval():
    net = routing(4, 1, score_function="sigmoid", bins=20)
    scores = torch.tensor([[0.9, 0.7, 0.2, 0.1], [0.8, 0.6, 0.4, 0.3], [0.7, 0.5, 0.4, 0.2]])
    scores = torch.tensor(scores.tolist(), dtype=torch.float64).round(decimals=1)
    net.balance.observe(
        scores
    )  # some lie on the edge of a bin, and float64 has the others on its side
    assert net.balance.histogram.sum(1).tolist() == [3] * 4
    assert occupied(net.balance.histogram) == [
        {7: 2, 8: 1},
        {10: 3},
        {11: 2, 15: 1},
        {13: 2, 16: 1},
    ]
    before = net.balance.histogram.clone()
    net.eval().choose(scores.logit())
    assert torch.equal(net.balance.histogram, before)


def test_megatron_solves_a_histogram():
    balance = QuantileBias(2, 1, bins=4, unit=True)
    balance.histogram.copy_(torch.tensor([[0, 2, 2, 0], [2, 2, 0, 0]]))
    balance.move(balance.load())
    assert balance().tolist() == [0.25, -0.25]


def test_megatron_pools_micro_batches():
    def solved(histogram):
        places = places_of_share(histogram, 1) * (10 - 0) / 10
        return places - places.mean()

    one, other = torch.zeros(2, 2, 10, dtype=torch.int64)
    one[0, 0], one[0, 9], one[1, 0], other[0, 9], other[1, 0] = 3, 1, 4, 4, 4
    close = dict(atol=1e-4, rtol=0)
    pooled = torch.tensor([4.35, -4.35]).double()
    first, second = torch.tensor([[0.0833, -0.0833], [4.5, -4.5]]).double()
    assert torch.allclose(solved(one + other), pooled, **close)
    assert torch.allclose(solved(one), first, **close)
    assert torch.allclose(solved(other), second, **close)
    assert torch.allclose(
        (solved(one) + solved(other)) / 2, torch.tensor([2.2917, -2.2917]).double(), **close
    )


def test_megatron_counts_in_given_bounds():
    scores = torch.tensor([[-1.0, 0.5, 1.5], [2.0, -0.5, 0.25]]).sigmoid()
    required = required_bias(scores, scores + torch.tensor([-0.2, 0.1, 0.0]), 1)
    ends = torch.tensor(-1.0), torch.tensor(1.0)
    once = counts_in_range(required, torch.ones(2, dtype=torch.int64), *ends, 8)
    assert occupied(once) == [{2: 1, 5: 1}, {4: 2}, {3: 1, 4: 1}]
    twice = counts_in_range(required.repeat(2, 1), torch.ones(4, dtype=torch.int64), *ends, 8)
    assert torch.equal(twice, 2 * once)


@pytest.mark.parametrize(("m", "n", "k"), [(64, 8, 2), (40, 8, 1), (12, 4, 1)])
def test_megatron_takes_an_order_statistic(m, n, k):
    torch.manual_seed(123)
    scores = torch.randn(m, n)
    cutoff = scores.sort(-1, descending=True).values[:, k, None]
    wanted = (scores - cutoff).sort(0, descending=True).values[m * k // n]
    found, tokens = bias_of_share(required_bias(scores, scores, k), k, None)
    assert torch.equal(-found, wanted)
    assert tokens == m


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_megatron_averages_micro_batches_and_steps(ema):
    """Its beta is −bias: ema·beta + (1 − ema)·mean, then less its mean."""
    net = routing(4, 1, ema=ema)
    old = torch.randn(4)
    net.balance.bias.copy_(-old)
    betas, batches = [], torch.randn(2, 12, 4)
    for scores in batches:
        net.choose(scores)
        shifted = scores - old
        cutoff = shifted.sort(-1, descending=True).values[:, 1, None]
        betas.append((scores - cutoff).sort(0, descending=True).values[3])
    kept = copy.deepcopy(net).eval()
    kept.choose(batches[0])
    assert all(
        torch.equal(kept_, mine)
        for kept_, mine in zip(sums_of(kept).values(), sums_of(net).values(), strict=True)
    )
    net.step()
    wanted = ema * old + (1 - ema) * (betas[0] + betas[1]) / 2
    assert torch.allclose(net.balance(), -(wanted - wanted.mean()), atol=1e-6)
    assert abs(net.balance().mean()) < 1e-7
    assert not net.balance.mean.any()
    assert not net.balance.tokens.any()


def test_paddle_evens_loads_and_sums_halves():
    torch.manual_seed(0)
    scores = 0.1 + 0.8 * torch.rand(128, 8)
    net, mean = routing(8, 2, score_function="sigmoid", bins=200), 128 * 2 / 8
    for _ in range(5):
        net.choose(scores.logit())
        net.step()
    net.statistics()
    net.choose(scores.logit())
    load = net.statistics()["load"] * 256
    assert (load - mean).abs().max() <= 0.3 * mean + 1
    small = 0.1 + 0.8 * torch.rand(64, 8)
    net = routing(8, 2, score_function="sigmoid", bins=100)
    spread = []
    for _ in range(2):
        net.choose(small.logit())
        spread.append((net.statistics()["load"] * 128).std())
        net.step()
    assert spread[1] <= spread[0] + 0.5


@pytest.mark.parametrize("way", ["bins", "bins of sigmoids", "bins of a budget"])
def test_histograms_of_parts_add_up_to_that_of_the_whole(way):
    """Bit for bit, in any order, with parts whose range is much smaller, and an empty one."""
    scores = skewed(600, 8) * torch.logspace(-4, 1, 600)[:, None]
    parts = [scores[:7], scores[7:300], scores[:0], scores[300:]]
    whole = routing(8, 2, **WAYS[way])
    whole.balance.observe(scores)
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)):
        net = routing(8, 2, **WAYS[way])
        for i in order:
            net.balance.observe(parts[i])
        assert torch.equal(net.balance.histogram, whole.balance.histogram)
        assert net.balance.histogram.sum(1).tolist() == [600] * 8
        twin = copy.deepcopy(whole)
        net.step(), twin.step()
        assert torch.equal(net.balance(), twin.balance())


@pytest.mark.parametrize("bins", [2, 3, 7, 1000])
def test_a_grid_covers_its_range_with_the_narrowest_bins(bins):
    for ends in ((0.0, 1.0), (-1e-30, 1e-30), (5.0, 5.0), (0.0, 0.0), (-3e38, 3e38), (0.1, 7e4),
                 (1e6, 1e6 + 0.5), (-1e-40, 1e-40)):  # fmt: skip
        least, greatest = torch.tensor(ends, dtype=torch.float32).double()
        grid = Grid(torch.stack([-least, greatest]), bins)
        assert math.log2(grid.width) == grid.exponent
        at = [math.floor(end / grid.width) - grid.first for end in (least, greatest)]
        assert 0 == at[0] <= at[1] < bins
        half = grid.width / 2
        narrower = math.floor(greatest / half) - math.floor(least / half) < bins
        size = max(abs(least), abs(greatest))
        assert not narrower or half <= size * 2.0**-24 or size == 0
        assert grid.values(torch.tensor(0.0)) <= least


def test_bins_tell_as_much_as_the_exact_quantile():
    exact, counted = routing(16, 2), routing(16, 2, bins=1000)
    for _ in range(5):
        scores = skewed(2048, 16)
        for net in (exact, counted):
            net.choose(scores)
            net.step()
    assert torch.allclose(exact.balance(), counted.balance(), atol=2e-2)


def test_without_values_there_is_no_range():
    found = range_of(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    assert found.tolist() == [-math.inf] * 2

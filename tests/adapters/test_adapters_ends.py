"""Searches by messages end, and the number of messages has a bound."""

import numpy as np
import pytest
import torch

from kofn.adapters.shards import choice
from kofn.adapters.shards import knapsack_choice as shard_knapsack_choice
from kofn.arrays.keys import keys_of
from kofn.rows.shards import keys as search


class OneRank:
    """The messages of rows of which this process has all of each, counted."""

    def __init__(self):
        self.messages = 0

    def sum(self, message):
        self.messages += 1
        return message


def keys_at_all_distances(rng, dtype):
    """Scores over all of their type, next to one another, and equal ones."""
    info = np.finfo(dtype)
    exponents = rng.uniform(np.log2(info.smallest_subnormal), info.maxexp - 1, (8, 30))
    far = rng.choice([-1.0, 1.0], (8, 30)) * 2.0**exponents
    near = 1 + rng.integers(-3, 4, (8, 30)) * info.eps
    ends = np.where(rng.random((8, 30)) < 0.5, info.min, info.max)
    return torch.from_numpy(np.concatenate([far, near, ends]).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_messages_of_a_choice_in_several_processes_have_a_bound(monkeypatch, rng, dtype):
    keys = keys_of(keys_at_all_distances(rng, dtype))
    assert search.most_rounds(keys) == (11 if dtype == np.float32 else 22)
    for k in (1, 7, 29):
        ranks = OneRank()
        chosen = torch.full(keys.shape[:1], k)
        keyed = choice._Keyed(keys, chosen, keys.amin(-1).long(), keys.amax(-1).long() + 1)
        cut = choice._searched(keyed, ranks)
        assert ranks.messages <= search.most_rounds(keys)
        least = torch.where(keys >= cut[:, None], keys, torch.iinfo(keys.dtype).max).amin(-1)
        assert (least == keys.sort(-1, descending=True).values[:, k - 1]).all()
    monkeypatch.setattr(choice, "most_rounds", lambda _: 2)
    ranks = OneRank()
    cut = choice._searched(keyed, ranks)
    assert ranks.messages == 2
    assert ((keys >= cut[:, None]).sum(-1) >= 29).all()


def test_the_messages_of_a_choice_with_costs_have_a_bound(monkeypatch, rng):
    keys = keys_of(keys_at_all_distances(rng, np.float64))
    price = torch.from_numpy(rng.integers(1, 9, keys.shape).astype(float))
    purse = price.sum(-1) * 0.4
    keyed = shard_knapsack_choice._Keyed(keys, price, purse)
    start = search.Cut(keys.amin(-1), keys.amax(-1) + 1, torch.zeros_like(purse))
    ranks, every = OneRank(), torch.ones_like(purse, dtype=torch.bool)
    cut = shard_knapsack_choice._searched(keyed, start, every, ranks)
    assert ranks.messages <= search.most_rounds(keys)
    spent = torch.where(keys >= cut.high[:, None], price, 0.0).sum(-1)
    more = torch.where(keys >= cut.low[:, None], price, 0.0).sum(-1)
    assert ((spent <= purse) & (purse < more) & (cut.counts == spent)).all()
    assert (cut.high - cut.low == 1).all()
    monkeypatch.setattr(shard_knapsack_choice, "most_rounds", lambda _: 2)
    ranks = OneRank()
    cut = shard_knapsack_choice._searched(keyed, start, every, ranks)
    assert ranks.messages == 2
    assert (torch.where(keys >= cut.high[:, None], price, 0.0).sum(-1) <= purse).all()

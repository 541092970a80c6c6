"""Distributions of logits however far apart, shifted or nearly tied, against 70 digits."""

import jax
import numpy as np
import pytest
import torch

from kofn import KSubset, PlackettLuce
from oracles.far import far_rows, numbers, order_of, set_of, subsets_of

EACH = pytest.mark.parametrize("dtype", ["float32", "float64"])
COUNT = [18, pytest.param(300, marks=pytest.mark.full)]
ROUNDING = 40  # of the dtype's, relative to 1 + |answer|


def meets(got, wanted, dtype):
    got = np.asarray(got.detach() if isinstance(got, torch.Tensor) else got, float)
    wanted = np.asarray(wanted, float)
    return np.all(
        np.abs(got - wanted) <= ROUNDING * np.finfo(dtype).eps * (1 + np.abs(wanted))
    ), f"{got} for {wanted}"


def slope(answer, leaf):
    return torch.autograd.grad(answer.sum(), leaf, retain_graph=True)[0]


@EACH
@pytest.mark.parametrize("count", COUNT)
def test_subsets_of_far_logits(dtype, count):
    for i, y in enumerate(far_rows(count, dtype)):
        k = 1 + i % len(y)
        exact, other = subsets_of(y, k), subsets_of(y[::-1], k)
        leaf = torch.tensor(y, requires_grad=True)
        for choice in (KSubset(y, k), KSubset(leaf, k)):
            subsets = exact.subsets if choice.logits is y else torch.tensor(exact.subsets)
            mirrored = KSubset(y[::-1] if choice.logits is y else leaf.detach().flip(0), k)
            kl, kl_slope = exact.divergence(other)
            for answer, wanted in (
                (choice.log_prob(subsets), numbers(exact.log_prob)),
                (choice.log_partition(), float(exact.log_partition)),
                (choice.marginals(), numbers(exact.marginals)),
                (choice.entropy(), float(exact.entropy)),
                (choice.kl(mirrored), kl),
            ):
                good, said = meets(answer, wanted, dtype)
                assert good, (y, k, said)
        for answer, wanted in (
            (choice.log_partition(), numbers(exact.marginals)),
            (choice.log_prob(subsets[-1]), exact.subsets[-1] - numbers(exact.marginals)),
            (choice.log_prob(subsets[0]), exact.subsets[0] - numbers(exact.marginals)),
            (choice.kl(mirrored), kl_slope),
        ):
            good, said = meets(slope(answer, leaf), wanted, dtype)
            assert good, (y, k, said)


@EACH
@pytest.mark.parametrize("count", COUNT)
@pytest.mark.parametrize("ordered", [True, False])
def test_draws_among_far_logits(dtype, count, ordered):
    rng = np.random.default_rng(0)
    for i, y in enumerate(far_rows(count, dtype, seed=1)):
        drawn = rng.permutation(len(y)) if i % 3 else np.argsort(-y, kind="stable")
        drawn = drawn[: rng.integers(1, min(len(y), 4) + 1)]
        wanted, wanted_slope = (order_of if ordered else set_of)(y, drawn)
        leaf = torch.tensor(y, requires_grad=True)
        answer = PlackettLuce(leaf).log_prob(torch.tensor(drawn), ordered=ordered)
        plain = PlackettLuce(y).log_prob(drawn, ordered=ordered)
        for got, right in (
            (answer, wanted),
            (plain, wanted),
            (slope(answer, leaf), numbers(wanted_slope)),
        ):
            good, said = meets(got, np.array(right, float), dtype)
            assert good, (y, drawn, said)


def test_far_logits_on_jax():
    y = np.array([2.0, 0.5, -1e30, 0.1], np.float32)
    subset, order = np.array([True, False, True, False]), np.array([1, 2])
    exact = subsets_of(y, 2)

    def both(y):
        return KSubset(y, 2).log_prob(subset), PlackettLuce(y).log_prob(order)

    answers = jax.jit(both)(y)
    slopes = jax.jit(jax.jacrev(both))(y)
    log_p, race = order_of(y, order)
    at = exact.subsets.tolist().index(subset.tolist())
    for got, wanted in (
        (answers, (exact.log_prob[at], log_p)),
        (slopes, (subset - numbers(exact.marginals), numbers(race))),
    ):
        for a, b in zip(got, wanted, strict=True):
            good, said = meets(a, np.array(b, float), "float32")
            assert good, said

"""What a type checker knows of kofn: tests/package/test_package_types.py has mypy check it.

A comment `# wrong` marks a line that must be refused.
"""

from typing import assert_type

import jax
import numpy as np
import torch

import kofn
from kofn import estimators, links, losses, metrics


def the_kind_of_the_scores_comes_back(
    tensor: torch.Tensor, jaxed: jax.Array, array: np.ndarray
) -> None:
    assert_type(kofn.soft_topk(tensor, 2), torch.Tensor)
    assert_type(kofn.soft_topk(jaxed, 2), jax.Array)
    assert_type(kofn.soft_topk(array, 2), np.ndarray)
    assert_type(kofn.softmax(tensor), torch.Tensor)
    assert_type(kofn.sparsemax(jaxed), jax.Array)
    assert_type(kofn.entmax(array), np.ndarray)
    assert_type(kofn.soft_topk_threshold(tensor, 2), torch.Tensor)
    assert_type(kofn.soft_topk_sum(tensor, 2), torch.Tensor)
    assert_type(kofn.soft_knapsack(tensor, tensor, 2.0), torch.Tensor)
    assert_type(kofn.soft_knapsack_threshold(jaxed, 1, jaxed), jax.Array)
    assert_type(kofn.soft_knapsack_value(array, array, 2), np.ndarray)
    assert_type(kofn.topk_gates(tensor, 2), tuple[torch.Tensor, torch.Tensor])
    assert_type(kofn.log_soft_topk(tensor, 2), torch.Tensor)
    assert_type(kofn.perturbed_argmax(tensor, noise="gumbel"), torch.Tensor)
    assert_type(kofn.temperature_for(tensor, 2, gap=0.1), torch.Tensor)
    assert_type(kofn.fenchel_young_loss(tensor, tensor), torch.Tensor)
    assert_type(losses.softmax_loss(tensor, tensor, reduction="none"), torch.Tensor)
    assert_type(metrics.entropy(tensor), torch.Tensor)
    assert_type(kofn.gumbel_softmax(tensor, 0.5), torch.Tensor)


def a_distribution_answers_in_the_kind_of_its_arrays(
    tensor: torch.Tensor, jaxed: jax.Array, array: np.ndarray
) -> None:
    assert_type(kofn.KSubset(tensor, 2).marginals(), torch.Tensor)
    assert_type(kofn.KSubset(jaxed, 2).log_prob(jaxed), jax.Array)
    assert_type(kofn.KSubset(array, 2).expand((3, 4)).variance, np.ndarray)
    assert_type(kofn.KSubset.from_marginals(tensor).sample(), torch.Tensor)
    assert_type(kofn.Categorical(probs=array).mean, np.ndarray)
    assert_type(kofn.Bernoulli(tensor).kl(kofn.Bernoulli(tensor)), torch.Tensor)
    assert_type(kofn.Normal(array, array).rsample(), np.ndarray)
    assert_type(kofn.PlackettLuce(jaxed).sample(2), jax.Array)
    assert_type(kofn.RelaxedOneHot(tensor, 0.5).rsample((3,)), torch.Tensor)
    kofn.KSubset([1.0, 2.0], 1)  # wrong
    kofn.Bernoulli(tensor).kl(kofn.Bernoulli(array))  # wrong


def estimators_answer_in_the_kind_of_their_samples(
    tensor: torch.Tensor, jaxed: jax.Array, array: np.ndarray
) -> None:
    subsets, coins = kofn.KSubset(tensor, 2), torch.distributions.Bernoulli(logits=tensor)
    assert_type(estimators.surrogate(tensor, tensor), torch.Tensor)
    assert_type(estimators.score_function(subsets, lambda s: s @ tensor), torch.Tensor)
    estimators.leave_one_out(coins, lambda s: s @ tensor, samples=4)
    assert_type(estimators.exact(kofn.Categorical(jaxed), lambda s: s @ jaxed), jax.Array)
    assert_type(estimators.rebar(kofn.Bernoulli(tensor), lambda s: s @ tensor), torch.Tensor)
    assert_type(estimators.gumbel_rao(kofn.Categorical(jaxed), lambda s: s @ jaxed), jax.Array)
    assert_type(estimators.marginals_through(subsets), torch.Tensor)
    assert_type(estimators.relaxed_through(kofn.Categorical(tensor)), torch.Tensor)
    estimators.score_function(subsets, lambda s: array)  # wrong
    estimators.exact(tensor, lambda s: s)  # wrong


def names_are_checked(tensor: torch.Tensor, learned: torch.Tensor) -> None:
    kofn.soft_topk(tensor, learned, link="entmax", temperature=learned)
    kofn.soft_topk(tensor, 2, link=links.entmax(learned))
    kofn.soft_topk(tensor, 2, link="foo")  # wrong
    kofn.soft_topk([1.0, 2.0], 2)  # wrong
    kofn.perturbed_argmax(tensor, noise="linear")  # wrong
    losses.softmax_loss(tensor, tensor, reduction="average")  # wrong
    metrics.hard_gap(tensor, 2, norm="l2")  # wrong
    kofn.soft_topk(tensor, 2, tau=0.5)  # wrong

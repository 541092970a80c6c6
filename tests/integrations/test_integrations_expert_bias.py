"""The bias of a router in the state of other libraries, both ways, with their choices."""

import pytest
import torch

from kofn import nn
from kofn.integrations.expert_bias import export_expert_bias, load_expert_bias
from kofn.nn.routing.routing import Routing

E, K = 6, 2
BIAS = torch.tensor([0.3, -0.1, 0.0, -0.4, 0.25, -0.05])


def router(**options):
    return Routing(E, K, **dict(balance="quantile") | options)


def with_bias(**options):
    net = router(**options)
    net.balance.bias.copy_(BIAS)
    return net


SIGMOIDS = dict(score_function="sigmoid")
OF_SIGMOIDS = ("torchtitan", "megatron-histogram", "deepseek")


def fitting(form):
    return SIGMOIDS if form in OF_SIGMOIDS else {}


@pytest.mark.parametrize("form", ["megatron", *OF_SIGMOIDS])
def test_a_state_goes_both_ways(form):
    net = with_bias(**fitting(form))
    state = export_expert_bias(net, form)
    assert all(each.dtype == torch.float32 for each in state.values())
    other = router(**fitting(form))
    load_expert_bias(other, state)
    assert torch.equal(other.balance(), BIAS)
    again = export_expert_bias(other, form)
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)
    state[next(iter(state))].zero_()  # a copy
    assert torch.equal(net.balance(), BIAS)


def test_torchtitan_adds_its_bias_to_sigmoids():
    state = export_expert_bias(with_bias(score_function="sigmoid"), "torchtitan")
    logits = torch.randn(30, E, generator=torch.Generator().manual_seed(0))
    wanted = (logits.sigmoid() + state["expert_bias_E"]).topk(K).indices
    net = router(score_function="sigmoid")
    load_expert_bias(net, state)
    assert torch.equal(net.choose(logits)[1], wanted)
    assert not torch.equal(router(score_function="sigmoid").choose(logits)[1], wanted)


def test_megatron_subtracts_its_beta_from_logits():
    beta = torch.randn(E, generator=torch.Generator().manual_seed(0))
    logits = torch.randn(30, E, generator=torch.Generator().manual_seed(1))
    net = router()
    load_expert_bias(net, {"qb_beta": beta})
    assert torch.equal(net.choose(logits)[1], (logits - beta).topk(K).indices)
    assert torch.equal(export_expert_bias(net, "megatron")["qb_beta"], beta)


def test_megatron_has_the_ends_of_the_bins_in_its_state():
    net = Routing(2, 1, balance="quantile", bins=4, score_function="sigmoid", normalize=False)
    load_expert_bias(net, {"qb_bias": torch.zeros(2), "qb_bin_bounds": torch.tensor([-1.0, 1.0])})
    net.balance.histogram.copy_(torch.tensor([[0, 2, 2, 0], [2, 2, 0, 0]]))
    net.step()
    state = export_expert_bias(net, "megatron-histogram")
    assert state["qb_bias"].tolist() == [0.25, -0.25]
    assert state["qb_bin_bounds"].tolist() == [-1.25, 1.25]


def test_the_sign_rule_is_exported_alone():
    net = nn.TopKRouter(4, E, K, balance=0.5, **SIGMOIDS)
    net.balance.net_steps.copy_(torch.arange(E))
    state = export_expert_bias(net, "torchtitan")
    assert torch.equal(state["expert_bias_E"], 0.5 * (torch.arange(E) - 2.5))
    with pytest.raises(ValueError, match=r"router must have balance='quantile'.*balance=0\.5"):
        load_expert_bias(net, state)
    with pytest.raises(ValueError, match=r"router must have balance='quantile'.*balance=None"):
        load_expert_bias(router(balance=None), state)


@pytest.mark.parametrize("form", ["megatron", *OF_SIGMOIDS])
def test_biases_of_logits_and_of_sigmoids_are_not_exchanged(form):
    fits = fitting(form)
    wanted, other = ("sigmoid", {}) if fits else ("softmax", SIGMOIDS)
    state = export_expert_bias(with_bias(**fits), form)
    message = f"router must have score_function='{wanted}' for {next(iter(state))}.*; got 's"
    net = with_bias(**other)
    with pytest.raises(ValueError, match=message):
        export_expert_bias(net, form)
    with pytest.raises(ValueError, match=message):
        load_expert_bias(net, state)
    levels = with_bias(selection="budget", normalize=False, **fits)
    with pytest.raises(ValueError, match=r"router must choose k experts per token.*got 'budget'"):
        export_expert_bias(levels, form)
    with pytest.raises(ValueError, match=r"router must choose k experts per token.*got 'budget'"):
        load_expert_bias(levels, state)
    assert torch.equal(net.balance(), BIAS)


@pytest.mark.parametrize("bins", [None, 50])
def test_what_was_observed_before_a_state_is_not_used_after_it(bins):
    net = router(bins=bins)
    net.choose(torch.randn(40, E, generator=torch.Generator().manual_seed(0)))
    load_expert_bias(net, {"qb_beta": -BIAS})
    net.step()
    assert torch.equal(net.balance(), BIAS)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "state must have one of expert_bias_E, qb_beta, qb_bias, e_score_corr.*; got"),
        ({"expert_bias_E": BIAS, "qb_beta": BIAS}, "state must have one of"),
        ({"qb_bin_bounds": BIAS[:2]}, "state must have one of"),
        ({"qb_beta": BIAS[:2]}, r"qb_beta must have shape \(6,\); got \(2,\)"),
        ({"qb_beta": BIAS / 0}, r"qb_beta must have finite numbers; got \[inf, -inf, nan"),
        ({"qb_beta": 1e60 * BIAS.double()}, "qb_beta must have finite numbers; got"),
        ({1: 2, "a": 3}, "state must have one of .*; got 'a', 1"),
    ],
)
def test_a_wrong_state_is_named(state, message):
    with pytest.raises(ValueError, match=message):
        load_expert_bias(router(), state)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"format must be one of 'torchtitan', .*; got 'keras'"):
        export_expert_bias(router(), "keras")
    with pytest.raises(ValueError, match="router must have a balance; got one with balance=None"):
        export_expert_bias(router(balance=None), "torchtitan")
    for state, message in (
        ({"qb_beta": None}, "qb_beta must be an array of numbers; got NoneType"),
        ({"qb_beta": BIAS > 0}, "qb_beta must be an array of real numbers; got torch.bool"),
        (BIAS, "state must be a mapping of names to biases; got Tensor"),
        ([1, 2], "state must be a mapping of names to biases; got list"),
    ):
        with pytest.raises(TypeError, match=message):
            load_expert_bias(router(), state)
    with pytest.raises(TypeError, match="router must be a TopKRouter or a patched router; got"):
        load_expert_bias(torch.nn.Linear(2, 2), {"qb_beta": BIAS})

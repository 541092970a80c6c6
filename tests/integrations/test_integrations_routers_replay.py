"""nn.record_routing and nn.replay_routing on models that patch_routers made."""

import pytest
import torch

from kofn import nn
from tiny_models import EXPERTS, GROUPED, MODELS, made, patched, routers, tokens

pytestmark = pytest.mark.extras
OPTIONS = {
    "stock": {},
    "no normalization": dict(normalize=False),
    "topk": dict(gates="topk"),
    "balanced": dict(balance="quantile"),
}


@pytest.fixture(autouse=True)
def own_library():
    pytest.importorskip("transformers")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def gradients(net, loss):
    net.zero_grad()
    loss.backward()
    return [each.weight.grad.clone() for each in routers(net)]


def others(told):
    """Another expert in the first place of every token."""
    free = torch.ones(*told.shape[:2], EXPERTS).scatter(-1, told.long(), 0)
    return torch.cat([free.argmax(-1, keepdim=True).int(), told[..., 1:]], -1)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("model", MODELS)
def test_an_own_choice_is_the_same_replayed(model, options):
    net, x = patched(model, options=OPTIONS[options]), tokens()
    with nn.record_routing(net) as record:
        found = net(x, labels=x)
    assert record.indices.shape == (x.numel(), 2, 2)
    wanted = gradients(net, found.loss)
    with nn.replay_routing(net, record.indices), nn.record_routing(net) as again:
        replayed = net(x, labels=x)
    assert torch.equal(again.indices, record.indices)
    assert torch.allclose(replayed.logits, found.logits, atol=1e-5)
    for one, other in zip(gradients(net, replayed.loss), wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
        assert other.any()
    with nn.replay_routing(net, torch.full_like(record.indices, -1)):
        assert torch.allclose(net(x).logits, found.logits, atol=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_other_experts_have_the_gates_of_the_stock_router(model):
    net, x = patched(model), torch.randn(20, 16)
    router = routers(net)[0]
    logits, _, chosen = router(x)
    told = others(chosen[:, None])
    with nn.replay_routing(router, told):
        _, gates, indices = router(x)
    assert torch.equal(indices, told[:, 0].long())
    if model in GROUPED:  # a bias has the stock router choose an expert, group by group
        stock = type(routers(made(model))[0])(net.config)
        stock.load_state_dict(router.state_dict())
        for token in range(20):
            stock.e_score_correction_bias.fill_(0)[told[token, 0].long()] = 100.0
            _, wanted, experts = stock(x)
            order = experts[token].argsort()
            own = indices[token].argsort()
            assert torch.equal(experts[token][order], indices[token][own])
            assert torch.allclose(wanted[token][order], gates[token][own], rtol=1e-5)
    else:
        wanted = logits.float().softmax(-1).gather(-1, indices)
        if router.routing.normalize:
            wanted = wanted / wanted.sum(-1, keepdim=True)
        assert torch.allclose(gates.float(), wanted, rtol=1e-5)
    (slopes,) = torch.autograd.grad(gates.square().sum(), router.weight)
    assert (slopes.abs().sum(-1) > 0).all()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("model", ["mixtral", "deepseek_v3"])
def test_checkpoints_of_transformers_replay_the_same(model, reentrant):
    plain, x = patched(model).train(), tokens()
    with nn.record_routing(plain) as record:
        plain(x)
    told = others(record.indices)
    told[::7] = -1
    with nn.replay_routing(plain, told):
        wanted = gradients(plain, plain(x, labels=x).loss)
    net = patched(model).train()
    net.activation_checkpointing_enable(dict(use_reentrant=reentrant))
    with nn.replay_routing(net, torch.cat([record.indices, told])):
        net(x)
        found = gradients(net, net(x, labels=x).loss)
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_a_correction_bias_learns_nothing_from_what_is_replayed():
    net, x = patched("deepseek_v3", options=dict(balance="quantile")).train(), tokens()
    with nn.record_routing(net) as record:
        net.eval()(x)
    with nn.replay_routing(net.train(), record.indices):
        net(x)
    nn.step_routers(net)
    for each in routers(net):
        assert not each.e_score_correction_bias.any()
        found = each.routing.statistics()
        assert found["assignments"] == 0
        assert found["replayed_assignments"] == 2 * x.numel()


def test_answers_of_an_engine_go_to_a_padded_batch():
    net, x = patched("qwen3_moe").eval(), tokens()
    mask = torch.ones_like(x, dtype=torch.bool)
    mask[0, :3] = False
    with nn.record_routing(net) as record:
        net(x, attention_mask=mask.long())
    answers = [each[:-1].numpy() for each in record.sequences(mask)]
    with nn.replay_routing(net, answers, mask), nn.record_routing(net) as again:
        net(x, attention_mask=mask.long())
    assert torch.equal(again.indices[mask.flatten()], record.indices[mask.flatten()])
